// What lightning_attention adds to recurrent_attention: the decays of its heads, and where they come from.
#include "ejkernel/ops/lightning_attention/lightning_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ejkernel/ops/lightning_attention/lightning_attention_cases.h"
#include "ejkernel/ops/lightning_attention/lightning_attention_decays.cuh"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::array_of;
using testing::counting;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::refusal_of;
using testing::values_of;

class LightningAttentionCalls : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() const { return {.plan = {.kernel = GetParam()}}; }
};

/// Four heads of states of one number, 1, that nothing is added to: what is left of them after a token.
TEST_P(LightningAttentionCalls, decay_by_head_and_layer) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Array zeros = array_of(dtype, {1, 1, 4, 1}, {0, 0, 0, 0}), ones = array_of(dtype, {1, 4, 1, 1}, {1, 1, 1, 1});
    const LightningAttention::Inputs in = {.query = zeros, .key = zeros, .value = zeros, .initial_state = ones};
    if (dtype == DType::f64 && GetParam() != "reference") continue;
    const double near = dtype == DType::f64 ? 1e-15 : 1e-6;
    const auto first = lightning_attention(in, {.layer_idx = 0, .num_layers = 4}, options());
    EXPECT_THAT(
        values_of(first.final_state),
        ElementsAre(1, DoubleNear(std::exp(-2), near), DoubleNear(std::exp(-4), near), DoubleNear(std::exp(-6), near)));
    const auto last = lightning_attention(in, {.layer_idx = 3, .num_layers = 4}, options());
    EXPECT_THAT(values_of(last.final_state),
                ElementsAre(1, DoubleNear(std::exp(-0.5), near), DoubleNear(std::exp(-1), near),
                            DoubleNear(std::exp(-1.5), near)));
    const auto d =
        execute<LightningAttentionBackward>({in, {}, last.final_state}, {.layer_idx = 3, .num_layers = 4}, options());
    EXPECT_THAT(
        values_of(d.initial_state),
        ElementsAre(1, DoubleNear(std::exp(-1), near), DoubleNear(std::exp(-2), near), DoubleNear(std::exp(-3), near)));
  }
}

TEST_P(LightningAttentionCalls, add_up_without_decay_in_the_first_head) {
  const Array ones = counting({1, 4, 1, 1}, 1);
  const auto [out, final_state] =
      lightning_attention({.query = f32({1, 4, 1, 1}, {1, 1, 1, 1}), .key = ones, .value = ones},
                          {.layer_idx = 1, .num_layers = 2}, options());
  EXPECT_THAT(values_of(out),
              ElementsAre(DoubleNear(1, 1e-5), DoubleNear(5, 1e-5), DoubleNear(14, 1e-5), DoubleNear(30, 1e-5)));
}

std::vector<std::string> kernels_of_the_host() {
  std::vector<std::string> names;
  for (const testing::Kernel& kernel : testing::kernels_of(testing::declaration<LightningAttention>()))
    names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, LightningAttentionCalls, ::testing::ValuesIn(kernels_of_the_host()),
                         [](const auto& info) { return info.param; });

TEST(LightningAttention, must_know_its_layer) {
  const Array one = f32({1, 1, 1, 1}, {1});
  const LightningAttention::Inputs in = {.query = one, .key = one, .value = one};
  EXPECT_EQ(refusal_of([&] { lightning_attention(in, {.num_layers = 4}); }),
            "lightning_attention: layer_idx must be given, got nothing; pass the layer's number, counted from 0");
  EXPECT_EQ(refusal_of([&] { lightning_attention(in, {.layer_idx = 0}); }),
            "lightning_attention: num_layers must be given, got nothing; pass how many layers the model has");
  EXPECT_EQ(refusal_of([&] { lightning_attention(in, {.layer_idx = 4, .num_layers = 4}); }),
            "lightning_attention: layer_idx must be below num_layers 4, got 4; layers are counted from 0");
  EXPECT_THAT(refusal_of([&] { lightning_attention(in, {.layer_idx = -1, .num_layers = 4}); }), HasSubstr("layer_idx"));
  EXPECT_THAT(refusal_of([&] { lightning_attention(in, {.layer_idx = 0, .num_layers = 0}); }), HasSubstr("num_layers"));
  EXPECT_THAT(refusal_of([&] {
                execute<LightningAttentionBackward>({in, one, {}}, {.layer_idx = 0});
              }),
              HasSubstr("lightning_attention_backward: num_layers must be given"));
}

TEST(LightningAttention, has_the_kernels_of_recurrent_attention) {
  const auto names = [](const Operation& op) {
    std::vector<std::string> names;
    for (const KernelInfo* kernel : op.kernels()) names.push_back(kernel->name);
    return names;
  };
  EXPECT_EQ(names(testing::declaration<LightningAttention>()), names(testing::declaration<RecurrentAttention>()));
  EXPECT_EQ(names(testing::declaration<LightningAttentionBackward>()),
            names(testing::declaration<RecurrentAttentionBackward>()));
}

// ---- on a GPU ----

TEST(LightningAttention, threads_of_one_block_store_all_decays) {
  const Array decays = f32({5}, {9, 9, 9, 9, 9});
  const cuda::LightningDecays problem = {.to = {decays.data(), cuda::Number::f32, {}}, .num_heads = 5, .slope = -0.5};
  for (int thread = 0; thread < 3; ++thread) store_decays(problem, thread, 3);
  EXPECT_THAT(values_of(decays), ElementsAre(0, -0.5, -1, -1.5, -2));
}

TEST(LightningAttention, stores_the_decays_before_the_recurrence_reads_them) {
  const testing::FakeCuda fake;
  constexpr Device kGpu = {DeviceKind::cuda, 0};
  const Array q = Array::zeros(DType::bf16, {2, 9, 4, 32}, kGpu);
  lightning_attention({.query = q, .key = q, .value = q}, {.layer_idx = 1, .num_layers = 2},
                      {.plan = {.kernel = "cuda_reference"}});
  ASSERT_EQ(fake.launches().size(), 2u);
  EXPECT_EQ(fake.launches()[0].instance, "ejk::cuda::lightning_attention_decays");
  EXPECT_EQ(fake.launches()[0].grid[0], 1u);
  EXPECT_EQ(fake.launches()[1].instance, "ejk::cuda::recurrent_attention_reference<false>");
}

}  // namespace
}  // namespace ejk
