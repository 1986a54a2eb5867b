// Arithmetic on 16-bit floats.
#pragma once

#include "ejkernel/platform/cuda/device/half_type.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// Two floats rounded to nearest even, `low` in the low half.
template <HalfType kType>
EJK_DEVICE uint32 pack(float low, float high) {
  uint32 word;
  if constexpr (kType == HalfType::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/// The two floats of a word.
template <HalfType kType>
EJK_DEVICE float2 unpack(uint32 word) {
  float2 x;
  if constexpr (kType == HalfType::bf16) {
    x.x = __uint_as_float(word << 16);
    x.y = __uint_as_float(word & 0xffff0000u);
  } else {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(x.x), "=f"(x.y)
        : "r"(word));
  }
  return x;
}
/// Sum of products of two words.
template <HalfType kType>
EJK_DEVICE float dot(uint32 a, uint32 b) {
  const float2 x = unpack<kType>(a), y = unpack<kType>(b);
  return x.x * y.x + x.y * y.y;
}

}  // namespace ejk::cuda
