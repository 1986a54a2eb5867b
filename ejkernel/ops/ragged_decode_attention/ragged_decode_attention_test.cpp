// The rules of operations §6, one test each, on every kernel: what differs from page_attention.
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using testing::refusal_of;
using testing::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();

class RaggedDecodeRules : public ::testing::TestWithParam<std::string> {
 protected:
  using Inputs = RaggedDecodeAttention::Inputs;
  using Params = RaggedDecodeAttention::Params;

  RaggedDecodeAttention::Results attend(const Inputs& in, const Params& params = {}) {
    status = 0;
    return ragged_decode_attention(in, params, {.plan = {.kernel = GetParam()}, .status = &status});
  }
  /// The mean of what is in use of 1, 2, 4, 8: all logits are 0.
  double mean(double start, double end, const Params& params = {}) {
    const Array query = f32({1, 1, 1}, {0}), keys = Array::zeros(DType::f32, {1, 4, 1, 1});
    const Array values = f32({1, 4, 1, 1}, {1, 2, 4, 8}), starts = i32({start}), ends = i32({end});
    return get(
        attend({.query = query, .key = keys, .value = values, .sequence_start = starts, .sequence_end = ends}, params)
            .out,
        0);
  }

  uint32_t status = 0;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : RaggedDecodeAttention::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, RaggedDecodeRules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(RaggedDecodeRules, tokens_from_start_to_before_end_are_in_use) {
  EXPECT_EQ(mean(0, 4), 3.75);
  EXPECT_EQ(mean(1, 3), 3);
  EXPECT_EQ(mean(3, 4), 8);
  EXPECT_EQ(status, 0u);
}

TEST_P(RaggedDecodeRules, a_start_at_or_past_the_end_is_an_empty_sequence_and_no_fault) {
  for (const auto& [start, end] : {std::pair{2, 2}, {3, 1}, {4, 0}, {4, 4}}) {
    EXPECT_EQ(mean(start, end), 0);
    EXPECT_EQ(status, 0u);
  }
}

TEST_P(RaggedDecodeRules, ends_outside_the_cache_are_clamped_with_their_status_bit) {
  EXPECT_EQ(mean(0, 5), 3.75);
  EXPECT_EQ(status, status::kOffsets);
  EXPECT_EQ(mean(-2147483648.0, 2147483647.0), 3.75);
  EXPECT_EQ(status, status::kOffsets);
  EXPECT_EQ(mean(5, 7), 0);
  EXPECT_EQ(status, status::kOffsets);
  EXPECT_EQ(mean(-3, -1), 0);
  EXPECT_EQ(status, status::kOffsets);
}

TEST_P(RaggedDecodeRules, the_query_is_the_last_token_and_positions_count_from_the_start) {
  EXPECT_EQ(mean(1, 4, {.sliding_window = 0}), 8);
  EXPECT_EQ(mean(0, 3, {.sliding_window = 1}), 3);
  EXPECT_EQ(mean(1, 4, {.sliding_window = 0, .attention_sink_size = 1}), 5);
}

TEST_P(RaggedDecodeRules, a_query_may_have_an_axis_of_its_one_token) {
  const Array query = f32({2, 1, 2, 1}, {0, 0, 0, 0}), keys = Array::zeros(DType::f32, {2, 2, 1, 1});
  const Array values = f32({2, 2, 1, 3}, {1, 2, 3, 3, 4, 5, 7, 8, 9, 0, 0, 0});
  const Array starts = i32({0, 0}), ends = i32({2, 1});
  const auto [out, lse] =
      attend({.query = query, .key = keys, .value = values, .sequence_start = starts, .sequence_end = ends});
  EXPECT_EQ(out.shape(), (Shape{2, 1, 2, 3}));
  EXPECT_EQ(lse.shape(), (Shape{2, 2}));
  EXPECT_THAT(values_of(out), ElementsAre(2, 3, 4, 2, 3, 4, 7, 8, 9, 7, 8, 9));
}

TEST_P(RaggedDecodeRules, everything_may_be_empty_but_heads) {
  for (const int64_t batch : {0, 2}) {
    const Array query = Array::zeros(DType::f32, {batch, 2, 3}), cache = Array::zeros(DType::f32, {batch, 0, 1, 3});
    const Array bounds = Array::zeros(DType::i32, {batch});
    const auto [out, lse] =
        attend({.query = query, .key = cache, .value = cache, .sequence_start = bounds, .sequence_end = bounds});
    EXPECT_THAT(values_of(out), Each(0));
    EXPECT_THAT(values_of(lse), Each(-kInf));
    EXPECT_EQ(status, 0u);
  }
}

TEST(RaggedDecodeAttention, shapes_that_do_not_fit_are_explained) {
  const Array query = Array::zeros(DType::f32, {2, 4, 8}), two_tokens = Array::zeros(DType::f32, {2, 2, 4, 8});
  const Array cache = Array::zeros(DType::f32, {2, 5, 2, 8}), batch3 = Array::zeros(DType::f32, {3, 5, 2, 8});
  const Array bounds = i32({0, 0});
  RaggedDecodeAttention::Inputs in = {
      .query = query, .key = batch3, .value = batch3, .sequence_start = bounds, .sequence_end = bounds};
  EXPECT_THAT(refusal_of([&] { ragged_decode_attention(in); }), HasSubstr("key batch must equal query batch 2, got 3"));
  in.key = in.value = cache, in.query = two_tokens;
  EXPECT_THAT(refusal_of([&] { ragged_decode_attention(in); }), HasSubstr("query must have extent 1 on axis 1"));
}

}  // namespace
}  // namespace ejk
