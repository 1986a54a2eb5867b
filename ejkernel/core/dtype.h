// Element types and their conversions to and from double and float.
#pragma once

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
    case DType::i64: return 64;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 32;
    case DType::f16:
    case DType::bf16: return 16;
    case DType::i4: return 4;
    default: return 8;
  }
}

constexpr bool is_float(DType dtype) { return dtype <= DType::e5m2; }
constexpr bool is_float8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

/// Unit roundoff of a floating dtype: half the distance from 1 to the next number (f32: 2^-24).
EJK_API double unit_roundoff(DType dtype);

// Storage types of the narrow floats: the bits, and nothing implicit. Conversions round to nearest even;
// e4m3 is OCP e4m3fn (no infinity, saturates to 448), e5m2 saturates to 57344; NaN stays NaN.
struct f16_t { uint16_t bits; };
struct bf16_t { uint16_t bits; };
struct e4m3_t { uint8_t bits; };
struct e5m2_t { uint8_t bits; };

EJK_API float to_float(f16_t x);
EJK_API float to_float(bf16_t x);
EJK_API float to_float(e4m3_t x);
EJK_API float to_float(e5m2_t x);
template <class T>
EJK_API T from_float(float x);  // T: f16_t, bf16_t, e4m3_t, e5m2_t
template <class T>
EJK_API T from_double(double x);  // one rounding, never through float

/// Element `index` of a typed buffer as double (bool as 0 or 1), and back with one rounding.
EJK_API double load_as_double(const void* data, DType dtype, int64_t index);
EJK_API void store_from_double(void* data, DType dtype, int64_t index, double value);

}  // namespace ejk
