#include "ejkernel/platform/cpu/amx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ejkernel/core/dtype.h"
#include "ejkernel/platform/cpu/cpu_info.h"
#include "ejkernel/testing/emulated_tiles.h"

namespace ejk::cpu {
namespace {

using testing::emulated_matrix_unit;

constexpr int64_t kStride = 80;

Pair pair_of(float low, float high) {
  return {from_float<bf16_t>(low).bits | uint32_t{from_float<bf16_t>(high).bits} << 16};
}

/// A product whose matrices are surrounded by NaN, which must neither come in nor be written over.
struct Product {
  std::vector<Pair> a = std::vector<Pair>(kStride * kStride, pair_of(NAN, NAN)), b = a;
  std::vector<float> c = std::vector<float>(kStride * kStride, NAN);
  Gemm<Pair> gemm;

  template <class Number>
  Product(int64_t m, int64_t n, int64_t k, Number number)
      : gemm{m, n, k, a.data(), kStride, b.data(), kStride, c.data(), kStride} {
    const auto fill = [&](std::vector<Pair>& matrix, int64_t rows, int64_t columns) {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < columns; ++i) matrix[at(r, i)] = pair_of(number(), number());
    };
    fill(a, m, k);
    fill(b, k, n);
    for (int64_t r = 0; r < m; ++r)
      for (int64_t i = 0; i < n; ++i) c[at(r, i)] = number();
  }

  static size_t at(int64_t row, int64_t column) { return static_cast<size_t>(row * kStride + column); }
  static double low(Pair pair) { return std::bit_cast<float>(pair.bits << 16); }
  static double high(Pair pair) { return std::bit_cast<float>(pair.bits & 0xffff0000u); }

  /// Element (i, j) of a * b, in double; and the sum of magnitudes.
  double expected(int64_t i, int64_t j, double& magnitude) const {
    double sum = magnitude = 0;
    for (int64_t k = 0; k < gemm.k; ++k)
      for (const double term : {low(a[at(i, k)]) * low(b[at(k, j)]), high(a[at(i, k)]) * high(b[at(k, j)])})
        sum += term, magnitude += std::abs(term);
    return sum;
  }
};

void multiply(const Product& product, bool add) {
  const MatrixUnitScope scope(&emulated_matrix_unit());
  emulated_matrix_unit().multiply(product.gemm, add);
}

TEST(MatrixUnit, products_of_every_edge_are_exact_on_integers) {
  std::mt19937 random(1);
  const auto small = [&] { return static_cast<float>(random() % 17) - 8; };
  for (const bool add : {false, true})
    for (const int64_t m : {1, 15, 16, 17, 33, 64})
      for (const int64_t n : {1, 8, 16, 31, 32, 48})
        for (const int64_t k : {0, 1, 15, 16, 17, 40}) {
          Product p(m, n, k, small);
          const std::vector<float> before = p.c;
          multiply(p, add);
          for (int64_t i = 0; i < kStride; ++i)
            for (int64_t j = 0; j < kStride; ++j) {
              const float actual = p.c[Product::at(i, j)], was = before[Product::at(i, j)];
              double magnitude = 0;
              if (i < m && j < n)
                ASSERT_EQ(actual, p.expected(i, j, magnitude) + (add ? was : 0))
                    << m << " " << n << " " << k << " at " << i << " " << j;
              else
                ASSERT_TRUE(std::isnan(actual)) << "wrote outside " << m << " " << n << " at " << i << " " << j;
            }
        }
}

TEST(MatrixUnit, products_are_as_exact_as_float32_sums) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  Product p(64, 64, 64, [&] { return normal(random); });
  multiply(p, false);
  for (int64_t i = 0; i < p.gemm.m; ++i)
    for (int64_t j = 0; j < p.gemm.n; ++j) {
      double magnitude = 0;
      const double expected = p.expected(i, j, magnitude);
      // Two chains of 16 steps, their sum, and the sum of four of those: 21 roundings in a row.
      ASSERT_NEAR(p.c[Product::at(i, j)], expected, 21 * 0x1p-24 * magnitude);
    }
}

/// The order of the sums and what becomes of subnormal numbers, as Intel defines TDPBF16PS.
TEST(MatrixUnit, the_emulation_follows_the_definition) {
  const auto dot = [](std::vector<Pair> left, std::vector<Pair> right, float sum) {
    Product p(1, 1, static_cast<int64_t>(left.size()), [] { return 0.0f; });
    std::copy(left.begin(), left.end(), p.a.begin());
    for (size_t k = 0; k < right.size(); ++k) p.b[k * kStride] = right[k];
    p.c[0] = sum;
    multiply(p, true);
    return p.c[0];
  };
  // Each chain begins at 0: 1 is lost in 2^24 + 1 of the even chain, but not between the chains' sum and c.
  EXPECT_EQ(dot({pair_of(0x1p12f, 0), pair_of(1, 0)}, {pair_of(0x1p12f, 0), pair_of(1, 0)}, 1), 0x1p24f)
      << "ties to even";
  EXPECT_EQ(dot({pair_of(0x1p12f, 1)}, {pair_of(0x1p12f, 1)}, -0x1p24f), 0) << "even + odd comes before c";
  EXPECT_EQ(dot({pair_of(0x1p12f, 1.5f)}, {pair_of(0x1p12f, 2)}, -0x1p24f), 4) << "3 beyond 2^24 is rounded to 4";
  // The product inside a chain is not rounded: (1 + 2^-7)^2 - 1 keeps its last bit.
  EXPECT_EQ(dot({pair_of(-1, 0), pair_of(1.0078125f, 0)}, {pair_of(1, 0), pair_of(1.0078125f, 0)}, 0),
            0x1p-6f + 0x1p-14f);
  constexpr float kSubnormal = 0x1p-130f, kLeast = std::numeric_limits<float>::min();
  EXPECT_EQ(dot({pair_of(kSubnormal, 0)}, {pair_of(0x1p20f, 0)}, 0), 0) << "a factor";
  EXPECT_EQ(dot({pair_of(0x1p-70f, 0)}, {pair_of(0x1p-60f, 0)}, 0), 0) << "a result";
  EXPECT_EQ(dot({pair_of(0, 0)}, {pair_of(0, 0)}, kSubnormal), 0) << "what is added to";
  EXPECT_EQ(dot({pair_of(0x1p-66f, 0)}, {pair_of(0x1p-60f, 0)}, 0), kLeast);
  EXPECT_TRUE(std::isnan(dot({pair_of(0, 0)}, {pair_of(INFINITY, 0)}, 0)));
  EXPECT_EQ(dot({pair_of(1, 1)}, {pair_of(INFINITY, 1)}, 1), INFINITY);
}

/// Products of a few columns and of a few rows: exact on integers, and nothing beside them is read or written.
TEST(MatrixUnit, products_of_few_rows_and_columns_are_exact_on_integers) {
  std::mt19937 random(3);
  const auto small = [&] { return static_cast<float>(random() % 17) - 8; };
  const MatrixUnit& unit = emulated_matrix_unit();
  const auto expect_equal = [](const Product& p, const std::vector<float>& before, bool add) {
    for (int64_t i = 0; i < kStride; ++i)
      for (int64_t j = 0; j < kStride; ++j) {
        const float actual = p.c[Product::at(i, j)], was = before[Product::at(i, j)];
        double magnitude = 0;
        if (i < p.gemm.m && j < p.gemm.n)
          ASSERT_EQ(actual, p.expected(i, j, magnitude) + (add ? was : 0)) << p.gemm.m << " " << p.gemm.n << " " << i;
        else
          ASSERT_TRUE(std::isnan(actual)) << "wrote outside " << p.gemm.m << " " << p.gemm.n << " at " << i << " " << j;
      }
  };
  const MatrixUnitScope scope(&unit);
  for (int few = 1; few <= 16; ++few) {
    unit.configure_few(few);
    for (const int64_t many : {32, 64})
      for (const int64_t k : {16, 48}) {
        Product columns(many, (few + 3) / 4 * 4, k, small);
        const std::vector<float> before_columns = columns.c;
        unit.multiply_few_columns(columns.gemm);
        expect_equal(columns, before_columns, false);
        Product rows(few, many, k, small);
        const std::vector<float> before_rows = rows.c;
        unit.add_few_rows(rows.gemm);
        expect_equal(rows, before_rows, true);
      }
  }
  Product whole(16, 16, 16, small);
  EXPECT_THROW(unit.multiply(whole.gemm, false), std::logic_error) << "tiles are of another shape";
}

/// Codes in tiles at places and strides of their own, upwards and downwards, and digits on either side.
TEST(MatrixUnit, products_of_codes_and_digits_are_exact) {
  std::mt19937 random(4);
  const auto any = [&] { return static_cast<int8_t>(random()); };
  for (const int64_t k : {64, 128, 192}) {
    constexpr int64_t kRows = kDigitDepth, kSpace = 300;
    std::vector<int8_t> keys(kRows * kSpace), digits(static_cast<size_t>(k * kDigitColumns));
    std::generate(keys.begin(), keys.end(), any);
    std::generate(digits.begin(), digits.end(), any);
    CodeTiles codes = {};
    const auto tile_at = [&](int64_t tile) {
      return reinterpret_cast<const std::byte*>(keys.data()) + 16 * tile * kSpace;
    };
    codes.first[0] = tile_at(0), codes.stride[0] = kSpace;
    codes.first[1] = tile_at(1) + 15 * kSpace, codes.stride[1] = -kSpace;
    codes.first[2] = tile_at(2), codes.stride[2] = 0;
    codes.first[3] = tile_at(3) + 7, codes.stride[3] = k;
    std::vector<int32_t> columns(kRows * kDigitColumns), rows(kDigitColumns * kCodeColumns);
    std::vector<int8_t> values(static_cast<size_t>(k * kCodeColumns));
    std::generate(values.begin(), values.end(), any);
    LinesAhead nothing;
    {
      const MatrixUnitScope scope(&emulated_matrix_unit());
      emulated_matrix_unit().multiply_codes(codes, k, digits.data(), columns.data(), nothing);
      emulated_matrix_unit().multiply_digits(digits.data(), k, values.data(), rows.data(), nothing);
    }
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t n = 0; n < kDigitColumns; ++n) {
        int32_t sum = 0;
        for (int64_t d = 0; d < k; ++d)
          sum += static_cast<int8_t>(codes.first[row / 16][row % 16 * codes.stride[row / 16] + d]) *
                 digits[static_cast<size_t>((d / 4 * kDigitColumns + n) * 4 + d % 4)];
        ASSERT_EQ(columns[static_cast<size_t>(row * kDigitColumns + n)], sum) << k << " " << row << " " << n;
      }
    for (int64_t n = 0; n < kDigitColumns; ++n)
      for (int64_t column = 0; column < kCodeColumns; ++column) {
        int32_t sum = 0;
        for (int64_t d = 0; d < k; ++d)
          sum += digits[static_cast<size_t>((d / kDigitDepth * kDigitColumns + n) * kDigitDepth + d % kDigitDepth)] *
                 values[static_cast<size_t>((d / 4 * kCodeColumns + column) * 4 + d % 4)];
        ASSERT_EQ(rows[static_cast<size_t>(n * kCodeColumns + column)], sum) << k << " " << n << " " << column;
      }
  }
}

TEST(MatrixUnit, tiles_belong_to_threads_that_configured_them_and_are_given_back) {
  const testing::ScopedEmulatedMatrixUnit emulated;
  Product p(3, 3, 3, [] { return 1.0f; });
  EXPECT_THROW(matrix_unit()->multiply(p.gemm, false), std::logic_error);
  {
    const MatrixUnitScope scope(matrix_unit());
    EXPECT_EQ(emulated.num_configured(), 1);
    matrix_unit()->multiply(p.gemm, false);
  }
  EXPECT_EQ(emulated.num_configured(), 0);
  EXPECT_EQ(emulated.num_products(), 1);
  const MatrixUnitScope without(nullptr);
  EXPECT_EQ(emulated.num_configured(), 0);
}

TEST(MatrixUnit, is_this_machines_but_for_tests) {
  const MatrixUnit* own = matrix_unit();
  EXPECT_TRUE(own == nullptr || has_amx());
  {
    const ScopedMatrixUnit none(nullptr);
    EXPECT_EQ(matrix_unit(), nullptr);
  }
  EXPECT_EQ(matrix_unit(), own);
  EXPECT_EQ(cpu_info().isa.ends_with(" amx"), has_amx());
}

}  // namespace
}  // namespace ejk::cpu
