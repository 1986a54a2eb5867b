// The SIMD helpers against plain C++, on every instruction set that is compiled and present.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ejkernel/core/philox.h"
#include "ejkernel/platform/cpu/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/simd_test.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {
namespace {

void map_exp(const float* x, float* y) {
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) store_floats(exp_any(load_floats(x + i)), y + i);
}
void map_exp_nonpositive(const float* x, float* y) {
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) store_floats(exp_nonpositive(load_floats(x + i)), y + i);
}
void map_tanh(const float* x, float* y) {
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) {
    FloatV slope = hn::Zero(FloatTag());
    store_floats(tanh_any(load_floats(x + i), slope), y + i);
  }
}
void map_tanh_slope(const float* x, float* y) {
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) {
    FloatV slope = hn::Zero(FloatTag());
    tanh_any(load_floats(x + i), slope);
    store_floats(slope, y + i);
  }
}
void load_any(const void* from, DType dtype, int64_t offset, int64_t count, float* to) {
  load_row(from, dtype, offset, count, to);
}
void store_any(const float* from, float factor, int64_t count, void* to, DType dtype, int64_t offset) {
  store_row(from, factor, count, to, dtype, offset);
}
void transpose_any(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                   int64_t to_stride) {
  transpose(from, from_stride, rows, columns, to, to_stride);
}
void multiply(int64_t m, int64_t n, int64_t k, bool transposed, bool add, const float* a, int64_t a_stride,
              const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  const Gemm<float> g{m, n, k, a, a_stride, b, b_stride, c, c_stride};
  if (transposed)
    add ? gemm<Left::kTransposed, true>(g) : gemm<Left::kTransposed, false>(g);
  else
    add ? gemm<Left::kRows, true>(g) : gemm<Left::kRows, false>(g);
}
void random_words(const uint32_t* counters, uint32_t key0, uint32_t key1, uint32_t* words) {
  const WordTag d;
  for (int64_t i = 0; i < kMaxLanes; i += lanes()) {
    auto c0 = hn::LoadU(d, counters + i), c1 = hn::LoadU(d, counters + 16 + i), c2 = hn::LoadU(d, counters + 32 + i);
    auto c3 = hn::LoadU(d, counters + 48 + i);
    philox4x32(c0, c1, c2, c3, key0, key1);
    hn::StoreU(c0, d, words + i);
    hn::StoreU(c1, d, words + 16 + i);
    hn::StoreU(c2, d, words + 32 + i);
    hn::StoreU(c3, d, words + 48 + i);
  }
}

}  // namespace
}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::cpu {
namespace {

HWY_EXPORT(map_exp);
HWY_EXPORT(map_exp_nonpositive);
HWY_EXPORT(map_tanh);
HWY_EXPORT(map_tanh_slope);
HWY_EXPORT(load_any);
HWY_EXPORT(store_any);
HWY_EXPORT(transpose_any);
HWY_EXPORT(multiply);
HWY_EXPORT(random_words);

class Simd : public testing::TestWithParam<std::string_view> {
 protected:
  ScopedSimdTarget target{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets, Simd, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class Map, class Reference>
void expect_close(Map map, Reference reference, float low, float high) {
  alignas(64) float x[16], y[16];
  for (int n = 0; n < 20000; n += 16) {
    for (int i = 0; i < 16; ++i) x[i] = low + (high - low) * static_cast<float>(n + i) / 20000;
    map(x, y);
    for (int i = 0; i < 16; ++i) {
      const double expected = reference(static_cast<double>(x[i]));
      ASSERT_NEAR(y[i], expected, 4e-7 * std::abs(expected) + 3e-45) << "x = " << x[i];
    }
  }
}

TEST_P(Simd, exp_is_close_and_right_at_the_ends) {
  const auto any = [](const float* x, float* y) { HWY_DYNAMIC_DISPATCH(map_exp)(x, y); };
  const auto nonpositive = [](const float* x, float* y) { HWY_DYNAMIC_DISPATCH(map_exp_nonpositive)(x, y); };
  expect_close(
      any, [](double x) { return std::exp(x); }, -110, 88.7f);
  expect_close(
      nonpositive, [](double x) { return std::exp(x); }, -110, 0);
  float x[16] = {-kInf, 0, kNaN, 1e30f, kInf, -1e30f}, y[16];
  any(x, y);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 1);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], kInf);
  EXPECT_EQ(y[4], kInf);
  EXPECT_EQ(y[5], 0);
  nonpositive(x, y);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 1);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST_P(Simd, tanh_is_close_and_right_at_the_ends) {
  const auto map = [](const float* x, float* y) { HWY_DYNAMIC_DISPATCH(map_tanh)(x, y); };
  expect_close(
      map, [](double x) { return std::tanh(x); }, -20, 20);
  expect_close(
      map, [](double x) { return std::tanh(x); }, -1e-3f, 1e-3f);
  float x[16] = {-kInf, kInf, kNaN, 0}, y[16];
  map(x, y);
  EXPECT_EQ(y[0], -1);
  EXPECT_EQ(y[1], 1);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0);
}

template <class T>
void expect_all_patterns_load(DType dtype) {
  std::vector<uint16_t> patterns(65536 + 5);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> values(patterns.size());
  HWY_DYNAMIC_DISPATCH(load_any)(patterns.data(), dtype, 0, static_cast<int64_t>(values.size()), values.data());
  for (size_t i = 0; i < patterns.size(); ++i) {
    const float expected = to_float(T{patterns[i]});
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(values[i])) << i;
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected)) << i;
  }
}

TEST_P(Simd, the_slope_of_tanh_keeps_its_digits_where_tanh_is_1) {
  const auto map = [](const float* x, float* y) { HWY_DYNAMIC_DISPATCH(map_tanh_slope)(x, y); };
  const auto slope = [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); };
  expect_close(map, slope, -3, 3);
  expect_close(map, slope, 3, 40);
  float x[16] = {kInf, -kInf, kNaN, 0, 1e30f}, y[16];
  map(x, y);
  for (int i : {0, 1, 4}) EXPECT_LT(y[i], 1e-37f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 1);
}

TEST_P(Simd, every_16_bit_pattern_loads_exactly) {
  expect_all_patterns_load<f16_t>(DType::f16);
  expect_all_patterns_load<bf16_t>(DType::bf16);
}

template <class T>
void expect_stores_round_to_even(DType dtype) {
  // Floats around every 16-bit value and around every midpoint of two of them.
  std::vector<float> values;
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(to_float(T{static_cast<uint16_t>(i)}));
    for (uint32_t delta : {0u, 1u, ~0u, 0x7fffu, 0x8000u, 0x8001u, 0xfffu, 0x1000u, 0x1001u})
      values.push_back(std::bit_cast<float>(bits + delta));
  }
  std::vector<uint16_t> stored(values.size());
  HWY_DYNAMIC_DISPATCH(store_any)(values.data(), 1, static_cast<int64_t>(values.size()), stored.data(), dtype, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    const T expected = from_float<T>(values[i]);
    if (std::isnan(values[i]))
      ASSERT_TRUE(std::isnan(to_float(T{stored[i]}))) << values[i];
    else
      ASSERT_EQ(stored[i], expected.bits) << values[i];
  }
}

TEST_P(Simd, stores_round_to_nearest_even) {
  expect_stores_round_to_even<f16_t>(DType::f16);
  expect_stores_round_to_even<bf16_t>(DType::bf16);
}

TEST_P(Simd, rows_of_every_length_and_dtype_go_in_and_out) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (int64_t count = 0; count < 70; ++count) {
      std::vector<float> from(70), back(72, -1.0f);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i) - 30;
      std::vector<double> memory(80, 0);
      HWY_DYNAMIC_DISPATCH(store_any)(from.data(), 0.5f, count, memory.data(), dtype, 3);
      HWY_DYNAMIC_DISPATCH(load_any)(memory.data(), dtype, 3, count, back.data() + 1);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(back[static_cast<size_t>(i) + 1], from[static_cast<size_t>(i)] / 2);
      ASSERT_EQ(back[0], -1);
      ASSERT_EQ(back[static_cast<size_t>(count) + 1], -1);
      ASSERT_EQ(load_as_double(memory.data(), dtype, 3 + count), 0) << "wrote past the end";
    }
}

TEST_P(Simd, transpose_of_every_small_shape) {
  for (int64_t rows = 0; rows < 20; ++rows)
    for (int64_t columns = 0; columns < 20; ++columns) {
      std::vector<float> from(32 * 32), to(32 * 32, -1.0f);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
      HWY_DYNAMIC_DISPATCH(transpose_any)(from.data(), 32, rows, columns, to.data(), 32);
      for (int64_t r = 0; r < 32; ++r)
        for (int64_t c = 0; c < 32; ++c)
          ASSERT_EQ(to[static_cast<size_t>(c * 32 + r)],
                    r < rows && c < columns ? from[static_cast<size_t>(r * 32 + c)] : -1.0f);
    }
}

TEST_P(Simd, products_of_every_small_shape_are_exact_on_integers) {
  std::mt19937 random(1);
  const auto small = [&] { return static_cast<float>(static_cast<int>(random() % 17) - 8); };
  constexpr int64_t kStride = 48;
  alignas(64) static float a[kStride * kStride], b[kStride * kStride], c[kStride * kStride], before[kStride * kStride];
  for (const bool transposed : {false, true})
    for (const bool add : {false, true})
      for (int64_t m = 0; m < 21; ++m)
        for (int64_t n : {1, 4, 7, 16, 17, 32, 33, 48})
          for (int64_t k : {0, 1, 2, 13}) {
            for (float* t : {a, b, c}) std::generate_n(t, kStride * kStride, small);
            std::memcpy(before, c, sizeof(c));
            HWY_DYNAMIC_DISPATCH(multiply)(m, n, k, transposed, add, a, kStride, b, kStride, c, kStride);
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j) {
                float expected = add ? before[i * kStride + j] : 0;
                for (int64_t x = 0; x < k; ++x)
                  expected += (transposed ? a[x * kStride + i] : a[i * kStride + x]) * b[x * kStride + j];
                ASSERT_EQ(c[i * kStride + j], expected) << m << " " << n << " " << k << " at " << i << " " << j;
              }
            for (int64_t j = 0; j < kStride; ++j) ASSERT_EQ(c[m * kStride + j], before[m * kStride + j]);
          }
}

TEST_P(Simd, philox_equals_the_scalar_one) {
  uint32_t counters[64], words[64];
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    for (uint32_t& word : counters) word = static_cast<uint32_t>(random());
    const uint32_t key0 = static_cast<uint32_t>(random()), key1 = static_cast<uint32_t>(random());
    HWY_DYNAMIC_DISPATCH(random_words)(counters, key0, key1, words);
    for (uint32_t i = 0; i < 16; ++i) {
      const PhiloxCounter expected =
          ejk::philox4x32({{counters[i], counters[16 + i], counters[32 + i], counters[48 + i]}}, {{key0, key1}});
      for (uint32_t w = 0; w < 4; ++w) ASSERT_EQ(words[16 * w + i], expected.words[w]);
    }
  }
}

}  // namespace
}  // namespace ejk::cpu
#endif
