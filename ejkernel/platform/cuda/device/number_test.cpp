// Device code's conversions as host C++, against core's: every narrow number there is, and doubles around each of them.
#include "ejkernel/platform/cuda/device/number.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ejkernel/core/dtype.h"

namespace ejk::cuda {
namespace {

static_assert(static_cast<int>(Number::f64) == static_cast<int>(DType::f64));
static_assert(static_cast<int>(Number::bf16) == static_cast<int>(DType::bf16));
static_assert(static_cast<int>(Number::i8) == static_cast<int>(DType::i8));
static_assert(static_cast<int>(Number::i4) == static_cast<int>(DType::i4));
static_assert(static_cast<int>(Number::boolean) == static_cast<int>(DType::boolean));

/// The same number, or NaN both.
void expect_same(double got, double expected, uint32_t bits) {
  if (std::isnan(expected))
    EXPECT_TRUE(std::isnan(got)) << std::hex << bits;
  else
    EXPECT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(expected)) << std::hex << bits;
}

TEST(DeviceNumber, every_narrow_number_is_read_as_the_host_reads_it) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8})
    for (uint32_t pattern = 0; pattern < 1u << bits(dtype); ++pattern) {
      const auto element = static_cast<uint16_t>(pattern);
      expect_same(load(&element, static_cast<Number>(dtype), 0), load_as_double(&element, dtype, 0), pattern);
    }
}

TEST(DeviceNumber, elements_are_found_by_their_index) {
  const double wide[] = {1.5, -0.1};
  const float narrow[] = {1.5f, -0.1f};
  EXPECT_EQ(load(wide, Number::f64, 1), -0.1);
  EXPECT_EQ(load(narrow, Number::f32, 1), -0.1f);
}

TEST(DeviceNumber, four_bit_integers_are_found_in_their_half_of_a_byte) {
  for (uint32_t pattern = 0; pattern < 256; ++pattern) {
    const uint8_t bytes[] = {0x5a, static_cast<uint8_t>(pattern)};
    for (const int64_t index : {2, 3})
      expect_same(load_stored(bytes, Number::i4, index), load_as_double(bytes, DType::i4, index), pattern);
  }
  const int8_t other = -3;
  EXPECT_EQ(load_stored(&other, Number::i8, 0), -3);
}

void expect_stored_alike(DType dtype, double value) {
  uint64_t got = 0, expected = 0;
  store_stored(&got, static_cast<Number>(dtype), 0, value);
  store_from_double(&expected, dtype, 0, value);
  if (std::isnan(value) && is_float(dtype))
    EXPECT_TRUE(std::isnan(load_as_double(&got, dtype, 0)));
  else
    EXPECT_EQ(got, expected) << name(dtype) << " " << value;
}

TEST(DeviceNumber, doubles_are_rounded_once_as_on_the_host) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2})
    for (uint32_t pattern = 0; pattern < 1u << (bits(dtype) - 1); ++pattern) {
      const auto low = static_cast<uint16_t>(pattern), high = static_cast<uint16_t>(pattern + 1);
      const double below = load_as_double(&low, dtype, 0), above = load_as_double(&high, dtype, 0);
      const double middle = below + (above - below) / 2;
      for (const double value : {below, std::nextafter(middle, -kInf), middle, std::nextafter(middle, kInf)}) {
        expect_stored_alike(dtype, value);
        expect_stored_alike(dtype, -value);
      }
    }
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8})
    for (const double value : {0.0, -0.0, 0.1, 463.99, 464.0, 480.0, 61439.9, 61440.0, 65519.99, 65520.0, 1e30, 3.5e38,
                               1e300, 1e-300, 5e-324, kInf, -kInf, -kInf - -kInf})
      for (const double sign : {1.0, -1.0}) expect_stored_alike(dtype, sign * value);
  for (int quarters = -4 * 130; quarters <= 4 * 130; ++quarters)
    for (const double value : {quarters / 4.0, std::nextafter(quarters / 4.0, kInf)})
      expect_stored_alike(DType::i8, value);
}

}  // namespace
}  // namespace ejk::cuda
