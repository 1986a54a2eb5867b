// The rules of operations §15 and §16, one test each, on every kernel of the host, with values worked out by hand.
#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::array_of;
using testing::bools;
using testing::counting;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using testing::refusal_of;
using testing::values_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class GroupedMatmulRules : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() { return {.plan = {.kernel = GetParam()}, .status = &status}; }
  Array multiply(const GroupedMatmul::Inputs& in, const GroupedMatmul::Params& params = {}) {
    return grouped_matmul(in, params, options()).out;
  }
  GroupedMatmulBackward::Results gradients(const GroupedMatmulBackward::Inputs& in,
                                           const GroupedMatmulBackward::Params& params = {}) {
    return execute<GroupedMatmulBackward>(in, params, options());
  }

  uint32_t status = 0;
};

std::vector<std::string> host_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : GroupedMatmul::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, GroupedMatmulRules, ::testing::ValuesIn(host_kernels()),
                         [](const auto& info) { return info.param; });

TEST_P(GroupedMatmulRules, each_group_multiplies_its_rows_by_its_matrix) {
  const Array lhs = f32({3, 2}, {1, 2, 3, 4, 5, 6}), rhs = f32({2, 2, 2}, {1, 0, 0, 1, 1, 1, 10, 100});
  const Array out = multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1, 2})});
  EXPECT_THAT(values_of(out), ElementsAre(1, 2, 43, 403, 65, 605));
  EXPECT_EQ(status, 0u);
}

TEST_P(GroupedMatmulRules, transpose_rhs_reads_n_by_k) {
  const Array lhs = f32({1, 2}, {1, 2}), rhs = f32({1, 3, 2}, {1, 0, 0, 1, 5, 6});
  const Array out = multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1})}, {.transpose_rhs = true});
  EXPECT_THAT(values_of(out), ElementsAre(1, 2, 17));
}

TEST_P(GroupedMatmulRules, batched_groups_have_matrices_on_both_sides) {
  const Array lhs = f32({2, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), rhs = counting({2, 2, 2, 1});
  EXPECT_THAT(values_of(multiply({.lhs = lhs, .rhs = rhs})), ElementsAre(5, 25, 61, 113));
}

TEST_P(GroupedMatmulRules, rows_without_a_matrix_are_zero_whatever_they_hold) {
  const Array lhs = f32({5, 1}, {kNaN, 2, 3, kNaN, kNaN}), rhs = f32({1, 1, 1}, {10});
  const Array out = multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1, 2, 1})}, {.group_offset = 1});
  EXPECT_THAT(values_of(out), ElementsAre(0, 20, 30, 0, 0));
}

TEST_P(GroupedMatmulRules, existing_out_is_added_to_and_kept_where_nothing_is) {
  const Array lhs = f32({3, 1}, {2, 3, kNaN}), rhs = f32({1, 1, 2}, {10, 100});
  const Array existing = f32({3, 2}, {1, 2, 3, 4, 5, 6});
  const Array out =
      multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({0, 2}), .existing_out = existing}, {.group_offset = 1});
  EXPECT_THAT(values_of(out), ElementsAre(21, 202, 33, 304, 5, 6));
}

TEST_P(GroupedMatmulRules, sizes_are_not_trusted) {
  const Array lhs = f32({3, 1}, {1, 2, 3}), rhs = f32({3, 1, 1}, {1, 10, 100});
  const auto with = [&](const std::vector<double>& sizes) {
    status = 0;
    return values_of(multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32(sizes)}));
  };
  EXPECT_THAT(with({-5, 2, 1}), ElementsAre(10, 20, 300)) << "a negative size is 0";
  EXPECT_EQ(status, status::kGroupSize);
  EXPECT_THAT(with({2, 7, 1}), ElementsAre(1, 2, 30)) << "rows end where lhs does";
  EXPECT_EQ(status, status::kGroupSize);
  EXPECT_THAT(with({2147483647, 2147483647, 2147483647}), ElementsAre(1, 2, 3));
  EXPECT_EQ(status, status::kGroupSize);
  EXPECT_THAT(with({1, 0, 1}), ElementsAre(1, 200, 0)) << "fewer rows are no fault";
  EXPECT_EQ(status, 0u);
}

TEST_P(GroupedMatmulRules, faults_of_groups_elsewhere_are_told_as_well) {
  const Array lhs = f32({2, 1}, {1, 2}), rhs = f32({1, 1, 1}, {10});
  multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1, -1, 1})});
  EXPECT_EQ(status, status::kGroupSize);
}

TEST_P(GroupedMatmulRules, a_false_block_of_rhs_counts_as_zero_whatever_it_holds) {
  const Array lhs = f32({1, 3}, {1, 2, 3}), rhs = f32({1, 3, 2}, {1, kNaN, 1, kNaN, 1, 1});
  const Array mask = bools({1, 2, 2}, {1, 0, 1, 1});
  const Array out =
      multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1}), .rhs_mask = mask}, {.block_k = 2, .block_n = 1});
  EXPECT_THAT(values_of(out), ElementsAre(6, 3));
}

TEST_P(GroupedMatmulRules, a_false_block_of_out_has_no_product) {
  const Array lhs = f32({3, 1}, {1, 2, 3}), rhs = f32({1, 1, 2}, {10, 100});
  const Array existing = f32({3, 2}, {1, 1, 1, 1, 1, 1}), mask = bools({2, 2}, {0, 1, 1, 0});
  const Array sizes = i32({3});
  const GroupedMatmul::Params blocks = {.block_m = 2, .block_n = 1};
  GroupedMatmul::Inputs in = {.lhs = lhs, .rhs = rhs, .group_sizes = sizes};
  in.out_mask = mask;
  EXPECT_THAT(values_of(multiply(in, blocks)), ElementsAre(0, 100, 0, 200, 30, 0));
  in.existing_out = existing;
  EXPECT_THAT(values_of(multiply(in, blocks)), ElementsAre(1, 101, 1, 201, 31, 1));
}

TEST_P(GroupedMatmulRules, codes_are_multiplied_by_their_scales) {
  const Array lhs = array_of(DType::i8, {2, 2}, {100, -100, 7, 0});
  const Array rhs = array_of(DType::i8, {1, 2, 2}, {2, 4, 1, 3});
  const Array out = multiply({.lhs = lhs,
                              .rhs = rhs,
                              .group_sizes = i32({2}),
                              .lhs_scale = f32({2}, {0.5, 2}),
                              .rhs_scale = f32({1, 2}, {1, 4})});
  EXPECT_EQ(out.dtype(), DType::bf16) << "8-bit rows give bf16";
  EXPECT_THAT(values_of(out), ElementsAre(50, 200, 28, 224));
}

TEST_P(GroupedMatmulRules, scales_of_blocks_change_after_128) {
  const Array lhs = Array::zeros(DType::i8, {1, 130}), rhs = Array::zeros(DType::i8, {1, 130, 130});
  set(lhs, 0, 1), set(lhs, 129, 1);
  for (int64_t column : {0, 129}) set(rhs, column, 1), set(rhs, 129 * 130 + column, 1);
  const Array out = multiply({.lhs = lhs,
                              .rhs = rhs,
                              .group_sizes = i32({1}),
                              .lhs_scale = f32({1, 2}, {1, 10}),
                              .rhs_scale = f32({1, 2, 2}, {1, 2, 3, 4})},
                             {.out_dtype = DType::f32});
  EXPECT_EQ(get(out, 0), 1 * 1 + 10 * 3);
  EXPECT_EQ(get(out, 129), 1 * 2 + 10 * 4);
  EXPECT_EQ(get(out, 64), 0);
}

TEST_P(GroupedMatmulRules, scales_of_blocks_may_be_broadcast_along_k) {
  for (const int64_t k_blocks : {1, 2}) {  // of one the stride says nothing
    const int64_t k = 128 * k_blocks;
    const Array lhs = array_of(DType::bf16, {1, k}, std::vector<double>(static_cast<size_t>(k), 1));
    const Array rhs = array_of(DType::i8, {1, k, 300}, std::vector<double>(static_cast<size_t>(k * 300), 1));
    const Array scales = f32({3}, {1, 2, 4});
    const Tensor broadcast(scales.data(), DType::f32, {1, k_blocks, 3}, {0, 0, 1});
    const Array out = multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1}), .rhs_scale = broadcast});
    for (int64_t n = 0; n < 300; ++n) EXPECT_EQ(get(out, n), static_cast<double>(k << (n / 128))) << n;
  }
}

TEST_P(GroupedMatmulRules, weights_alone_may_be_8_bit) {
  const Array lhs = f32({1, 2}, {0.1f, 3}), rhs = array_of(DType::e4m3, {1, 2, 1}, {1.5, 448});
  const Array out = multiply({.lhs = lhs, .rhs = rhs, .group_sizes = i32({1}), .rhs_scale = f32({}, {2})});
  EXPECT_EQ(out.dtype(), DType::f32);
  EXPECT_FLOAT_EQ(static_cast<float>(get(out, 0)), 2 * (0.15f + 1344));
}

TEST_P(GroupedMatmulRules, any_extent_may_be_zero) {
  const auto zeros = [](const Shape& shape) { return Array::zeros(DType::f32, shape); };
  EXPECT_EQ(multiply({.lhs = zeros({0, 4}), .rhs = zeros({2, 4, 3}), .group_sizes = i32({0, 0})}).num_elements(), 0);
  EXPECT_EQ(multiply({.lhs = zeros({2, 4}), .rhs = zeros({1, 4, 0}), .group_sizes = i32({2})}).num_elements(), 0);
  EXPECT_THAT(values_of(multiply({.lhs = zeros({2, 0}), .rhs = zeros({1, 0, 3}), .group_sizes = i32({2})})), Each(0));
  EXPECT_THAT(values_of(multiply({.lhs = zeros({2, 4}), .rhs = zeros({0, 4, 3}), .group_sizes = i32({})})), Each(0));
}

TEST_P(GroupedMatmulRules, gradients_are_products_with_the_cotangent) {
  const Array lhs = f32({3, 2}, {1, 2, 3, 4, kNaN, kNaN}), rhs = f32({2, 2, 1}, {5, 6, 7, 8});
  const Array d_out = f32({3, 1}, {10, 100, kNaN});
  const auto [d_lhs, d_rhs, d_existing] =
      gradients({.lhs = lhs, .rhs = rhs, .group_sizes = i32({2, 0}), .d_out = d_out});
  EXPECT_THAT(values_of(d_lhs), ElementsAre(50, 60, 500, 600, 0, 0)) << "rows of no group get 0";
  EXPECT_THAT(values_of(d_rhs), ElementsAre(310, 420, 0, 0)) << "a group without rows gets 0";
  EXPECT_FALSE(d_existing.present());
}

TEST_P(GroupedMatmulRules, the_gradient_of_existing_out_is_the_cotangent) {
  const Array lhs = f32({2, 1}, {1, 2}), rhs = f32({1, 1, 1}, {3}), d_out = f32({2, 1}, {10, 20});
  const Array existing = f32({2, 1}, {kNaN, kNaN}), sizes = i32({1});
  const auto gradient =
      gradients({.lhs = lhs, .rhs = rhs, .group_sizes = sizes, .existing_out = existing, .d_out = d_out}).existing_out;
  EXPECT_THAT(values_of(gradient), ElementsAre(10, 20));
}

TEST_P(GroupedMatmulRules, masked_blocks_have_and_give_no_gradient) {
  const Array lhs = f32({2, 1}, {1, 2}), rhs = f32({1, 1, 3}, {5, kNaN, 7}), sizes = i32({2});
  const Array rhs_mask = bools({1, 1, 3}, {1, 0, 1}), out_mask = bools({2, 3}, {1, 1, 1, 1, 1, 0});
  const Array d_out = f32({2, 3}, {1, 1, 1, 10, 10, kNaN});
  GroupedMatmulBackward::Inputs in = {.lhs = lhs, .rhs = rhs, .group_sizes = sizes};
  in.rhs_mask = rhs_mask, in.out_mask = out_mask, in.d_out = d_out;
  const auto [d_lhs, d_rhs, d_existing] = gradients(in, {.block_m = 1, .block_k = 1, .block_n = 1});
  EXPECT_THAT(values_of(d_lhs), ElementsAre(12, 50));
  EXPECT_THAT(values_of(d_rhs), ElementsAre(21, 0, 1));
}

TEST_P(GroupedMatmulRules, the_transposed_product_sums_over_the_rows_of_each_group) {
  const Array lhs = f32({4, 2}, {1, 2, 3, 4, 5, 6, kNaN, kNaN}), d_out = f32({4, 1}, {1, 10, 100, kNaN});
  const Array sizes = i32({1, 0, 2});
  const TransposedGroupedMatmul::Inputs in = {.lhs = lhs, .d_out = d_out, .group_sizes = sizes};
  EXPECT_THAT(values_of(transposed_grouped_matmul(in, {}, options()).out), ElementsAre(1, 2, 0, 0, 530, 640));
  const Array part = transposed_grouped_matmul(in, {.group_offset = 1, .num_groups = 1}, options()).out;
  EXPECT_THAT(values_of(part), ElementsAre(0, 0));
  const Array wide = transposed_grouped_matmul(in, {.transpose_rhs = true, .group_offset = 2}, options()).out;
  EXPECT_EQ(wide.shape(), (Shape{1, 1, 2}));
  EXPECT_THAT(values_of(wide), ElementsAre(530, 640));
}

// ---- 8-bit against float64 ----

/// Normal numbers, one in a hundred `factor` times as large.
Array numbers_with_outliers(const Shape& shape, double factor, uint64_t seed) {
  testing::Random random(seed);
  Array x(DType::f64, shape);
  fill_normal(x, seed);
  for (int64_t count = x.num_elements() / 100; count > 0; --count) {
    const double outlier = factor * random.normal();  // drawn first: compilers differ in the order of arguments
    set(x, random.below(x.num_elements()), outlier);
  }
  return x;
}

/// Codes of a matrix [rows, k], one scale for each run of `block` numbers of a row, which reach the code `largest`.
struct Codes {
  Array codes, scales;
};
Codes quantise(const Tensor& x, DType dtype, double largest, int64_t block) {
  const int64_t rows = x.shape[0], k = x.shape[1], blocks = (k + block - 1) / block;
  Codes made = {Array(dtype, x.shape), Array(DType::f32, {rows, blocks})};
  for (int64_t at = 0; at < rows * blocks; ++at) {
    const int64_t first = at / blocks * k + at % blocks * block, count = std::min(block, k - at % blocks * block);
    double most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(get(x, first + i)));
    set(made.scales, at, most > 0 ? most / largest : 1);
    for (int64_t i = 0; i < count; ++i) set(made.codes, first + i, get(x, first + i) / get(made.scales, at));
  }
  return made;
}

/// ||out - exact|| / ||exact||, where exact is the product of the numbers that were quantised.
double error_of(const Tensor& out, const Tensor& exact) {
  double errors = 0, squares = 0;
  for (int64_t n = 0; n < exact.num_elements(); ++n) {
    errors += (get(out, n) - get(exact, n)) * (get(out, n) - get(exact, n));
    squares += get(exact, n) * get(exact, n);
  }
  return std::sqrt(errors / squares);
}

/// The error of the product of quantised numbers: rows of lhs in blocks of `block`, columns of a group's rhs whole.
double error_of_codes(const std::string& kernel, double outliers, DType dtype, int64_t block) {
  constexpr int64_t kRows = 64, kDepth = 512, kColumns = 64;
  const double largest = dtype == DType::i8 ? 127 : 448;
  const Array lhs = numbers_with_outliers({kRows, kDepth}, outliers, 1);
  const Array rhs = numbers_with_outliers({kColumns, kDepth}, outliers, 2), sizes = i32({kRows});
  const Tensor matrix(rhs.data(), DType::f64, {1, kColumns, kDepth});
  const Array exact = grouped_matmul({.lhs = lhs, .rhs = matrix, .group_sizes = sizes}, {.transpose_rhs = true}).out;
  const Codes a = quantise(lhs, dtype, largest, block), b = quantise(rhs, dtype, largest, kDepth);
  const Array out =
      grouped_matmul({.lhs = a.codes,
                      .rhs = Tensor(b.codes.data(), dtype, {1, kColumns, kDepth}),
                      .group_sizes = sizes,
                      .lhs_scale = block == kDepth ? Tensor(a.scales.data(), DType::f32, {kRows}) : Tensor(a.scales),
                      .rhs_scale = Tensor(b.scales.data(), DType::f32, {1, kColumns})},
                     {.transpose_rhs = true, .out_dtype = DType::f32}, {.plan = {.kernel = kernel}})
          .out;
  return error_of(out, exact);
}

/// docs/semantics.md states these.
TEST_P(GroupedMatmulRules, errors_of_8_bit_operands_are_as_published) {
  const auto error = [](double outliers, DType dtype, int64_t block) {
    return error_of_codes(GetParam(), outliers, dtype, block);
  };
  EXPECT_NEAR(error(1, DType::i8, 512), 0.0108, 1e-4);
  EXPECT_NEAR(error(1, DType::i8, 128), 0.0100, 1e-4);
  EXPECT_NEAR(error(1, DType::e4m3, 512), 0.0372, 1e-4);
  EXPECT_NEAR(error(1, DType::e4m3, 128), 0.0373, 1e-4);
  EXPECT_NEAR(error(20, DType::i8, 512), 0.0526, 1e-4);
  EXPECT_NEAR(error(20, DType::i8, 128), 0.0430, 1e-4);
  EXPECT_NEAR(error(20, DType::e4m3, 512), 0.0278, 1e-4);
  EXPECT_NEAR(error(20, DType::e4m3, 128), 0.0258, 1e-4);
}

// ---- what is refused, and how ----

GroupedMatmul::Inputs valid() {
  static const Array lhs = Array::zeros(DType::f32, {4, 256}), rhs = Array::zeros(DType::f32, {2, 256, 3});
  static const Array sizes = i32({1, 2, 1});
  return {.lhs = lhs, .rhs = rhs, .group_sizes = sizes};
}

TEST(GroupedMatmul, results_have_the_dtype_of_the_rows) {
  const auto result = [](DType rows, DType matrices, std::optional<DType> wanted = {}) {
    const GroupedMatmul::Inputs specs = {.lhs = Tensor(nullptr, rows, {2, 3}),
                                         .rhs = Tensor(nullptr, matrices, {1, 3, 4}),
                                         .group_sizes = Tensor(nullptr, DType::i32, {1})};
    return plan<GroupedMatmul>(specs, {.out_dtype = wanted}).outputs()[0].dtype;
  };
  EXPECT_EQ(result(DType::f32, DType::f32), DType::f32);
  EXPECT_EQ(result(DType::f16, DType::i8), DType::f16);
  EXPECT_EQ(result(DType::i8, DType::i8), DType::bf16);
  EXPECT_EQ(result(DType::e4m3, DType::e4m3, DType::f32), DType::f32);
}

TEST(GroupedMatmul, refuses_what_does_not_belong_together) {
  const auto refusal = [](const GroupedMatmul::Inputs& in, const GroupedMatmul::Params& params = {}) {
    return refusal_of([&] { grouped_matmul(in, params); });
  };
  GroupedMatmul::Inputs in = valid();
  EXPECT_EQ(
      refusal(in, {.group_offset = 2}),
      "grouped_matmul: group_offset must be at most num_all_groups - num_groups = 1, got 2; group_sizes lists all "
      "groups, those without a matrix here too");
  EXPECT_EQ(refusal(in, {.transpose_rhs = true}),
            "grouped_matmul: rhs k must equal lhs k 256, got 3 (lhs [4, 256], rhs [2, 256, 3]); give both the same k");
  EXPECT_EQ(refusal(in, {.block_m = 16}),
            "grouped_matmul: block_m must be left out without out_mask, got 16; it says how large a mask's blocks are");
  EXPECT_EQ(refusal(in, {.out_dtype = DType::i8}),
            "grouped_matmul: out_dtype must be f64, f32, f16 or bf16, got i8; convert the result yourself");
  in.group_sizes = {};
  EXPECT_THAT(refusal(in), HasSubstr("group_sizes must be given in the ragged form, got nothing"));
  const Array scale = f32({}, {1});
  in = valid(), in.lhs_scale = scale;
  EXPECT_EQ(
      refusal(in),
      "grouped_matmul: lhs_scale must be left out unless its tensor is 8-bit, got f32 data; scale the tensor itself");
  const Array wrong_rhs = Array::zeros(DType::bf16, {2, 256, 3});
  in = valid(), in.rhs = wrong_rhs;
  EXPECT_EQ(refusal(in),
            "grouped_matmul: rhs dtype must be lhs's f32 or an 8-bit one, got bf16; convert one of them first");
}

TEST(GroupedMatmul, refuses_grids_that_do_not_cover_an_extent) {
  const auto refusal = [](const GroupedMatmul::Inputs& in, const GroupedMatmul::Params& params = {}) {
    return refusal_of([&] { grouped_matmul(in, params); });
  };
  const Array codes = Array::zeros(DType::i8, {2, 256, 3}), scales = Array::zeros(DType::f32, {2, 3, 1});
  GroupedMatmul::Inputs in = valid();
  in.rhs = codes, in.rhs_scale = scales;
  EXPECT_EQ(
      refusal(in),
      "grouped_matmul: rhs_scale num_k_blocks must be 2, one per 128 of k, got 3; compute the scales per block of "
      "128");
  const Array mask = Array::zeros(DType::boolean, {2, 1});
  in = valid(), in.out_mask = mask;
  EXPECT_EQ(refusal(in),
            "grouped_matmul: block_m must be given with out_mask, got nothing; say how large the mask's "
            "blocks are");
  EXPECT_EQ(refusal(in, {.block_m = 3, .block_n = 2}),
            "grouped_matmul: num_mask_n_blocks must be 2, one per 2 of n, got 1; give the masks a number for every "
            "block, a partial last one too");
}

TEST(GroupedMatmul, refuses_in_the_batched_form_what_is_ragged) {
  const Array lhs = Array::zeros(DType::f32, {1, 2, 3, 4}), rhs = Array::zeros(DType::f32, {1, 2, 4, 5});
  EXPECT_THAT(refusal_of([&] {
                grouped_matmul({.lhs = lhs, .rhs = rhs, .group_sizes = i32({3, 3})});
              }),
              HasSubstr("group_sizes must be left out in the batched form"));
  EXPECT_EQ(refusal_of([&] { grouped_matmul({.lhs = lhs, .rhs = rhs}, {.group_offset = 1}); }),
            "grouped_matmul: group_offset must be 0 in the batched form, got 1; pass the groups that are to be "
            "multiplied");
}

TEST(GroupedMatmul, has_no_gradient_for_codes) {
  const Array lhs = Array::zeros(DType::i8, {4, 2}), rhs = Array::zeros(DType::i8, {1, 2, 3});
  const Array d_out = Array::zeros(DType::bf16, {4, 3});
  EXPECT_EQ(refusal_of([&] {
              execute<GroupedMatmulBackward>({.lhs = lhs, .rhs = rhs, .group_sizes = i32({4}), .d_out = d_out});
            }),
            "grouped_matmul_backward: lhs dtype must be f64, f32, f16 or bf16, got i8; convert it first");
}

TEST(TransposedGroupedMatmul, refuses_groups_that_are_not_there) {
  const Array lhs = Array::zeros(DType::f32, {4, 2}), d_out = Array::zeros(DType::f32, {4, 3}), sizes = i32({1, 3});
  const TransposedGroupedMatmul::Inputs in = {.lhs = lhs, .d_out = d_out, .group_sizes = sizes};
  EXPECT_EQ(refusal_of([&] { transposed_grouped_matmul(in, {.group_offset = 3}); }),
            "transposed_grouped_matmul: group_offset must be at most num_all_groups 2, got 3; count groups from the "
            "first of group_sizes");
  EXPECT_THAT(refusal_of([&] { transposed_grouped_matmul(in, {.group_offset = 1, .num_groups = 2}); }),
              HasSubstr("group_offset must be at most num_all_groups - num_groups = 0, got 1"));
  TransposedGroupedMatmul::Inputs masked = in;
  const Array mask = Array::zeros(DType::boolean, {1, 1, 1});
  masked.rhs_mask = mask;
  EXPECT_EQ(
      refusal_of([&] { transposed_grouped_matmul(masked, {.num_groups = 2, .block_k = 2, .block_n = 3}); }),
      "transposed_grouped_matmul: num_groups must equal rhs_mask num_groups 1, got 2; give the mask one entry per "
      "group, or leave num_groups out");
}

// ---- around the operation ----

TEST(GroupedMatmul, made_up_sizes_add_up_to_the_rows) {
  const Operation& op = operation<GroupedMatmul>();
  std::vector<Tensor> specs(op.inputs.size());
  specs[0] = Tensor(nullptr, DType::f32, {100, 4});
  specs[1] = Tensor(nullptr, DType::f32, {5, 4, 3});
  specs[2] = Tensor(nullptr, DType::i32, {7});
  const SyntheticInputs made = make_synthetic_inputs(op, specs, op.default_params, 3);
  double sum = 0;
  for (const double size : values_of(made.tensors[2])) {
    EXPECT_GE(size, 0);
    sum += size;
  }
  EXPECT_EQ(sum, 100);
}

/// Right but for the last column of lhs, which it never multiplies.
struct LeavesOutAColumn {
  static constexpr std::string_view kName = "leaves_out_a_column";
  static constexpr Platform kPlatform = Platform::cpu;

  static Support supports(const Call<GroupedMatmul>& call, const DeviceProperties&) {
    const auto& in = call.inputs;
    const bool plain = !in.lhs_scale.present() && !in.rhs_scale.present() && !in.rhs_mask.present();
    return plain && in.lhs.shape[-1] > 1 && !call.params.transpose_rhs ? Support::yes() : Support::no("not for it");
  }
  static void run(const Call<GroupedMatmul>& call, const RunContext&) {
    GroupedMatmul::Inputs in = call.inputs;
    --in.lhs.shape[-1], --in.rhs.shape[-2];
    const Array out = grouped_matmul(in, call.params, {.plan = {.kernel = "reference"}}).out;
    for (int64_t n = 0; n < out.num_elements(); ++n) set(call.outputs.out, n, get(out, n));
  }
};

TEST(GroupedMatmul, the_error_rule_catches_a_kernel_that_leaves_out_a_column) {
  const auto kernel = std::make_shared<const KernelInfo>(make_kernel<GroupedMatmul, LeavesOutAColumn>());
  const testing::TestOperation& tests = testing::grouped_matmul_tests();
  int met = 0, caught = 0;
  for (uint64_t seed = 1; met < 100; ++seed) {
    testing::MatmulCase c = testing::random_matmul_case({.seed = seed, .size = testing::Size::small});
    c.out_mask = false;  // a mask may hide everything
    const testing::Problem problem = testing::make_matmul_problem(c);
    const testing::Answer answer = tests.oracle(problem, testing::kTestBudget);
    // A product counts if there is one: some row belongs to a group.
    if (!supports(problem, kernel).ok ||
        values_of(run_guarded(problem, testing::kernels_of(*tests.declaration).back()).outputs[0]) ==
            std::vector<double>(answer.outputs[0].ref.size()))
      continue;
    ++met;
    const testing::Verdict verdict = check_kernel(problem, answer, kernel);
    caught += verdict.failures.empty() ? 0 : 1;
  }
  EXPECT_GE(caught, met * 9 / 10);
}

}  // namespace
}  // namespace ejk
