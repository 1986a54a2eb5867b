// The rules of operations §2, one test each, on every kernel: what attention has and flash_attention has not.
#include "ejkernel/ops/attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ejkernel/core/philox.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::array_of;
using testing::bools;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using testing::f64;
using ::testing::HasSubstr;
using testing::i32;
using ::testing::Pointwise;
using testing::refusal_of;
using testing::values_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const double kLog3 = std::log(3.0);

Array waves(const Shape& shape, double phase, DType dtype = DType::f64) {
  Array a(dtype, shape);
  for (int64_t n = 0; n < a.num_elements(); ++n) set(a, n, std::sin(phase + 0.7 * static_cast<double>(n)));
  return a;
}

class AttentionWeights : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() { return {.plan = {.kernel = GetParam()}, .status = &status}; }
  Attention::Results attend(const Attention::Inputs& in, const Attention::Params& params = {}) {
    return execute<Attention>(in, params, options());
  }
  AttentionBackward::Results gradients(const AttentionBackward::Inputs& in, const Attention::Params& params = {}) {
    return execute<AttentionBackward>(in, params, options());
  }

  uint32_t status = 0;
  // One query and two keys with logits 0 and log 3: probabilities 1/4 and 3/4.
  Array query = f32({1, 1, 1, 1}, {1}), key = f32({1, 2, 1, 1}, {0, kLog3}), value = f32({1, 2, 1, 1}, {4, 8});
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : Attention::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, AttentionWeights, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(AttentionWeights, are_what_multiplies_the_values) {
  const auto [out, weights] = attend({.query = query, .key = key, .value = value});
  EXPECT_EQ(weights.shape(), (Shape{1, 1, 1, 2}));
  EXPECT_THAT(values_of(weights), ElementsAre(DoubleNear(0.25, 1e-7), DoubleNear(0.75, 1e-7)));
  EXPECT_THAT(values_of(out), ElementsAre(DoubleNear(7, 1e-6)));
}

TEST_P(AttentionWeights, are_zero_where_a_key_is_not_visible_whatever_it_holds) {
  const Array poisoned_key = f32({1, 3, 1, 1}, {0, kNaN, kLog3}), poisoned_value = f32({1, 3, 1, 1}, {4, kNaN, 8});
  const Array mask = bools({1, 1, 1, 3}, {1, 0, 1});
  const auto [out, weights] =
      attend({.query = query, .key = poisoned_key, .value = poisoned_value, .attention_mask = mask});
  EXPECT_THAT(values_of(weights), ElementsAre(DoubleNear(0.25, 1e-7), 0, DoubleNear(0.75, 1e-7)));
  EXPECT_THAT(values_of(out), ElementsAre(DoubleNear(7, 1e-6)));
}

TEST_P(AttentionWeights, sum_to_one_minus_the_share_of_the_sinks) {
  const Array sinks = f32({1, 1}, {std::log(4.0)});  // 1 + 3 + 4
  const auto [out, weights] = attend({.query = query, .key = key, .value = value, .softmax_aux = sinks});
  EXPECT_THAT(values_of(weights), ElementsAre(DoubleNear(0.125, 1e-7), DoubleNear(0.375, 1e-7)));
  EXPECT_THAT(values_of(out), ElementsAre(DoubleNear(3.5, 1e-6)));
}

TEST_P(AttentionWeights, of_a_row_without_a_visible_key_are_zero) {
  const Array mask = bools({1, 1, 1, 2}, {0, 0});
  const auto [out, weights] = attend({.query = query, .key = key, .value = value, .attention_mask = mask});
  EXPECT_THAT(values_of(weights), ElementsAre(0, 0));
  EXPECT_THAT(values_of(out), ElementsAre(0));

  const Array nan = f32({1, 1, 1, 1}, {kNaN}), d_weights = f32({1, 1, 1, 2}, {kNaN, kNaN});
  const AttentionBackward::Inputs in = {
      {.query = query, .key = key, .value = value, .attention_mask = mask}, nan, d_weights};
  const auto grads = gradients(in);
  EXPECT_THAT(values_of(grads.query), Each(0));
  EXPECT_THAT(values_of(grads.key), Each(0));
  EXPECT_THAT(values_of(grads.value), Each(0));
}

TEST_P(AttentionWeights, are_taken_after_dropout) {
  const int64_t kv_len = 64;
  const Array keys = f32({1, kv_len, 1, 1}, std::vector<double>(kv_len, 0));
  const Array values = waves({1, kv_len, 1, 1}, 0.3, DType::f32);
  const Array seed = array_of(DType::u32, {2}, {7, 9});
  const auto [out, weights] =
      attend({.query = query, .key = keys, .value = values, .dropout_seed = seed}, {.dropout_prob = 0.5});
  double sum = 0;
  for (int64_t j = 0; j < kv_len; ++j) {
    const bool keep = dropout_keep(7, 9, 0, 0, 0, static_cast<uint32_t>(j), dropout_threshold(0.5));
    EXPECT_NEAR(get(weights, j), keep ? 2.0 / kv_len : 0, 1e-8) << j;
    sum += get(weights, j) * get(values, j);
  }
  EXPECT_NEAR(get(out, 0), sum, 1e-6);
}

TEST_P(AttentionWeights, have_the_dtype_of_the_query_whatever_out_has) {
  const Array q = array_of(DType::bf16, {1, 1, 1, 1}, {1}), k = array_of(DType::bf16, {1, 2, 1, 1}, {0, 0}),
              v = array_of(DType::bf16, {1, 2, 1, 1}, {4, 8});
  const auto [out, weights] = attend({.query = q, .key = k, .value = v}, {.out_dtype = DType::f32});
  EXPECT_EQ(out.dtype(), DType::f32);
  EXPECT_EQ(weights.dtype(), DType::bf16);
  EXPECT_THAT(values_of(weights), ElementsAre(0.5, 0.5));
}

TEST_P(AttentionWeights, stand_per_query_head_over_keys_in_use) {
  // Four query heads on two kv heads; head h sees logits 0 and h / 2 times log 3. The third key is not in use.
  const Array q = f32({1, 1, 4, 1}, {1, 1, 1, 1}), k = f32({1, 3, 2, 1}, {0, 0, 0, kLog3, kNaN, kNaN});
  const Array v = f32({1, 3, 2, 1}, {4, 4, 8, 8, kNaN, kNaN});
  const auto [out, weights] = attend({.query = q, .key = k, .value = v, .seqused_k = i32({2})});
  const std::vector<double> expected = {.5, .5, 0, .5, .5, 0, .25, .75, 0, .25, .75, 0};
  EXPECT_THAT(values_of(weights), Pointwise(DoubleNear(1e-7), expected));
  EXPECT_THAT(values_of(out), Pointwise(DoubleNear(1e-6), std::vector<double>{6, 6, 7, 7}));
  EXPECT_EQ(status, 0u);
  attend({.query = q, .key = k, .value = v, .seqused_k = i32({4})});
  EXPECT_EQ(status, status::kLength);
}

TEST_P(AttentionWeights, pass_their_cotangent_back) {
  // P = (1/4, 3/4) and dP = (1, 0): delta = 1/4, dS = (3/16, -3/16).
  const Array d_weights = f32({1, 1, 1, 2}, {1, 0});
  const AttentionBackward::Inputs in = {{.query = query, .key = key, .value = value}, {}, d_weights};
  const auto grads = gradients(in);
  EXPECT_THAT(values_of(grads.query), ElementsAre(DoubleNear(-3 * kLog3 / 16, 1e-7)));
  EXPECT_THAT(values_of(grads.key), ElementsAre(DoubleNear(3.0 / 16, 1e-7), DoubleNear(-3.0 / 16, 1e-7)));
  EXPECT_THAT(values_of(grads.value), ElementsAre(0, 0));
}

TEST_P(AttentionWeights, cotangent_is_not_read_where_a_key_is_not_visible) {
  const Array k = f32({1, 3, 1, 1}, {0, kLog3, kNaN}), v = f32({1, 3, 1, 1}, {4, 8, kNaN});
  const Array d_weights = f32({1, 1, 1, 3}, {1, 0, kNaN}), used = i32({2});
  const AttentionBackward::Inputs in = {{.query = query, .key = k, .value = v, .seqused_k = used}, {}, d_weights};
  const auto grads = gradients(in);
  EXPECT_THAT(values_of(grads.query), ElementsAre(DoubleNear(-3 * kLog3 / 16, 1e-7)));
  EXPECT_THAT(values_of(grads.key), ElementsAre(DoubleNear(3.0 / 16, 1e-7), DoubleNear(-3.0 / 16, 1e-7), 0));
  EXPECT_THAT(values_of(grads.value), ElementsAre(0, 0, 0));
}

TEST_P(AttentionWeights, belong_to_the_same_out_as_flash_attention) {
  const Array q = waves({2, 3, 4, 8}, 0.1, DType::f32), k = waves({2, 5, 2, 8}, 1.3, DType::f32),
              v = waves({2, 5, 2, 6}, 2.2, DType::f32), bias = waves({1, 4, 1, 5}, 0.9, DType::f32),
              sinks = waves({4, 2}, 0.2, DType::f32);
  const auto flash = flash_attention(
      {.query = q, .key = k, .value = v, .bias = bias, .softmax_aux = sinks},
      {.causal = true, .sliding_window = 2, .attention_sink_size = 1, .logits_soft_cap = 1.5, .dropout_prob = 0.25});
  const auto [out, weights] = attend(
      {.query = q, .key = k, .value = v, .bias = bias, .softmax_aux = sinks},
      {.causal = true, .sliding_window = 2, .attention_sink_size = 1, .logits_soft_cap = 1.5, .dropout_prob = 0.25});
  EXPECT_THAT(values_of(out), Pointwise(DoubleNear(1e-6), values_of(flash.out)));
}

/// The loss sum(out * u) + sum(weights * w) of one call.
struct Loss {
  Attention::Params params;
  Array d_out, d_weights;
  CallOptions options;

  double operator()(const Attention::Inputs& in) const {
    const auto [out, weights] = execute<Attention>(in, params, options);
    double sum = 0;
    for (int64_t n = 0; n < out.num_elements(); ++n) sum += get(out, n) * get(d_out, n);
    for (int64_t n = 0; n < weights.num_elements(); ++n) sum += get(weights, n) * get(d_weights, n);
    return sum;
  }
};

/// Central differences of the loss with respect to one of its inputs.
std::vector<double> differences(const Loss& loss, const Attention::Inputs& in, const Tensor& of) {
  constexpr double kStep = 1e-6;
  std::vector<double> slopes;
  for (int64_t n = 0; n < of.num_elements(); ++n) {
    const double x = get(of, n);
    set(of, n, x + kStep);
    const double above = loss(in);
    set(of, n, x - kStep);
    const double below = loss(in);
    set(of, n, x);
    slopes.push_back((above - below) / (2 * kStep));
  }
  return slopes;
}

TEST_P(AttentionWeights, are_differentiable_together_with_out) {
  if (GetParam() != "reference") GTEST_SKIP() << "finite differences need double arithmetic";
  const Array q = waves({1, 3, 4, 3}, 0.1), k = waves({1, 4, 2, 3}, 1.3), v = waves({1, 4, 2, 2}, 2.2),
              bias = waves({1, 1, 3, 4}, 0.9);
  for (const bool shared_sinks : {false, true}) {
    const Array sinks = shared_sinks ? waves({2}, 0.4) : waves({4, 1}, 0.4);
    const Attention::Inputs in = {.query = q, .key = k, .value = v, .bias = bias, .softmax_aux = sinks};
    const Attention::Params params = {.causal = true, .logits_soft_cap = 1.5, .dropout_prob = 0.25};
    const Loss loss = {params, waves({1, 3, 4, 2}, 3.1), waves({1, 4, 3, 4}, 4.7), options()};
    const auto [results, pullback] = vjp<Attention>(in, params, options());
    const auto grads = pullback({.out = loss.d_out, .weights = loss.d_weights});
    auto agrees = [&](const Tensor& of, const Tensor& gradient) {
      EXPECT_THAT(values_of(gradient), Pointwise(DoubleNear(1e-7), differences(loss, in, of)));
    };
    agrees(q, grads.query);
    agrees(k, grads.key);
    agrees(v, grads.value);
    agrees(bias, grads.bias);
    agrees(sinks, grads.softmax_aux);
  }
}

TEST_P(AttentionWeights, outputs_that_nobody_wants_are_not_needed) {
  const Attention::Inputs in = {.query = query, .key = key, .value = value};
  const auto plan = ejk::plan<Attention>(in, {}, options().plan);
  const Attention::Results to = plan.allocate_outputs();
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  const RunOptions run = {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}};
  plan.run(in, {.weights = to.weights}, run);
  EXPECT_THAT(values_of(to.weights), ElementsAre(DoubleNear(0.25, 1e-7), DoubleNear(0.75, 1e-7)));
  plan.run(in, {.out = to.out}, run);
  EXPECT_THAT(values_of(to.out), ElementsAre(DoubleNear(7, 1e-6)));
}

TEST_P(AttentionWeights, of_empty_problems_are_empty_or_zero) {
  const auto no_queries = attend({.query = f32({1, 0, 1, 1}, {}), .key = key, .value = value});
  EXPECT_EQ(no_queries.weights.shape(), (Shape{1, 1, 0, 2}));
  const auto no_keys = attend({.query = query, .key = f32({1, 0, 1, 1}, {}), .value = f32({1, 0, 1, 1}, {})});
  EXPECT_EQ(no_keys.weights.num_elements(), 0);
  EXPECT_THAT(values_of(no_keys.out), ElementsAre(0));
}

TEST(Attention, has_no_packed_form_no_scales_and_always_normalises) {
  const Operation& op = operation<Attention>();
  for (const char* name : {"cu_seqlens_q", "cu_seqlens_k", "q_scale", "k_scale", "v_scale"})
    EXPECT_EQ(find_input(op, name), -1) << name;
  EXPECT_GE(find_input(op, "seqused_k"), 0);
  for (const char* name : {"normalize_output", "max_seqlen_q", "max_seqlen_k"}) {
    ParamsBlock params = op.default_params;
    EXPECT_THAT(refusal_of([&] { set_param(op, params, name, int64_t{1}); }),
                HasSubstr("must be one of its parameters"))
        << name;
  }
}

TEST(Attention, refuses_what_flash_attention_refuses) {
  const Array q = f32({1, 1, 3, 1}, {1, 1, 1}), k = f32({1, 2, 2, 1}, {0, 0, 0, 0});
  EXPECT_THAT(refusal_of([&] { attention({.query = q, .key = k, .value = k}); }),
              HasSubstr("attention: query num_q_heads must be a multiple of key num_kv_heads 2, got 3"));
  const Array codes = array_of(DType::e4m3, {1, 1, 1, 1}, {1});
  EXPECT_THAT(refusal_of([&] { attention({.query = codes, .key = codes, .value = codes}); }),
              HasSubstr("attention: query dtype must be f64, f32, f16 or bf16"));
}

}  // namespace
}  // namespace ejk
