// The matrix unit itself, on a machine that has one: the Xeon beside a GPU, usually.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/cpu_info.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/testing/emulated_tiles.h"

namespace ejk::cpu {
namespace {

class Amx : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_amx()) GTEST_SKIP() << cpu_info().product << " has no AMX";
    ASSERT_NE(matrix_unit(), nullptr) << "there is AMX, but Linux does not let this process use it";
  }
};

struct Matrices {
  static constexpr int64_t kStride = 80;
  std::vector<Pair> a = std::vector<Pair>(kStride * kStride), b = a;
  std::vector<float> c = std::vector<float>(kStride * kStride);

  /// Any bits at all, or numbers around 1.
  Matrices(unsigned seed, bool any_bits) {
    std::mt19937 random(seed);
    const auto word = [&] {
      const auto bits = static_cast<uint32_t>(random());
      return any_bits ? bits : (bits & 0x807f807fu) | 0x3f803f80u;
    };
    for (std::vector<Pair>* matrix : {&a, &b})
      for (Pair& pair : *matrix) pair.bits = word();
    for (float& x : c) x = std::bit_cast<float>(word());
  }
  std::vector<float> multiply(const MatrixUnit& unit, int64_t m, int64_t n, int64_t k, bool add) const {
    std::vector<float> result = c;
    const MatrixUnitScope scope(&unit);
    unit.multiply({m, n, k, a.data(), kStride, b.data(), kStride, result.data(), kStride}, add);
    return result;
  }
};

bool same(float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); }

/// What the emulation computes, bit by bit: then all that was proved with it holds here.
TEST_F(Amx, equals_its_emulation) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const bool any_bits = seed % 4 == 0;
    const Matrices matrices(seed, any_bits);
    const int64_t m = 1 + seed * 7 % 64, n = 1 + seed * 11 % 64, k = seed * 13 % 64;
    const bool add = seed % 2 == 0;
    const std::vector<float> actual = matrices.multiply(*matrix_unit(), m, n, k, add);
    const std::vector<float> expected = matrices.multiply(testing::emulated_matrix_unit(), m, n, k, add);
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_TRUE(same(actual[i], expected[i]) || (std::isnan(actual[i]) && std::isnan(expected[i])))
          << "seed " << seed << " element " << i << ": " << actual[i] << " and " << expected[i];
  }
}

TEST_F(Amx, equals_its_emulation_in_products_of_few_rows_and_columns) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Matrices matrices(seed, seed % 4 == 0);
    const int few = static_cast<int>(1 + seed % 16);
    const int64_t many = 32 * (1 + seed % 2), k = 16 * (1 + seed % 3);
    const auto products = [&](const MatrixUnit& unit) {
      std::vector<float> columns = matrices.c, rows = matrices.c;
      constexpr int64_t kStride = Matrices::kStride;
      const Pair *a = matrices.a.data(), *b = matrices.b.data();
      const MatrixUnitScope scope(&unit);
      unit.configure_few(few);
      unit.multiply_few_columns({many, (few + 3) / 4 * 4, k, a, kStride, b, kStride, columns.data(), kStride});
      unit.add_few_rows({few, many, k, a, kStride, b, kStride, rows.data(), kStride});
      columns.insert(columns.end(), rows.begin(), rows.end());
      return columns;
    };
    const std::vector<float> actual = products(*matrix_unit()), expected = products(testing::emulated_matrix_unit());
    for (size_t i = 0; i < actual.size(); ++i)
      ASSERT_TRUE(same(actual[i], expected[i]) || (std::isnan(actual[i]) && std::isnan(expected[i])))
          << "seed " << seed << " element " << i << ": " << actual[i] << " and " << expected[i];
  }
}

TEST_F(Amx, equals_its_emulation_in_products_of_codes_and_digits) {
  std::mt19937 random(5);
  for (const int64_t k : {64, 128, 256}) {
    constexpr int64_t kStride = 320;
    std::vector<int8_t> left(kDigitDepth * kStride), right(static_cast<size_t>(k * kCodeColumns));
    for (std::vector<int8_t>* codes : {&left, &right})
      for (int8_t& code : *codes) code = static_cast<int8_t>(random());
    CodeTiles tiles = {};
    for (int64_t n = 0; n < 4; ++n)
      tiles.first[n] = reinterpret_cast<const std::byte*>(left.data()) + 16 * n * kStride, tiles.stride[n] = kStride;
    const auto products = [&](const MatrixUnit& unit) {
      std::vector<int32_t> columns(kDigitDepth * kDigitColumns), rows(kDigitColumns * kCodeColumns);
      LinesAhead nothing;
      const MatrixUnitScope scope(&unit);
      unit.multiply_codes(tiles, k, right.data(), columns.data(), nothing);
      unit.multiply_digits(left.data(), k, right.data(), rows.data(), nothing);
      columns.insert(columns.end(), rows.begin(), rows.end());
      return columns;
    };
    EXPECT_EQ(products(*matrix_unit()), products(testing::emulated_matrix_unit())) << k;
  }
}

TEST_F(Amx, serves_every_thread_of_the_pool) {
  const Matrices matrices(1, false);
  const std::vector<float> expected = matrices.multiply(*matrix_unit(), 64, 64, 64, false);
  std::atomic<int> wrong = 0;
  parallel_for(2000, [&](int64_t) {
    const std::vector<float> actual = matrices.multiply(*matrix_unit(), 64, 64, 64, false);
    wrong += std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)) != 0;
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(Amx, peak_is_counted_by_rounds) {
  const double once = matrix_multiply_add(1);
  EXPECT_GT(once, 0);
  EXPECT_EQ(matrix_multiply_add(3), 3 * once);
}

}  // namespace
}  // namespace ejk::cpu
