// The special functions of softmax, as fast as the device has them. On the host, where the tests run code that is
// written in them, they are the exact ones.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

inline constexpr float kNegativeInfinity = __builtin_bit_cast(float, 0xff800000u);
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

#ifdef __CUDACC_RTC__

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
/// a b + c, rounded once.
EJK_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/// The greater one; the other one where one is NaN.
EJK_DEVICE float greater(float a, float b) { return fmaxf(a, b); }

#else

inline float exp2_approximate(float x) { return __builtin_exp2f(x); }
inline float reciprocal_approximate(float x) { return 1 / x; }
inline float log2_approximate(float x) { return __builtin_log2f(x); }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float greater(float a, float b) { return __builtin_fmaxf(a, b); }

#endif

/// To 3e-7, absolutely.
EJK_DEVICE float hyperbolic_tangent(float x) {
  return 1 - 2 * reciprocal_approximate(exp2_approximate(2 * kLog2E * x) + 1);
}

}  // namespace ejk::cuda
