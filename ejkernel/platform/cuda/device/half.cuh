// Arithmetic on 16-bit floats, and the special functions of softmax.
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

/// 2^x to about 2 ulp; results below 2^-126 are 0.
EJK_DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x to 1 ulp, for x that is not subnormal.
EJK_DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
EJK_DEVICE float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ejk::cuda
