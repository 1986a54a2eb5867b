// What SIMD kernels are written in: one float vector type and the few steps that Highway does not have as we need them.
//
// A kernel's .cpp is compiled once per instruction set. Above its code it says which file that is, then includes this:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ejkernel/ops/toy/toy_cpu.cpp"
//   #include <hwy/foreach_target.h>
//   #include "ejkernel/platform/cpu/simd-inl.h"
//   #include "ejkernel/platform/cpu/gemm-inl.h"       // other *-inl.h: after this one, once each
//
// This is the only header with Highway's include guard, which opens once per instruction set; the other *-inl.h have
// none: a kernel includes each of them once, so the compiler reads them once per instruction set as well.
#if defined(EJK_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_SIMD_INL_H
#undef EJK_SIMD_INL_H
#else
#define EJK_SIMD_INL_H
#endif

#include <hwy/highway.h>
#include <limits>

#include <hwy/contrib/math/math-inl.h>

#include "ejkernel/core/dtype.h"
#include "ejkernel/platform/cpu/layout.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// At most kMaxLanes floats, so that every row of kMaxLanes floats is whole vectors of any instruction set.
using FloatTag = hn::CappedTag<float, kMaxLanes>;
using FloatV = hn::Vec<FloatTag>;
using FloatMask = hn::Mask<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordV = hn::Vec<WordTag>;

HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(FloatTag())); }

/// Asks memory for what lies `bytes` behind `at`, where there may be nothing.
HWY_INLINE void prefetch(const void* at, int64_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + static_cast<uintptr_t>(bytes)));
}

/// The same, no nearer than the second-level cache.
HWY_INLINE void prefetch_far(const std::byte* at) { __builtin_prefetch(at, 0, 2); }

HWY_INLINE FloatV minus_infinity() { return hn::Set(FloatTag(), -std::numeric_limits<float>::infinity()); }

/// 2^x for x < 128, -infinity and NaN; 0 below 2^-126; exact for integers. The relative error is below 2^-18.4 with
/// degree 4, 2^-23 with degree 6: with n the nearest integer, 2^x = 2^n p(x - n), p the polynomial with p(0) = 1 of
/// least relative error on [-1/2, 1/2].
template <int kDegree>
HWY_INLINE FloatV exp2_below_128(FloatV x) {
  static_assert(kDegree == 4 || kDegree == 6);
  const FloatTag d;
  const auto c = [](double value) HWY_ATTR { return hn::Set(FloatTag(), static_cast<float>(value)); };
  const FloatV shifter = c(12582912.0);  // 1.5 * 2^23: the sum has n in its low bits
  const FloatV shifted = hn::Add(x, shifter);
  const FloatV f = hn::Sub(x, hn::Sub(shifted, shifter));
  FloatV p;
  if constexpr (kDegree == 4) {
    p = hn::MulAdd(f, c(0.009582854807376862), c(0.05590642988681793));
    p = hn::MulAdd(f, p, c(0.24024099111557007));
    p = hn::MulAdd(f, p, c(0.6931241750717163));
  } else {
    p = hn::MulAdd(f, c(0.0001535336341476068), c(0.0013398875016719103));
    p = hn::MulAdd(f, p, c(0.00961843691766262));
    p = hn::MulAdd(f, p, c(0.055503323674201965));
    p = hn::MulAdd(f, p, c(0.24022647738456726));
    p = hn::MulAdd(f, p, c(0.6931471824645996));
  }
  p = hn::MulAdd(f, p, c(1.0));
  const WordTag dw;
  const WordV scaled = hn::Add(hn::BitCast(dw, p), hn::ShiftLeft<23>(hn::BitCast(dw, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, c(-126.0)), hn::BitCast(d, scaled));
}

/// e^x for x <= 0, -infinity and NaN.
HWY_INLINE FloatV exp_nonpositive(FloatV x) {
  // Highway's Exp makes 0 of NaN.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(FloatTag(), x));
}

/// e^x for any x.
HWY_INLINE FloatV exp_any(FloatV x) {
  const FloatTag d;
  constexpr float kOverflow = 88.72283935546875f;  // the largest float whose e^x is finite
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, kOverflow)), hn::Inf(d), exp_nonpositive(x));
}

/// tanh(x) for any x, and its slope 1 - tanh(x)^2, which keeps its digits where the tangent itself rounds to 1.
HWY_INLINE FloatV tanh_any(FloatV x, FloatV& slope) {
  const FloatTag d;
  const FloatV one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const FloatV magnitude = hn::Min(hn::Abs(x), hn::Set(d, 44.0f));  // the exponential of twice that is finite
  const FloatV y = hn::Expm1(d, hn::Add(magnitude, magnitude));
  const FloatV rest = hn::Div(two, hn::Add(y, two));  // 1 - tanh
  const FloatV small = hn::Mul(hn::Mul(y, hn::Set(d, 0.5f)), rest), large = hn::Sub(one, rest);
  const FloatV result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0.5f)), large, small);
  slope = hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(rest, hn::Sub(two, rest)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(result, x));
}

// ---- loads: lanes() elements of a storage type as floats; exact ----

HWY_INLINE FloatV load_floats(const float* from) { return hn::LoadU(FloatTag(), from); }

HWY_INLINE FloatV load_floats(const bf16_t* from) {
  const WordTag d;
  const hn::Rebind<uint16_t, WordTag> half;
  const auto words = hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(words));
}

/// Of lanes() patterns of f16.
HWY_INLINE FloatV floats_of_halves(hn::Vec<hn::Rebind<uint16_t, WordTag>> halves) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
  // No instruction for it before AVX2, and Highway's own steps make numbers of infinity and NaN: as to_float does it.
  const WordTag d;
  const FloatTag df;
  const auto bits = hn::PromoteTo(d, halves);
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffu)), sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const auto is_finite = hn::Lt(magnitude, hn::Set(d, 0x7c00u));
  const auto bias = hn::IfThenElse(is_finite, hn::Set(d, 112u << 23), hn::Set(d, 224u << 23));
  const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), bias);
  const auto units = hn::ConvertTo(df, hn::BitCast(IntTag(), magnitude));
  const auto subnormal = hn::BitCast(d, hn::Mul(units, hn::Set(df, 0x1p-24f)));
  const auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x0400u)), subnormal, normal);
  return hn::BitCast(df, hn::Or(sign, value));
#else
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::PromoteTo(FloatTag(), hn::BitCast(half, halves));
#endif
}

HWY_INLINE FloatV load_floats(const f16_t* from) {
  const hn::Rebind<uint16_t, WordTag> half;
  return floats_of_halves(hn::LoadU(half, reinterpret_cast<const uint16_t*>(from)));
}

// Codes of a quantised tensor, without their scale.
HWY_INLINE FloatV load_floats(const int8_t* from) {
  const hn::Rebind<int8_t, IntTag> bytes;
  return hn::ConvertTo(FloatTag(), hn::PromoteTo(IntTag(), hn::LoadU(bytes, from)));
}

// An e5m2 is the high half of an f16; an e4m3 is one whose exponent is biased by 8 less, and without infinities.
HWY_INLINE FloatV load_floats(const e5m2_t* from) {
  const hn::Rebind<uint16_t, WordTag> half;
  const hn::Rebind<uint8_t, WordTag> bytes;
  const auto codes = hn::PromoteTo(half, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from)));
  return floats_of_halves(hn::ShiftLeft<8>(codes));
}

HWY_INLINE FloatV load_floats(const e4m3_t* from) {
  const hn::Rebind<uint16_t, WordTag> half;
  const hn::Rebind<uint8_t, WordTag> bytes;
  const auto codes = hn::PromoteTo(half, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from)));
  const auto magnitude = hn::And(codes, hn::Set(half, uint16_t{0x7f})), sign = hn::Sub(codes, magnitude);
  const auto is_nan = hn::Eq(magnitude, hn::Set(half, uint16_t{0x7f}));
  const auto value = hn::IfThenElse(is_nan, hn::Set(half, uint16_t{0x7e00}), hn::ShiftLeft<7>(magnitude));
  return hn::Mul(floats_of_halves(hn::Or(hn::ShiftLeft<8>(sign), value)), hn::Set(FloatTag(), 256.0f));
}

// ---- stores: to nearest, ties to even; NaN stays NaN ----

HWY_INLINE void store_floats(FloatV x, float* to) { hn::StoreU(x, FloatTag(), to); }

HWY_INLINE void store_floats(FloatV x, bf16_t* to) {
  // In integers: the processors' own instruction flushes subnormals.
  const WordTag d;
  const hn::Rebind<uint16_t, WordTag> half;
  const auto bits = hn::BitCast(d, x);
  const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::Add(bits, hn::Add(last, hn::Set(d, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(d, 0x400000u));
  const auto result = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(x)), quiet, rounded);
  hn::StoreU(hn::TruncateTo(half, hn::ShiftRight<16>(result)), half, reinterpret_cast<uint16_t*>(to));
}

HWY_INLINE void store_floats(FloatV x, f16_t* to) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  hn::StoreU(hn::DemoteTo(half, x), half, reinterpret_cast<hwy::float16_t*>(to));
}

// ---- whole rows ----

template <class T>
HWY_INLINE void load_row(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  if constexpr (sizeof(T) <= sizeof(float))
    for (; i + lanes() <= count; i += lanes()) store_floats(load_floats(from + i), to + i);
  for (; i < count; ++i) {
    if constexpr (std::is_arithmetic_v<T>)
      to[i] = static_cast<float>(from[i]);
    else
      to[i] = to_float(from[i]);
  }
}

template <class T>
HWY_INLINE void store_row(const float* from, float factor, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (sizeof(T) <= sizeof(float)) {
    const FloatV factors = hn::Set(FloatTag(), factor);
    for (; i + lanes() <= count; i += lanes()) store_floats(hn::Mul(load_floats(from + i), factors), to + i);
  }
  for (; i < count; ++i) {
    if constexpr (std::is_arithmetic_v<T>)
      to[i] = static_cast<T>(from[i] * factor);
    else
      to[i] = from_float<T>(from[i] * factor);
  }
}

/// `count` elements of a floating dtype, from element `offset` of `data` on, as floats.
inline void load_row(const void* data, DType dtype, int64_t offset, int64_t count, float* to) {
  switch (dtype) {
    case DType::f64:
      return load_row(static_cast<const double*>(data) + offset, count, to);
    case DType::f32:
      return load_row(static_cast<const float*>(data) + offset, count, to);
    case DType::f16:
      return load_row(static_cast<const f16_t*>(data) + offset, count, to);
    default:
      return load_row(static_cast<const bf16_t*>(data) + offset, count, to);
  }
}

/// from[i] * factor, rounded once.
inline void store_row(const float* from, float factor, int64_t count, void* data, DType dtype, int64_t offset) {
  switch (dtype) {
    case DType::f64:
      return store_row(from, factor, count, static_cast<double*>(data) + offset);
    case DType::f32:
      return store_row(from, factor, count, static_cast<float*>(data) + offset);
    case DType::f16:
      return store_row(from, factor, count, static_cast<f16_t*>(data) + offset);
    default:
      return store_row(from, factor, count, static_cast<bf16_t*>(data) + offset);
  }
}

/// Four rows of four, turned in registers.
template <class T>
HWY_INLINE void transpose4(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  const hn::CappedTag<T, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> two;
  const auto row0 = hn::LoadU(d, from), row1 = hn::LoadU(d, from + from_stride);
  const auto row2 = hn::LoadU(d, from + 2 * from_stride), row3 = hn::LoadU(d, from + 3 * from_stride);
  const auto low01 = hn::BitCast(two, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(two, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(two, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(two, hn::InterleaveUpper(d, row2, row3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(two, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(two, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(two, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(two, high01, high23)), d, to + 3 * to_stride);
}

/// to[c][r] = from[r][c], for floats and words.
template <class T>
inline void transpose(const T* from, int64_t from_stride, int64_t rows, int64_t columns, T* to, int64_t to_stride) {
  if (rows < 4 || columns < 4 || hn::Lanes(hn::CappedTag<T, 4>()) < 4) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
    return;
  }
  // The last four may be some of those before again.
  for (int64_t i = 0; i < rows; i += 4)
    for (int64_t r = std::min(i, rows - 4), j = 0; j < columns; j += 4) {
      const int64_t c = std::min(j, columns - 4);
      transpose4(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
    }
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // EJK_SIMD_INL_H
