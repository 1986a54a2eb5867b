// Accumulators to rows of 16-bit elements in global memory.
#pragma once

#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/warp.cuh"

namespace ejk::cuda {

/// Writes the first `columns` elements, a multiple of 8, of one of the thread's two rows of a matrix accumulator
/// (wgmma.cuh, mma.cuh), times `factor`; a factor of 0 makes zeros of NaN and infinities, too. All lanes of the warp
/// call it; `wanted` says whether the row exists. The quad that shares the row writes 64 bytes of it at a time, 16 a
/// lane, or element by element where rows do not start at multiples of 16 bytes.
template <HalfType kType, int kCount>
EJK_DEVICE void store_row(const float (&accumulator)[kCount], int r, float factor, char* row, int columns, bool wanted,
                          bool is_aligned) {
  constexpr int kGroups = ceil_div(kCount, 16);
  uint32 words[kGroups][4];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = group * 16 + j * 4 + r * 2;
      words[group][j] =
          i < kCount && factor != 0 ? pack<kType>(accumulator[i] * factor, accumulator[i + 1] * factor) : 0;
    }
    quad_transpose(words[group]);
  }
  if (!wanted) return;
  const int first = lane_index() % 4 * 8;
  const auto exists = [&](int group) { return columns == kGroups * 32 || group * 32 + first < columns; };
  char* to = row + first * 2;
  if (is_aligned) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      if (exists(group))
        *reinterpret_cast<uint4*>(to + group * 64) =
            make_uint4(words[group][0], words[group][1], words[group][2], words[group][3]);
  } else {
    auto* elements = reinterpret_cast<unsigned short*>(to);
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (exists(group)) elements[group * 32 + i] = static_cast<unsigned short>(words[group][i / 2] >> i % 2 * 16);
  }
}

}  // namespace ejk::cuda
