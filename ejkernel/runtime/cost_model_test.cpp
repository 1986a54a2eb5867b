#include "ejkernel/runtime/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ejk {
namespace {

using ::testing::ElementsAre;

constexpr Peaks kPeaks{.flops_per_second = 100, .bf16_flops_per_second = 1000, .bytes_per_second = 10};
const DeviceProperties kDevice{.num_units = 4, .shared_bytes_per_block = 1000};

TEST(CostModel, tasks_go_in_whole_waves) {
  // A unit does a quarter of 100 a second.
  EXPECT_EQ(predicted_seconds({.tasks = 4, .task_flops = 50}, kDevice, kPeaks), 2);
  EXPECT_EQ(predicted_seconds({.tasks = 5, .task_flops = 50}, kDevice, kPeaks), 4);
  EXPECT_EQ(predicted_seconds({.tasks = 1, .task_flops = 50}, kDevice, kPeaks), 2) << "three units wait";
}

TEST(CostModel, the_slower_of_arithmetic_and_memory_decides) {
  EXPECT_EQ(predicted_seconds({.tasks = 4, .task_flops = 50, .bytes = 30}, kDevice, kPeaks), 3);
  EXPECT_EQ(predicted_seconds({.tasks = 4, .task_flops = 500, .bytes = 5, .arithmetic = DType::bf16}, kDevice, kPeaks),
            2);
  EXPECT_EQ(predicted_seconds({.tasks = 4, .task_flops = 50}, kDevice, {}), 0) << "nothing is known";
}

struct Grain {
  int flops = 1;
};
KernelInfo counting_kernel() {
  KernelInfo kernel;
  kernel.cost = [](const CallView&, const ConfigBlock& config, const DeviceProperties&) {
    return Cost{.tasks = 4,
                .task_flops = static_cast<double>(config.as<Grain>().flops),
                .shared_bytes = config.as<Grain>().flops};
  };
  return kernel;
}
std::vector<ConfigBlock> grains(std::initializer_list<int> flops) {
  std::vector<ConfigBlock> all;
  for (const int n : flops) all.push_back(ConfigBlock::of(Grain{n}));
  return all;
}

TEST(CostModel, what_is_predicted_to_take_twice_as_long_is_left_out_but_for_the_heuristics) {
  EXPECT_THAT(hopeless(counting_kernel(), {}, kDevice, kPeaks, grains({900, 100, 201, 200, 150})),
              ElementsAre("", "", "it is predicted to take 2.0 times as long as another", "", ""));
}

TEST(CostModel, what_does_not_fit_is_left_out_and_compared_with_nothing) {
  EXPECT_THAT(hopeless(counting_kernel(), {}, kDevice, kPeaks, grains({900, 1001})),
              ElementsAre("", "it needs 1001 bytes of shared memory, and the device has 1000 for a block"));
}

TEST(CostModel, a_kernel_that_counts_nothing_keeps_all_candidates) {
  EXPECT_THAT(hopeless({}, {}, kDevice, kPeaks, grains({900, 1})), ElementsAre("", ""));
}

}  // namespace
}  // namespace ejk
