// ejk check: random problems against float64 until the time is over, or one problem again; and the reliability table.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/timer.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/gradient_check.h"
#include "ejkernel/testing/operations.h"
#include "tools/ejk/call_flags.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;
using testing::Answer;
using testing::Kernel;
using testing::Problem;
using testing::TestOperation;
using testing::Verdict;

constexpr size_t kMaxFailures = 10;                    // more would say the same
constexpr std::string_view kReplay = "  reproduce: ";  // begins a line of a report that ends with the command

struct Flags {
  std::string operation, kernel, case_name, seed, dtype, size;
  Device device = {};
  uint64_t from = 1;
  double seconds = 10;
  std::vector<std::string> config;
  std::string relation;
  bool exact = false, hostile = false, differentiable = false, dense = false, json = false, table = false,
       cases = false;
};

/// What one kernel of one operation has been through.
struct Tally {
  int64_t problems = 0, declined = 0, failures = 0, vacuous = 0;
  std::vector<double> ratios = {};  ///< r of the error rule, one per output
};

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

class Checker {
 public:
  explicit Checker(const Flags& flags) : flags_(flags) {
    device_properties(flags.device);  // refuses one that is not here
    for (const TestOperation* tests : testing::test_operations())
      if (flags.operation.empty() || tests->name() == flags.operation) operations_.push_back(tests);
    if (operations_.empty()) testing::find_test_operation(flags.operation);  // says which are known
    require_kernel();
    if (!flags.config.empty()) config_ = parse_config(flags.config);
  }

  int run() {
    if (!flags_.case_name.empty() || !flags_.seed.empty() || !flags_.relation.empty() || flags_.exact) {
      replay();
    } else {
      random_problems();
    }
    progress_.clear();
    report();
    return failures_.empty() ? kOk : kFailed;
  }

 private:
  /// A kernel that no operation has would pass by never running.
  void require_kernel() const {
    if (flags_.kernel.empty()) return;
    std::vector<std::string> known;
    for (const TestOperation* tests : operations_)
      for (const Kernel& kernel : kernels_of(*tests)) {
        if (kernel->name == flags_.kernel) return;
        if (std::find(known.begin(), known.end(), kernel->name) == known.end()) known.push_back(kernel->name);
      }
    throw_invalid("ejk", "--kernel", "be one that runs here", fmt::format("'{}'", flags_.kernel),
                  fmt::format("there are {}", fmt::join(known, ", ")));
  }

  std::vector<Kernel> kernels_of(const TestOperation& tests) const {
    return testing::kernels_of(*tests.declaration, flags_.device);
  }

  const TestOperation& only_operation() const {
    if (operations_.size() != 1)
      throw_invalid("ejk", "the operation", "be named with --case and --seed", "none",
                    "for example ejk check flash_attention --seed=1");
    return *operations_.front();
  }

  testing::RandomRequest request(uint64_t seed) const {
    testing::RandomRequest r{
        .seed = seed, .hostile = flags_.hostile, .differentiable = flags_.differentiable, .dense = flags_.dense};
    if (!flags_.size.empty()) {
      for (const testing::Size size : {testing::Size::tiny, testing::Size::small, testing::Size::normal})
        if (flags_.size == testing::name(size)) return with_dtype(r, size);
      throw_invalid("ejk", "--size", "be tiny, small or normal", fmt::format("'{}'", flags_.size), "see --help");
    }
    return with_dtype(r, r.size);
  }

  testing::RandomRequest with_dtype(testing::RandomRequest r, testing::Size size) const {
    r.size = size;
    if (flags_.dtype.empty()) return r;
    r.dtype = parse_dtype(flags_.dtype);
    if (!r.dtype)
      throw_invalid("ejk", "--dtype", "be the name of a dtype", fmt::format("'{}'", flags_.dtype), "for example bf16");
    return r;
  }

  void replay() {
    const TestOperation& tests = only_operation();
    if (!flags_.relation.empty()) return check_relation(tests);
    if (flags_.exact) return check_exact(tests);
    if (flags_.case_name.empty()) {
      const testing::RandomRequest r = request(seed_given());
      check(tests, tests.random(r), /*slow_ones_too=*/true);
      if (flags_.differentiable) check_differences(tests, r);
      return;
    }
    std::vector<std::string> names;
    for (const testing::Case& c : tests.cases) {
      names.push_back(c.name);
      if (c.name != flags_.case_name) continue;
      Problem problem = c.make();
      if (!flags_.seed.empty()) problem.seed = seed_given();  // the config and layouts it runs with
      return check(tests, problem, /*slow_ones_too=*/!flags_.kernel.empty());
    }
    const std::string near = nearest(flags_.case_name, names);
    throw_invalid(tests.name(), "--case", "name one of its problems", fmt::format("'{}'", flags_.case_name),
                  near.empty() ? fmt::format("ejk check {} --cases lists them", tests.name())
                               : fmt::format("did you mean {}?", near));
  }

  /// Turns: every operation gets a random problem and an edge case before any gets the next, and all get the first:
  /// nothing passes by not running.
  void random_problems() {
    std::vector<std::vector<const testing::Case*>> edges(operations_.size());
    for (size_t i = 0; i < operations_.size(); ++i)
      for (const testing::Case& c : operations_[i]->cases)
        if ((c.tags & testing::kEdge) != 0) edges[i].push_back(&c);
    for (size_t n = 0; n == 0 || !is_over(); ++n)
      for (size_t i = 0; i < operations_.size() && (n == 0 || !is_over()); ++i) {
        if (n < edges[i].size()) check(*operations_[i], edges[i][n]->make());
        check(*operations_[i], operations_[i]->random(request(flags_.from + n)));
      }
  }

  bool is_over() const { return failures_.size() >= kMaxFailures || now_seconds() - began_ > flags_.seconds; }

  void check(const TestOperation& tests, const Problem& problem, bool slow_ones_too = false) {
    progress_.show(
        fmt::format("{} {} problems, {} failures, {}", tests.name(), num_problems_, failures_.size(), problem.label));
    check(tests, problem, tests.oracle(problem, testing::kTestBudget), slow_ones_too);
  }

  void check(const TestOperation& tests, const Problem& problem, const Answer& answer, bool slow_ones_too) {
    ++num_problems_;
    for (const Kernel& kernel : kernels_of(tests)) {
      if (!flags_.kernel.empty() && kernel->name != flags_.kernel) continue;
      if (testing::is_too_slow(problem, kernel) && !slow_ones_too) continue;
      add(tests, problem, kernel,
          testing::check_kernel(problem, answer, kernel,
                                {.seed = problem.seed, .device = flags_.device, .config = config_}));
    }
  }

  void add(const TestOperation& tests, const Problem& problem, const Kernel& kernel, const Verdict& verdict) {
    Tally& tally = tallies_[{std::string(tests.name()), kernel->name}];
    tally.problems += verdict.supported;
    tally.declined += !verdict.supported;
    tally.vacuous += verdict.vacuous;
    if (!verdict.supported) declined_ = fmt::format("{} declines: {}", kernel->name, verdict.declined);
    for (const testing::OutputVerdict& output : verdict.outputs) tally.ratios.push_back(output.ratio);
    if (verdict.failures.empty()) return;
    ++tally.failures;
    std::string text = testing::report(problem, kernel, verdict);
    for (size_t at = text.find(kReplay); config_ && at != std::string::npos; at = text.find(kReplay, at))
      text.insert(at = text.find('\n', at), fmt::format(" --config={}", fmt::join(flags_.config, " --config=")));
    fail(text);
  }

  /// Exact integer mode (reliability A6.5): bit for bit.
  void check_exact(const TestOperation& tests) {
    if (tests.exact == nullptr)
      throw_invalid(tests.name(), "--exact", "be for an operation with exact problems", "one without", "leave it out");
    const testing::ExactProblem exact = tests.exact(seed_given());
    check(tests, exact.problem, exact.answer, /*slow_ones_too=*/true);
  }

  /// What must hold between calls of one kernel. Blanks in a relation's name may be given as underscores.
  void check_relation(const TestOperation& tests) {
    std::vector<std::string> names;
    for (const testing::Relation& relation : tests.relations) {
      std::string word(relation.name);
      std::replace(word.begin(), word.end(), ' ', '_');
      names.push_back(word);
      if (flags_.relation != word && flags_.relation != relation.name) continue;
      ++num_problems_;
      for (const Kernel& kernel : kernels_of(tests))
        if (flags_.kernel.empty() || kernel->name == flags_.kernel) add(tests, relation, word, kernel);
      return;
    }
    const std::string near = nearest(flags_.relation, names);
    throw_invalid(tests.name(), "--relation", fmt::format("be one of {}", fmt::join(names, ", ")),
                  fmt::format("'{}'", flags_.relation),
                  near.empty() ? "see --help" : fmt::format("did you mean {}?", near));
  }

  void add(const TestOperation& tests, const testing::Relation& relation, const std::string& word,
           const Kernel& kernel) {
    const testing::RandomRequest r = request(seed_given());
    Tally& tally = tallies_[{std::string(tests.name()), kernel->name}];
    std::string wrong;
    try {
      wrong = relation.check(r.seed, r.size, testing::KernelRunner(kernel, flags_.device));
    } catch (const testing::RelationSkipped& skipped) {
      ++tally.declined;
      declined_ = fmt::format("{} declines: {}", kernel->name, skipped.reason);
      return;
    } catch (const testing::RelationBroken& broken) {
      wrong = broken.what;
    }
    ++tally.problems;
    if (wrong.empty()) return;
    ++tally.failures;
    fail(fmt::format("{} {}: {}: {}\n  reproduce: ejk check {} {} --relation={} --seed={} --size={}\n", tests.name(),
                     kernel->name, relation.name, wrong, tests.name(), testing::kernel_flags(*kernel), word, r.seed,
                     testing::name(r.size)));
  }

  /// The reference's gradient against central differences, which take numbers of 64 bits.
  void check_differences(const TestOperation& tests, testing::RandomRequest r) {
    const Operation& op = *tests.declaration;
    if (op.gradient.empty() || flags_.device.kind != DeviceKind::cpu) return;  // they are about the host's reference
    r.dtype = DType::f64;
    const Problem forward = tests.random(r);
    const auto gradient_kernels = testing::kernels_of(*testing::find_test_operation(op.gradient).declaration);
    const testing::GradientCheck result =
        testing::check_gradient(forward, testing::kernels_of(op).back(), gradient_kernels.back(), r.seed);
    Tally& tally = tallies_[{std::string(op.gradient), gradient_kernels.back()->name}];
    ++tally.problems;
    tally.failures += !result.failure.empty();
    if (!result.failure.empty())
      fail(fmt::format("{}: {}\n  problem: {}\n  reproduce: ejk check {} {}\n", op.gradient, result.failure,
                       forward.label, op.name, forward.replay));
  }

  void fail(const std::string& text) {
    failures_.push_back(text);
    if (flags_.json) return;
    progress_.clear();
    fmt::print("{} {}", coloured("FAILED", Colour::red), text);
  }

  uint64_t seed_given() const {
    const std::string& text = flags_.seed;
    char* end = nullptr;
    const uint64_t seed = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || text.front() == '-')
      throw_invalid("ejk", "--seed", "be a number", fmt::format("'{}'", text),
                    "write it in digits; --exact and --relation need one");
    return seed;
  }

  void report() {
    const double seconds = now_seconds() - began_;
    Json rows = Json::array();
    for (auto& [key, tally] : tallies_)
      rows.push_back({{"operation", key.first},
                      {"kernel", key.second},
                      {"problems", tally.problems},
                      {"declined", tally.declined},
                      {"failures", tally.failures},
                      {"vacuous", tally.vacuous},
                      {"r_p50", quantile(tally.ratios, 0.5)},
                      {"r_p99", quantile(tally.ratios, 0.99)},
                      {"r_max", quantile(tally.ratios, 1)}});
    if (flags_.json) {
      fmt::print("{}\n", Json{{"seconds", seconds}, {"kernels", rows}, {"failures", failures_}}.dump(2));
      return;
    }
    Table table("llrrrrrr", " | ");
    table.add({"operation", "kernel", "problems", "declined", "failures", "r p50", "r p99", "r max"});
    for (const Json& row : rows)
      table.add({row["operation"], row["kernel"], row["problems"].dump(), row["declined"].dump(),
                 row["failures"].dump(), fmt::format("{:.3f}", row["r_p50"].get<double>()),
                 fmt::format("{:.3f}", row["r_p99"].get<double>()), fmt::format("{:.3f}", row["r_max"].get<double>())});
    fmt::print("{}", table.text());
    if (num_problems_ == 1 && !declined_.empty()) fmt::print("{}\n", declined_);
    fmt::print("\n{} in {}; r is the error over what the error rule allows\n",
               failures_.empty() ? coloured("no failures", Colour::green)
                                 : coloured(fmt::format("{} failures", failures_.size()), Colour::red),
               duration(seconds));
  }

  const Flags& flags_;
  std::optional<ConfigValues> config_;  ///< absent: another candidate of the kernel for each problem
  std::vector<const TestOperation*> operations_;
  double began_ = now_seconds();
  std::map<std::pair<std::string, std::string>, Tally> tallies_;
  std::vector<std::string> failures_;
  std::string declined_;  ///< the last refusal
  int64_t num_problems_ = 0;
  Progress progress_;
};

/// An option that another one leaves without effect is a mistake, not a detail.
void refuse_contradictions(const Flags& flags) {
  const auto refuse = [](std::string_view option, std::string_view expected, std::string_view got) {
    throw_invalid("ejk", option, expected, got, "leave one of them out");
  };
  const bool one_problem = !flags.case_name.empty() || flags.exact || !flags.relation.empty();
  const bool random_only = !flags.dtype.empty() || flags.hostile || flags.differentiable || flags.dense;
  const bool anything = one_problem || random_only || !flags.seed.empty() || !flags.kernel.empty() ||
                        !flags.size.empty() || !flags.config.empty() || flags.device != Device{};
  if (flags.table && (anything || flags.cases || !flags.operation.empty()))
    refuse("--table", "stand alone or with --json", "other options");
  if (flags.cases && anything) refuse("--cases", "stand alone or with an operation", "other options");
  if (static_cast<int>(!flags.case_name.empty()) + flags.exact + !flags.relation.empty() > 1)
    refuse("--case, --exact and --relation", "not be given together", "more than one of them");
  if (one_problem && random_only)
    refuse("--dtype, --hostile, --differentiable and --dense", "be for random problems",
           "--case, --exact or --relation as well");
  if (!flags.config.empty() && !flags.relation.empty())
    refuse("--config and --relation", "not be given together", "both");
  if (!flags.config.empty() && (flags.kernel.empty() || flags.operation.empty()))
    throw_invalid("ejk", "--config", "come with an operation and --kernel", "less",
                  "for example ejk check flash_attention --kernel cpu --config block_q=64");
  const Flags usual;
  if ((one_problem || !flags.seed.empty() || flags.table || flags.cases) &&
      (flags.from != usual.from || flags.seconds != usual.seconds))
    refuse("--from and --seconds", "be for random problems", "one problem, --table or --cases as well");
  if ((flags.exact || !flags.case_name.empty()) && !flags.size.empty())
    refuse("--size", "be for random problems and relations", "--case or --exact as well");
}

/// Named problems, for --case; those that random checks take their edge cases from, and the models' shapes, by tag.
int print_cases(const Flags& flags) {
  Json json = Json::array();
  if (!flags.operation.empty()) testing::find_test_operation(flags.operation);  // known, or says which are
  for (const TestOperation* tests : testing::test_operations()) {
    if (!flags.operation.empty() && tests->name() != flags.operation) continue;
    for (const testing::Case& c : tests->cases) {
      const char* kind = (c.tags & testing::kPrimary) != 0 ? "primary" : (c.tags & testing::kEdge) != 0 ? "edge" : "";
      json.push_back({{"operation", tests->name()}, {"case", c.name}, {"kind", kind}});
    }
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
    return kOk;
  }
  Table table("lll");
  for (const Json& row : json) table.add({row["operation"], row["case"], row["kind"]});
  fmt::print("{}", table.text());
  return kOk;
}

}  // namespace

Action declare_check(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.positional("OP", flags->operation, "the operation (default: all)")
      .seconds(flags->seconds, "stop then (default: 10)")
      .value("kernel", flags->kernel, "NAME", "only this kernel")
      .values("config", flags->config, "FIELD=VALUE", "with --kernel: a value of its config (repeat for more)");
  declare_device(options, flags->device);
  options.value("from", flags->from, "N", "the first seed (default: 1)")
      .flag("json", flags->json, "print JSON")
      .flag("table", flags->table, "check nothing; print the reliability table of this source tree")
      .flag("cases", flags->cases, "check nothing; list the named problems");
  options.group("One problem")
      .value("case", flags->case_name, "NAME", "this named problem (with --seed: its configs and layouts)")
      .value("seed", flags->seed, "N", "the random problem of this seed")
      .flag("exact", flags->exact, "with --seed: the problem whose answer is exact, bit for bit")
      .value("relation", flags->relation, "NAME", "with --seed: what must hold between calls of one kernel");
  options.group("Random problems")
      .value("dtype", flags->dtype, "DTYPE", "of the main inputs (default: any)")
      .value("size", flags->size, "tiny|small|normal", "how large (default: normal)")
      .flag("hostile", flags->hostile, "with index contents that no caller should pass")
      .flag("differentiable", flags->differentiable,
            "only what has a gradient; with --seed, finite differences in f64 as well")
      .flag("dense", flags->dense, "only what kernels for matrix units are made for, and larger");
  return [flags] {
    refuse_contradictions(*flags);
    if (flags->table) return print_reliability_table(flags->json);
    return flags->cases ? print_cases(*flags) : Checker(*flags).run();
  };
}

}  // namespace ejk::tool
