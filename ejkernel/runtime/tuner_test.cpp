// The tuner on an operation whose configs have times of their own, and the tiers around it.
#include "ejkernel/runtime/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/store.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/single_flight.h"
#include "ejkernel/testing/toy_append.h"
#include "ejkernel/testing/toy_tunable.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
namespace fs = std::filesystem;

class Tuner : public ::testing::Test {
 protected:
  Tuner() {
    use_store(folder_.string());
    ToyTunable::by_default = {};
    ToyTunable::offered = {{.delay = 8}, {.delay = 0}, {.delay = 2}};
    ToyTunable::num_runs = 0;
    set_log([](LogLevel, const char* text, void* self) { static_cast<Tuner*>(self)->logged.emplace_back(text); }, this,
            LogLevel::warning);
  }
  ~Tuner() override {
    set_log(nullptr, nullptr);
    clear_memory_configs();
    use_store("");
    fs::remove_all(folder_);
  }

  static void add_built_in() { KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000); }
  static void add_from_outside() { KernelRegistry::instance().add<Toy, ToyTunable>(10000); }

  static PlanFor<Toy> toy_plan(Policy policy = {.autotune = false, .heuristics = true}) {
    PlanOptions options;
    options.policy = policy;
    return plan<Toy>({.x = Tensor(nullptr, DType::f32, {8, 4})}, {.scale = 2, .shift = 1}, options);
  }
  static std::string chosen(Policy policy = {}) {
    const Plan made = toy_plan(policy);
    return std::string(name(made.choice().tier)) + " " + to_string(made.kernel(), made.choice().config);
  }
  /// Other work on the machine may hide for once which config is faster: then it is tuned anew.
  TuneReport tune_until_faster(const TuneOptions& options, std::span<const Tensor> inputs = {}) {
    TuneReport report = tune(toy_plan(), options, inputs);
    for (int n = 0; n < 50 && !report.faster; ++n) report = tune(toy_plan(), options, inputs);
    return report;
  }
  std::string tuned_choice() {
    std::string choice = chosen();
    for (int n = 0; n < 50 && !choice.starts_with("autotune"); ++n) {
      clear_memory_configs();
      fs::remove_all(folder_);
      choice = chosen();
    }
    return choice;
  }
  static std::string why_rejected(const TuneReport& report, Deed deed) {
    for (const CandidateReport& candidate : report.candidates)
      if (candidate.config.as<ToyTunable::Config>().deed == static_cast<int>(deed)) return candidate.rejected;
    return "no such candidate";
  }

  std::vector<std::string> logged;

 private:
  KernelRegistry::Batch batch_{(register_toys(), KernelRegistry::instance())};  // the toys themselves stay
  const fs::path folder_ = fs::path(::testing::TempDir()) / ("ejkernel tuner test " + std::to_string(::getpid()));
};

TEST_F(Tuner, the_fastest_candidate_wins_and_every_candidate_is_told_of) {
  add_built_in();
  size_t calls = 0;
  const TuneReport report =
      tune_until_faster({.budget_seconds = 1, .publish = false, .progress = [&](size_t done, size_t all) {
                           EXPECT_EQ(done, calls % 4 + 1);
                           ++calls;
                           EXPECT_EQ(all, 4u);
                         }});
  EXPECT_EQ(calls % 4, 0u);
  EXPECT_TRUE(report.faster);
  EXPECT_LT(report.best.as<ToyTunable::Config>().delay, 4);
  EXPECT_LT(report.comparison.ratio.high, 0.99);
  ASSERT_EQ(report.candidates.size(), 4u);
  EXPECT_EQ(report.candidates[0].config.as<ToyTunable::Config>().delay, 4) << "the heuristic's stands first";
  for (const CandidateReport& candidate : report.candidates) {
    EXPECT_EQ(candidate.rejected, "");
    EXPECT_GT(candidate.seconds, 0);
  }
  EXPECT_FALSE(report.published);
  EXPECT_EQ(chosen({.autotune = false}), "heuristics delay=4 deed=0") << "nothing was published";
}

TEST_F(Tuner, what_is_published_answers_here_and_in_the_next_process) {
  add_built_in();
  EXPECT_TRUE(tune_until_faster({.budget_seconds = 1}).published);
  EXPECT_THAT(chosen({.autotune = false}), ::testing::StartsWith("memory "));
  clear_memory_configs();  // as in a process that begins
  EXPECT_THAT(chosen({.autotune = false}), ::testing::StartsWith("store "));
  const int runs = ToyTunable::num_runs;
  EXPECT_THAT(chosen(), ::testing::StartsWith("store ")) << "tier 5 is not asked";
  EXPECT_EQ(ToyTunable::num_runs, runs);
}

TEST_F(Tuner, nothing_is_published_that_is_not_faster_and_that_is_known_from_then_on) {
  add_built_in();
  ToyTunable::by_default = {.delay = 0};
  const TuneReport report = tune(toy_plan(), {.budget_seconds = 20});
  EXPECT_FALSE(report.faster);
  EXPECT_EQ(report.best.as<ToyTunable::Config>().delay, 0);
  const int runs = ToyTunable::num_runs;
  constexpr Policy kKnownOnly = {.autotune = false, .heuristics = false};
  EXPECT_EQ(chosen(), "heuristics delay=0 deed=0");
  EXPECT_EQ(chosen(kKnownOnly), "heuristics delay=0 deed=0") << "it is no guess any more";
  clear_memory_configs();
  EXPECT_EQ(chosen(), "heuristics delay=0 deed=0") << "the store knows too";
  EXPECT_EQ(chosen(kKnownOnly), "heuristics delay=0 deed=0");
  EXPECT_EQ(ToyTunable::num_runs, runs);
}

TEST_F(Tuner, tuning_on_demand_answers_without_heuristics_even_where_nothing_is_faster) {
  add_built_in();
  ToyTunable::by_default = {.delay = 0};
  EXPECT_EQ(chosen({.autotune = true, .heuristics = false}), "heuristics delay=0 deed=0");
}

TEST_F(Tuner, what_the_store_cannot_keep_is_not_called_published) {
  add_built_in();
  use_store("");
  EXPECT_FALSE(tune_until_faster({.budget_seconds = 1}).published);
  EXPECT_THAT(chosen({.autotune = false}), ::testing::StartsWith("memory ")) << "this process keeps it";
}

TEST_F(Tuner, broken_candidates_are_rejected_with_the_reason) {
  add_built_in();
  ToyTunable::offered = {
      {.delay = 0, .deed = static_cast<int>(Deed::wrong)},   {.delay = 0, .deed = static_cast<int>(Deed::unwritten)},
      {.delay = 0, .deed = static_cast<int>(Deed::outside)}, {.delay = 0, .deed = static_cast<int>(Deed::throws)},
      {.delay = 0, .deed = static_cast<int>(Deed::greedy)},  {.delay = 1}};
  const TuneReport report = tune_until_faster({.budget_seconds = 1});
  EXPECT_THAT(why_rejected(report, Deed::wrong), HasSubstr("element 31 of output 0 is 1000, not "));
  EXPECT_THAT(why_rejected(report, Deed::unwritten), HasSubstr("nan, not "));
  EXPECT_EQ(why_rejected(report, Deed::outside), "it wrote outside of an output");
  EXPECT_EQ(why_rejected(report, Deed::throws), "it failed: the kernel gave up");
  EXPECT_THAT(why_rejected(report, Deed::greedy), HasSubstr("more than half of what is free"));
  EXPECT_EQ(report.best.as<ToyTunable::Config>().delay, 1);
}

/// Counts bytes for no config without a delay.
struct ToyUncounted : ToyTunable {
  static size_t workspace_bytes(const Call<Toy>&, const Config& config, const DeviceProperties&) {
    if (config.delay == 0) throw std::runtime_error("bytes beyond counting");
    return 64;
  }
};

TEST_F(Tuner, a_candidate_that_cannot_be_planned_is_rejected_alone) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyUncounted>(), 10000);
  const TuneReport report = tune_until_faster({.budget_seconds = 1});
  EXPECT_EQ(report.best.as<ToyTunable::Config>().delay, 2);
  EXPECT_EQ(report.candidates[2].rejected, "it cannot be planned: bytes beyond counting");
}

/// Its quickest config is the slowest on other data than those of its first run.
struct ToyOfOnePlace : ToyTunable {
  static inline std::optional<float> first;
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    const float here = call.inputs.x.as<float>()[0];
    if (!first) first = here;
    ToyTunable::run(call, config.delay == 0 && here != *first ? Config{.delay = 8} : config, context);
  }
};

TEST_F(Tuner, what_is_fast_in_one_place_gives_way_to_what_is_fast_in_all) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyOfOnePlace>(), 10000);
  const TuneReport report = tune_until_faster({.budget_seconds = 1, .publish = false});
  ASSERT_TRUE(report.faster);
  EXPECT_EQ(report.best.as<ToyTunable::Config>().delay, 2);
}

/// Its quickest config is quick in every other place, and slow in those between.
struct ToyOfHalfThePlaces : ToyTunable {
  static inline std::vector<float> places;
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    const float here = call.inputs.x.as<float>()[0];
    const auto found = std::find(places.begin(), places.end(), here);
    const bool is_quick = (found - places.begin()) % 2 == 0;
    if (found == places.end()) places.push_back(here);
    ToyTunable::run(call, config.delay == 0 && !is_quick ? Config{.delay = 30} : config, context);
  }
};

TEST_F(Tuner, while_it_is_open_who_wins_there_are_more_places) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyOfHalfThePlaces>(), 10000);
  ToyTunable::offered = {{.delay = 8}, {.delay = 0}};
  ToyOfHalfThePlaces::places.clear();
  const TuneReport report = tune(toy_plan(), {.budget_seconds = 5, .publish = false});
  EXPECT_FALSE(report.faster);
  constexpr size_t kLeast = 6, kMost = 10 + 16;  // besides that of the race: to choose one, and for its proof
  EXPECT_GT(ToyOfHalfThePlaces::places.size(), 1 + kLeast);
  EXPECT_LE(ToyOfHalfThePlaces::places.size(), 1 + kMost);
}

/// Its quickest config is quick in the places where one is chosen, and slow in all that come later.
struct ToyOfTheFirstPlaces : ToyTunable {
  static constexpr size_t kFirst = 1 + 6;  // that of the race, and the least number in which finalists meet
  static inline std::vector<float> places;
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    const float here = call.inputs.x.as<float>()[0];
    if (std::find(places.begin(), places.end(), here) == places.end()) places.push_back(here);
    ToyTunable::run(call, config.delay == 0 && places.size() > kFirst ? Config{.delay = 30} : config, context);
  }
};

TEST_F(Tuner, one_that_was_chosen_among_several_proves_itself_in_places_of_its_own) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyOfTheFirstPlaces>(), 10000);
  ToyTunable::by_default = {.delay = 8};
  ToyTunable::offered = {{.delay = 8}, {.delay = 0}, {.delay = 4}};
  ToyOfTheFirstPlaces::places.clear();
  const TuneReport report = tune(toy_plan(), {.budget_seconds = 5, .publish = false});
  EXPECT_GT(ToyOfTheFirstPlaces::places.size(), ToyOfTheFirstPlaces::kFirst);
  EXPECT_FALSE(report.faster);
  EXPECT_GT(report.comparison.ratio.low, 1) << "the places that chose it do not count";
}

TEST_F(Tuner, a_kernel_from_outside_may_crash_and_hang_without_harm) {
  add_from_outside();
  ToyTunable::offered = {{.delay = 0, .deed = static_cast<int>(Deed::crashes)},
                         {.delay = 0, .deed = static_cast<int>(Deed::hangs)},
                         {.delay = 0, .deed = static_cast<int>(Deed::throws)},
                         {.delay = 1}};
  const TuneReport report = tune_until_faster({.budget_seconds = 2, .patience_seconds = 0.2});
  EXPECT_THAT(why_rejected(report, Deed::crashes), HasSubstr("it ended its process by signal 11"));
  EXPECT_EQ(why_rejected(report, Deed::hangs), "it did not end within 0.2 s");
  EXPECT_EQ(why_rejected(report, Deed::throws), "it failed: the kernel gave up");
  EXPECT_EQ(report.best.as<ToyTunable::Config>().delay, 1);
}

/// One run in four is wrong: admission may miss it, the runs after the last heat do not.
TEST_F(Tuner, a_winner_that_is_not_right_every_time_is_no_winner) {
  add_built_in();
  ToyTunable::offered = {{.delay = 0, .deed = static_cast<int>(Deed::unsteady)}};
  TuneReport report = tune(toy_plan(), {.budget_seconds = 1});
  for (int n = 0; n < 50 && why_rejected(report, Deed::unsteady).empty(); ++n)
    report = tune(toy_plan(), {.budget_seconds = 1});  // it lost the race for once
  EXPECT_FALSE(report.faster);
  EXPECT_THAT(why_rejected(report, Deed::unsteady), HasSubstr("it is wrong: element 0 of output 0 is 1000, not "));
}

TEST_F(Tuner, a_heuristic_that_is_broken_itself_is_said_so) {
  add_built_in();
  ToyTunable::by_default = {.delay = 0, .deed = static_cast<int>(Deed::wrong)};
  EXPECT_THAT([] { tune(toy_plan()); },
              ThrowsMessage<Unsupported>(
                  HasSubstr("toy: kernel tunable cannot be tuned: its heuristic's config fails: it is wrong")));
}

TEST_F(Tuner, one_candidate_is_nothing_to_tune) {
  add_built_in();
  ToyTunable::offered = {};
  EXPECT_FALSE(is_tunable(toy_plan()));
  EXPECT_THAT([] { tune(toy_plan()); }, ThrowsMessage<Unsupported>(HasSubstr("has one config for this call")));
}

TEST_F(Tuner, real_data_is_used_when_given) {
  add_built_in();
  const Array x = Array::zeros(DType::f32, {8, 4});
  const auto inputs = to_array(Toy::Inputs{.x = x});
  EXPECT_TRUE(tune_until_faster({.budget_seconds = 1}, inputs).faster);
}

/// The reference would walk the 2^44 heads one by one.
TEST_F(Tuner, a_call_that_writes_nothing_is_nothing_to_tune) {
  const Tensor query(nullptr, DType::f32, {1, 0, int64_t{1} << 44, 8}), keys(nullptr, DType::f32, {1, 5, 4, 8});
  const double before = seconds_spent_tuning();
  const auto planned = plan<FlashAttention>({.query = query, .key = keys, .value = keys}, {}, {.policy = Policy{}});
  EXPECT_EQ(planned.choice().tier, Tier::heuristics);
  EXPECT_EQ(seconds_spent_tuning(), before);
  EXPECT_FALSE(is_tunable(planned));
}

// ---- tier 5 ----

/// Notes which data it meets.
struct ToyOfData : ToyTunable {
  static inline std::set<float> seen = {};
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    seen.insert(call.inputs.x.as<float>()[0]);
    ToyTunable::run(call, config, context);
  }
};

TEST_F(Tuner, the_first_call_of_a_problem_is_tuned_on_its_own_data) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyOfData>(), 10000);
  const PlanOptions tuned = {.policy = Policy{}};
  Array x(DType::f32, {8, 4});
  for (int64_t n = 0; n < x.num_elements(); ++n) set(x, n, 17);
  ToyOfData::seen.clear();
  execute<Toy>({.x = x}, {.scale = 2, .shift = 1}, {.plan = tuned});
  EXPECT_GT(ToyTunable::num_runs, 1);
  EXPECT_THAT(ToyOfData::seen, ::testing::ElementsAre(17));

  ToyOfData::seen.clear();
  plan<Toy>({.x = Tensor(x.data(), DType::f32, {2, 4})}, {.scale = 2, .shift = 1}, tuned);
  EXPECT_FALSE(ToyOfData::seen.empty());
  EXPECT_EQ(ToyOfData::seen.count(17), 0u) << "whoever plans may have no data yet";
}

TEST_F(Tuner, an_input_that_a_call_writes_is_written_by_the_call_alone) {
  register_toy_append();
  const auto offered = std::exchange(ToyAppendFast::offered, {{.deed = static_cast<int>(AppendDeed::nothing)},
                                                              {.deed = static_cast<int>(AppendDeed::adds)}});
  Array rows(DType::f32, {1, 4, 2}), values(DType::f32, {1, 1, 2}), at(DType::i32, {1, 1});
  for (int64_t n = 0; n < rows.num_elements(); ++n) set(rows, n, static_cast<double>(n));
  set(values, 0, 5), set(values, 1, 6), set(at, 0, 2);
  const double before = seconds_spent_tuning();
  execute<ToyAppend>({.rows = rows, .values = values, .at = at}, {.scale = 2}, {.plan = {.policy = Policy{}}});
  ToyAppendFast::offered = offered;
  EXPECT_GT(seconds_spent_tuning(), before);
  for (int64_t n = 0; n < rows.num_elements(); ++n)
    EXPECT_EQ(get(rows, n), n == 4 ? 10 : n == 5 ? 12 : static_cast<double>(n)) << n;
}

TEST_F(Tuner, the_first_call_of_a_problem_tunes_it_where_policy_allows) {
  add_built_in();
  EXPECT_EQ(chosen({.autotune = false}), "heuristics delay=4 deed=0");
  EXPECT_EQ(ToyTunable::num_runs, 0);
  EXPECT_THAT(tuned_choice(), ::testing::StartsWith("autotune "));
  const int runs = ToyTunable::num_runs;
  EXPECT_GT(runs, 0);
  EXPECT_THAT(chosen(), ::testing::StartsWith("memory "));
  EXPECT_EQ(ToyTunable::num_runs, runs);
  EXPECT_GT(seconds_spent_tuning(), 0);
}

TEST_F(Tuner, explaining_says_what_would_be_tuned_and_does_not) {
  add_built_in();
  const auto inputs = to_array(Toy::Inputs{.x = Tensor(nullptr, DType::f32, {8, 4})});
  PlanOptions options;
  options.policy = Policy{};
  const Explanation told = explain("toy", inputs, ParamsBlock::of(Toy::Params{}), options);
  ASSERT_EQ(told.trail.tiers.size(), 6u);
  EXPECT_EQ(told.trail.tiers[3].tier, Tier::store);
  EXPECT_EQ(told.trail.tiers[3].answer, "miss");
  EXPECT_EQ(told.trail.tiers[4].tier, Tier::autotune);
  EXPECT_THAT(told.trail.tiers[4].answer, HasSubstr("would tune at the first call: 3 candidates within "));
  EXPECT_EQ(ToyTunable::num_runs, 0);
}

TEST_F(Tuner, a_search_that_the_budget_ended_says_so_to_the_next_process) {
  add_built_in();
  ToyTunable::by_default = {.delay = 0};
  EXPECT_FALSE(tune(toy_plan(), {.budget_seconds = 0}).complete);
  clear_memory_configs();
  const auto inputs = to_array(Toy::Inputs{.x = Tensor(nullptr, DType::f32, {8, 4})});
  const Explanation told = explain("toy", inputs, ParamsBlock::of(Toy::Params{.scale = 2, .shift = 1}), {});
  EXPECT_EQ(told.trail.tiers[3].answer, "measured: nothing beat the heuristic's config before the budget ended");
}

TEST_F(Tuner, of_a_call_that_is_too_large_to_be_made_up_a_smaller_batch_is_tried) {
  const Tensor q(nullptr, DType::f32, {12, 8, 2, 16});
  const FlashAttention::Inputs inputs{.query = q, .key = q, .value = q};
  const Plan attention = plan<FlashAttention>(inputs, {}, {.policy = Policy{.autotune = false}});
  const double bytes = bytes_of(attention.inputs());
  EXPECT_EQ(tune(attention, {.budget_seconds = 0.3, .most_input_bytes = bytes}).batch, 0);
  clear_memory_configs();
  const TuneReport report = tune(attention, {.budget_seconds = 0.3, .most_input_bytes = bytes / 3});
  EXPECT_EQ(report.batch, 3) << "a quarter fits, a half does not";
  EXPECT_TRUE(report.published);
  EXPECT_TRUE(find_stored_config(config_record_key(attention.request(), attention.kernel())))
      << "for the problem that was asked for";
  EXPECT_THAT([&] { tune(attention, {.most_input_bytes = bytes / 100}); },
              ThrowsMessage<Unsupported>(HasSubstr("tune a smaller call")));
  // The dropout mask depends on the entry's number.
  const Array seed = Array::zeros(DType::u32, {2});
  FlashAttention::Inputs dropped = inputs;
  dropped.dropout_seed = seed;
  const Plan whole = plan<FlashAttention>(dropped, {.dropout_prob = 0.5}, {.policy = Policy{.autotune = false}});
  EXPECT_THAT([&] { tune(whole, {.most_input_bytes = bytes / 3}); },
              ThrowsMessage<Unsupported>(HasSubstr("tune a smaller call")));
}

TEST_F(Tuner, a_gradient_that_takes_the_gates_that_its_forward_kept_is_tuned_on_made_up_data) {
  constexpr int64_t kHidden = 32, kBatch = 2, kSteps = 12;
  const auto spec = [](const Shape& shape) { return Tensor(nullptr, DType::f32, shape); };
  RnnBackward::Inputs inputs;
  inputs.input = spec({kBatch, kSteps, kHidden});
  inputs.weight_ih = inputs.weight_hh = spec({1, 4 * kHidden, kHidden});
  inputs.gates = spec({1, kBatch, kSteps, 4 * kHidden});
  const Plan gradient = plan<RnnBackward>(inputs, {.keep_gates = true}, {.policy = Policy{.autotune = false}});
  const TuneReport report = tune(gradient, {.budget_seconds = 60, .verify_only = true});
  for (const CandidateReport& candidate : report.candidates)
    EXPECT_EQ(candidate.rejected, "") << "the reference computes the gates anew and agrees";
}

TEST_F(Tuner, a_record_names_the_near_problem_that_its_search_began_with) {
  add_built_in();
  const Plan near = plan<Toy>({.x = Tensor(nullptr, DType::f32, {16, 4})}, {.scale = 2, .shift = 1},
                              {.policy = Policy{.autotune = false}});
  ASSERT_TRUE(put_stored_config(config_record_key(near.request(), near.kernel()), {{"delay", 2}, {"deed", 0}}, {}));
  const Plan made = toy_plan();
  EXPECT_THAT(tune(made, {.budget_seconds = 0.2}).transferred_from, HasSubstr("batch=16"));
  const std::optional<Record> record = store().find(config_record_key(made.request(), made.kernel()));
  ASSERT_TRUE(record);
  EXPECT_THAT(record->provenance, ::testing::ContainsRegex("\"transferred_from\":\"[^\"]*batch=16"));
}

TEST_F(Tuner, while_somebody_tunes_the_problem_others_get_the_heuristics_config) {
  add_built_in();
  const Plan made = toy_plan();
  const RecordKey key = config_record_key(made.request(), made.kernel());
  {
    const SingleFlight somebody(key.environment + key.text);
    EXPECT_TRUE(somebody.is_ours());
    EXPECT_EQ(chosen(), "heuristics delay=4 deed=0");
    EXPECT_EQ(ToyTunable::num_runs, 0);
  }
  chosen();  // whatever it finds
  EXPECT_GT(ToyTunable::num_runs, 0) << "that answer was for then only";
}

TEST_F(Tuner, an_illegal_stored_config_is_a_miss_counted_and_logged) {
  add_built_in();
  const Plan made = toy_plan();
  const RecordKey key = config_record_key(made.request(), made.kernel());
  ASSERT_TRUE(put_stored_config(key, {{"delay", 3}}, {}));
  clear_memory_configs();
  const int64_t before = num_illegal_configs();
  EXPECT_EQ(chosen({.autotune = false}), "heuristics delay=4 deed=0");
  EXPECT_EQ(num_illegal_configs(), before + 1);
  ASSERT_EQ(logged.size(), 1u);
  EXPECT_THAT(logged[0], HasSubstr("delay of kernel tunable must be one of 0, 1, 2, 4, 8, got 3"));

  ASSERT_TRUE(store().put(key, {.value = "no json", .provenance = ""}));
  clear_memory_configs();
  EXPECT_EQ(chosen({.autotune = false}), "heuristics delay=4 deed=0") << "what cannot be read is a miss";
  ASSERT_TRUE(put_stored_config(key, {{"delay", 1}}, {}));
  clear_memory_configs();
  EXPECT_EQ(chosen({.autotune = false}), "store delay=1 deed=0");
}

TEST_F(Tuner, a_failed_tuning_is_no_error_of_the_call_and_is_not_repeated) {
  add_built_in();
  ToyTunable::by_default = {.delay = 0, .deed = static_cast<int>(Deed::throws)};
  EXPECT_EQ(chosen(), "heuristics delay=0 deed=4");
  EXPECT_THAT(logged, ::testing::ElementsAre(HasSubstr("toy: kernel tunable is not tuned: ")));
  const int runs = ToyTunable::num_runs;
  EXPECT_EQ(chosen(), "heuristics delay=0 deed=4");
  EXPECT_EQ(ToyTunable::num_runs, runs);
  const auto inputs = to_array(Toy::Inputs{.x = Tensor(nullptr, DType::f32, {8, 4})});
  const PlanOptions on_demand{.policy = Policy{}};
  const Explanation told = explain("toy", inputs, ParamsBlock::of(Toy::Params{.scale = 2, .shift = 1}), on_demand);
  EXPECT_THAT(told.trail.tiers[4].answer, ::testing::StartsWith("failed before: toy: kernel tunable cannot be tuned"));
  EXPECT_THROW(chosen({.autotune = true, .heuristics = false}), Unsupported) << "nothing was measured";
}

/// Runs out of ideas after some calls.
struct ToyForgetful : ToyTunable {
  static inline int ideas = 0;
  static std::vector<Config> candidates(const Call<Toy>&, const DeviceProperties&) {
    if (ideas-- == 0) throw std::runtime_error("out of ideas");
    return offered;
  }
};

TEST_F(Tuner, whatever_a_kernel_throws_is_no_error_of_the_call) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyForgetful>(), 10000);
  for (const int ideas : {0, 1}) {  // asked whether there is anything to tune, or to tune it
    ToyForgetful::ideas = ideas;
    clear_memory_configs();
    logged.clear();
    EXPECT_EQ(chosen(), "heuristics delay=4 deed=0");
    EXPECT_EQ(chosen(), "heuristics delay=4 deed=0") << "and is not tuned again";
    EXPECT_THAT(logged, ::testing::ElementsAre("toy: kernel tunable is not tuned: out of ideas")) << ideas;
  }
}

/// Throws what is no std::exception where it is tried.
struct ToyThrowing : ToyTunable {
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    if (config.delay != by_default.delay) throw 42;
    ToyTunable::run(call, config, context);
  }
};

TEST_F(Tuner, no_exception_of_a_candidate_goes_on_in_a_copy_of_the_application) {
  const pid_t self = ::getpid();
  for (const bool from_outside : {false, true}) {
    KernelRegistry& registry = KernelRegistry::instance();
    const KernelRegistry::Batch batch(registry);
    from_outside ? registry.add<Toy, ToyThrowing>(20000) : registry.add("toy", make_kernel<Toy, ToyThrowing>(), 20000);
    const TuneReport report = tune(toy_plan(), {.budget_seconds = 1});
    if (::getpid() != self) ::_exit(1);
    EXPECT_FALSE(report.faster);
    for (size_t n = 1; n < report.candidates.size(); ++n)
      EXPECT_EQ(report.candidates[n].rejected, "it threw what is no std::exception") << from_outside;
  }
}

class TunerEnvironment : public Tuner {
 protected:
  static void with(const char* name, const char* value) {
    ::setenv(name, value, 1);
    environment::reload();
  }
  ~TunerEnvironment() override {
    ::unsetenv("EJKERNEL_AUTOTUNE_TOTAL_MS");
    ::unsetenv("EJKERNEL_AUTOTUNE_BUDGET_MS");
    environment::reload();
  }
};

TEST_F(TunerEnvironment, past_the_process_budget_heuristics_answer_and_explain_says_so) {
  add_built_in();
  with("EJKERNEL_AUTOTUNE_TOTAL_MS", "0");
  EXPECT_EQ(chosen(), "heuristics delay=4 deed=0");
  EXPECT_EQ(ToyTunable::num_runs, 0);
  const auto inputs = to_array(Toy::Inputs{.x = Tensor(nullptr, DType::f32, {8, 4})});
  PlanOptions options;
  options.policy = Policy{};
  const Explanation told = explain("toy", inputs, ParamsBlock::of(Toy::Params{}), options);
  EXPECT_EQ(told.trail.tiers[4].answer, "the process's budget is spent");
}

TEST_F(TunerEnvironment, a_problem_without_a_budget_keeps_the_heuristics_config) {
  add_built_in();
  with("EJKERNEL_AUTOTUNE_BUDGET_MS", "0");
  EXPECT_EQ(chosen(), "heuristics delay=4 deed=0");
}

// ---- one at a time ----

TEST_F(Tuner, of_several_flights_for_a_key_one_is_ours) {
  const SingleFlight first("some key");
  const SingleFlight second("some key"), other("another key");
  EXPECT_TRUE(first.is_ours());
  EXPECT_FALSE(second.is_ours());
  EXPECT_TRUE(other.is_ours());
}

/// What `body` says in a process that was forked before `meanwhile` ran in this one.
template <class Meanwhile, class Body>
bool in_another_process(Meanwhile meanwhile, Body body) {
  std::array<int, 2> go = {};
  EXPECT_EQ(pipe(go.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    _exit(read(go[0], &byte, 1) == 1 && body() ? 0 : 1);
  }
  meanwhile();
  EXPECT_EQ(write(go[1], "g", 1), 1);
  int state = 0;
  waitpid(child, &state, 0);
  close(go[0]), close(go[1]);
  return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

TEST_F(Tuner, another_process_is_told_and_the_end_of_one_frees_its_key) {
  const auto is_free = [] { return SingleFlight("a key of several processes").is_ours(); };
  std::optional<SingleFlight> ours;
  EXPECT_FALSE(in_another_process([&] { ours.emplace("a key of several processes"); }, is_free));
  EXPECT_TRUE(in_another_process([&] { ours.reset(); }, is_free));
  EXPECT_TRUE(in_another_process([] {},
                                 [] {
                                   new SingleFlight("a key of several processes");  // held when the process ends
                                   return true;
                                 }));
  EXPECT_TRUE(is_free());
}

}  // namespace
}  // namespace ejk::testing
