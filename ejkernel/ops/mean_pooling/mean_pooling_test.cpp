// The rules of operations §14, one test each, on every kernel, with values worked out by hand.
#include "ejkernel/ops/mean_pooling/mean_pooling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::array_of;
using testing::bools;
using testing::counting;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using testing::refusal_of;
using testing::values_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class MeanPoolingRules : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() { return {.plan = {.kernel = GetParam()}, .status = &status}; }
  MeanPooling::Results pool(const MeanPooling::Inputs& in, const MeanPooling::Params& params = {}) {
    return mean_pooling(in, params, options());
  }
  Array gradient(const MeanPoolingBackward::Inputs& in, const MeanPoolingBackward::Params& params) {
    return execute<MeanPoolingBackward>(in, params, options()).x;
  }

  uint32_t status = 0;
};

TEST_P(MeanPoolingRules, averages_all_rows_of_a_batch_entry) {
  const Array x = f32({2, 3, 2}, {1, 2, 3, 4, 5, 6, 10, 0, 20, 0, 60, 3});
  EXPECT_THAT(values_of(pool({.x = x}).out), ElementsAre(3, 4, 30, 1));
}

TEST_P(MeanPoolingRules, a_mask_selects_rows_and_their_number_divides) {
  const Array x = f32({1, 4, 1}, {1, 2, 4, 8});
  const Array mask = bools({1, 4}, {1, 0, 1, 0});
  EXPECT_THAT(values_of(pool({.x = x, .mask = mask}).out), ElementsAre(2.5));
}

TEST_P(MeanPoolingRules, what_masked_rows_hold_never_reaches_the_result) {
  const double inf = std::numeric_limits<double>::infinity();
  const Array x = f32({1, 4, 2}, {kNaN, inf, 2, 3, -inf, kNaN, 4, 5});
  const Array mask = bools({1, 4}, {0, 1, 0, 1});
  EXPECT_THAT(values_of(pool({.x = x, .mask = mask}).out), ElementsAre(3, 4));
}

TEST_P(MeanPoolingRules, a_selected_nan_does_reach_the_result) {
  const Array x = f32({1, 2, 2}, {kNaN, 1, 2, 3});
  const std::vector<double> out = values_of(pool({.x = x}).out);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], 2);
}

TEST_P(MeanPoolingRules, nothing_to_average_gives_zero) {
  const Array x = f32({1, 2, 1}, {kNaN, kNaN});
  EXPECT_THAT(values_of(pool({.x = x, .mask = bools({1, 2}, {0, 0})}).out), ElementsAre(0));
  EXPECT_THAT(values_of(pool({.x = f32({2, 0, 2}, {})}).out), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(values_of(pool({.x = f32({0, 3}, {}), .cu_seqlens = i32({0, 0})}).out), ElementsAre(0, 0, 0));
}

TEST_P(MeanPoolingRules, packed_sequences_are_averaged_apart_and_empty_ones_are_zero) {
  const Array x = f32({5, 1}, {1, 3, 10, 20, 60});
  EXPECT_THAT(values_of(pool({.x = x, .cu_seqlens = i32({0, 2, 2, 5})}).out), ElementsAre(2, 0, 30));
  EXPECT_EQ(status, 0u);
}

TEST_P(MeanPoolingRules, rows_of_no_sequence_reach_no_result) {
  const Array x = f32({5, 1}, {kNaN, 1, 3, kNaN, kNaN});
  EXPECT_THAT(values_of(pool({.x = x, .cu_seqlens = i32({1, 3})}).out), ElementsAre(2));
}

TEST_P(MeanPoolingRules, chunks_are_averaged_per_head_and_the_tail_by_its_own_count) {
  // Two heads of one element; rows (1, 2), (3, 4), (5, 6), (7, 8), (9, 10) in chunks of two.
  const Array x = counting({1, 5, 2, 1});
  const auto [out, offsets] = pool({.x = x}, {.chunk_size = 2});
  EXPECT_EQ(out.shape(), (Shape{1, 3, 2, 1}));
  EXPECT_THAT(values_of(out), ElementsAre(2, 3, 6, 7, 9, 10));
  EXPECT_FALSE(offsets.present());
}

TEST_P(MeanPoolingRules, a_chunk_longer_than_the_sequence_holds_all_of_it) {
  const Array x = f32({1, 3, 1, 1}, {1, 2, 6});
  EXPECT_THAT(values_of(pool({.x = x}, {.chunk_size = INT64_MAX}).out), ElementsAre(3));
}

TEST_P(MeanPoolingRules, packed_chunks_stand_in_order_with_their_offsets_and_rows_past_them_are_zero) {
  const Array x = f32({7, 1, 1}, {1, 3, 5, kNaN, 10, 20, 30});
  // Lengths 3, 0 and 3: chunks (1, 3), (5), (10, 20), (30); ceil(7 / 2) + 3 = 7 rows. Row 3 belongs to nobody.
  const auto [out, offsets] = pool({.x = x, .cu_seqlens = i32({0, 3, 3, 3, 7})}, {.chunk_size = 2});
  EXPECT_EQ(out.shape(), (Shape{8, 1, 1}));
  const std::vector<double> all = values_of(out);
  EXPECT_EQ(all[0], 2);
  EXPECT_EQ(all[1], 5);
  EXPECT_TRUE(std::isnan(all[2]));
  EXPECT_EQ(all[3], 25);
  for (size_t row = 4; row < 8; ++row) EXPECT_EQ(all[row], 0);
  EXPECT_THAT(values_of(offsets), ElementsAre(0, 2, 2, 2, 4));
  EXPECT_EQ(offsets.dtype(), DType::i32);
}

TEST_P(MeanPoolingRules, offsets_out_of_range_are_clamped_with_their_status_bit) {
  const Array x = f32({4, 1}, {1, 2, 3, 4});
  EXPECT_THAT(values_of(pool({.x = x, .cu_seqlens = i32({-5, 2, INT32_MAX})}).out), ElementsAre(1.5, 3.5));
  EXPECT_EQ(status, status::kOffsets);
}

TEST_P(MeanPoolingRules, an_end_before_its_start_is_empty_and_overlapping_sequences_all_average_their_rows) {
  const Array x = f32({4, 1}, {1, 2, 3, 4});
  EXPECT_THAT(values_of(pool({.x = x, .cu_seqlens = i32({0, 3, 1, 4})}).out), ElementsAre(2, 0, 3));
  EXPECT_EQ(status, status::kOffsets);
}

TEST_P(MeanPoolingRules, overlapping_chunks_stop_at_the_last_row) {
  const Array x = f32({2, 1, 1}, {1, 2});
  // Offsets 0 2 0 2 0 2: three times the chunks (1), (2); there are 2 + 5 rows, enough for all six.
  auto [out, offsets] = pool({.x = x, .cu_seqlens = i32({0, 2, 0, 2, 0, 2})}, {.chunk_size = 1});
  EXPECT_THAT(values_of(out), ElementsAre(1, 2, 1, 2, 1, 2, 0));
  EXPECT_THAT(values_of(offsets), ElementsAre(0, 2, 2, 4, 4, 6));
  EXPECT_EQ(status, status::kOffsets);

  // With four rows each there are 4 + 5 of them for 12 chunks: the last three have none.
  const Array y = f32({4, 1, 1}, {1, 2, 3, 4});
  const auto [cut, cut_offsets] = pool({.x = y, .cu_seqlens = i32({0, 4, 0, 4, 0, 4})}, {.chunk_size = 1});
  EXPECT_THAT(values_of(cut), ElementsAre(1, 2, 3, 4, 1, 2, 3, 4, 1));
  EXPECT_THAT(values_of(cut_offsets), ElementsAre(0, 4, 4, 8, 8, 9));
}

TEST_P(MeanPoolingRules, strided_inputs_are_read_in_place) {
  const Array storage = counting({3, 2, 4});  // rows, batch, and two columns more than x has
  const Tensor x(storage.data(), DType::f32, {2, 3, 2}, {4, 8, 1});
  EXPECT_THAT(values_of(pool({.x = x}).out), ElementsAre(9, 10, 13, 14));
}

TEST_P(MeanPoolingRules, sixteen_bit_rows_are_summed_wider_and_rounded_once) {
  // Each row is 1; a bf16 sum would stop at 256.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Array x = array_of(dtype, {1, 3000, 1}, std::vector<double>(3000, 1));
    const MeanPooling::Results result = pool({.x = x});
    EXPECT_EQ(result.out.dtype(), dtype);
    EXPECT_THAT(values_of(result.out), ElementsAre(1));
  }
}

TEST_P(MeanPoolingRules, long_sequences_keep_their_precision) {
  // 2^20 rows of 1 + 2^-12 sum to 2^20 + 2^8, and a running float32 sum of them stands still far from that.
  const int64_t rows = int64_t{1} << 20;
  Array x(DType::f32, {1, rows, 1});
  std::fill_n(x.as<float>(), rows, 1 + 0x1p-12f);
  EXPECT_NEAR(values_of(pool({.x = x}).out)[0], 1 + 0x1p-12, 0x1p-23);
}

TEST_P(MeanPoolingRules, the_gradient_spreads_each_mean_over_its_rows) {
  const Array d_out = f32({2, 1}, {6, 9});
  EXPECT_THAT(values_of(gradient({.d_out = d_out}, {.num_tokens = 3})), ElementsAre(2, 2, 2, 3, 3, 3));
  const Array mask = bools({2, 3}, {1, 0, 1, 0, 0, 0});
  EXPECT_THAT(values_of(gradient({.d_out = d_out, .mask = mask}, {})), ElementsAre(3, 0, 3, 0, 0, 0));
}

TEST_P(MeanPoolingRules, the_gradient_of_rows_that_are_not_averaged_is_zero_whatever_the_cotangent_holds) {
  const Array mask = bools({1, 2}, {0, 0});
  EXPECT_THAT(values_of(gradient({.d_out = f32({1, 1}, {kNaN}), .mask = mask}, {})), ElementsAre(0, 0));
  // Row 0 belongs to nobody; the first sequence is empty and its cotangent is NaN.
  const Array d_out = f32({2, 1}, {kNaN, 4});
  EXPECT_THAT(values_of(gradient({.d_out = d_out, .cu_seqlens = i32({1, 1, 3})}, {.num_tokens = 4})),
              ElementsAre(0, 2, 2, 0));
}

TEST_P(MeanPoolingRules, the_gradient_of_chunks_follows_their_own_counts) {
  const Array d_out = f32({1, 2, 2, 1}, {4, 8, 3, 5});
  EXPECT_THAT(values_of(gradient({.d_out = d_out}, {.chunk_size = 2, .num_tokens = 3})), ElementsAre(2, 4, 2, 4, 3, 5));
  // Packed: chunks (0, 1), (2), (3); rows past the third chunk are not read.
  const Array packed = f32({4, 1, 1}, {4, 8, 3, kNaN});
  EXPECT_THAT(values_of(gradient({.d_out = packed, .cu_seqlens = i32({0, 3, 4})}, {.chunk_size = 2, .num_tokens = 4})),
              ElementsAre(2, 2, 8, 3));
}

TEST_P(MeanPoolingRules, the_gradient_of_a_row_that_several_sequences_claim_is_the_sum) {
  // Sequences (0, 1, 2), nothing, (1, 2, 3).
  const Array d_out = f32({3, 1}, {3, 100, 6});
  const Array d_x = gradient({.d_out = d_out, .cu_seqlens = i32({0, 3, 1, 4})}, {.num_tokens = 4});
  EXPECT_THAT(values_of(d_x), ElementsAre(1, 3, 3, 2));
  EXPECT_EQ(status, status::kOffsets);
}

TEST_P(MeanPoolingRules, the_gradient_of_overlapping_chunks_leaves_out_those_without_a_row) {
  const Array d_out = counting({9, 1, 1});
  const Array d_x =
      gradient({.d_out = d_out, .cu_seqlens = i32({0, 4, 0, 4, 0, 4})}, {.chunk_size = 1, .num_tokens = 4});
  EXPECT_THAT(values_of(d_x), ElementsAre(1 + 5 + 9, 2 + 6, 3 + 7, 4 + 8));
}

TEST_P(MeanPoolingRules, vjp_finds_the_length_by_itself) {
  const Array x = counting({5, 2, 1});
  const Array cu_seqlens = i32({0, 3, 5});
  const auto [results, pullback] = vjp<MeanPooling>({.x = x, .cu_seqlens = cu_seqlens}, {.chunk_size = 2}, options());
  EXPECT_THAT(values_of(results.chunk_offsets), ElementsAre(0, 2, 3));
  const Array d_out = f32({5, 2, 1}, {2, 4, 5, 6, 8, 10, 0, 0, 0, 0});
  EXPECT_THAT(values_of(pullback({.out = d_out}).x), ElementsAre(1, 2, 1, 2, 5, 6, 4, 5, 4, 5));
  EXPECT_THAT(values_of(pullback({}).x), ::testing::Each(0));
}

TEST_P(MeanPoolingRules, outputs_that_nobody_wants_are_not_needed) {
  const Array x = counting({3, 1, 1}), cu_seqlens = i32({0, 3});
  const MeanPooling::Inputs in = {.x = x, .cu_seqlens = cu_seqlens};
  const MeanPooling::Params params = {.chunk_size = 2};
  const auto plan = ejk::plan<MeanPooling>(in, params, options().plan);
  const MeanPooling::Results to = plan.allocate_outputs();
  Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  const RunOptions run = {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}};
  plan.run(in, {.chunk_offsets = to.chunk_offsets}, run);
  EXPECT_THAT(values_of(to.chunk_offsets), ElementsAre(0, 2));
  plan.run(in, {.out = to.out}, run);
  EXPECT_THAT(values_of(to.out), ElementsAre(1.5, 3, 0));
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : MeanPooling::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, MeanPoolingRules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST(MeanPooling, the_forms_do_not_combine) {
  auto refusal = [](const MeanPooling::Inputs& in, const MeanPooling::Params& params) {
    return refusal_of([&] { mean_pooling(in, params); });
  };
  const Array x = counting({4, 1}), chunks = counting({4, 1, 1}), cu_seqlens = i32({0, 4});
  const Array mask = bools({1, 4}, {1, 1, 1, 1});
  EXPECT_EQ(
      refusal({.x = x, .mask = mask, .cu_seqlens = cu_seqlens}, {}),
      "mean_pooling: mask must be left out in the packed form, got bool[1, 4]; leave it out, or use another form");
  EXPECT_THAT(refusal({.x = counting({1, 4, 1, 1}), .mask = mask}, {.chunk_size = 2}),
              HasSubstr("mask must be left out in the chunked form"));
  EXPECT_THAT(refusal({.x = chunks, .mask = mask, .cu_seqlens = cu_seqlens}, {.chunk_size = 2}),
              HasSubstr("mask must be left out in the packed chunked form"));
  EXPECT_THAT(refusal({.x = chunks, .cu_seqlens = cu_seqlens}, {}),
              HasSubstr("x must be [num_tokens, dim] in the packed form, got rank 3 [4, 1, 1]"));
  EXPECT_THAT(refusal({.x = x}, {}), HasSubstr("x must be [batch, num_tokens, dim] in the batched form"));
  EXPECT_THAT(refusal({.x = chunks}, {.chunk_size = 0}), HasSubstr("chunk_size must be >= 1, got 0"));
}

TEST(MeanPooling, the_gradient_says_what_it_misses) {
  auto refusal = [](const MeanPoolingBackward::Inputs& in, const MeanPoolingBackward::Params& params) {
    return refusal_of([&] { execute<MeanPoolingBackward>(in, params); });
  };
  const Array d_out = f32({1, 1}, {1}), mask = bools({1, 2}, {1, 1});
  EXPECT_EQ(
      refusal({.d_out = d_out}, {}),
      "mean_pooling_backward: num_tokens must be given without a mask, got nothing; pass the number of rows of x");
  EXPECT_THAT(refusal({.d_out = d_out, .mask = mask}, {.num_tokens = 3}),
              HasSubstr("num_tokens must equal mask num_tokens 2, got 3"));
  EXPECT_THAT(refusal({.d_out = f32({1, 1, 1, 1}, {1})}, {.chunk_size = 2, .num_tokens = 3}),
              HasSubstr("d_out total_chunks must equal the forward's 2, got 1"));
  EXPECT_THAT(refusal({.d_out = d_out}, {.num_tokens = -1}), HasSubstr("num_tokens must be >= 0"));
}

/// The reference without the last row of the batched form.
struct LeavesOutARow {
  static constexpr std::string_view kName = "leaves_out_a_row";
  static constexpr Platform kPlatform = Platform::cpu;

  static Support supports(const Call<MeanPooling>& call, const DeviceProperties&) {
    const bool batched = !call.inputs.cu_seqlens.present() && !call.params.chunk_size;
    return batched && call.inputs.x.shape[1] > 1 ? Support::yes() : Support::no("not written for it");
  }
  static void run(const Call<MeanPooling>& call, const RunContext&) {
    MeanPooling::Inputs in = call.inputs;
    --in.x.shape[1];
    if (in.mask.present()) --in.mask.shape[1];
    const Array out = mean_pooling(in, call.params, {.plan = {.kernel = "reference"}}).out;
    for (int64_t n = 0; n < out.num_elements(); ++n) set(call.outputs.out, n, get(out, n));
  }
};

TEST(MeanPooling, the_error_rule_catches_a_kernel_that_leaves_out_a_row) {
  const auto kernel = std::make_shared<const KernelInfo>(make_kernel<MeanPooling, LeavesOutARow>());
  const testing::TestOperation& tests = testing::mean_pooling_tests();
  int met = 0, caught = 0;
  for (uint64_t seed = 1; met < 120; ++seed) {
    const testing::PoolingCase c = testing::random_pooling_case({.seed = seed, .size = testing::Size::small});
    // A row counts if the mask selects it, and if there is an entry for it to count in.
    if (c.batch == 0 || c.data != testing::PoolingData::normal || (c.masked && c.mask_density < 1)) continue;
    const testing::Problem problem = testing::make_pooling_problem(c);
    if (!supports(problem, kernel).ok) continue;
    ++met;
    const testing::Verdict verdict = check_kernel(problem, tests.oracle(problem, testing::kTestBudget), kernel);
    caught += verdict.failures.empty() ? 0 : 1;
  }
  EXPECT_GE(caught, met * 9 / 10);
}

}  // namespace
}  // namespace ejk
