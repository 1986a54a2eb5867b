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

void expect_stored_alike(DType dtype, double value) {
  uint64_t got = 0, expected = 0;
  store(&got, static_cast<Number>(dtype), 0, value);
  store_from_double(&expected, dtype, 0, value);
  if (std::isnan(value))
    EXPECT_TRUE(std::isnan(load_as_double(&got, dtype, 0)));
  else
    EXPECT_EQ(got, expected) << name(dtype) << " " << value;
}

TEST(DeviceNumber, doubles_are_rounded_once_as_on_the_host) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f16, DType::bf16})
    for (uint32_t pattern = 0; pattern < 1u << 15; ++pattern) {
      const auto low = static_cast<uint16_t>(pattern), high = static_cast<uint16_t>(pattern + 1);
      const double below = load_as_double(&low, dtype, 0), above = load_as_double(&high, dtype, 0);
      const double middle = below + (above - below) / 2;
      for (const double value : {below, std::nextafter(middle, -kInf), middle, std::nextafter(middle, kInf)}) {
        expect_stored_alike(dtype, value);
        expect_stored_alike(dtype, -value);
      }
    }
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const double value :
         {0.0, -0.0, 0.1, 65519.99, 65520.0, 1e30, 3.5e38, 1e300, 1e-300, 5e-324, kInf, -kInf, -kInf - -kInf})
      expect_stored_alike(dtype, value);
}

}  // namespace
}  // namespace ejk::cuda
