#include "ejkernel/core/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ejkernel/core/enum_name.h"

namespace ejk {
namespace {

constexpr std::array<std::string_view, kNumDTypes> kNames = {"f64", "f32", "f16", "bf16", "e4m3", "e5m2", "i64",
                                                             "i32", "u32", "i8",  "u8",   "i4",   "bool"};

/// The fields of a narrow float, and what becomes of numbers that are too big for it.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  uint32_t overflow;  ///< magnitude that every number rounding beyond `largest` becomes
  uint32_t largest;   ///< magnitude of the largest finite number
  uint32_t nan;       ///< magnitude of the quiet NaN
};

constexpr Format kF16 = {5, 10, 0x7c00, 0x7bff, 0x7e00};
constexpr Format kBf16 = {8, 7, 0x7f80, 0x7f7f, 0x7fc0};
constexpr Format kE4m3 = {4, 3, 0x7e, 0x7e, 0x7f};
constexpr Format kE5m2 = {5, 2, 0x7b, 0x7b, 0x7e};

/// `x` in that format, rounded once from all 53 bits: doing it on integers is what makes "once" plain to see.
template <Format kFormat>
uint32_t narrow(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (kFormat.exponent_bits + kFormat.mantissa_bits);
  if (std::isnan(x)) return sign | kFormat.nan;
  if (std::isinf(x)) return sign | kFormat.overflow;
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  if (biased == 0) return sign;  // zero, or a subnormal double: far below half of anything here

  const int bias = (1 << (kFormat.exponent_bits - 1)) - 1;
  const int exponent = biased - 1023;
  const int below_normal = std::max(0, 1 - bias - exponent);
  const int shift = 52 - kFormat.mantissa_bits + below_normal;
  if (shift > 53) return sign;  // less than half of the smallest subnormal

  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const uint64_t half = uint64_t{1} << (shift - 1);
  const uint64_t odd = (significand >> shift) & 1;
  const uint64_t rounded = (significand + half - 1 + odd) >> shift;
  // The implicit bit adds one to the exponent field, and so does a carry out of the mantissa.
  const int field = below_normal > 0 ? 0 : exponent + bias - 1;
  const uint64_t magnitude = (static_cast<uint64_t>(field) << kFormat.mantissa_bits) + rounded;
  return sign | (magnitude > kFormat.largest ? kFormat.overflow : static_cast<uint32_t>(magnitude));
}

/// Nearest integer of T, ties to even, saturating; NaN is 0.
template <class T>
T to_integer(double x) {
  if (std::isnan(x)) return 0;
  const double rounded = std::nearbyint(x);
  // 2^digits is exact where max() of a 64-bit type is not.
  if (rounded >= std::ldexp(1.0, std::numeric_limits<T>::digits)) return std::numeric_limits<T>::max();
  if (rounded < static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(rounded);
}

template <class T>
T load(const void* data, int64_t index) {
  return static_cast<const T*>(data)[index];
}
template <class T>
void store(void* data, int64_t index, T value) {
  static_cast<T*>(data)[index] = value;
}

double load_i4(const void* data, int64_t index) {
  const int byte = load<uint8_t>(data, index >> 1);
  const int nibble = (index & 1) != 0 ? byte >> 4 : byte & 0xf;
  return nibble < 8 ? nibble : nibble - 16;
}

void store_i4(void* data, int64_t index, double value) {
  const int clamped = std::clamp(static_cast<int>(to_integer<int8_t>(value)), -8, 7) & 0xf;
  const int byte = load<uint8_t>(data, index >> 1);
  const int merged = (index & 1) != 0 ? (byte & 0x0f) | (clamped << 4) : (byte & 0xf0) | clamped;
  store(data, index >> 1, static_cast<uint8_t>(merged));
}

}  // namespace

std::string_view name(DType dtype) { return name_in(kNames, dtype); }

std::optional<DType> parse_dtype(std::string_view text) {
  const auto* found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<DType>(found - kNames.begin());
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-53;
    case DType::f32:
      return 0x1p-24;
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::e4m3:
      return 0x1p-4;
    case DType::e5m2:
      return 0x1p-3;
    default:
      return 0;
  }
}

float to_float(e4m3_t x) {
  const uint32_t sign = (x.bits & 0x80u) << 24;
  const uint32_t magnitude = x.bits & 0x7fu;
  uint32_t bits = (magnitude << 20) + (120u << 23);  // rebias the exponent by 127 − 7
  if (magnitude < 0x08u) bits = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
  if (magnitude == kE4m3.nan) bits = 0x7fc00000u;
  return std::bit_cast<float>(sign | bits);
}

float to_float(e5m2_t x) {
  // e5m2 is the upper byte of f16, infinities and NaNs included.
  return to_float(f16_t{static_cast<uint16_t>(x.bits << 8)});
}

template <>
f16_t from_double<f16_t>(double x) {
  return {static_cast<uint16_t>(narrow<kF16>(x))};
}
template <>
bf16_t from_double<bf16_t>(double x) {
  return {static_cast<uint16_t>(narrow<kBf16>(x))};
}
template <>
e4m3_t from_double<e4m3_t>(double x) {
  return {static_cast<uint8_t>(narrow<kE4m3>(x))};
}
template <>
e5m2_t from_double<e5m2_t>(double x) {
  return {static_cast<uint8_t>(narrow<kE5m2>(x))};
}
template <>
e4m3_t from_float<e4m3_t>(float x) {
  return from_double<e4m3_t>(x);
}
template <>
e5m2_t from_float<e5m2_t>(float x) {
  return from_double<e5m2_t>(x);
}

double load_as_double(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::f64:
      return load<double>(data, index);
    case DType::f32:
      return load<float>(data, index);
    case DType::f16:
      return to_float(load<f16_t>(data, index));
    case DType::bf16:
      return to_float(load<bf16_t>(data, index));
    case DType::e4m3:
      return to_float(load<e4m3_t>(data, index));
    case DType::e5m2:
      return to_float(load<e5m2_t>(data, index));
    case DType::i64:
      return static_cast<double>(load<int64_t>(data, index));
    case DType::i32:
      return load<int32_t>(data, index);
    case DType::u32:
      return load<uint32_t>(data, index);
    case DType::i8:
      return load<int8_t>(data, index);
    case DType::u8:
      return load<uint8_t>(data, index);
    case DType::i4:
      return load_i4(data, index);
    case DType::boolean:
      return load<uint8_t>(data, index) != 0 ? 1 : 0;
  }
  return 0;
}

void store_from_double(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::f64:
      return store(data, index, value);
    case DType::f32:
      return store(data, index, static_cast<float>(value));
    case DType::f16:
      return store(data, index, from_double<f16_t>(value));
    case DType::bf16:
      return store(data, index, from_double<bf16_t>(value));
    case DType::e4m3:
      return store(data, index, from_double<e4m3_t>(value));
    case DType::e5m2:
      return store(data, index, from_double<e5m2_t>(value));
    case DType::i64:
      return store(data, index, to_integer<int64_t>(value));
    case DType::i32:
      return store(data, index, to_integer<int32_t>(value));
    case DType::u32:
      return store(data, index, to_integer<uint32_t>(value));
    case DType::i8:
      return store(data, index, to_integer<int8_t>(value));
    case DType::u8:
      return store(data, index, to_integer<uint8_t>(value));
    case DType::i4:
      return store_i4(data, index, value);
    case DType::boolean:
      return store(data, index, static_cast<uint8_t>(value != 0 ? 1 : 0));
  }
}

}  // namespace ejk
