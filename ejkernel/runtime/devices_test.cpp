#include "ejkernel/runtime/devices.h"

#include <gtest/gtest.h>

namespace ejk {
namespace {

TEST(Devices, are_read_as_they_print) {
  for (const Device& device : {Device{}, Device{DeviceKind::cuda, 0}, Device{DeviceKind::cuda, 17}})
    EXPECT_EQ(parse_device(to_string(device)), device);
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceKind::cuda, 0}));
  for (const char* text : {"", "gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:1 ", "cuda:4294967296"})
    EXPECT_EQ(parse_device(text), std::nullopt) << text;
}

}  // namespace
}  // namespace ejk
