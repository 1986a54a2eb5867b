// Peaks of a GPU.
#include "ejkernel/runtime/calibration.h"

#include <gtest/gtest.h>

#include "ejkernel/runtime/devices.h"

namespace ejk::testing {
namespace {

/// By Hopper's data sheet the matrix units do 16 times what the vector units do in float32, and twice that of 8-bit
/// numbers; the vector units do half of it in float64. A peak kernel whose work is miscounted is off by a whole factor.
TEST(Peaks, of_the_matrix_units_are_the_processors) {
  const Device gpu{DeviceKind::cuda, 0};
  if (device_properties(gpu).compute_capability != 90) GTEST_SKIP() << "not a Hopper GPU";
  const Peaks peaks = measure_peaks(gpu);
  EXPECT_GT(peaks.bf16_flops_per_second, 10 * peaks.flops_per_second);
  EXPECT_LT(peaks.bf16_flops_per_second, 25 * peaks.flops_per_second);
  EXPECT_NEAR(peaks.f64_flops_per_second / peaks.flops_per_second, 0.5, 0.1);
  for (const double rate : {peaks.f8_flops_per_second, peaks.i8_flops_per_second}) {
    EXPECT_GT(rate, 1.4 * peaks.bf16_flops_per_second) << "power may hold the clock back";
    EXPECT_LT(rate, 2.5 * peaks.bf16_flops_per_second);
  }
}

}  // namespace
}  // namespace ejk::testing
