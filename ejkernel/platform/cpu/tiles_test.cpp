#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/core/dtype.h"
#include "ejkernel/platform/cpu/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/tiles_test.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/quantise-inl.h"
#include "ejkernel/platform/cpu/stored-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kStride = 64;

/// c = x * y of m x k and k x n tensors in every pair of layouts that makes the product; `way` chooses.
template <class E>
void multiply_tiles(int way, DType dtype, const void* x, const void* y, int64_t m, int64_t n, int64_t k, float* c) {
  alignas(64) static E left[kStride * kStride], right[kStride * kStride], rows[kStride * kStride];
  // x is stored [m][k] where it is used as rows, and [k][m] where its row pairs are the left factor.
  if (way == 0) {
    for (int64_t r = 0; r < m; ++r) load_elements(x, dtype, r * k, k, left + r * kStride);
    // y is stored [n][k]: its panel is the right factor.
    for (int64_t r = 0; r < n; ++r) load_elements(y, dtype, r * k, k, rows + r * kStride);
    transpose_elements(rows, kStride, n, units<E>(k), right, kStride);
  } else {
    load_row_pairs(
        x, dtype, k, m, [&](int64_t r) { return r * m; }, left, kStride);
    load_row_pairs(
        y, dtype, k, n, [&](int64_t r) { return r * n; }, right, kStride);
  }
  const Gemm<E> g{m, n, units<E>(k), left, kStride, right, kStride, c, kStride};
  way == 0 ? gemm<Left::kRows, false>(g) : gemm<Left::kTransposed, false>(g);
}
void multiply_any(bool pairs, int way, DType dtype, const void* x, const void* y, int64_t m, int64_t n, int64_t k,
                  float* c) {
  pairs ? multiply_tiles<Pair>(way, dtype, x, y, m, n, k, c) : multiply_tiles<float>(way, dtype, x, y, m, n, k, c);
}

void store_elements(const float* first, const float* second, Pair* row, Pair* two_rows, Pair* last_row) {
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) {
    const FloatV x = load_floats(first + i), y = load_floats(second + i);
    store_in_row(x, row, i);
    store_two_rows(x, y, two_rows + i, 0);
    store_last_row(x, last_row + i);
  }
}

template <int kDegree>
void map_exp2(const float* x, float* y) {
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) store_floats(exp2_below_128<kDegree>(load_floats(x + i)), y + i);
}
void load_stored(DType dtype, const void* data, int64_t offset, int64_t count, float* floats, uint16_t* narrow) {
  load_stored_row(data, dtype, offset, count, floats, narrow);
  load_stored_row(data, dtype, offset, count, floats);
}
void quantise(DType dtype, const float* from, double scale, int64_t count, void* to) {
  if (dtype == DType::i8) return quantise_row(from, scale, count, static_cast<int8_t*>(to));
  if (dtype == DType::e4m3) return quantise_row(from, scale, count, static_cast<e4m3_t*>(to));
  quantise_row(from, scale, count, static_cast<e5m2_t*>(to));
}
void exp2_any(int degree, const float* x, float* y) { degree == 4 ? map_exp2<4>(x, y) : map_exp2<6>(x, y); }

}  // namespace
}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::cpu {
namespace {

HWY_EXPORT(multiply_any);
HWY_EXPORT(store_elements);
HWY_EXPORT(exp2_any);
HWY_EXPORT(load_stored);
HWY_EXPORT(quantise);

class Tiles : public testing::TestWithParam<std::string_view> {
 protected:
  ScopedSimdTarget target{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets, Tiles, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

/// x[m][k] and y[k][n] of small integers, as bf16, in the order that `way` wants them.
TEST_P(Tiles, products_in_every_layout_are_exact_on_integers) {
  std::mt19937 random(1);
  for (const bool pairs : {false, true})
    for (const int way : {0, 1})
      for (const int64_t m : {1, 5, 8, 13})
        for (const int64_t n : {1, 16, 33})
          for (const int64_t k : {1, 2, 15, 32, 33}) {
            std::vector<bf16_t> x(static_cast<size_t>(m * k)), y(static_cast<size_t>(k * n));
            for (bf16_t& one : x) one = from_float<bf16_t>(static_cast<float>(random() % 17) - 8);
            for (bf16_t& one : y) one = from_float<bf16_t>(static_cast<float>(random() % 17) - 8);
            alignas(64) static float c[64 * 64];
            HWY_DYNAMIC_DISPATCH(multiply_any)(pairs, way, DType::bf16, x.data(), y.data(), m, n, k, c);
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j) {
                float expected = 0;
                for (int64_t s = 0; s < k; ++s)
                  expected += to_float(x[static_cast<size_t>(way == 0 ? i * k + s : s * m + i)]) *
                              to_float(y[static_cast<size_t>(way == 0 ? j * k + s : s * n + j)]);
                ASSERT_EQ(c[i * 64 + j], expected) << pairs << " " << way << " " << m << " " << n << " " << k;
              }
          }
}

TEST_P(Tiles, numbers_are_stored_as_the_nearest_bf16) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  const auto near = [](uint32_t stored, float x) {
    const float back = std::bit_cast<float>(stored << 16);
    return std::isnan(x) ? std::isnan(back) : back == x || std::abs(back - x) <= std::ldexp(std::abs(x), -8);
  };
  for (int round = 0; round < 200; ++round) {
    float first[16], second[16];
    for (float& x : first) x = normal(random);
    for (float& x : second) x = normal(random);
    first[3] = INFINITY, second[5] = -INFINITY, first[7] = NAN, second[9] = 0;
    alignas(64) Pair row[16] = {}, two_rows[16] = {}, last_row[16] = {};
    HWY_DYNAMIC_DISPATCH(store_elements)(first, second, row, two_rows, last_row);
    for (int i = 0; i < 16; ++i) {
      EXPECT_TRUE(near(row[i / 2].bits >> (i % 2 * 16) & 0xffff, first[i])) << first[i];
      EXPECT_TRUE(near(two_rows[i].bits & 0xffff, first[i])) << first[i];
      EXPECT_TRUE(near(two_rows[i].bits >> 16, second[i])) << second[i];
      EXPECT_TRUE(near(last_row[i].bits & 0xffff, first[i])) << first[i];
      EXPECT_EQ(last_row[i].bits >> 16, 0u);
    }
  }
}

TEST_P(Tiles, every_code_is_loaded_exactly) {
  uint8_t codes[256];
  for (int n = 0; n < 256; ++n) codes[n] = static_cast<uint8_t>(n);
  for (const DType dtype : {DType::i8, DType::e4m3, DType::e5m2, DType::i4})
    for (const int64_t offset : {0, 2, 34})
      for (int64_t count = 2; count <= 256 * 8 / bits(dtype) - offset; count += 2 + count / 3) {
        alignas(64) float floats[512 + 16];
        alignas(64) uint16_t narrow[512 + 16];
        HWY_DYNAMIC_DISPATCH(load_stored)(dtype, codes, offset, count, floats, narrow);
        for (int64_t i = 0; i < count; ++i) {
          const double expected = load_as_double(codes, dtype, offset + i);
          const float from_narrow = to_float(bf16_t{narrow[i]});
          if (std::isnan(expected))
            ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(from_narrow)) << name(dtype) << " " << offset + i;
          else
            ASSERT_TRUE(floats[i] == expected && from_narrow == expected) << name(dtype) << " " << offset + i;
        }
      }
}

TEST_P(Tiles, codes_are_what_one_rounding_of_a_double_gives) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const DType dtype : {DType::i8, DType::e4m3, DType::e5m2})
    for (const double scale : {1.0, 0.3, -7.0, 1e30, 0.0})
      for (int round = 0; round < 400; ++round) {
        // Ties between codes of every size among them.
        float x[48];
        for (float& one : x)
          one = round % 2 == 0 ? normal(random) * std::exp2(static_cast<float>(random() % 40) - 20)
                               : (static_cast<float>(random() % 64) + 0.5f * static_cast<float>(random() % 3)) *
                                     std::exp2(static_cast<float>(random() % 24) - 18);
        x[0] = 0, x[1] = -0.0f, x[2] = INFINITY, x[3] = -INFINITY, x[4] = NAN, x[5] = 3e38f, x[6] = 1e-40f;
        const int64_t count = 29 + round % 4;
        uint8_t codes[48], expected[48];
        HWY_DYNAMIC_DISPATCH(quantise)(dtype, x, scale, count, codes);
        for (int64_t i = 0; i < count; ++i) {
          store_from_double(expected, dtype, i, static_cast<double>(x[i]) / scale);
          const double number = load_as_double(codes, dtype, i);
          ASSERT_TRUE(codes[i] == expected[i] || (std::isnan(number) && std::isnan(load_as_double(expected, dtype, i))))
              << name(dtype) << " " << x[i] << " / " << scale << ": " << number;
        }
      }
}

TEST_P(Tiles, powers_of_two_have_the_stated_error) {
  for (const auto& [degree, bound] : {std::pair{4, std::exp2(-18.4)}, {6, std::exp2(-23)}}) {
    double worst = 0;
    for (double begin = -126; begin < 128; begin += 0.01) {
      float x[16], y[16];
      for (int i = 0; i < 16; ++i) x[i] = static_cast<float>(std::min(begin + 0.000625 * i, 127.99));
      HWY_DYNAMIC_DISPATCH(exp2_any)(degree, x, y);
      for (int i = 0; i < 16; ++i) worst = std::max(worst, std::abs(y[i] / std::exp2(static_cast<double>(x[i])) - 1));
    }
    EXPECT_LT(worst, bound) << degree;
    float x[16] = {0, -INFINITY, NAN, -1e30f, -127, 1, -1}, y[16];
    HWY_DYNAMIC_DISPATCH(exp2_any)(degree, x, y);
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[5], 2);
    EXPECT_EQ(y[1], 0);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], 0);
    EXPECT_EQ(y[4], 0);
  }
}

}  // namespace
}  // namespace ejk::cpu
#endif
