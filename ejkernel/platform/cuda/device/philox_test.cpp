// Device code's Philox as host C++: the published vectors, and the host's dropout mask.
#include "ejkernel/platform/cuda/device/philox.cuh"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "ejkernel/core/philox.h"

namespace ejk::cuda {
namespace {

using ::testing::ElementsAre;

TEST(DevicePhilox, gives_the_published_vectors_of_random123) {
  EXPECT_THAT(philox4x32(0, 0, 0, 0, 0, 0).words, ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32 kOnes = 0xffffffff;
  EXPECT_THAT(philox4x32(kOnes, kOnes, kOnes, kOnes, kOnes, kOnes).words,
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox4x32(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0).words,
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(DevicePhilox, drops_what_the_host_drops) {
  int kept = 0;
  for (uint32 i = 0; i < 64; ++i)
    for (uint32 j = 0; j < 256; ++j) {
      const uint32 seed = i * 0x9E3779B9u, offset = i % 3, threshold = 1000 * i;
      const bool keep = dropout_keep(seed, offset, i % 5, i % 7, 1000 * i, j, threshold);
      EXPECT_EQ(keep, ejk::dropout_keep(seed, offset, i % 5, i % 7, 1000 * i, j, threshold));
      kept += keep ? 1 : 0;
    }
  EXPECT_NEAR(kept, 64 * 256 * (1 - 31500.0 / 65536), 300);
}

TEST(DevicePhilox, keep_mask_is_golden) {
  std::string mask;
  for (uint32 j = 0; j < 64; ++j) mask += dropout_keep(42, 7, 3, 5, 11, j, 6554) ? '1' : '0';
  EXPECT_EQ(mask, "1110111110111111111111111111111111110111111111111111111111111111");
}

}  // namespace
}  // namespace ejk::cuda
