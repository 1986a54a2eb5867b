// The program of the tests that need a GPU. Without one it says so and fails: a machine that was taken for one with a
// GPU must not look as if its tests had passed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/runtime/devices.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", /*overwrite=*/0);  // tests about tuning say so themselves
  ::setenv("EJKERNEL_CONFIG_PATH", "none", /*overwrite=*/0);            // heuristics are tested, whatever is shipped
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  if (ejk::num_cuda_devices() == 0) {
    fmt::print(stderr, "ejkernel_device_tests: these tests need a GPU, and there is none here: {}\n",
               ejk::cuda::driver_report().error);
    return 2;
  }
  const ejk::DeviceProperties& device = ejk::device_properties({ejk::DeviceKind::cuda, 0});
  fmt::print("on {} ({})\n", device.product, device.architecture);
  return RUN_ALL_TESTS();
}
