// Timed side by side, a slower config shows, and one that is as fast or faster does not.
#include "ejkernel/testing/side_by_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/testing/statistics.h"
#include "ejkernel/testing/toy_tunable.h"

namespace ejk::testing {
namespace {

class SideBySide : public ::testing::Test {
 protected:
  SideBySide() {
    KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
    ToyTunable::by_default = {};
    for (int64_t n = 0; n < x_.num_elements(); ++n) set(x_.view(), n, 1);
  }

  /// Of the toy kernel with these delays, a unit of which is 20 us.
  std::vector<std::vector<double>> time(std::vector<int> delays, const SideBySideOptions& options = {}) {
    std::vector<Plan> plans;
    for (const int delay : delays)
      plans.push_back(plan<Toy>({.x = x_.view()}, {}, {.config = ConfigValues{{"delay", delay}}}));
    return time_side_by_side(plans, to_array(Toy::Inputs{.x = x_.view()}), CallMemory(plans), options);
  }
  /// How likely the second one's times are if it is no slower than the first.
  double p_of(int first, int second) {
    const auto seconds = time({first, second}, {.max_seconds = 0.1});
    return sign_test_above_one(ratios_of(seconds[0], seconds[1]));
  }

 private:
  KernelRegistry::Batch batch_{(register_toys(), KernelRegistry::instance())};  // the toys themselves stay
  const Array x_{DType::f32, {8, 4}};
};

TEST_F(SideBySide, each_plan_has_a_time_in_each_round) {
  const auto seconds = time({1, 2, 4}, {.max_seconds = 0, .min_rounds = 3, .sample_seconds = 1e-6});
  ASSERT_EQ(seconds.size(), 3u);
  for (const auto& of_plan : seconds) EXPECT_EQ(of_plan.size(), 3u);
  EXPECT_GE(median(seconds[0]), 20e-6);
  EXPECT_GE(median(seconds[2]), 80e-6);
  EXPECT_EQ(time({1}, {.max_seconds = 10, .max_rounds = 5, .sample_seconds = 1e-6})[0].size(), 5u);
}

TEST_F(SideBySide, a_slower_config_is_seen_to_be_slower) {
  EXPECT_LT(p_of(2, 4), 1e-6);
  EXPECT_GT(p_of(4, 2), 0.99);
}

}  // namespace
}  // namespace ejk::testing
