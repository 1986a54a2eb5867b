// The device code of `cuda_reference` as host C++, with blocks of one thread and of three: on the problems that every
// kernel of the host meets, by the same rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ejkernel/ops/attention/attention_internal.h"
#include "ejkernel/ops/flash_attention/attention_on_host_cases.h"
#include "ejkernel/ops/flash_attention/formula_on_host_cases.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_internal.h"
#include "ejkernel/testing/fake_cuda.h"

namespace ejk {

namespace attention_on_host {
extern template void forward<1>(const attn::Problem& problem, const ForwardResults& results, const RunContext& context);
extern template void backward<1>(const attn::Problem& problem, const BackwardInputs& in,
                                 const FlashAttentionBackward::Outputs& to, const RunContext& context);
extern template void forward<3>(const attn::Problem& problem, const ForwardResults& results, const RunContext& context);
extern template void backward<3>(const attn::Problem& problem, const BackwardInputs& in,
                                 const FlashAttentionBackward::Outputs& to, const RunContext& context);
}  // namespace attention_on_host

namespace {

using attention_on_host::backward;
using attention_on_host::forward;

using ::testing::ElementsAre;

/// The kernel as the harness asks for it.
template <class Op, int kThreads>
struct OnHost {
  static constexpr std::string_view kName = kThreads == 1 ? "one_thread" : "many_threads";
  static constexpr Platform kPlatform = Platform::cpu;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return attn::backward_cuda_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const auto& [in, params, to] = call;
    const attn::Problem p = attn::make_problem(in, params);
    if constexpr (std::is_same_v<Op, Attention>)
      forward<kThreads>(p, {.out = to.out, .weights = to.weights}, context);
    else if constexpr (std::is_same_v<Op, AttentionBackward>)
      backward<kThreads>(
          p, {.d_out = in.d_out, .d_weights = in.d_weights},
          {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias, .softmax_aux = to.softmax_aux},
          context);
    else if constexpr (std::is_same_v<Op, ScaledDotProductAttentionBackward>)
      backward<kThreads>(p, {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse},
                         {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias}, context);
    else if constexpr (std::is_same_v<Op, FlashAttentionBackward>)
      backward<kThreads>(p, {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse}, to, context);
    else
      forward<kThreads>(p, {.out = to.out, .lse = to.lse}, context);
  }
};

template <class Op>
using AttentionFormulaOnHost = testing::FormulaOnHost<Op, OnHost<Op, 1>, OnHost<Op, 3>>;

using Operations = ::testing::Types<FlashAttention, FlashAttentionBackward, Attention, AttentionBackward,
                                    ScaledDotProductAttention, ScaledDotProductAttentionBackward>;
struct OperationName {
  template <class Op>
  static std::string GetName(int) {
    return std::string(Op::kName);
  }
};
TYPED_TEST_SUITE(AttentionFormulaOnHost, Operations, OperationName);

TYPED_TEST(AttentionFormulaOnHost, meets_the_named_cases) { EXPECT_GE(this->meets_named(this->one_thread, 2e6), 15); }

TYPED_TEST(AttentionFormulaOnHost, meets_random_problems) {
  EXPECT_EQ(this->meets_some(300, testing::Size::small, this->one_thread, 1e7), 300);
}

TYPED_TEST(AttentionFormulaOnHost, does_not_depend_on_the_order_of_its_threads) {
  EXPECT_EQ(this->meets_some(60, testing::Size::tiny, this->many_threads, 1e5), 60);
}

TEST(AttentionCudaReference, launches_a_step_for_each_gradient_that_is_wanted) {
  const testing::FakeCuda fake;
  constexpr Device kGpu = {DeviceKind::cuda, 0};
  const auto on_gpu = [&](const Shape& shape) { return Array::zeros(DType::f64, shape, kGpu); };
  const Array query = on_gpu({2, 5, 4, 8}), key = on_gpu({2, 7, 2, 8}), bias = on_gpu({1, 4, 1, 7});
  const Array sinks = on_gpu({4, 3}), lse = on_gpu({2, 4, 5});
  const FlashAttentionBackward::Inputs in = {
      {.query = query, .key = key, .value = key, .bias = bias, .softmax_aux = sinks}, query, lse, query, {}};
  const auto grads = execute<FlashAttentionBackward>(in, {});
  const auto blocks = [&] {
    std::vector<unsigned> all;
    for (const testing::FakeCuda::Launch& launch : fake.launches()) {
      EXPECT_EQ(launch.instance, "ejk::cuda::attention_backward<ejk::cuda::Number(0)>");
      all.push_back(launch.grid[0]);
    }
    return all;
  };
  // Query rows, key rows, elements of the bias and of the sinks.
  EXPECT_THAT(blocks(), ElementsAre(2u * 4 * 5, 2u * 2 * 7, 4u * 7, 4u * 3));

  const auto plan = ejk::plan<FlashAttentionBackward>(in, {});
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())}, kGpu);
  plan.run(in, {.query = grads.query}, {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
  EXPECT_EQ(blocks().size(), 5u) << "only the rows' step";
}

}  // namespace
}  // namespace ejk
