// Codes that lie packed, widened in registers: i4, and e4m3 to bf16 by tables. Included once per instruction set, after
// stored-inl.h, which widens the others.

#include <array>
#include <bit>

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

/// Two codes of i4: the even element is in the low nibble.
struct Nibbles {
  uint8_t bits;
};

/// Bits of a stored number.
template <class T>
constexpr int64_t stored_bits() {
  return std::is_same_v<T, Nibbles> ? 4 : 8 * static_cast<int64_t>(sizeof(T));
}

HWY_INLINE FloatV load_floats(const Nibbles* from) {
  const hn::Repartition<uint64_t, FloatTag> wide;
  const hn::Rebind<uint8_t, decltype(wide)> bytes;
  const auto both = hn::PromoteTo(wide, hn::LoadU(bytes, &from->bits));
  const auto codes = hn::BitCast(IntTag(), hn::Or(both, hn::ShiftLeft<28>(both)));  // in the low bits of every lane
  return hn::ConvertTo(FloatTag(), hn::ShiftRight<28>(hn::ShiftLeft<28>(codes)));
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

HWY_INLINE WordV load_pairs(const Nibbles* from) {
  // bf16 of the codes 0 to 7 and -8 to -1; twice, because a vector is one table.
  alignas(64) static constexpr uint16_t kNumbers[32] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                                        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                                        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
                                                        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
  const hn::Rebind<uint8_t, WordTag> bytes;
  const hn::Repartition<uint16_t, WordTag> halves;
  const WordV both = hn::PromoteTo(WordTag(), hn::LoadU(bytes, &from->bits));
  const WordV codes = hn::And(hn::Or(both, hn::ShiftLeft<12>(both)), hn::Set(WordTag(), 0x000f000fu));
  const auto places = hn::IndicesFromVec(halves, hn::BitCast(halves, codes));
  return hn::BitCast(WordTag(), hn::TableLookupLanes(hn::Load(halves, kNumbers), places));
}

#else

HWY_INLINE WordV load_pairs(const Nibbles* from) {
  const hn::Repartition<uint16_t, WordTag> halves;
  const auto first = hn::BitCast(halves, load_floats(from)),
             second = hn::BitCast(halves, load_floats(from + lanes() / 2));
  return hn::BitCast(WordTag(), hn::ConcatOdd(halves, second, first));
}

#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

/// The low or the high bytes of the bf16 numbers that the positive e4m3 codes 0 to 127 stand for.
constexpr std::array<uint8_t, 128> bytes_of_e4m3(int shift) {
  std::array<uint8_t, 128> bytes = {};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> 3, fraction = code & 7;
    const float unit = exponent == 0 ? 0x1p-9f : std::bit_cast<float>((exponent - 7 - 3 + 127) << 23);
    const float number = unit * static_cast<float>(exponent == 0 ? fraction : 8 + fraction);
    const uint32_t bits = code == 127 ? 0x7fc00000u : std::bit_cast<uint32_t>(number);
    bytes[static_cast<size_t>(code)] = static_cast<uint8_t>(bits >> shift);
  }
  return bytes;
}

HWY_INLINE WordV load_pairs(const e4m3_t* from) {
  alignas(64) static constexpr std::array<uint8_t, 128> kLow = bytes_of_e4m3(16), kHigh = bytes_of_e4m3(24);
  const hn::Repartition<uint8_t, WordTag> bytes;
  const hn::Repartition<uint16_t, WordTag> halves;
  const hn::Half<decltype(bytes)> half;
  const auto codes = hn::PromoteTo(halves, hn::LoadU(half, &from->bits));
  const auto magnitude = hn::And(codes, hn::Set(halves, uint16_t{0x7f}));
  const auto places = hn::IndicesFromVec(bytes, hn::BitCast(bytes, hn::Or(magnitude, hn::ShiftLeft<8>(magnitude))));
  const auto look_up = [&](const std::array<uint8_t, 128>& table) HWY_ATTR {
    return hn::BitCast(halves, hn::TwoTablesLookupLanes(bytes, hn::Load(bytes, table.data()),
                                                        hn::Load(bytes, table.data() + 64), places));
  };
  const auto sign = hn::ShiftLeft<8>(hn::Sub(codes, magnitude));
  const auto high_half = hn::Set(halves, uint16_t{0xff00});
  const auto number = hn::IfVecThenElse(high_half, look_up(kHigh), look_up(kLow));
  return hn::BitCast(WordTag(), hn::Or(number, sign));
}

#endif

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
