// Copies from global to shared memory that a thread starts and waits for later (cp.async), on every architecture since
// Ampere.
#pragma once

#include "ejkernel/platform/cuda/device/swizzle.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// Starts to copy 16 bytes, aligned on both ends; zeros instead, and nothing is read, where nothing `exists`.
EJK_DEVICE void copy_16(uint32 to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
EJK_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most that many of the thread's committed groups are still under way. Others' copies are there after a
/// barrier.
template <int kGroups>
EJK_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// What a block copies into a tile of 64-column parts in the 128-byte swizzle: rows of 16-bit numbers.
struct RowsToCopy {
  const char* first;  ///< the tile's first row
  int64 stride;       ///< in bytes
  int begin, end;     ///< rows of the tile that exist; the others become zeros
  int columns;        ///< that exist, a multiple of 8
};
/// All threads of the block take part.
template <int kRows, int kColumns, int kThreads>
EJK_DEVICE void copy_rows(uint32 tile, const RowsToCopy& rows) {
  constexpr int kChunks = kColumns / 8;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kThreads % kChunks == 0 && kRows % (kThreads / kChunks) == 0 && kThreads / kChunks % 8 == 0) {
    // A thread stays in its column, and its place in the swizzle.
    constexpr int kStep = kThreads / kChunks;
    const int chunk = thread % kChunks, row = thread / kChunks;
    const bool column_exists = chunk * 8 < rows.columns;
    uint32 to = tile + chunk / 8 * kRows * 128 + swizzled_offset(row, chunk % 8);
    const char* from = rows.first + row * rows.stride + chunk * 16;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      const int at = row + i * kStep;
      copy_16(to, from, column_exists && at >= rows.begin && at < rows.end);
      to += kStep * 128;
      from += kStep * rows.stride;
    }
  } else {
#pragma unroll 1
    for (int at = thread; at < kRows * kChunks; at += kThreads) {
      const int row = at / kChunks, chunk = at % kChunks;
      copy_16(tile + chunk / 8 * kRows * 128 + swizzled_offset(row, chunk % 8),
              rows.first + row * rows.stride + chunk * 16,
              row >= rows.begin && row < rows.end && chunk * 8 < rows.columns);
    }
  }
}

}  // namespace ejk::cuda
