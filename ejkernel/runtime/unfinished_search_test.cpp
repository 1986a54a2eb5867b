// A search that its budget ended: what it leaves alone, what is better than what it left, and when it is made again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <limits>
#include <string>
#include <thread>

#include "ejkernel/core/store.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/runtime/tuning_lab.h"
#include "ejkernel/testing/temporary_folder.h"
#include "ejkernel/testing/toy_tunable.h"

namespace ejk::testing {
namespace {

using ::testing::StartsWith;

constexpr Policy kTunes{}, kDoesNotTune{.autotune = false};

class UnfinishedSearch : public ::testing::Test {
 protected:
  UnfinishedSearch() {
    use_store(own_.path().string());
    ToyTunable::by_default = {.delay = 4};
    ToyTunable::offered = {{.delay = 0}, {.delay = 2}};
    ToyTunable::num_runs = 0;
    KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
  }
  ~UnfinishedSearch() override {
    clear_memory_configs();
    use_store("");
  }

  static PlanFor<Toy> planned(const Policy& policy = kDoesNotTune) {
    PlanOptions options;
    options.policy = policy;
    return plan<Toy>({.x = Tensor(nullptr, DType::f32, {8, 4})}, {}, options);
  }
  /// "store delay=2 deed=0"
  static std::string chosen(const Policy& policy = kDoesNotTune) {
    const Plan made = planned(policy);
    return std::string(name(made.choice().tier)) + " " + to_string(made.kernel(), made.choice().config);
  }
  static RecordKey key() {
    const Plan made = planned();
    return config_record_key(made.request(), made.kernel());
  }
  /// As an earlier process left it.
  static void put(const ConfigValues& values, const ConfigProvenance& provenance) {
    ASSERT_TRUE(put_stored_config(key(), values, provenance));
    clear_memory_configs();
  }
  static void put_winner(int64_t delay) { put({{"delay", delay}}, {}); }
  static void put_unfinished(double seconds) { put({}, {.how = std::string(kUnfinished), .search_seconds = seconds}); }
  static TuneReport search_in_no_time() { return tune(planned(), {.budget_seconds = 0}); }
  std::string own() const { return own_.path().string(); }

 private:
  const TemporaryFolder own_;
  KernelRegistry::Batch batch_{(register_toys(), KernelRegistry::instance())};
};

TEST_F(UnfinishedSearch, runs_the_heuristics_config_once_and_says_so) {
  const TuneReport report = search_in_no_time();
  EXPECT_EQ(ToyTunable::num_runs, 1);
  EXPECT_FALSE(report.complete);
  EXPECT_FALSE(report.faster);
  EXPECT_TRUE(report.published);
  EXPECT_TRUE(find_stored_config(key())->unfinished_after.has_value());
}

TEST_F(UnfinishedSearch, leaves_a_winner_in_the_store_alone) {
  put_winner(2);
  EXPECT_TRUE(search_in_no_time().published) << "the store answers";
  EXPECT_EQ(chosen(), "store delay=2 deed=0");
}

TEST_F(UnfinishedSearch, leaves_a_winner_in_memory_alone) {
  const Plan made = planned();
  set_memory_config(made.request(), made.kernel(), ConfigBlock::of(ToyConfig{.delay = 2}));
  EXPECT_FALSE(search_in_no_time().published);
  EXPECT_EQ(chosen(), "memory delay=2 deed=0");
}

TEST_F(UnfinishedSearch, gives_way_to_what_a_read_only_place_knows) {
  const TemporaryFolder other;
  use_store(other.path().string());
  put_winner(2);
  use_store(own(), {.read_only = {other.path().string()}});
  EXPECT_EQ(chosen(), "store delay=2 deed=0");
  put_unfinished(1);
  EXPECT_EQ(chosen(), "store delay=2 deed=0");
  put_winner(0);
  EXPECT_EQ(chosen(), "store delay=0 deed=0") << "what is finished here does not";
}

TEST_F(UnfinishedSearch, is_made_again_where_there_is_much_more_time) {
  put_unfinished(1.5);
  EXPECT_EQ(chosen(kTunes), "heuristics delay=4 deed=0") << "of two seconds";
  EXPECT_EQ(ToyTunable::num_runs, 0);
  put_unfinished(0.01);
  EXPECT_EQ(chosen(), "heuristics delay=4 deed=0") << "the policy must allow it";
  EXPECT_EQ(ToyTunable::num_runs, 0);
  chosen(kTunes);
  EXPECT_GT(ToyTunable::num_runs, 10);
  EXPECT_FALSE(find_stored_config(key())->unfinished_after.has_value());
}

TEST_F(UnfinishedSearch, is_told_of_as_what_it_is) {
  put_unfinished(1.5);
  const std::array inputs = {Tensor(nullptr, DType::f32, {8, 4}), Tensor()};
  PlanOptions options;
  options.policy = Policy{.autotune = false, .heuristics = false};
  const Explanation told = explain("toy", inputs, ParamsBlock::of(Toy::Params{}), options);
  EXPECT_EQ(told.trail.tiers.at(3).answer, "measured: nothing beat the heuristic's config before the budget ended");
  EXPECT_THAT(told.trail.tiers.back().answer,
              ::testing::EndsWith("(measured: nothing beat it before the budget ended)"));
}

/// A run takes longer than what has to be warmed up for it.
struct SlowToy : ToyTunable {
  static constexpr std::string_view kName = "slow";
  static void run(const Call<Toy>& call, const Config& config, const RunContext& context) {
    std::this_thread::sleep_for(std::chrono::duration<double>(1.1 * PlanLab::kLongSeconds));
    ToyTunable::run(call, config, context);
  }
};

TEST_F(UnfinishedSearch, a_long_run_is_a_sample_by_itself) {
  KernelRegistry::instance().add("toy", make_kernel<Toy, SlowToy>(), 20000);
  const Array x = Array::zeros(DType::f32, {8, 4});
  PlanOptions options;
  options.policy = kDoesNotTune;
  const Plan made = plan<Toy>({.x = x}, {}, options);
  const std::vector<ConfigBlock> candidates = tuning_candidates(made);
  const std::vector<Tensor> inputs = {x, Tensor()};
  PlanLab lab(made, inputs, candidates, std::numeric_limits<double>::infinity());
  ASSERT_EQ(lab.begin(), "");
  ToyTunable::num_runs = 0;
  EXPECT_GE(lab.sample(0), PlanLab::kLongSeconds);
  EXPECT_EQ(ToyTunable::num_runs, 1);
}

}  // namespace
}  // namespace ejk::testing
