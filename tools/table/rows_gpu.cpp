// T-01, T-02-cuda, T-03-cuda, T-11 to T-13, T-16-cuda, T-20-cuda, T-25 and T-27: kernels of a GPU, on one.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/device_runs.h"
#include "ejkernel/testing/gradient_check.h"
#include "ejkernel/testing/process.h"
#include "ejkernel/testing/temporary_folder.h"
#include "ejkernel/testing/watchdog.h"
#include "tools/table/kernel_trials.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr double kBudget = 2e6;  // multiply-adds of one answer

struct KernelOf {
  const TestOperation* tests;
  Kernel kernel;
  std::string name() const { return fmt::format("{} {}", tests->name(), kernel->name); }
  bool is_reference() const { return kernel->name == kDeviceReference; }
};
std::vector<KernelOf> every_kernel() {
  std::vector<KernelOf> all;
  for (const TestOperation* tests : operations_on(kGpu))
    for (const Kernel& kernel : kernels_of(*tests->declaration, kGpu)) all.push_back({tests, kernel});
  if (all.empty())
    throw_invalid("table", "the library", "have a kernel for a GPU", "none", "register one, and produce the row then");
  return all;
}

/// Those that are no references: what is drawn for a row is mostly theirs.
int64_t num_fast(const std::vector<KernelOf>& all) {
  return std::max<int64_t>(1,
                           std::count_if(all.begin(), all.end(), [](const auto& one) { return !one.is_reference(); }));
}
struct Drawn {
  KernelOf of;
  std::vector<Configuration> configurations;
};
/// So many for each kernel that is no reference, of problems that keep every multiprocessor busy; a few for a
/// reference. It takes the host a while: a watchdog begins afterwards.
std::vector<Drawn> draw(int64_t fast, int64_t references, uint64_t seed) {
  std::vector<Drawn> all;
  for (const KernelOf& one : every_kernel())
    all.push_back(
        {one, configurations(*one.tests, one.kernel, kGpu, static_cast<size_t>(one.is_reference() ? references : fast),
                             seed, one.is_reference() ? Size::small : Size::normal)});
  return all;
}

std::vector<const TestOperation*> operations_that_are(bool gradients) {
  std::vector<const TestOperation*> chosen;
  for (const TestOperation* tests : operations_on(kGpu))
    if (is_gradient(*tests) == gradients) chosen.push_back(tests);
  return chosen;
}

Kernel find_kernel(const TestOperation& tests, Device device, std::string_view name) {
  for (const Kernel& kernel : kernels_of(*tests.declaration, device))
    if (kernel->name == name) return kernel;
  return nullptr;
}

/// |a - b| over the largest finite |b|, or over what its sums are made of where these cancel; infinite where NaN or
/// infinities differ.
double relative_difference(const Tensor& a, const Tensor& b, const Expected& expected) {
  double largest = 0, scale = 0;
  for (const double s : expected.spread) scale = std::max(scale, s);
  for (int64_t n = 0; n < b.num_elements(); ++n) {
    const double x = get(a, n), y = get(b, n);
    if (std::isfinite(x) && std::isfinite(y))
      largest = std::max(largest, std::abs(x - y)), scale = std::max(scale, std::abs(y));
    else if (!(x == y || (std::isnan(x) && std::isnan(y))))
      return INFINITY;
  }
  return largest == 0 ? 0 : largest / scale;
}

/// Dense problems, which the fast kernels are made for, in turn with others.
RowResult accuracy(const RowRequest& request, bool gradients) {
  const std::vector<const TestOperation*> all = operations_that_are(gradients);
  Tally tally;
  KernelTrials trials(all, kGpu, tally);
  count_trials(request.n, tally, [&](int64_t i) {
    const TestOperation& tests = *all[static_cast<size_t>(i) % all.size()];
    const bool dense = static_cast<size_t>(i) / all.size() % 2 == 0;
    const Problem problem =
        tests.random({.seed = request.seed * 1000003 + static_cast<uint64_t>(i), .size = Size::small, .dense = dense});
    trials.judge(tests, problem, tests.oracle(problem, kBudget));
  });
  return trials.result(request.n / 100);
}

/// Errors that the tool's last lines count: "ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed …".
int64_t errors_in(const std::string& output) {
  std::smatch match;
  return std::regex_search(output, match, std::regex("SUMMARY: (\\d+) (?:errors?|hazards?)")) ? std::stoll(match[1])
                                                                                              : -1;
}

/// Instructions of the kernels whose code is below a store's root, by lowered name and place: "UBLKCP [UR8], [UR6],
/// UR4".
class Disassembly {
 public:
  explicit Disassembly(const std::string& root) : store_(root) {}

  std::string at(const std::string& kernel, uint64_t place) {
    if (kernels_.empty()) read();
    const auto found = kernels_[kernel].find(place);
    return found == kernels_[kernel].end() ? "" : found->second;
  }

 private:
  void read() {
    const TemporaryFolder folder(Medium::memory);
    store_.for_each([&](const StoredRecord& stored) {
      const std::optional<cuda::Compiled> code = cuda::cubin_of(stored.record);
      if (!code || code->lowered_name.empty()) return;
      const std::string file = folder / "code.cubin";
      std::ofstream(file, std::ios::binary)
          .write(reinterpret_cast<const char*>(code->cubin.data()), static_cast<std::streamsize>(code->cubin.size()));
      const std::string text = run_process({"nvdisasm", "--print-code", file}).out;
      const std::regex line(R"(/\*([0-9a-f]+)\*/\s+(?:@!?U?P\d+\s+)?([^;]+?)\s*;)");
      for (std::sregex_iterator match(text.begin(), text.end(), line); match != std::sregex_iterator(); ++match)
        kernels_[code->lowered_name][std::stoull((*match)[1], nullptr, 16)] = (*match)[2];
    });
  }

  Store store_;
  std::map<std::string, std::map<uint64_t, std::string>> kernels_;
};

/// Races that the tool reports and that are none; each has its proof.
struct Suppression {
  std::string_view kernel, writer, reader;  ///< part of the kernel's name; what the instructions begin with
};
constexpr Suppression kSuppressions[] = {
    // docs/kernels/flash_attention_backward_sm90.md, "What racecheck reports": lse and delta, copied behind an
    // mbarrier.
    {"flash_attention_backward", "UBLKCP", "LDS"},
};

/// How many of racecheck's reports are between a writer and readers that a suppression names. A report is a line for an
/// access, and one for each access that it races with.
int64_t suppressed_in(const std::string& output, Disassembly& code) {
  const std::regex report(
      R"(Race reported between (\w+) access at (\S+?)\+0x([0-9a-f]+).*\n((?:=+ +and \w+ access at .*\n)+))");
  const std::regex other(R"(and (\w+) access at (\S+?)\+0x([0-9a-f]+))");
  const auto instruction = [&](const std::smatch& access) {
    return std::string(access[1] == "Write" ? "write " : "read ") +
           code.at(access[2], std::stoull(access[3], nullptr, 16));
  };
  int64_t count = 0;
  for (std::sregex_iterator match(output.begin(), output.end(), report); match != std::sregex_iterator(); ++match) {
    std::vector<std::string> accesses = {instruction(*match)};
    const std::string others = (*match)[4];
    for (std::sregex_iterator next(others.begin(), others.end(), other); next != std::sregex_iterator(); ++next)
      accesses.push_back(instruction(*next));
    count += std::ranges::any_of(kSuppressions, [&](const Suppression& known) {
      const std::string write = fmt::format("write {}", known.writer), read = fmt::format("read {}", known.reader);
      return (*match)[2].str().find(known.kernel) != std::string::npos && accesses.front().starts_with(write) &&
             std::all_of(accesses.begin() + 1, accesses.end(),
                         [&](const std::string& access) { return access.starts_with(read); });
    });
  }
  return count;
}

/// This program's `sanitized` under each tool, n runs altogether; each kernel must have had some under each.
RowResult under_sanitizer(const RowRequest& request, const std::vector<std::string>& tools) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  RowResult result;
  for (const std::string& tool : tools) {
    const TemporaryFolder folder;
    const int64_t wanted = request.n / static_cast<int64_t>(tools.size());
    const ProcessResult run =
        run_process({"compute-sanitizer", "--tool", tool, "--demangle", "no", "--print-limit", "0", program,
                     "sanitized", std::to_string(request.seed), std::to_string(wanted)},
                    {"EJKERNEL_CACHE_DIR=" + folder.path().string()});
    std::map<std::string, int64_t> runs;
    const std::regex line("(\\w+ \\w+): (\\d+) runs\n");
    for (std::sregex_iterator match(run.out.begin(), run.out.end(), line); match != std::sregex_iterator(); ++match)
      runs[(*match)[1]] = std::stoll((*match)[2]);
    for (const KernelOf& one : every_kernel()) {
      result.n += runs[one.name()];
      result.figures[fmt::format("{}: runs of {}", tool, one.name())] = static_cast<double>(runs[one.name()]);
      if (runs[one.name()] > 0) continue;
      ++result.failures;
      result.notes.push_back(fmt::format("{}: {} did not run", tool, one.name()));
    }
    const std::string output = run.out + run.err;
    const int64_t errors = errors_in(output);
    int64_t suppressed = 0;
    if (tool == "racecheck") {
      Disassembly code(folder.path().string());
      suppressed = suppressed_in(output, code);
      result.figures["suppressed_reports"] = static_cast<double>(suppressed);
      result.figures["suppressions"] = static_cast<double>(std::size(kSuppressions));
    }
    if (errors == suppressed && run.exit_code == 0) continue;
    result.failures += std::max<int64_t>(errors - suppressed, 1);
    result.notes.push_back(fmt::format("{}: {}", tool, output.substr(0, 4000)));
  }
  return result;
}

/// A problem for each variant of the kernels for matrix units. Each has several blocks of queries and of keys, so that
/// rings of stages wrap. The forward's are more tiles of 256 rows than there are multiprocessors, so that some blocks
/// compute two; the gradient's blocks compute one each, and a few are enough.
std::vector<Problem> dense_problems() {
  std::vector<Problem> problems;
  for (const int64_t head_dim : {64, 128, 256})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool causal : {false, true}) {
        AttentionCase one = {.dtype = dtype,
                             .batch = device_properties(kGpu).num_units / 3,
                             .q_len = 260,
                             .kv_len = 330,
                             .num_q_heads = 2,
                             .head_dim = head_dim,
                             .params = {.causal = causal},
                             .poison = false,
                             .seed = problems.size() + 1};
        problems.push_back(make_attention_problem(one));
        one.batch = 1;
        for (const bool deterministic : {false, true}) {
          one.params.deterministic = deterministic;
          problems.push_back(gradient_problem(make_attention_problem(one), one.seed, /*random_layouts=*/false));
        }
      }
  return problems;
}

/// For each of these problems and each kernel that is no reference, all its candidates.
std::vector<std::vector<Configuration>> dense_configurations() {
  std::vector<std::vector<Configuration>> all;
  for (const Problem& problem : dense_problems())
    for (const Kernel& kernel : kernels_of(*problem.operation, kGpu))
      if (kernel->name != kDeviceReference && supports(problem, kernel, kGpu).ok)
        all.push_back(candidates_for(problem, kernel, kGpu));
  return all;
}

}  // namespace

RowResult reference_trust(const RowRequest& request) {
  Tally tally;
  std::atomic<double> worst = 0;
  const std::vector<const TestOperation*> all = operations_on(kGpu);
  for_each_trial(request.n, tally, [&](int64_t i) {
    const TestOperation& tests = *all[static_cast<size_t>(i) % all.size()];
    const Kernel host = kernels_of(*tests.declaration).back(), gpu = find_kernel(tests, kGpu, kDeviceReference);
    if (gpu == nullptr) return tally.add(fmt::format("{} has no reference on the GPU", tests.name()));
    const uint64_t seed = request.seed * 1000003 + static_cast<uint64_t>(i);
    const Problem problem = tests.random({.seed = seed, .size = Size::small, .dtype = DType::f64});
    const Answer answer = tests.oracle(problem, kBudget);
    const Outcome right = run_guarded(problem, host, {.seed = seed, .plain = true});
    const Outcome got = run_guarded(problem, gpu, {.seed = seed, .device = kGpu, .plain = true});
    std::string wrong = got.supported ? "" : got.declined;
    if (got.status != right.status) wrong = fmt::format("status {}, not {}", got.status, right.status);
    for (size_t o = 0; o < got.outputs.size() && wrong.empty(); ++o) {
      if (!got.outputs[o].present()) continue;
      const double difference = relative_difference(got.outputs[o], right.outputs[o], answer.outputs[o]);
      for (double before = worst; difference > before && !worst.compare_exchange_weak(before, difference);) continue;
      if (!(difference <= 1e-12))
        wrong = fmt::format("{}: {:.2e} apart", problem.operation->outputs[o].name, difference);
    }
    tally.add(wrong.empty() ? "" : fmt::format("{}: {}; {}", problem.label, wrong, replay_command(problem, *gpu)));
  });
  RowResult result = tally.result();
  result.figures["largest_relative_difference"] = worst;
  result.notes.push_back(
      "The third voice is JAX in float64 on the CPU: tests/python/test_xla*.py hold kernels written in it to 1e-12 of "
      "the "
      "reference, in every run of the tests.");
  return result;
}

RowResult forward_accuracy_on_gpu(const RowRequest& request) { return accuracy(request, false); }
RowResult backward_accuracy_on_gpu(const RowRequest& request) { return accuracy(request, true); }

RowResult memcheck(const RowRequest& request) { return under_sanitizer(request, {"memcheck"}); }
RowResult initcheck_and_synccheck(const RowRequest& request) {
  return under_sanitizer(request, {"initcheck", "synccheck"});
}
RowResult racecheck(const RowRequest& request) { return under_sanitizer(request, {"racecheck"}); }

/// The tools slow a kernel down a hundred times. In a round, a candidate of every dense problem, another in each round,
/// and a random problem of a few tiles for every kernel. Throws on a stray write.
std::string runs_under_sanitizer(uint64_t seed, int64_t n) {
  const std::vector<KernelOf> all = every_kernel();
  const std::vector<std::vector<Configuration>> dense = dense_configurations();
  std::map<std::string, int64_t> runs;
  int64_t count = 0;
  const auto run = [&](const Configuration& one) {
    const uint64_t layouts = seed + static_cast<uint64_t>(count);  // other ones in every run
    const Outcome outcome =
        run_guarded(one.problem, one.kernel, {.seed = layouts, .device = kGpu, .config = one.config});
    if (!outcome.faults.empty()) throw Internal(fmt::format("{}: {}", one.text(), outcome.faults.front()));
    runs[fmt::format("{} {}", one.problem.operation->name, one.kernel->name)] += outcome.supported;
    count += outcome.supported;
  };
  for (size_t round = 0; count < n; ++round) {
    std::vector<Configuration> some;
    for (size_t i = 0; i < dense.size(); ++i)
      if (round < dense[i].size()) some.push_back(dense[i][(i + round) % dense[i].size()]);
    compile_all(some, kGpu);
    for (const Configuration& one : some) run(one);
    for (const KernelOf& one : all)
      run({one.tests->random({.seed = seed * 1000003 + round, .size = Size::tiny, .dense = round % 2 == 0}),
           one.kernel});
  }
  std::string text;
  for (const auto& [name, times] : runs) text += fmt::format("{}: {} runs\n", name, times);
  return text;
}

RowResult far_tensors_on_gpu(const RowRequest& request) {
  Tally tally;
  const std::vector<KernelOf> all = every_kernel();
  const auto each = static_cast<size_t>(request.n / static_cast<int64_t>(all.size()) + 1);
  for (const KernelOf& one : all) {
    int64_t far = 0;
    for (const Configuration& configuration : configurations(*one.tests, one.kernel, kGpu, each, request.seed))
      for (const int64_t top : {(int64_t{1} << 31) - 4096, (int64_t{1} << 31) + 4096, (int64_t{1} << 32) + 4096})
        if (const std::optional<std::string> wrong = far_call(configuration, kGpu, top)) {
          tally.add(*wrong);
          ++far;
        }
    if (far == 0) tally.add(fmt::format("{} {}: no call of it was far", one.tests->name(), one.kernel->name));
  }
  return tally.result();
}

/// Several configurations at once, in threads of their own, which disturb each other besides.
RowResult bit_equal_reruns_on_gpu(const RowRequest& request) {
  constexpr int64_t kReruns = 1000, kPart = 100;
  Tally tally;
  std::atomic<int64_t> unequal = 0;
  std::map<std::string, double> per_kernel;
  const std::vector<Drawn> all = draw(request.n / num_fast(every_kernel()) + 1, 1, request.seed);
  Watchdog watchdog(60);
  for (const Drawn& drawn : all) {
    const KernelOf& one = drawn.of;
    const std::vector<Configuration>& some = drawn.configurations;
    per_kernel["configurations of " + one.name()] = static_cast<double>(some.size());
    if (some.empty()) {
      tally.add(one.name() + ": no problem was one for it");
      continue;
    }
    const OtherWork other(some.back(), kGpu);
    for_each_trial(static_cast<int64_t>(some.size()), tally, [&](int64_t i) {
      const Configuration& configuration = some[static_cast<size_t>(i)];
      int64_t different = 0;
      for (int64_t n = 0; n < kReruns; n += kPart) {
        watchdog.hear(configuration.text());
        different += unequal_reruns(configuration, kGpu, kPart);
      }
      unequal += different;
      tally.add(different == 0 ? ""
                               : fmt::format("{}: {} of {} reruns differ", configuration.text(), different, kReruns));
    });
  }
  RowResult result = tally.result();
  result.figures.merge(per_kernel);
  result.figures["reruns_per_configuration"] = kReruns;
  result.figures["unequal_reruns"] = static_cast<double>(unequal);
  return result;
}

/// Many launches of few configurations: what hangs does so by the order in which blocks happen to run. Some of every
/// kernel first; then, in turn, of those configurations in which a block has more than one tile to compute.
RowResult hang_watchdog(const RowRequest& request) {
  constexpr int64_t kLaunches = 100;
  Tally tally;
  const std::vector<Drawn> all = draw(request.n / 2000 + 1, 2, request.seed);
  Watchdog watchdog;
  const cuda::Stream stream(kGpu);
  std::map<std::string, double> per_kernel;
  int64_t launches = 0, busy_launches = 0;
  const auto launch = [&](const Configuration& configuration, const std::string& name) {
    watchdog.hear(configuration.text());
    const Resident resident(configuration.problem, configuration.kernel, kGpu, configuration.config);
    for (int64_t n = 0; n < kLaunches; ++n) resident.run(stream);
    stream.synchronize();
    for (int64_t n = 0; n < kLaunches; ++n) tally.add("");
    per_kernel["launches of " + name] += kLaunches;
    launches += kLaunches;
  };
  std::vector<std::pair<Configuration, std::string>> busy;
  for (const auto& [one, some] : all)
    for (const Configuration& configuration : some) {
      launch(configuration, one.name());
      if (configuration.tasks > device_properties(kGpu).num_units) busy.emplace_back(configuration, one.name());
    }
  if (busy.empty()) tally.add("no configuration had more tiles than the GPU has multiprocessors");
  for (size_t i = 0; launches < request.n && !busy.empty(); ++i) {
    const auto& [configuration, name] = busy[i % busy.size()];
    launch(configuration, name);
    busy_launches += kLaunches;
  }
  RowResult result = tally.result();
  result.figures.merge(per_kernel);
  result.figures["busy_configurations"] = static_cast<double>(busy.size());
  result.figures["further_launches_of_busy_ones"] = static_cast<double>(busy_launches);
  return result;
}

/// As many replays of every kernel that is no reference as are asked for, in 20 configurations; a tenth of a reference.
RowResult graph_replays(const RowRequest& request) {
  constexpr int64_t kConfigurations = 20;
  Tally tally;
  std::map<std::string, double> per_kernel;
  const int64_t each = request.n / kConfigurations + 1;
  for (const Drawn& drawn : draw(kConfigurations, kConfigurations / 10, request.seed)) {
    const KernelOf& one = drawn.of;
    const std::vector<Configuration>& some = drawn.configurations;
    if (some.empty()) tally.add(one.name() + ": no problem was one for it");
    per_kernel["configurations of " + one.name()] = static_cast<double>(some.size());
    per_kernel["replays of " + one.name()] = static_cast<double>(each) * static_cast<double>(some.size());
    for_each_trial(static_cast<int64_t>(some.size()), tally, [&](int64_t i) {
      const Configuration& configuration = some[static_cast<size_t>(i)];
      const int64_t wrong = wrong_replays(configuration, kGpu, each);
      for (int64_t n = 0; n < each; ++n)
        tally.add(n < wrong ? fmt::format("{}: a replay had other results", configuration.text()) : "");
    });
  }
  RowResult result = tally.result();
  result.figures.merge(per_kernel);
  return result;
}

}  // namespace ejk::testing
