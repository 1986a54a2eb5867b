#include "ejkernel/runtime/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/tuner.h"

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

/// How many of a call's candidates are left out on a host of 64 threads, and of how many.
template <class Op>
std::pair<int64_t, int64_t> left_out(const typename Op::Inputs& inputs, const typename Op::Params& params = {}) {
  const Plan plan = ejk::plan<Op>(inputs, params, {.kernel = "cpu", .policy = Policy{.autotune = false}});
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : plan.outputs())
    outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape) : Tensor());
  const std::vector<std::string> reasons = hopeless(plan.kernel(), {plan.inputs(), &plan.params(), outputs},
                                                    {.num_units = 64}, kPeaks, tuning_candidates(plan));
  const auto kept = std::count(reasons.begin(), reasons.end(), "");
  const auto all = static_cast<int64_t>(reasons.size());
  return {all - kept, all};
}

TEST(CostModel, what_has_few_tasks_or_computes_much_in_vain_is_left_out_of_the_kernels_own) {
  const auto spec = [](const Shape& shape) { return Tensor(nullptr, DType::f32, shape); };
  const Tensor rows = spec({1, 96, 2, 64});
  ScaledDotProductAttentionBackward::Inputs scaled_gradient;
  AttentionBackward::Inputs attention_gradient;
  scaled_gradient.query = scaled_gradient.key = scaled_gradient.value = rows;
  scaled_gradient.out = scaled_gradient.d_out = rows, scaled_gradient.lse = spec({1, 2, 96});
  attention_gradient.query = attention_gradient.key = attention_gradient.value = attention_gradient.d_out = rows;
  Rnn::Inputs cells = {.input = spec({8, 128, 512})};
  cells.weight_ih = cells.weight_hh = spec({1, 2048, 512});
  RnnBackward::Inputs cells_gradient;
  cells_gradient.input = cells.input;
  cells_gradient.weight_ih = cells_gradient.weight_hh = cells.weight_ih;
  const std::pair<int64_t, int64_t> counts[] = {
      left_out<ScaledDotProductAttention>({.query = rows, .key = rows, .value = rows}),
      left_out<ScaledDotProductAttentionBackward>(scaled_gradient),
      left_out<Attention>({.query = rows, .key = rows, .value = rows}),
      left_out<AttentionBackward>(attention_gradient),
      left_out<Rnn>(cells),
      left_out<RnnBackward>(cells_gradient)};
  for (const auto& [some, all] : counts) {
    EXPECT_GT(some, 0);
    EXPECT_LT(some, all - 1);
  }
}

TEST(CostModel, a_kernel_that_counts_nothing_keeps_all_candidates) {
  EXPECT_THAT(hopeless({}, {}, kDevice, kPeaks, grains({900, 1})), ElementsAre("", ""));
}

}  // namespace
}  // namespace ejk
