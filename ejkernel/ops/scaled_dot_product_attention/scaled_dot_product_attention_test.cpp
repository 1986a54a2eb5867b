// The rules of operations §3, one test each, on every kernel: what differs from flash_attention.
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ejkernel/core/validate.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::bools;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using ::testing::Pointwise;
using testing::refusal_of;
using testing::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Array waves(const Shape& shape, double phase) {
  Array a(DType::f32, shape);
  for (int64_t n = 0; n < a.num_elements(); ++n) set(a, n, std::sin(phase + 0.7 * static_cast<double>(n)));
  return a;
}

class SdpaRules : public ::testing::TestWithParam<std::string> {
 protected:
  using Inputs = ScaledDotProductAttention::Inputs;
  using Params = ScaledDotProductAttention::Params;

  CallOptions options() { return {.plan = {.kernel = GetParam()}, .status = &status}; }
  ScaledDotProductAttention::Results attend(const Inputs& in, const Params& params = {}) {
    return scaled_dot_product_attention(in, params, options());
  }
  /// Means of values 1, 2, 4, 8 over the keys that each of `q_len` queries sees: all logits are 0.
  std::vector<double> means(int64_t q_len, const Inputs& lengths, const Params& params) {
    const Array query = f32({1, q_len, 1, 1}, std::vector<double>(static_cast<size_t>(q_len), 0));
    const Array key = f32({1, 4, 1, 1}, {0, 0, 0, 0}), value = f32({1, 4, 1, 1}, {1, 2, 4, 8});
    Inputs in = lengths;
    in.query = query, in.key = key, in.value = value;
    return values_of(attend(in, params).out);
  }

  uint32_t status = 0;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : ScaledDotProductAttention::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, SdpaRules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(SdpaRules, causal_begins_at_the_top_left) {
  EXPECT_THAT(means(2, {}, {.causal = true}), ElementsAre(1, 1.5));
  EXPECT_THAT(means(2, {}, {.causal = true, .causal_align = CausalAlign::bottom_right}),
              ElementsAre(DoubleNear(7.0 / 3, 1e-6), 3.75));
}

TEST_P(SdpaRules, bottom_right_is_that_of_the_lengths_in_use) {
  // Two of three queries and three of four keys: the second query is at the third key.
  const Array query_lengths = i32({2}), key_lengths = i32({3});
  const Inputs lengths = {.query_seq_lengths = query_lengths, .key_value_seq_lengths = key_lengths};
  EXPECT_THAT(means(3, lengths, {.causal = true, .causal_align = CausalAlign::bottom_right}),
              ElementsAre(1.5, DoubleNear(7.0 / 3, 1e-6), 0));
}

TEST_P(SdpaRules, a_window_is_inclusive_and_an_integer_follows_the_mask) {
  EXPECT_THAT(means(2, {}, {.sliding_window = 1}), ElementsAre(1.5, DoubleNear(7.0 / 3, 1e-6)));
  EXPECT_THAT(means(3, {}, {.causal = true, .sliding_window = 1}), ElementsAre(1, 1.5, 3));
  EXPECT_THAT(means(2, {}, {.sliding_window = Window(0, 2)}),
              ElementsAre(DoubleNear(7.0 / 3, 1e-6), DoubleNear(14.0 / 3, 1e-6)));
}

TEST_P(SdpaRules, padded_queries_give_zero_and_nothing_padded_reaches_a_result) {
  const Array query = f32({2, 2, 1, 1}, {1, kNaN, kNaN, kNaN});
  const Array key = f32({2, 2, 1, 1}, {0, kNaN, 0, 0}), value = f32({2, 2, 1, 1}, {3, kNaN, 5, 5});
  const Array query_lengths = i32({1, 0}), key_lengths = i32({1, 2});
  const Inputs in = {.query = query,
                     .key = key,
                     .value = value,
                     .query_seq_lengths = query_lengths,
                     .key_value_seq_lengths = key_lengths};
  const auto [out, lse] = attend(in);
  EXPECT_THAT(values_of(out), ElementsAre(3, 0, 0, 0));
  EXPECT_THAT(values_of(lse), ElementsAre(0, -kInf, -kInf, -kInf));
  EXPECT_EQ(status, 0u);

  const auto [results, pullback] = vjp<ScaledDotProductAttention>(in, {}, options());
  const auto grads = pullback({.out = f32({2, 2, 1, 1}, {1, kNaN, kNaN, kNaN})});
  EXPECT_THAT(values_of(grads.query), Each(0));
  EXPECT_THAT(values_of(grads.key), Each(0));
  EXPECT_THAT(values_of(grads.value), ElementsAre(1, 0, 0, 0));
}

TEST_P(SdpaRules, one_length_without_the_other_counts_all_of_the_rest) {
  const Array query_lengths = i32({1}), key_lengths = i32({2});
  EXPECT_THAT(means(2, {.query_seq_lengths = query_lengths}, {}), ElementsAre(3.75, 0));
  EXPECT_THAT(means(2, {.key_value_seq_lengths = key_lengths}, {}), ElementsAre(1.5, 1.5));
}

TEST_P(SdpaRules, lengths_out_of_range_are_clamped_with_their_status_bit) {
  const Array too_long = i32({INT32_MAX}), negative = i32({-1});
  EXPECT_THAT(means(2, {.query_seq_lengths = too_long}, {}), ElementsAre(3.75, 3.75));
  EXPECT_EQ(status, status::kLength);
  status = 0;
  EXPECT_THAT(means(2, {.query_seq_lengths = negative}, {}), ElementsAre(0, 0));
  EXPECT_EQ(status, status::kLength);
  status = 0;
  EXPECT_THAT(means(2, {.key_value_seq_lengths = negative}, {}), ElementsAre(0, 0));
  EXPECT_EQ(status, status::kLength);
}

/// The same problem for both operations: lengths as a mask, the alignment by name.
TEST_P(SdpaRules, equals_flash_attention_with_the_lengths_as_a_mask) {
  const Array query = waves({2, 3, 4, 8}, 0.1), key = waves({2, 5, 2, 8}, 1.3), value = waves({2, 5, 2, 6}, 2.2);
  const Array bias = waves({1, 4, 1, 5}, 0.9), d_out = waves({2, 3, 4, 6}, 3.3), d_lse = waves({2, 4, 3}, 4.4);
  const Array query_lengths = i32({2, 3}), key_lengths = i32({5, 3});
  Array mask(DType::boolean, {2, 1, 3, 5});
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 5; ++j)
        set(mask, (b * 3 + i) * 5 + j, i < query_lengths.as<int32_t>()[b] && j < key_lengths.as<int32_t>()[b] ? 1 : 0);

  const auto [ours, our_pullback] = vjp<ScaledDotProductAttention>({.query = query,
                                                                    .key = key,
                                                                    .value = value,
                                                                    .bias = bias,
                                                                    .query_seq_lengths = query_lengths,
                                                                    .key_value_seq_lengths = key_lengths},
                                                                   {.softmax_scale = 0.7, .causal = true}, options());
  const auto [flash, flash_pullback] = vjp<FlashAttention>(
      {.query = query, .key = key, .value = value, .bias = bias, .attention_mask = mask},
      {.softmax_scale = 0.7, .causal = true, .causal_align = CausalAlign::top_left}, {.plan = {.kernel = GetParam()}});
  EXPECT_THAT(values_of(ours.out), Pointwise(DoubleNear(1e-6), values_of(flash.out)));
  for (int64_t n = 0; n < ours.lse.num_elements(); ++n)
    if (get(flash.lse, n) == -kInf)
      EXPECT_EQ(get(ours.lse, n), -kInf);
    else
      EXPECT_NEAR(get(ours.lse, n), get(flash.lse, n), 1e-6);

  const auto grads = our_pullback({.out = d_out, .lse = d_lse});
  const auto expected = flash_pullback({.out = d_out, .lse = d_lse});
  EXPECT_THAT(values_of(grads.query), Pointwise(DoubleNear(2e-6), values_of(expected.query)));
  EXPECT_THAT(values_of(grads.key), Pointwise(DoubleNear(2e-6), values_of(expected.key)));
  EXPECT_THAT(values_of(grads.value), Pointwise(DoubleNear(2e-6), values_of(expected.value)));
  EXPECT_THAT(values_of(grads.bias), Pointwise(DoubleNear(4e-6), values_of(expected.bias)));
}

TEST(Sdpa, keeps_the_names_that_people_know) {
  const Operation& op = operation<ScaledDotProductAttention>();
  auto python_name = [&](const char* field) {
    return std::string(op.inputs[static_cast<size_t>(find_input(op, field))].python_name);
  };
  EXPECT_EQ(python_name("attention_mask"), "mask");
  EXPECT_EQ(python_name("query_seq_lengths"), "cum_seqlens_q");
  EXPECT_EQ(python_name("key_value_seq_lengths"), "cum_seqlens_k");
}

TEST(Sdpa, refuses_what_it_does_not_list) {
  const Operation& op = operation<ScaledDotProductAttention>();
  ParamsBlock params = op.default_params;
  for (const char* name : {"logits_soft_cap", "dropout_prob", "attention_sink_size", "normalize_output"})
    EXPECT_THAT(refusal_of([&] { set_param(op, params, name, 1.0); }), HasSubstr("must be one of its parameters"));
  for (const char* name : {"softmax_aux", "q_segment_ids", "cu_seqlens_q"}) EXPECT_EQ(find_input(op, name), -1);
  const Array query = f32({1, 1, 1, 1}, {1}), two = i32({1, 1});
  EXPECT_THAT(refusal_of([&] {
                scaled_dot_product_attention({.query = query, .key = query, .value = query, .query_seq_lengths = two});
              }),
              HasSubstr("query_seq_lengths batch must equal query batch 1, got 2"));
}

}  // namespace
}  // namespace ejk
