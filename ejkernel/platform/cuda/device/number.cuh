// Numbers of every dtype as kernels read and write them one at a time, with one rounding.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// ejk::DType under its own values (a test holds the two together): core's header is not for device code.
enum class Number : int { f64, f32, f16, bf16, e4m3, e5m2, i64, i32, u32, i8, u8, i4, boolean };

/// The number whose fields are `bits`: a sign, an exponent with the usual bias, a mantissa.
EJK_DEVICE double widen(uint32 bits, int exponent_bits, int mantissa_bits) {
  const uint64 sign = static_cast<uint64>(bits >> (exponent_bits + mantissa_bits)) << 63;
  const uint64 magnitude = bits & ((1u << (exponent_bits + mantissa_bits)) - 1);
  // In a double's place the fields mean a number that is too small by the difference of the biases, subnormals too.
  const uint64 power = static_cast<uint64>(2046 - ((1 << (exponent_bits - 1)) - 1)) << 52;
  const double value =
      __builtin_bit_cast(double, magnitude << (52 - mantissa_bits)) * __builtin_bit_cast(double, power);
  return __builtin_bit_cast(double, sign | __builtin_bit_cast(uint64, value));
}

EJK_DEVICE double quiet_nan() { return __builtin_bit_cast(double, 0x7ff8000000000000ull); }
EJK_DEVICE double infinity() { return __builtin_bit_cast(double, 0x7ff0000000000000ull); }

EJK_DEVICE double f16_to_double(uint32 bits) {
  if ((bits & 0x7c00u) != 0x7c00u) return widen(bits, 5, 10);
  if ((bits & 0x03ffu) != 0) return quiet_nan();
  return (bits & 0x8000u) != 0 ? -infinity() : infinity();
}
EJK_DEVICE float bf16_to_float(uint32 bits) { return __builtin_bit_cast(float, bits << 16); }
/// OCP e4m3fn: no infinity, one NaN.
EJK_DEVICE double e4m3_to_double(uint32 bits) { return (bits & 0x7fu) == 0x7fu ? quiet_nan() : widen(bits, 4, 3); }
/// e5m2 is the upper byte of an f16.
EJK_DEVICE double e5m2_to_double(uint32 bits) { return f16_to_double(bits << 8); }

/// The fields of a narrow float: numbers that round beyond `largest` become `overflow`.
struct NarrowFormat {
  int exponent_bits, mantissa_bits;
  uint32 largest, overflow, nan;
};

/// Rounded once, to nearest even, from all 53 bits of x.
EJK_DEVICE uint32 narrow(double x, const NarrowFormat& format) {
  const int exponent_bits = format.exponent_bits, mantissa_bits = format.mantissa_bits;
  const auto bits = __builtin_bit_cast(uint64, x);
  const uint32 sign = static_cast<uint32>(bits >> 63) << (exponent_bits + mantissa_bits);
  if (x != x) return sign | format.nan;
  const int biased = static_cast<int>(bits >> 52 & 0x7ff);
  if (biased == 0x7ff) return sign | format.overflow;

  const int bias = (1 << (exponent_bits - 1)) - 1, exponent = biased - 1023;
  const int below_normal = 1 - bias - exponent > 0 ? 1 - bias - exponent : 0;
  const int shift = 52 - mantissa_bits + below_normal;
  if (shift > 53) return sign;  // less than half of the smallest subnormal

  const uint64 significand = (bits & ((1ull << 52) - 1)) | 1ull << 52;
  const uint64 rounded = (significand + (1ull << (shift - 1)) - 1 + (significand >> shift & 1)) >> shift;
  // The implicit bit adds one to the exponent field, and so does a carry out of the mantissa.
  const int field = below_normal > 0 ? 0 : exponent + bias - 1;
  if (field >= 1 << exponent_bits) return sign | format.overflow;
  const uint32 magnitude = (static_cast<uint32>(field) << mantissa_bits) + static_cast<uint32>(rounded);
  return sign | (magnitude > format.largest ? format.overflow : magnitude);
}
EJK_DEVICE uint32 double_to_f16(double x) { return narrow(x, {5, 10, 0x7bff, 0x7c00, 0x7e00}); }
EJK_DEVICE uint32 double_to_bf16(double x) { return narrow(x, {8, 7, 0x7f7f, 0x7f80, 0x7fc0}); }
// These saturate, from infinity too.
EJK_DEVICE uint32 double_to_e4m3(double x) { return narrow(x, {4, 3, 0x7e, 0x7e, 0x7f}); }
EJK_DEVICE uint32 double_to_e5m2(double x) { return narrow(x, {5, 2, 0x7b, 0x7b, 0x7e}); }
/// Nearest integer, ties to even, saturating; NaN is 0.
EJK_DEVICE int double_to_i8(double x) {
  if (x != x) return 0;
  constexpr double kInteger = 6755399441055744.0;  // 1.5 * 2^52: beside it there are integers only
  return static_cast<int>(min<double>(max<double>(x, -128), 127) + kInteger - kInteger);
}

/// Element `index` of a buffer of any dtype but the 64-bit integers and i4, which no kernel reads so.
EJK_DEVICE double load(const void* data, Number number, int64 index) {
  switch (number) {
    case Number::f64:
      return static_cast<const double*>(data)[index];
    case Number::f32:
      return static_cast<const float*>(data)[index];
    case Number::f16:
      return f16_to_double(static_cast<const unsigned short*>(data)[index]);
    case Number::bf16:
      return bf16_to_float(static_cast<const unsigned short*>(data)[index]);
    case Number::e4m3:
      return e4m3_to_double(static_cast<const unsigned char*>(data)[index]);
    case Number::e5m2:
      return e5m2_to_double(static_cast<const unsigned char*>(data)[index]);
    case Number::i8:
      return static_cast<const signed char*>(data)[index];
    default:
      return quiet_nan();
  }
}

/// The dtypes of results.
EJK_DEVICE void store(void* data, Number number, int64 index, double value) {
  switch (number) {
    case Number::f64:
      static_cast<double*>(data)[index] = value;
      break;
    case Number::f32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case Number::f16:
      static_cast<unsigned short*>(data)[index] = static_cast<unsigned short>(double_to_f16(value));
      break;
    case Number::bf16:
      static_cast<unsigned short*>(data)[index] = static_cast<unsigned short>(double_to_bf16(value));
      break;
    default:
      break;
  }
}

// What caches hold besides: apart from the others, whose kernels shall not carry it.

EJK_DEVICE double load_stored(const void* data, Number number, int64 index) {
  if (number != Number::i4) return load(data, number, index);
  const int byte = static_cast<const unsigned char*>(data)[index >> 1];
  const int nibble = (index & 1) != 0 ? byte >> 4 : byte & 0xf;
  return nibble < 8 ? nibble : nibble - 16;
}
EJK_DEVICE void store_stored(void* data, Number number, int64 index, double value) {
  switch (number) {
    case Number::e4m3:
      static_cast<unsigned char*>(data)[index] = static_cast<unsigned char>(double_to_e4m3(value));
      break;
    case Number::e5m2:
      static_cast<unsigned char*>(data)[index] = static_cast<unsigned char>(double_to_e5m2(value));
      break;
    case Number::i8:
      static_cast<signed char*>(data)[index] = static_cast<signed char>(double_to_i8(value));
      break;
    default:
      store(data, number, index, value);
  }
}

}  // namespace ejk::cuda
