// Matrix products of a warp (mma.sync), on every architecture since Ampere: D[16, 16] += A[16, 16] B[16, 16], A and D
// in pieces of fragments.cuh: two words of a packed D are A's of the next product. Of D, element i of a thread lies in
// row l / 4 (bit 1 of i clear) or 8 below it (set), and in column 8 (i / 4) + 2 (l % 4) + i % 2.
#pragma once

#include "ejkernel/platform/cuda/device/half_type.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// D[16, 8] += A[16, 16] B[16, 8]; `upper` and `lower` are the two squares of B, transposed.
template <HalfType kType>
EJK_DEVICE void multiply_add(float* d, const uint32* a, uint32 upper, uint32 lower) {
#define EJK_MMA(type)                                        \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "            \
      "{%8, %9}, {%0, %1, %2, %3};"                          \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(upper), "r"(lower))
  if constexpr (kType == HalfType::bf16)
    EJK_MMA("bf16");
  else
    EJK_MMA("f16");
#undef EJK_MMA
}

/// D += A B^T with a piece of B, whose rows run along K.
template <HalfType kType>
EJK_DEVICE void multiply_add_transposed(float* d, const uint32* a, const uint32* b) {
  multiply_add<kType>(d, a, b[0], b[2]);
  multiply_add<kType>(d + 4, a, b[1], b[3]);
}
/// D += A B with a piece of B that was loaded with its squares transposed.
template <HalfType kType>
EJK_DEVICE void multiply_add(float* d, const uint32* a, const uint32* b) {
  multiply_add<kType>(d, a, b[0], b[1]);
  multiply_add<kType>(d + 4, a, b[2], b[3]);
}

}  // namespace ejk::cuda
