// T-40, T-41: what the tuner publishes is never slower than the default, and tuning again comes to what is as fast.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "ejkernel/core/store.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/side_by_side.h"
#include "ejkernel/testing/statistics.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

/// What the first call of a problem has by default.
constexpr double kTuneSeconds = 2;
/// A run takes some microseconds at least, so that it is the kernel that is timed, and a few milliseconds at most.
constexpr double kLeastFlops = 1e6, kMostFlops = 6e7;

/// A call with made-up data.
struct TimedCall {
  std::string operation;
  std::string label;
  ParamsBlock params;
  SyntheticInputs inputs;

  Plan plan(std::optional<ConfigValues> config = {}) const {
    PlanOptions options{.policy = Policy{.autotune = false}};
    options.config = std::move(config);
    return Plan::make(operation, inputs.tensors, params, options);
  }
  /// The same call on other data elsewhere.
  TimedCall afresh(uint64_t seed) const {
    TimedCall other = *this;
    other.inputs = make_synthetic_inputs(*plan().choice().operation->declaration, inputs.tensors, params, seed);
    return other;
  }
};

/// Random calls of all operations, each with a tuning key of its own and something to tune.
class TunableCalls {
 public:
  explicit TunableCalls(uint64_t seed) : seed_(seed) {}

  TimedCall next() {
    const auto all = test_operations();
    for (;; ++drawn_) {
      const TestOperation& tests = *all[drawn_ % all.size()];
      const Problem problem = tests.random({.seed = seed_ * 1000003 + drawn_, .size = Size::normal});
      TimedCall call{.operation = std::string(tests.name()),
                     .label = fmt::format("{} {}", tests.name(), problem.label),
                     .params = problem.params,
                     .inputs = make_synthetic_inputs(*tests.declaration, problem.views(), problem.params, seed_)};
      const Plan plan = call.plan();
      const double flops = plan.work().flops;
      if (flops < kLeastFlops || flops > kMostFlops || !is_tunable(plan)) continue;
      if (!known_.insert(config_record_key(plan.request(), plan.kernel()).text).second) continue;
      ++drawn_;
      return call;
    }
  }

 private:
  uint64_t seed_, drawn_ = 0;
  std::set<std::string> known_;
};

ConfigValues values_of(const Plan& plan, const ConfigBlock& config) { return config_values(plan.kernel(), config); }

constexpr size_t kPlaces = 16;

/// Seconds of one run, [place][config][round]: each place is other data in other memory. What one config gains over
/// another differs by some per cent between places, lengths of packed sequences among the data; a key's config serves
/// the calls of all of them.
std::vector<std::vector<std::vector<double>>> time_in_places(const TimedCall& call,
                                                             std::span<const ConfigValues> configs, uint64_t seed) {
  std::vector<std::vector<std::vector<double>>> seconds;
  // All of them are kept, so that each has memory of its own.
  std::vector<TimedCall> places;
  std::vector<CallMemory> memory;
  for (size_t n = 0; n < kPlaces; ++n) {
    const TimedCall& fresh = places.emplace_back(call.afresh(seed + n));
    std::vector<Plan> plans;
    for (const ConfigValues& config : configs) plans.push_back(fresh.plan(config));
    seconds.push_back(time_side_by_side(plans, fresh.inputs.tensors, memory.emplace_back(plans),
                                        {.max_seconds = 0.08, .min_rounds = 21, .max_rounds = 50}));
  }
  return seconds;
}

/// A store of its own for as long as the object lives, and nothing in memory.
class ColdStart {
 public:
  ColdStart() {
    clear_memory_configs();
    use_store(folder_ / "store");
  }
  ~ColdStart() {
    clear_memory_configs();
    use_store("");
  }

 private:
  TemporaryFolder folder_{Medium::memory};
};

// ---- T-40 ----

/// A key for which the tuner published another config than the heuristic's.
struct TunedKey {
  std::string label;
  double p;      ///< that the times come about although it is no slower
  double ratio;  ///< median of the tuned config's time / the default's
};

/// Tunes the call, and times what a call gets from then on against the heuristic's, on other data. Nothing: it is the
/// heuristic's.
std::optional<TunedKey> tune_and_compare(const TimedCall& call, uint64_t seed) {
  const Plan before = call.plan();
  tune(before, {.budget_seconds = kTuneSeconds});
  const ConfigValues by_default = values_of(before, tuning_candidates(before).front());
  const ConfigBlock tuned = call.plan().choice().config;
  if (values_of(before, tuned) == by_default) return std::nullopt;
  std::vector<double> ratios;  // of a round: the geometric mean over places
  const auto seconds = time_in_places(call, std::vector{by_default, values_of(before, tuned)}, seed);
  const auto rounds = std::ranges::min(seconds, {}, [](const auto& place) { return place[0].size(); })[0].size();
  for (size_t round = 0; round < rounds; ++round) {
    double sum = 0;
    for (const auto& place : seconds) sum += std::log(place[1][round] / place[0][round]);
    ratios.push_back(std::exp(sum / static_cast<double>(seconds.size())));
  }
  return TunedKey{fmt::format("{}: {}", call.label, to_string(before.kernel(), tuned)), sign_test_above_one(ratios),
                  median(ratios)};
}

}  // namespace

/// n keys, each tuned within two seconds. Where something else than the default was published it is timed against the
/// default in interleaved pairs; one is slower beyond the noise when the sign test says so among all of them. A tuner
/// that hardly publishes anything else passes that without having tuned: a twentieth of the keys at least.
RowResult never_worse_than_default(const RowRequest& request) {
  constexpr double kAlpha = 0.01;
  const ColdStart cold;
  TunableCalls calls(request.seed);
  std::vector<TunedKey> keys;
  for (int64_t n = 0; n < request.n; ++n)
    if (const auto key = tune_and_compare(calls.next(), request.seed + 1)) keys.push_back(*key);

  std::vector<double> p_values;
  double log_gain = 0, slowest = 0;
  for (const TunedKey& key : keys) {
    p_values.push_back(key.p);
    log_gain -= std::log(key.ratio);
    slowest = std::max(slowest, key.ratio);
  }
  const std::vector<bool> slower = holm_rejects(p_values, kAlpha);
  RowResult result{.n = request.n};
  for (size_t n = 0; n < keys.size(); ++n)
    if (slower[n]) {
      ++result.failures;
      result.notes.push_back(
          fmt::format("{} takes {:.3f} of the default's time (p {:.1e})", keys[n].label, keys[n].ratio, keys[n].p));
    }
  const auto published = static_cast<double>(keys.size());
  result.figures = {{"published_another_config", published},
                    {"share_slower", static_cast<double>(result.failures) / static_cast<double>(request.n)},
                    {"geometric_mean_gain_of_these", keys.empty() ? 1 : std::exp(log_gain / published)},
                    {"geometric_mean_gain", std::exp(log_gain / static_cast<double>(request.n))},
                    {"largest_median_ratio", slowest}};
  if (published < 0.05 * static_cast<double>(request.n)) {
    ++result.failures;
    result.notes.push_back(fmt::format("the tuner published another config for {} of {} keys", published, request.n));
  }
  return result;
}

namespace {

// ---- T-41 ----

/// What tuning twice came to.
struct Repeated {
  std::string label;
  bool same = false;      ///< both times the same config
  double regret = 0;      ///< of the slower pick, against the fastest that was timed with it
  double difference = 0;  ///< between two timings of one config
};

/// The heuristic's config, both picks, and what either search found fastest besides.
std::vector<ConfigValues> contenders(const Plan& plan, const TuneReport& first, const TuneReport& second) {
  constexpr size_t kRunnersUp = 2;
  std::vector<ConfigValues> all = {values_of(plan, first.candidates.front().config)};
  const auto add = [&](const ConfigBlock& config) {
    const ConfigValues values = values_of(plan, config);
    if (std::find(all.begin(), all.end(), values) == all.end()) all.push_back(values);
  };
  add(first.best), add(second.best);
  for (const TuneReport* report : {&first, &second}) {
    std::vector<CandidateReport> timed = report->candidates;
    std::erase_if(timed, [](const CandidateReport& c) { return !c.rejected.empty() || c.num_samples == 0; });
    std::sort(timed.begin(), timed.end(),
              [](const CandidateReport& a, const CandidateReport& b) { return a.seconds < b.seconds; });
    for (size_t n = 0; n < std::min(kRunnersUp, timed.size()); ++n) add(timed[n].config);
  }
  return all;
}

/// One half of the places says which config is fastest, the other how much faster it is: of many that are alike one
/// always looks fastest. Times are geometric means of medians.
Repeated tune_twice(const TimedCall& call, uint64_t seed) {
  const Plan plan = call.plan();
  const TuneReport first = tune(plan, {.budget_seconds = kTuneSeconds, .seed = seed, .publish = false}),
                   second = tune(plan, {.budget_seconds = kTuneSeconds, .seed = seed + 1, .publish = false});
  std::vector<ConfigValues> configs = contenders(plan, first, second);
  const size_t same_again = configs.size();
  configs.push_back(configs.front());  // how much of a difference is none
  const auto seconds = time_in_places(call, configs, seed + 2);
  const auto time_of = [&](size_t config, size_t half) {
    double sum = 0;
    for (size_t place = half; place < kPlaces; place += 2) sum += std::log(median(seconds[place][config]));
    return std::exp(sum / (kPlaces / 2));
  };
  size_t fastest = 0;
  for (size_t n = 1; n < same_again; ++n)
    if (time_of(n, 0) < time_of(fastest, 0)) fastest = n;
  const auto loss_of = [&](const ConfigBlock& pick) {
    const auto at = std::find(configs.begin(), configs.end(), values_of(plan, pick)) - configs.begin();
    return time_of(static_cast<size_t>(at), 1) / time_of(fastest, 1) - 1;
  };
  return {.label = fmt::format("{}: {} and {}", call.label, to_string(plan.kernel(), first.best),
                               to_string(plan.kernel(), second.best)),
          .same = values_of(plan, first.best) == values_of(plan, second.best),
          .regret = std::max({loss_of(first.best), loss_of(second.best), 0.0}),
          .difference = std::abs(time_of(same_again, 1) / time_of(0, 1) - 1)};
}

}  // namespace

/// n keys, each tuned twice from nothing. The 95th percentile of what the picks lose against the fastest is held
/// against 3 % or twice that of what two timings of one config differ by, whichever is more.
RowResult tuning_repeatability(const RowRequest& request) {
  constexpr double kQuantile = 0.95, kLeastLimit = 0.03;
  const ColdStart cold;
  TunableCalls calls(request.seed);
  std::vector<Repeated> keys;
  std::vector<double> regrets, differences;
  int64_t same = 0;
  for (int64_t n = 0; n < request.n; ++n) {
    keys.push_back(tune_twice(calls.next(), request.seed + static_cast<uint64_t>(n)));
    regrets.push_back(keys.back().regret);
    differences.push_back(keys.back().difference);
    same += keys.back().same;
  }
  const double limit = std::max(kLeastLimit, 2 * quantile(differences, kQuantile));
  const double regret = quantile(regrets, kQuantile);
  RowResult result{.n = request.n};
  result.figures = {{"p50_regret", median(regrets)},
                    {"p95_regret", regret},
                    {"p95_difference_of_equals", quantile(differences, kQuantile)},
                    {"limit", limit},
                    {"same_config_twice", static_cast<double>(same)}};
  for (const Repeated& key : keys) {
    if (key.regret <= limit) continue;
    result.failures += regret > limit;  // a few of them are within the quantile
    result.notes.push_back(fmt::format("{} loses {:.1f} %", key.label, 100 * key.regret));
  }
  return result;
}

}  // namespace ejk::testing
