#include "ejkernel/platform/cuda/device/swizzle.cuh"

#include <gtest/gtest.h>

#include <vector>

namespace ejk::cuda {
namespace {

/// PTX: in the 128-byte mode, bits 4 to 6 of an address are those XOR bits 7 to 9.
TEST(Swizzle, exchanges_bits_of_the_address_as_the_hardware_does) {
  for (int row = 0; row < 256; ++row)
    for (int chunk = 0; chunk < 8; ++chunk) {
      const auto plain = static_cast<uint32>(row * 128 + chunk * 16);
      EXPECT_EQ(swizzled_offset(row, chunk), plain ^ (plain >> 7 & 7) << 4) << row << ", " << chunk;
    }
}

/// Eight rows of one column of chunks, which a warp moves together, lie in eight different groups of four banks.
TEST(Swizzle, gives_every_place_once_and_a_column_of_chunks_all_banks) {
  std::vector<int> times(256 * 8);
  for (int chunk = 0; chunk < 8; ++chunk)
    for (int first = 0; first < 256; first += 8) {
      unsigned banks = 0;
      for (int row = first; row < first + 8; ++row) {
        ++times[swizzled_offset(row, chunk) / 16];
        banks |= 1u << swizzled_offset(row, chunk) / 16 % 8;
      }
      EXPECT_EQ(banks, 255u) << chunk << ", " << first;
    }
  for (const int n : times) EXPECT_EQ(n, 1);
}

/// The fields of a matrix descriptor (PTX, wgmma): address, leading and stride byte offsets, base offset, swizzle.
struct Fields {
  uint64 address, leading, stride, base, swizzle;
  explicit Fields(uint64 d)
      : address((d & 0x3fff) << 4),
        leading((d >> 16 & 0x3fff) << 4),
        stride((d >> 32 & 0x3fff) << 4),
        base(d >> 49 & 7),
        swizzle(d >> 62) {}
};

TEST(Descriptors, say_where_operands_lie_at_every_address_of_shared_memory) {
  for (uint32 address = 0; address < 232448; address += 16)
    for (const int column_tile : {8192, 16384, 20480, 24576}) {
      const Fields k(k_major_descriptor(address)), n(n_major_descriptor(address, column_tile));
      ASSERT_EQ(k.address, address);
      ASSERT_EQ(n.address, address);
      ASSERT_EQ(k.stride, 1024u);
      ASSERT_EQ(n.stride, 1024u);
      ASSERT_EQ(n.leading, static_cast<uint64>(column_tile));
      ASSERT_EQ(k.swizzle, 1u);
      ASSERT_EQ(n.swizzle, 1u);
      ASSERT_EQ(k.base + n.base, 0u);
    }
}

}  // namespace
}  // namespace ejk::cuda
