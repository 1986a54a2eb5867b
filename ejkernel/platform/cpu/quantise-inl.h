// Rows of numbers as codes: x / scale, divided in double and rounded once, to nearest even, saturating. The same codes
// as store_from_double(load_as_double(x) / scale) gives. Included once per instruction set, after simd-inl.h.

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

using DoubleTag = hn::RepartitionToWide<FloatTag>;
using DoubleV = hn::Vec<DoubleTag>;
using HalfFloatTag = hn::Half<FloatTag>;

/// The nearest numbers with kMantissa bits of mantissa, exponents from kLeast on and magnitudes up to kMost. NaN is
/// NaN.
template <int kMantissa, int kLeast>
HWY_INLINE DoubleV round_to_format(DoubleV x, double most) {
  const DoubleTag d;
  const hn::RebindToUnsigned<DoubleTag> du;
  // Twice the largest is what the largest can still be told from.
  const DoubleV magnitude = hn::Min(hn::Abs(x), hn::Set(d, 2 * most));
  const auto exponent = hn::And(hn::BitCast(du, magnitude), hn::Set(du, uint64_t{0x7ff} << 52));
  const auto held = hn::Max(exponent, hn::Set(du, static_cast<uint64_t>(kLeast + 1023) << 52));
  // Beside 2^52 of its last places, a number keeps no more than those.
  const DoubleV places = hn::BitCast(d, hn::Add(held, hn::Set(du, static_cast<uint64_t>(52 - kMantissa) << 52)));
  const DoubleV rounded = hn::Min(hn::Sub(hn::Add(magnitude, places), places), hn::Set(d, most));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(rounded, x));
}

/// lanes() / 2 codes of x.
HWY_INLINE void store_codes(DoubleV x, int8_t* to) {
  const DoubleTag d;
  const hn::RebindToSigned<HalfFloatTag> words;
  const hn::Rebind<int8_t, HalfFloatTag> bytes;
  const DoubleV held = hn::Min(hn::Max(hn::Round(x), hn::Set(d, -128.0)), hn::Set(d, 127.0));
  const auto number = hn::DemoteTo(words, hn::IfThenZeroElse(hn::IsNaN(x), held));
  hn::StoreU(hn::DemoteTo(bytes, number), bytes, to);
}

template <class Half>
HWY_INLINE auto half_bits(DoubleV x, Half) {
  const hn::Rebind<hwy::float16_t, HalfFloatTag> half;
  return hn::BitCast(Half(), hn::DemoteTo(half, hn::DemoteTo(HalfFloatTag(), x)));
}

HWY_INLINE void store_codes(DoubleV x, e5m2_t* to) {
  const hn::Rebind<uint16_t, HalfFloatTag> half;
  const hn::Rebind<uint8_t, HalfFloatTag> bytes;
  const auto codes = hn::ShiftRight<8>(half_bits(round_to_format<2, -14>(x, 57344), half));
  hn::StoreU(hn::TruncateTo(bytes, codes), bytes, reinterpret_cast<uint8_t*>(to));
}

HWY_INLINE void store_codes(DoubleV x, e4m3_t* to) {
  const hn::Rebind<uint16_t, HalfFloatTag> half;
  const hn::Rebind<uint8_t, HalfFloatTag> bytes;
  // As an f16 whose exponent is biased by 8 more. A NaN keeps its sign.
  const DoubleV scaled = hn::Mul(round_to_format<3, -6>(x, 448), hn::Set(DoubleTag(), 0x1p-8));
  const auto number = half_bits(scaled, half);
  const auto magnitude = hn::And(number, hn::Set(half, uint16_t{0x7fff}));
  const auto sign = hn::ShiftRight<8>(hn::Sub(number, magnitude));
  const auto is_nan = hn::Gt(magnitude, hn::Set(half, uint16_t{0x7c00}));
  const auto code = hn::IfThenElse(is_nan, hn::Set(half, uint16_t{0x7f}), hn::ShiftRight<7>(magnitude));
  hn::StoreU(hn::TruncateTo(bytes, hn::Or(sign, code)), bytes, reinterpret_cast<uint8_t*>(to));
}

/// `count` codes of floats. `from` may be read up to whole vectors.
template <class T>
inline void quantise_row(const float* from, double scale, int64_t count, T* to) {
  const DoubleTag d;
  const DoubleV divisor = hn::Set(d, scale);
  const int64_t step = lanes() / 2;
  const auto code = [&](int64_t i, T* at) HWY_ATTR {
    store_codes(hn::Div(hn::PromoteTo(d, hn::LoadU(HalfFloatTag(), from + i)), divisor), at);
  };
  int64_t i = 0;
  for (; i + step <= count; i += step) code(i, to + i);
  if (i == count) return;
  T last[kMaxLanes];
  code(i, last);
  std::memcpy(to + i, last, static_cast<size_t>(count - i) * sizeof(T));
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
