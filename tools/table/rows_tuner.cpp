// T-34, T-38, T-39, T-43: one tuning of a problem at a time, what enters its key, broken candidates, and the tiers in
// all their combinations.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/toy_tunable.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using Config = ToyConfig;

/// The toy operation with its tunable kernel, a store of its own, and an empty memory.
class Bench {
 public:
  explicit Bench(bool from_outside) {
    if (from_outside)
      KernelRegistry::instance().add<Toy, ToyTunable>(10000);
    else
      KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
    ToyTunable::by_default = {.delay = 4};
    empty();
  }
  ~Bench() {
    clear_memory_configs();
    use_store("");
    fs::remove_all(folder_);
  }
  /// As in a new process on a new machine.
  void empty() {
    clear_memory_configs();
    fs::remove_all(folder_);
    use_store(folder_.string());
  }

  static PlanFor<Toy> plan_with(const PlanOptions& options = {.policy = Policy{.autotune = false}}) {
    return plan<Toy>({.x = Tensor(nullptr, DType::f32, {8, 4})}, {.scale = 2, .shift = 1}, options);
  }

 private:
  KernelRegistry::Batch batch_{(register_toys(), KernelRegistry::instance())};  // the toys themselves stay
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("ejkernel_rows_tuner_{}", ::getpid());
};

}  // namespace

/// Candidates of a plug-in's kernel that are wrong, write outside, throw, crash, abort, hang, are wrong now and then,
/// ask for all memory or take it, four at a time beside one that is right and slower. Each must have been tried,
/// rejected with a reason, and not selected.
RowResult broken_candidates(const RowRequest& request) {
  Tally tally;
  Bench bench(/*from_outside=*/true);
  constexpr int kDeeds = static_cast<int>(Deed::count) - 1, kAtATime = 4;
  std::map<int, int64_t> tried;
  for (int64_t round = 0; tally.result().n < request.n; ++round) {
    ToyTunable::offered = {{.delay = 2}};
    for (int64_t i = round * kAtATime; i < (round + 1) * kAtATime; ++i)
      ToyTunable::offered.push_back({.delay = 0, .deed = static_cast<int>(1 + i % kDeeds)});
    bench.empty();
    const TuneReport report =
        tune(Bench::plan_with(),
             {.budget_seconds = 5, .patience_seconds = 0.1, .seed = request.seed + static_cast<uint64_t>(round)});
    const Config best = report.best.as<Config>();
    for (const CandidateReport& candidate : report.candidates) {
      const int deed = candidate.config.as<Config>().deed;
      if (deed == 0) continue;
      ++tried[deed];
      tally.add(best.deed == deed            ? fmt::format("the candidate of deed {} was selected", deed)
                : candidate.rejected.empty() ? fmt::format("the candidate of deed {} was not rejected", deed)
                                             : "");
    }
    if (best.deed == 0 && best.delay != 2) tally.note("the right candidate was not found to be faster");
  }
  if (tried.size() != kDeeds) tally.add(fmt::format("{} of {} deeds were tried", tried.size(), kDeeds));
  RowResult result = tally.result();
  result.figures = {{"hanging", static_cast<double>(tried[static_cast<int>(Deed::hangs)])},
                    {"out_of_memory", static_cast<double>(tried[static_cast<int>(Deed::exhausts)])}};
  return result;
}

namespace {

/// What one process of T-34 reports: whether it measured, and the config it went on with.
struct Report {
  int measured = 0, delay = -1;
};

Report plan_at(int go) {
  char byte = 0;
  Report report;
  if (::read(go, &byte, 1) != 1) return report;
  ToyTunable::num_runs = 0;
  report.delay = Bench::plan_with({.policy = Policy{}}).choice().config.as<Config>().delay;
  report.measured = ToyTunable::num_runs > 0;
  return report;
}

}  // namespace

/// Rounds in which 16 processes plan the same new problem at once: measurements, and configs afterwards.
RowResult one_tuning_at_a_time(const RowRequest& request) {
  constexpr int kProcesses = 16;
  Tally tally;
  Bench bench(/*from_outside=*/false);
  ToyTunable::offered = {{.delay = 8}, {.delay = 1}, {.delay = 2}};
  int64_t waited = 0;
  while (tally.result().n < request.n) {
    bench.empty();
    std::array<int, 2> go = {}, back = {};
    if (pipe(go.data()) != 0 || pipe(back.data()) != 0) throw Internal("no pipe");
    for (int n = 0; n < kProcesses; ++n)
      if (fork() == 0) {
        const Report report = plan_at(go[0]);
        _exit(::write(back[1], &report, sizeof report) == sizeof report ? 0 : 1);
      }
    const std::string start(kProcesses, 'g');
    if (::write(go[1], start.data(), start.size()) != kProcesses) throw Internal("no start");
    int measured = 0;
    for (int n = 0; n < kProcesses; ++n) {
      Report report;
      if (::read(back[0], &report, sizeof report) != sizeof report) throw Internal("a process is gone");
      measured += report.measured;
      waited += report.delay == 4;
      // The heuristic's while it is being measured, the winner once it is known; nothing else.
      tally.add(report.delay == 4 || report.delay == 1 ? "" : fmt::format("a process got delay={}", report.delay));
    }
    while (wait(nullptr) > 0) {
    }
    for (const int end : {go[0], go[1], back[0], back[1]}) close(end);
    if (measured != 1) tally.add(fmt::format("{} of {} processes measured", measured, kProcesses));
    clear_memory_configs();
    const Plan after = Bench::plan_with();
    if (after.choice().tier != Tier::store || after.choice().config.as<Config>().delay != 1)
      tally.add("the winner is not in the store");
  }
  RowResult result = tally.result();
  result.figures["went_on_with_the_heuristic"] = static_cast<double>(waited);
  return result;
}

namespace {

/// What a parameter may be instead: of each type two values in one bucket, and one in another.
std::vector<ParamValue> values_of(const ParamField& field) {
  switch (field.type) {
    case ParamType::boolean:
      return {false, true};
    case ParamType::integer:
      return {int64_t{17}, int64_t{20}, int64_t{25}, int64_t{5000}};
    case ParamType::real:
      return {0.25, 0.5, 2.0};
    case ParamType::integers:
      return {std::vector<int64_t>{17, 3}, std::vector<int64_t>{20, 3}, std::vector<int64_t>{25, 3}};
    case ParamType::text:
      break;
  }
  if (field.choices.empty()) return {std::string("f32"), std::string("bf16"), std::string("f16")};  // a dtype
  std::vector<ParamValue> choices;
  for (const std::string_view choice : field.choices) choices.emplace_back(std::string(choice));
  return choices;
}

bool should_tell_apart(const Operation& op, const ParamField& field, const ParamValue& a, const ParamValue& b) {
  const auto bucketed = [](ParamValue value) {
    if (auto* v = std::get_if<int64_t>(&value)) *v = bucket(*v);
    if (auto* v = std::get_if<std::vector<int64_t>>(&value))
      for (int64_t& x : *v) x = bucket(x);
    return value;
  };
  const ParamValue by_default = field.get(op.default_params.data());
  switch (field.key) {
    case Key::none:
      return false;
    case Key::present:
      return (a != by_default) != (b != by_default);
    case Key::value:
      return a != b;
    case Key::bucket:
      break;
  }
  return bucketed(a) != bucketed(b);
}

}  // namespace

/// Every parameter of every operation, changed alone in a random problem to each other value of its type: another key
/// exactly when the declaration says so. The walk is done anew, with other problems, until there are enough.
RowResult key_soundness(const RowRequest& request) {
  Tally tally;
  std::set<std::string> changed;
  size_t num_params = 0;
  const auto walk = [&](const TestOperation& tests, uint64_t seed) {
    const Operation& op = *tests.declaration;
    const Problem problem = tests.random({.seed = seed, .size = Size::tiny});
    const std::vector<Tensor> views = problem.views();
    const CheckedCall checked = check_call(op, views, problem.params);
    const auto key_with = [&](const ParamsBlock& params) { return problem_key(op, views, params, checked, "device"); };
    const std::string key = key_with(problem.params);
    tally.add(key == key_with(problem.params) ? "" : fmt::format("{}: two keys for one problem", op.name));
    for (const ParamField& field : op.params)
      for (const ParamValue& value : values_of(field)) {
        ParamsBlock params = problem.params;
        const ParamValue before = field.get(params.data());
        if (value == before) continue;
        if (field.set(params.data(), value)) changed.insert(fmt::format("{}.{}", op.name, field.name));
        const bool should_differ = should_tell_apart(op, field, before, value);
        tally.add((key_with(params) != key) == should_differ
                      ? ""
                      : fmt::format("{}: {} from {} to {} {} the key", op.name, field.name, to_string(before),
                                    to_string(value), should_differ ? "does not change" : "changes"));
      }
  };
  for (uint64_t round = 0; tally.result().n < request.n; ++round) {
    num_params = 0;
    for (const TestOperation* tests : test_operations()) {
      walk(*tests, request.seed * 1000 + round);
      num_params += tests->declaration->params.size();
    }
  }
  if (changed.size() != num_params)
    tally.add(fmt::format("{} of {} parameters could be changed", changed.size(), num_params));
  RowResult result = tally.result();
  result.figures["parameters"] = static_cast<double>(changed.size());
  return result;
}

namespace {

/// What a tier holds. Settled: it was measured that nothing beats the heuristic's config. Corrupt is what cannot be
/// read as a config: values for a field that the kernel does not have, a spoilt file; foreign, a whole record of
/// something else. Memory holds configs as they are, so that neither can be.
enum class State { absent, good, illegal, settled, corrupt, foreign };
enum class Tuner { forbidden, finds, fails };

/// One combination; each tier's good config has a delay of its own.
struct Combination {
  State override_, overlay, memory, store;
  Tuner tuner;
  bool may_guess;
};
constexpr int kCombinations = 4 * 4 * 4 * 6 * 3 * 2;

Combination combination(int64_t code) {
  const auto next = [&](int count) {
    const auto state = static_cast<int>(code % count);
    code /= count;
    return state;
  };
  const auto state = [&](int count) { return static_cast<State>(next(count)); };
  const auto given = [&] {
    const State of = state(4);
    return of == State::settled ? State::corrupt : of;
  };
  return {.override_ = given(),
          .overlay = given(),
          .memory = state(4),
          .store = state(6),
          .tuner = static_cast<Tuner>(next(3)),
          .may_guess = next(2) == 1};
}

ConfigValues values_for(State state, int delay) {
  if (state == State::corrupt) return {{"delays", delay}};
  return {{"delay", state == State::good ? delay : 3}};
}

/// What the specification says comes of it: the tier and the delay, or the error.
std::string expected(const Combination& c) {
  if (c.override_ == State::good) return "override 0";
  if (c.override_ != State::absent) return "invalid_argument";
  if (c.overlay == State::good) return "overlay 1";
  if (c.memory == State::good) return "memory 2";
  if (c.memory == State::settled) return "heuristics 4";
  if (c.store == State::good) return "store 8";
  if (c.store == State::settled) return "heuristics 4";
  if (c.tuner == Tuner::finds) return "autotune 0";
  return c.may_guess ? "heuristics 4" : "no_config";
}

/// What the next call gets, without the override and without tuning: an override has left nothing behind, a winner is
/// in memory.
std::string expected_next(Combination c) {
  const bool was_tuned = expected(c) == "autotune 0";
  c.override_ = State::absent;
  c.tuner = Tuner::forbidden;
  return was_tuned ? "memory 0" : expected(c);
}

void spoil_last_byte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end).put('\xff');
  if (!file) throw Internal("the record cannot be spoilt");
}

void fill_store(const RecordKey& key, State state) {
  if (state == State::absent) return;
  if (state == State::foreign) {
    store().put(key, {.value = R"(["delay"])", .provenance = ""});
    return;
  }
  const ConfigValues values = values_for(state == State::corrupt ? State::good : state, 8);
  put_stored_config(key, state == State::settled ? ConfigValues() : values, {});
  if (state == State::corrupt) spoil_last_byte(store().path_of(key));
}

std::string observed(const PlanOptions& options) try {
  const Plan made = Bench::plan_with(options);
  return fmt::format("{} {}", name(made.choice().tier), made.choice().config.as<Config>().delay);
} catch (const Error& error) {
  return error.code() == ErrorCode::no_config ? "no_config" : "invalid_argument";
}

/// What is wrong with the call under this combination, and with the one after it; empty when nothing is.
std::string judge_combination(const Combination& c) {
  // Where the tuner fails, so does the heuristic's own config when it is run.
  const Deed deed = c.tuner == Tuner::fails ? Deed::throws : Deed::nothing;
  ToyTunable::by_default = {.delay = 4, .deed = static_cast<int>(deed)};
  ToyTunable::offered = {{.delay = 8, .deed = static_cast<int>(deed)}, {.delay = 0, .deed = static_cast<int>(deed)}};
  const Plan known = Bench::plan_with();
  fill_store(config_record_key(known.request(), known.kernel()), c.store);
  clear_memory_configs();  // also what was chosen above, before the store had an answer
  if (c.memory == State::settled)
    set_memory_config(known.request(), known.kernel(), std::nullopt);
  else if (c.memory != State::absent)
    set_memory_config(known.request(), known.kernel(),
                      ConfigBlock::of(Config{.delay = c.memory == State::good ? 2 : 3}));
  std::optional<Overlay> overlay;
  if (c.overlay != State::absent) overlay.emplace("toy", "tunable", values_for(c.overlay, 1));
  PlanOptions options{.policy = Policy{.autotune = c.tuner != Tuner::forbidden, .heuristics = c.may_guess}};
  if (c.override_ != State::absent) options.config = values_for(c.override_, 0);
  if (const std::string got = observed(options); got != expected(c)) return fmt::format("{}, not {}", got, expected(c));
  options.config.reset();
  options.policy->autotune = false;
  const std::string next = observed(options);
  return next == expected_next(c) ? "" : fmt::format("then {}, not {}", next, expected_next(c));
}

}  // namespace

/// Override, overlay, memory and store in each of their states; a tuner that finds a faster config, whose candidates
/// all fail, or that may not try; heuristics allowed or not (a settled config is no guess, and answers all the same).
/// After each, what the next call gets with memory and store as they are then.
RowResult tier_combinations(const RowRequest& request) {
  ::setenv("EJKERNEL_AUTOTUNE_TOTAL_MS", "3600000", 1);  // many tunings in one process
  environment::reload();
  Tally tally;
  Bench bench(/*from_outside=*/false);
  for (int64_t trial = 0; trial < request.n; ++trial) {
    const int64_t number = trial % kCombinations;
    bench.empty();
    const std::string fault = judge_combination(combination(number));
    tally.add(fault.empty() ? "" : fmt::format("combination {}: {}", number, fault));
  }
  return tally.result();
}

}  // namespace ejk::testing
