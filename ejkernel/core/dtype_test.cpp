#include "ejkernel/core/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ejk {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What the test believes about a format, written down apart from the code under test.
template <class T>
struct Facts;
template <>
struct Facts<f16_t> {
  static constexpr DType dtype = DType::f16;
  static constexpr int exponent_bits = 5, mantissa_bits = 10;
  static constexpr bool has_infinity = true, saturates = false;
  static constexpr double largest = 65504;
};
template <>
struct Facts<bf16_t> {
  static constexpr DType dtype = DType::bf16;
  static constexpr int exponent_bits = 8, mantissa_bits = 7;
  static constexpr bool has_infinity = true, saturates = false;
  static constexpr double largest = 0x1.FEp127;
};
template <>
struct Facts<e4m3_t> {
  static constexpr DType dtype = DType::e4m3;
  static constexpr int exponent_bits = 4, mantissa_bits = 3;
  static constexpr bool has_infinity = false, saturates = true;
  static constexpr double largest = 448;
};
template <>
struct Facts<e5m2_t> {
  static constexpr DType dtype = DType::e5m2;
  static constexpr int exponent_bits = 5, mantissa_bits = 2;
  static constexpr bool has_infinity = true, saturates = true;
  static constexpr double largest = 57344;
};

template <class T>
using Bits = decltype(T::bits);

template <class T>
constexpr int kNumPatterns = 1 << (8 * sizeof(T));

/// The meaning of a bit pattern, from the definition of the format.
template <class T>
double decode(int pattern) {
  using F = Facts<T>;
  const int mantissa = pattern & ((1 << F::mantissa_bits) - 1);
  const int exponent = (pattern >> F::mantissa_bits) & ((1 << F::exponent_bits) - 1);
  const double sign = pattern >> (F::exponent_bits + F::mantissa_bits) != 0 ? -1 : 1;
  const int bias = (1 << (F::exponent_bits - 1)) - 1;
  const bool top = exponent == (1 << F::exponent_bits) - 1;
  if (F::has_infinity && top) return mantissa == 0 ? sign * kInfinity : kNaN;
  if (!F::has_infinity && top && mantissa == (1 << F::mantissa_bits) - 1) return kNaN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - F::mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << F::mantissa_bits), exponent - bias - F::mantissa_bits);
}

/// Nearest number of the format by looking at all of them, ties to the even pattern.
template <class T>
double nearest(double x) {
  using F = Facts<T>;
  static const std::vector<double> finite = [] {
    std::vector<double> all;
    for (int pattern = 0; pattern < kNumPatterns<T> / 2; ++pattern)
      if (std::isfinite(decode<T>(pattern))) all.push_back(decode<T>(pattern));
    return all;  // patterns of positive numbers are in order
  }();
  const double size = std::abs(x);
  if (std::isnan(x)) return x;
  const double last_step = finite.back() - finite[finite.size() - 2];
  if (size > finite.back()) {
    const bool beyond = size >= finite.back() + last_step / 2;  // the tie goes to the even one: infinity
    return std::copysign(beyond && !F::saturates ? kInfinity : finite.back(), x);
  }
  const auto above = std::lower_bound(finite.begin(), finite.end(), size);
  if (*above == size) return x;
  const auto below = above - 1;
  const double to_above = *above - size;
  const double to_below = size - *below;
  const bool take_above = to_above < to_below || (to_above == to_below && (above - finite.begin()) % 2 == 0);
  return std::copysign(take_above ? *above : *below, x);
}

bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class T>
class NarrowFloat : public ::testing::Test {};
using NarrowFloats = ::testing::Types<f16_t, bf16_t, e4m3_t, e5m2_t>;
TYPED_TEST_SUITE(NarrowFloat, NarrowFloats);

TYPED_TEST(NarrowFloat, every_pattern_has_the_value_of_its_definition) {
  for (int pattern = 0; pattern < kNumPatterns<TypeParam>; ++pattern) {
    const float value = to_float(TypeParam{static_cast<Bits<TypeParam>>(pattern)});
    ASSERT_TRUE(same(value, decode<TypeParam>(pattern))) << pattern << " became " << value;
  }
}

TYPED_TEST(NarrowFloat, every_pattern_round_trips_through_float_and_double) {
  for (int pattern = 0; pattern < kNumPatterns<TypeParam>; ++pattern) {
    const TypeParam x{static_cast<Bits<TypeParam>>(pattern)};
    const double value = decode<TypeParam>(pattern);
    const int via_float = from_float<TypeParam>(to_float(x)).bits;
    const int via_double = from_double<TypeParam>(to_float(x)).bits;
    if (std::isnan(value)) {  // which NaN may change, its sign may not
      EXPECT_TRUE(std::isnan(decode<TypeParam>(via_float)) && std::isnan(decode<TypeParam>(via_double))) << pattern;
      EXPECT_EQ(via_float >> (8 * sizeof(TypeParam) - 1), pattern >> (8 * sizeof(TypeParam) - 1));
    } else if (std::isinf(value) && Facts<TypeParam>::saturates) {
      EXPECT_EQ(decode<TypeParam>(via_float), std::copysign(Facts<TypeParam>::largest, value));
      EXPECT_EQ(via_double, via_float);
    } else {
      ASSERT_EQ(via_float, pattern);
      ASSERT_EQ(via_double, pattern);
    }
  }
}

TYPED_TEST(NarrowFloat, numbers_around_every_pattern_and_midpoint_round_to_nearest_even) {
  for (int pattern = 0; pattern < kNumPatterns<TypeParam> / 2 - 1; ++pattern) {
    const double here = decode<TypeParam>(pattern);
    const double next = decode<TypeParam>(pattern + 1);
    if (!std::isfinite(here) || !std::isfinite(next)) continue;
    const double middle = here + (next - here) / 2;
    for (double x : {here, std::nextafter(here, kInfinity), middle, std::nextafter(middle, 0.0),
                     std::nextafter(middle, kInfinity), std::nextafter(next, 0.0)}) {
      for (double signed_x : {x, -x}) {
        const double rounded = to_float(from_double<TypeParam>(signed_x));
        ASSERT_TRUE(same(rounded, nearest<TypeParam>(signed_x))) << signed_x << " became " << rounded;
        const float as_float = static_cast<float>(signed_x);
        const double from_f32 = to_float(from_float<TypeParam>(as_float));
        ASSERT_TRUE(same(from_f32, nearest<TypeParam>(as_float))) << as_float << " became " << from_f32;
      }
    }
  }
}

TYPED_TEST(NarrowFloat, random_doubles_round_to_nearest_even) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(-160, 140);
  std::uniform_real_distribution<double> mantissa(-2, 2);
  for (int i = 0; i < 100000; ++i) {
    const double x = std::ldexp(mantissa(random), static_cast<int>(exponent(random)));
    ASSERT_TRUE(same(to_float(from_double<TypeParam>(x)), nearest<TypeParam>(x))) << x;
    const float f = static_cast<float>(x);
    ASSERT_TRUE(same(to_float(from_float<TypeParam>(f)), nearest<TypeParam>(f))) << f;
  }
}

TYPED_TEST(NarrowFloat, overflow_becomes_infinity_or_saturates) {
  using F = Facts<TypeParam>;
  const double beyond = F::saturates ? F::largest : kInfinity;
  for (double x : {2 * F::largest, 1e300, kInfinity}) {
    EXPECT_EQ(to_float(from_double<TypeParam>(x)), beyond);
    EXPECT_EQ(to_float(from_double<TypeParam>(-x)), -beyond);
    EXPECT_EQ(to_float(from_float<TypeParam>(static_cast<float>(x))), beyond);
    EXPECT_EQ(to_float(from_float<TypeParam>(static_cast<float>(-x))), -beyond);
  }
  EXPECT_TRUE(std::isnan(to_float(from_double<TypeParam>(kNaN))));
  EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(std::numeric_limits<float>::signaling_NaN()))));
}

TYPED_TEST(NarrowFloat, tiny_numbers_round_to_a_signed_zero) {
  for (double x : {5e-324, 1e-310, 1e-60}) {
    EXPECT_TRUE(same(to_float(from_double<TypeParam>(x)), 0.0));
    EXPECT_TRUE(same(to_float(from_double<TypeParam>(-x)), -0.0));
  }
}

TYPED_TEST(NarrowFloat, unit_roundoff_is_half_the_distance_from_one_to_the_next_number) {
  const double one = from_double<TypeParam>(1).bits;
  const double step = decode<TypeParam>(static_cast<int>(one) + 1) - 1;
  EXPECT_EQ(unit_roundoff(Facts<TypeParam>::dtype), step / 2);
}

TEST(DType, double_rounding_through_float_would_be_wrong_and_does_not_happen) {
  // Just above the midpoint of 1 and the next f16: float drops the last bit and would leave a tie.
  const double above = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(to_float(from_float<f16_t>(static_cast<float>(above))), 1.0f);
  EXPECT_EQ(to_float(from_double<f16_t>(above)), 1 + 0x1p-10f);
  // Just below the midpoint that ties upwards.
  const double below = 1 + 0x1p-7 + 0x1p-8 - 0x1p-40;
  EXPECT_EQ(to_float(from_float<bf16_t>(static_cast<float>(below))), 1 + 0x1p-6f);
  EXPECT_EQ(to_float(from_double<bf16_t>(below)), 1 + 0x1p-7f);
  // The same among subnormals.
  EXPECT_EQ(to_float(from_double<f16_t>(0x1p-25 + 0x1p-60)), 0x1p-24f);
  EXPECT_EQ(to_float(from_double<f16_t>(0x1p-25)), 0.0f);
}

#ifdef __SSE2__
TEST(DType, conversions_of_16_bits_do_not_depend_on_the_denormal_mode_of_the_caller) {
  const unsigned before = _mm_getcsr();
  int wrong = 0;
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero: what frameworks set on their threads
  for (int pattern = 0; pattern < 1 << 16; ++pattern) {
    const f16_t half{static_cast<uint16_t>(pattern)};
    const bool is_nan = (pattern & 0x7fff) > 0x7c00;
    if (!is_nan && from_float<f16_t>(to_float(half)).bits != pattern) ++wrong;
    const bf16_t brain{static_cast<uint16_t>(pattern)};
    const bool is_brain_nan = (pattern & 0x7fff) > 0x7f80;
    if (!is_brain_nan && from_float<bf16_t>(to_float(brain)).bits != pattern) ++wrong;
  }
  _mm_setcsr(before);
  EXPECT_EQ(wrong, 0);
}
#endif

TEST(DType, names_parse_back_and_unknown_ones_do_not) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  }
  EXPECT_EQ(name(DType::boolean), "bool");
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(parse_dtype("float32"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DType, bits_and_classes_of_each_dtype) {
  EXPECT_EQ(bits(DType::f64), 64);
  EXPECT_EQ(bits(DType::u32), 32);
  EXPECT_EQ(bits(DType::bf16), 16);
  EXPECT_EQ(bits(DType::e4m3), 8);
  EXPECT_EQ(bits(DType::boolean), 8);
  EXPECT_EQ(bits(DType::i4), 4);
  EXPECT_TRUE(is_float(DType::e5m2));
  EXPECT_FALSE(is_float(DType::i64));
  EXPECT_TRUE(is_float8(DType::e4m3));
  EXPECT_FALSE(is_float8(DType::f16));
  EXPECT_EQ(unit_roundoff(DType::f64), std::numeric_limits<double>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(DType::f32), std::numeric_limits<float>::epsilon() / 2);
  EXPECT_EQ(unit_roundoff(DType::i32), 0);
}

double stored(DType dtype, double value) {
  alignas(8) std::array<unsigned char, 16> memory{};
  store_from_double(memory.data(), dtype, 1, value);
  return load_as_double(memory.data(), dtype, 1);
}

TEST(DType, integers_round_to_nearest_even_and_saturate) {
  struct Range {
    DType dtype;
    double lowest, highest;
  };
  const Range ranges[] = {{DType::i64, -0x1p63, 0x1p63}, {DType::i32, -0x1p31, 0x1p31 - 1},
                          {DType::u32, 0, 0x1p32 - 1},   {DType::i8, -128, 127},
                          {DType::u8, 0, 255},           {DType::i4, -8, 7}};
  for (const auto& [dtype, lowest, highest] : ranges) {
    SCOPED_TRACE(name(dtype));
    EXPECT_EQ(stored(dtype, 2.5), 2);
    EXPECT_EQ(stored(dtype, 3.5), 4);
    EXPECT_EQ(stored(dtype, -0.5), 0);
    EXPECT_EQ(stored(dtype, kNaN), 0);
    for (double x : {lowest, lowest - 1, -1e30, -kInfinity}) EXPECT_EQ(stored(dtype, x), lowest);
    for (double x : {highest, highest + 1, 1e30, kInfinity}) EXPECT_EQ(stored(dtype, x), highest);
  }
}

TEST(DType, bool_is_not_zero) {
  EXPECT_EQ(stored(DType::boolean, 0), 0);
  EXPECT_EQ(stored(DType::boolean, 0.25), 1);
  EXPECT_EQ(stored(DType::boolean, -3), 1);
  const unsigned char odd_true = 0x80;
  EXPECT_EQ(load_as_double(&odd_true, DType::boolean, 0), 1);
}

TEST(DType, f64_and_f32_are_stored_as_they_are) {
  EXPECT_EQ(stored(DType::f64, 0x1.fffffffffffffp-3), 0x1.fffffffffffffp-3);
  EXPECT_EQ(stored(DType::f32, 0.1), static_cast<double>(0.1f));
}

TEST(DType, i4_puts_the_even_element_in_the_low_nibble_and_keeps_its_neighbour) {
  std::array<uint8_t, 2> memory{};
  for (int i = 0; i < 4; ++i) store_from_double(memory.data(), DType::i4, i, i - 2);
  EXPECT_EQ(memory[0], 0xfe);  // element 0 = -2 low, element 1 = -1 high
  EXPECT_EQ(memory[1], 0x10);  // element 2 = 0 low, element 3 = 1 high
  for (int value = -8; value < 8; ++value)
    for (int i = 0; i < 2; ++i) {
      memory = {0x5a, 0x5a};
      store_from_double(memory.data(), DType::i4, i, value);
      EXPECT_EQ(load_as_double(memory.data(), DType::i4, i), value);
      EXPECT_EQ(load_as_double(memory.data(), DType::i4, 1 - i), i == 0 ? 5 : -6);
      EXPECT_EQ(memory[1], 0x5a);
    }
  EXPECT_EQ(load_as_double(memory.data() + 1, DType::i4, -1), load_as_double(memory.data(), DType::i4, 1));
}

}  // namespace
}  // namespace ejk
