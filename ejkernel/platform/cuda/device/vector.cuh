// Numbers sixteen bytes at a time: how kernels that wait for memory read and write it.
#pragma once

#include "ejkernel/platform/cuda/device/number.cuh"

namespace ejk::cuda {

struct alignas(16) Vector16 {
  uint32 words[4];
};

/// Numbers in a Vector16; f32, f16 and bf16 only.
template <Number kNumber>
inline constexpr int kVectorLength = kNumber == Number::f32 ? 4 : 8;

/// The vector at an element that lies at a multiple of 16 bytes; read once, so not worth a place in the first cache.
template <Number kNumber>
EJK_DEVICE Vector16 load_once(const void* data, int64 index) {
  const Vector16* from = static_cast<const Vector16*>(data) + index / kVectorLength<kNumber>;
#ifdef __CUDACC_RTC__
  Vector16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
               : "l"(from));
  return v;
#else
  return *from;
#endif
}

template <Number kNumber>
EJK_DEVICE void store_vector(void* data, int64 index, const Vector16& v) {
  static_cast<Vector16*>(data)[index / kVectorLength<kNumber>] = v;
}

template <Number kNumber>
EJK_DEVICE float half_to_float(uint32 bits) {
  if constexpr (kNumber == Number::bf16) return bf16_to_float(bits);
#ifdef __CUDACC_RTC__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
  return x;
#else
  return static_cast<float>(f16_to_double(bits));
#endif
}

/// Two floats rounded to nearest even, `low` in the low half.
template <Number kNumber>
EJK_DEVICE uint32 halves_of(float low, float high) {
#ifdef __CUDACC_RTC__
  uint32 word;
  if constexpr (kNumber == Number::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  const auto bits = [](double x) { return kNumber == Number::bf16 ? double_to_bf16(x) : double_to_f16(x); };
  return bits(low) | bits(high) << 16;
#endif
}

template <Number kNumber>
EJK_DEVICE void unpack(const Vector16& v, float (&to)[kVectorLength<kNumber>]) {
  for (int w = 0; w < 4; ++w)
    if constexpr (kNumber == Number::f32) {
      to[w] = __builtin_bit_cast(float, v.words[w]);
    } else {
      to[2 * w] = half_to_float<kNumber>(v.words[w] & 0xffffu);
      to[2 * w + 1] = half_to_float<kNumber>(v.words[w] >> 16);
    }
}

template <Number kNumber>
EJK_DEVICE Vector16 pack(const float (&from)[kVectorLength<kNumber>]) {
  Vector16 v;
  for (int w = 0; w < 4; ++w)
    if constexpr (kNumber == Number::f32)
      v.words[w] = __builtin_bit_cast(uint32, from[w]);
    else
      v.words[w] = halves_of<kNumber>(from[2 * w], from[2 * w + 1]);
  return v;
}

// ---- ends of rows, and rows that do not lie at multiples of 16 bytes ----

/// The numbers at `index`, `index + step`, … that lie before `index + count`, zeros for the rest.
template <Number kNumber>
EJK_DEVICE Vector16 load_some(const void* data, int64 index, int64 count, int step = 1) {
  Vector16 v = {};
  for (int n = 0; n < kVectorLength<kNumber>; ++n)
    if (n * step < count) {
      if constexpr (kNumber == Number::f32)
        v.words[n] = static_cast<const uint32*>(data)[index + n * step];
      else
        v.words[n / 2] |= uint32{static_cast<const unsigned short*>(data)[index + n * step]} << n % 2 * 16;
    }
  return v;
}

template <Number kNumber>
EJK_DEVICE void store_some(void* data, int64 index, int64 count, int step, const Vector16& v) {
  for (int n = 0; n < kVectorLength<kNumber>; ++n)
    if (n * step < count) {
      if constexpr (kNumber == Number::f32)
        static_cast<uint32*>(data)[index + n * step] = v.words[n];
      else
        static_cast<unsigned short*>(data)[index + n * step] =
            static_cast<unsigned short>(v.words[n / 2] >> n % 2 * 16);
    }
}

}  // namespace ejk::cuda
