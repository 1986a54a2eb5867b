// T-34, T-38, T-39, T-43: one tuning of a problem at a time, what enters its key, broken candidates, and the tiers in
// all their combinations.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <set>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/random.h"
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

/// Candidates of a plug-in's kernel that are wrong, write outside, throw, crash, abort, hang, are wrong now and then or
/// want all memory, beside one that is right and slower: how many were selected.
RowResult broken_candidates(const RowRequest& request) {
  Tally tally;
  Bench bench(/*from_outside=*/true);
  Random random(request.seed);
  int64_t hangs = 0;
  while (tally.result().n < request.n) {
    std::set<int> deeds;
    while (deeds.size() < 4) deeds.insert(static_cast<int>(random.between(1, static_cast<int>(Deed::count) - 1)));
    hangs += deeds.contains(static_cast<int>(Deed::hangs));
    ToyTunable::offered = {{.delay = 2}};
    for (const int deed : deeds) ToyTunable::offered.push_back({.delay = 0, .deed = deed});
    bench.empty();
    const TuneReport report = tune(Bench::plan_with(), {.budget_seconds = 5, .patience_seconds = 0.1});
    const Config best = report.best.as<Config>();
    for (const int deed : deeds)
      tally.add(best.deed == deed ? fmt::format("the candidate of deed {} was selected", deed) : "");
    if (best.deed == 0 && best.delay != 2) tally.note("the right candidate was not found to be faster");
  }
  RowResult result = tally.result();
  result.figures["hanging"] = static_cast<double>(hangs);
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

/// Every parameter of every operation, changed alone: another key exactly when the declaration says so.
RowResult key_soundness(const RowRequest& request) {
  Tally tally;
  Random random(request.seed);
  const auto key_of = [](const Operation& op, const Problem& problem, const ParamsBlock& params) {
    const std::vector<Tensor> views = problem.views();
    return problem_key(op, views, params, check_call(op, views, params), "device");
  };
  // Values to try; what the operation does not take as it is, it refuses.
  const std::vector<ParamValue> values = {true,
                                          false,
                                          int64_t{0},
                                          int64_t{1},
                                          int64_t{7},
                                          int64_t{100},
                                          int64_t{5000},
                                          0.25,
                                          2.0,
                                          std::string("f32"),
                                          std::string("bf16"),
                                          std::string("top_left"),
                                          std::vector<int64_t>{3},
                                          std::vector<int64_t>{40, 50},
                                          std::monostate()};
  int64_t trial = 0;
  while (tally.result().n < request.n) {
    const auto all = test_operations();
    const TestOperation& tests = *all[static_cast<size_t>(trial) % all.size()];
    const Operation& op = *tests.declaration;
    const Problem problem =
        tests.random({.seed = request.seed * 1000 + static_cast<uint64_t>(trial++), .size = Size::tiny});
    const std::string key = key_of(op, problem, problem.params);
    tally.add(key == key_of(op, problem, problem.params) ? "" : fmt::format("{}: two keys for one problem", op.name));
    for (const ParamField& field : op.params) {
      ParamsBlock changed = problem.params;
      const ParamValue before = field.get(changed.data());
      if (!field.set(changed.data(), values[static_cast<size_t>(random.below(static_cast<int64_t>(values.size())))]))
        continue;
      const ParamValue after = field.get(changed.data());
      std::string other;
      try {
        other = key_of(op, problem, changed);
      } catch (const Error&) {
        continue;  // not a call
      }
      const auto is_given = [&](const ParamValue& value) { return value != field.get(op.default_params.data()); };
      const auto bucketed = [](ParamValue value) {
        if (auto* v = std::get_if<int64_t>(&value)) *v = bucket(*v);
        if (auto* v = std::get_if<std::vector<int64_t>>(&value))
          for (int64_t& x : *v) x = bucket(x);
        return value;
      };
      const bool should_differ = field.key == Key::value     ? before != after
                                 : field.key == Key::bucket  ? bucketed(before) != bucketed(after)
                                 : field.key == Key::present ? is_given(before) != is_given(after)
                                                             : false;
      tally.add((other != key) == should_differ
                    ? ""
                    : fmt::format("{}: {} from {} to {} {} the key", op.name, field.name, to_string(before),
                                  to_string(after), should_differ ? "does not change" : "changes"));
    }
  }
  return tally.result();
}

namespace {

enum class State { absent, good, illegal };

/// One combination of what the tiers hold; each tier's good config has a delay of its own.
struct Combination {
  std::array<State, 4> tiers;  ///< override, overlay, memory, store
  bool may_tune, may_guess;
};

ConfigValues values_for(State state, int delay) { return {{"delay", state == State::good ? delay : 3}}; }

/// What the specification says comes of it: the tier and the delay, or the error.
std::string expected(const Combination& c) {
  if (c.tiers[0] == State::good) return "override 0";
  if (c.tiers[0] == State::illegal) return "invalid_argument";
  if (c.tiers[1] == State::good) return "overlay 1";
  if (c.tiers[2] == State::good) return "memory 2";
  if (c.tiers[3] == State::good) return "store 8";
  if (c.may_tune) return "autotune 0";
  return c.may_guess ? "heuristics 4" : "no_config";
}

std::string observed(const Combination& c) {
  const Plan known = Bench::plan_with();
  if (c.tiers[3] != State::absent)
    put_stored_config(config_record_key(known.request(), known.kernel()), values_for(c.tiers[3], 8), {});
  clear_memory_configs();  // also what was chosen above, before the store had an answer
  if (c.tiers[2] != State::absent)
    set_memory_config(known.request(), known.kernel(),
                      ConfigBlock::of(Config{.delay = c.tiers[2] == State::good ? 2 : 3}));
  std::optional<Overlay> overlay;
  if (c.tiers[1] != State::absent) overlay.emplace("toy", "tunable", values_for(c.tiers[1], 1));
  PlanOptions options{.policy = Policy{.autotune = c.may_tune, .heuristics = c.may_guess}};
  if (c.tiers[0] != State::absent) options.config = values_for(c.tiers[0], 0);
  try {
    const Plan made = Bench::plan_with(options);
    return fmt::format("{} {}", name(made.choice().tier), made.choice().config.as<Config>().delay);
  } catch (const Error& error) {
    return error.code() == ErrorCode::no_config ? "no_config" : "invalid_argument";
  }
}

}  // namespace

/// Override, overlay, memory and store, each absent, good or illegal; tuner and heuristics, each allowed or not: 324
/// combinations, and after each one with an override, what the next call without it gets.
RowResult tier_combinations(const RowRequest& request) {
  Tally tally;
  Bench bench(/*from_outside=*/false);
  ToyTunable::offered = {{.delay = 8}, {.delay = 0}};
  constexpr int kCombinations = 81 * 4;
  for (int64_t trial = 0; tally.result().n < request.n; ++trial) {
    int64_t code = trial % kCombinations;
    Combination c{};
    for (State& state : c.tiers) state = static_cast<State>(code % 3), code /= 3;
    c.may_tune = code % 2 == 1;
    c.may_guess = code / 2 == 1;
    bench.empty();
    const std::string wanted = expected(c), got = observed(c);
    tally.add(got == wanted ? "" : fmt::format("combination {}: {}, not {}", trial % kCombinations, got, wanted));
    if (c.tiers[0] != State::good) continue;
    Combination next = c;
    next.tiers[0] = State::absent;
    next.may_tune = false;
    const std::string then = observed(next);
    tally.add(then == expected(next) ? "" : fmt::format("after combination {}: {}", trial % kCombinations, then));
  }
  return tally.result();
}

}  // namespace ejk::testing
