#include "ejkernel/core/device.h"

#include <gtest/gtest.h>

#include <set>

namespace ejk {
namespace {

TEST(Device, the_host_prints_without_and_a_gpu_with_its_ordinal) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{DeviceKind::cpu, 1}), "cpu:1") << "there is no such host";
  EXPECT_EQ(to_string(Device{DeviceKind::cuda, 1}), "cuda:1");
  EXPECT_NE((Device{DeviceKind::cuda, 0}), (Device{DeviceKind::cuda, 1}));
}

TEST(Device, every_platform_and_backend_has_its_own_name) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumPlatforms; ++i) names.insert(name(static_cast<Platform>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumPlatforms));
  EXPECT_EQ(name(Platform::reference), "reference");
  EXPECT_EQ(name(Platform::hip), "hip");
  EXPECT_EQ(name(Backend::any), "any");
  EXPECT_EQ(name(Backend::tpu), "tpu");
  EXPECT_EQ(name(DeviceKind::cuda), "cuda");
}

}  // namespace
}  // namespace ejk
