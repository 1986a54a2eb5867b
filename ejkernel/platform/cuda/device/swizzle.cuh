// Tiles of 64 16-bit columns in shared memory, in the 128-byte swizzle as TMA writes them, and the descriptors by which
// wgmma reads them: arithmetic only, also compiled for the host, where the tests hold it against the layout's words.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// Bytes from a tile's beginning to 16 bytes of a row: eight chunks a row, which trade places by the row.
EJK_DEVICE constexpr uint32 swizzled_offset(int row, int chunk) {
  return static_cast<uint32>(row * 128 + ((chunk ^ row % 8) << 4));
}

/// Descriptor of an operand whose rows run along K: groups of eight rows follow each other.
EJK_DEVICE constexpr uint64 k_major_descriptor(uint32 address) {
  constexpr uint64 kSwizzle128 = 1ull << 62, kRowGroup = 1024 >> 4, kUnused = 1;
  return kSwizzle128 | kRowGroup << 32 | kUnused << 16 | (address & 0x3ffff) >> 4;
}
/// Of one whose rows run along N; `column_tile_bytes` lie between one 64-column tile and the next.
EJK_DEVICE constexpr uint64 n_major_descriptor(uint32 address, int column_tile_bytes) {
  constexpr uint64 kSwizzle128 = 1ull << 62, kRowGroup = 1024 >> 4;
  return kSwizzle128 | kRowGroup << 32 | static_cast<uint64>(column_tile_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

}  // namespace ejk::cuda
