// Peaks of a GPU.
#include "ejkernel/runtime/calibration.h"

#include <gtest/gtest.h>

#include "ejkernel/runtime/devices.h"

namespace ejk::testing {
namespace {

/// By Hopper's data sheet the matrix units do 16 times what the vector units do in float32. A peak kernel whose work is
/// miscounted is off by a whole factor.
TEST(Peaks, of_the_matrix_units_are_the_processors) {
  const Device gpu{DeviceKind::cuda, 0};
  if (device_properties(gpu).compute_capability != 90) GTEST_SKIP() << "not a Hopper GPU";
  const Peaks peaks = measure_peaks(gpu);
  EXPECT_GT(peaks.bf16_flops_per_second, 10 * peaks.flops_per_second);
  EXPECT_LT(peaks.bf16_flops_per_second, 25 * peaks.flops_per_second);
}

}  // namespace
}  // namespace ejk::testing
