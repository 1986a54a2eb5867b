// Element types and their conversions to and from double and float.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

enum class DType : uint8_t { f64, f32, f16, bf16, e4m3, e5m2, i64, i32, u32, i8, u8, i4, boolean };
inline constexpr int kNumDTypes = 13;

/// "f32", "bf16", "bool", …: the spelling of every message, file and command line.
EJK_API std::string_view name(DType dtype);
EJK_API std::optional<DType> parse_dtype(std::string_view text);

/// Bits per element: 4 for i4, which is packed two to a byte, the even element in the low nibble.
constexpr int bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 64;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 32;
    case DType::f16:
    case DType::bf16:
      return 16;
    case DType::i4:
      return 4;
    default:
      return 8;
  }
}

constexpr bool is_float(DType dtype) { return dtype <= DType::e5m2; }
constexpr bool is_float8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

/// Unit roundoff of a floating dtype: half the distance from 1 to the next number (f32: 2^-24). 0 for the others.
EJK_API double unit_roundoff(DType dtype);

// Storage types of the narrow floats: the bits, and nothing implicit. Conversions round to nearest even;
// e4m3 is OCP e4m3fn (no infinity, saturates to 448), e5m2 saturates to 57344, both from infinity too; NaN stays NaN.
struct f16_t {
  uint16_t bits;
};
struct bf16_t {
  uint16_t bits;
};
struct e4m3_t {
  uint8_t bits;
};
struct e5m2_t {
  uint8_t bits;
};

// The 16-bit conversions are inline and blend with masks instead of branching: they stand in inner loops of host
// kernels, which compilers then vectorise. None of them depends on the caller's denormal mode (frameworks set
// flush-to-zero): no step reads or makes a subnormal float that matters.
constexpr uint32_t select_bits(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

inline float to_float(f16_t x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  // Move the fields into place and rebias the exponent by 127 − 15; infinity and NaN need twice that to reach 255.
  const uint32_t normal = (magnitude << 13) + ((magnitude < 0x7c00u ? 112u : 224u) << 23);
  // A subnormal counts in units of 2^-24, which every float can hold exactly.
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return std::bit_cast<float>(sign | select_bits(magnitude < 0x0400u, subnormal, normal));
}

inline float to_float(bf16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

EJK_API float to_float(e4m3_t x);
EJK_API float to_float(e5m2_t x);

template <class T>
T from_float(float x);  // T: f16_t, bf16_t, e4m3_t, e5m2_t
template <class T>
T from_double(double x);  // one rounding, never through float

template <>
inline f16_t from_float<f16_t>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // From 65520 on the carry makes infinity by itself; from 65536 on nothing else would.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: in [0.5, 1) a float counts in units of 2^-24, just as a subnormal f16 does.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // quiet, with what fits of the payload
  uint32_t rounded = select_bits(magnitude < 0x38800000u, subnormal, normal);
  rounded = select_bits(magnitude < 0x47800000u, rounded, 0x7c00u);
  rounded = select_bits(magnitude > 0x7f800000u, nan, rounded);
  return {static_cast<uint16_t>(sign | rounded)};
}

template <>
inline bf16_t from_float<bf16_t>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(rounded)};
}

template <>
EJK_API e4m3_t from_float<e4m3_t>(float x);
template <>
EJK_API e5m2_t from_float<e5m2_t>(float x);
template <>
EJK_API f16_t from_double<f16_t>(double x);
template <>
EJK_API bf16_t from_double<bf16_t>(double x);
template <>
EJK_API e4m3_t from_double<e4m3_t>(double x);
template <>
EJK_API e5m2_t from_double<e5m2_t>(double x);

/// Element `index` of a typed buffer as double (bool as 0 or 1; i64 beyond 2^53 rounds), and back with one rounding.
/// Integers round to nearest even and saturate at their ends, NaN becomes 0; bool is "not zero". Storing an i4 rewrites
/// the byte it shares with its neighbour.
EJK_API double load_as_double(const void* data, DType dtype, int64_t index);
EJK_API void store_from_double(void* data, DType dtype, int64_t index, double value);

}  // namespace ejk
