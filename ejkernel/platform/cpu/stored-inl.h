// Rows of what caches store: any floating dtype, codes of 8 bits, and i4. Without scales, which their reader folds into
// what it computes, or applies. Included once per instruction set, after tiles-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

/// `count` codes of i4, an even number of them, from a whole byte on: the even element is in the low nibble.
inline void load_nibbles(const uint8_t* from, int64_t count, float* to) {
  const hn::Half<FloatTag> d;
  const hn::RebindToSigned<hn::Half<FloatTag>> di;
  const hn::Rebind<uint8_t, hn::Half<FloatTag>> bytes;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 2 * step <= count; i += 2 * step) {
    const auto pairs = hn::PromoteTo(di, hn::LoadU(bytes, from + i / 2));
    const auto low = hn::ConvertTo(d, hn::ShiftRight<28>(hn::ShiftLeft<28>(pairs)));
    const auto high = hn::ConvertTo(d, hn::ShiftRight<28>(hn::ShiftLeft<24>(pairs)));
    hn::StoreInterleaved2(low, high, d, to + i);
  }
  for (; i < count; i += 2) {
    const int byte = from[i / 2];
    to[i] = static_cast<float>(((byte & 15) ^ 8) - 8);
    to[i + 1] = static_cast<float>(((byte >> 4) ^ 8) - 8);
  }
}

/// `count` numbers or codes from element `offset` of `data` on, as floats.
inline void load_stored_row(const void* data, DType dtype, int64_t offset, int64_t count, float* to) {
  switch (dtype) {
    case DType::i8:
      return load_row(static_cast<const int8_t*>(data) + offset, count, to);
    case DType::e4m3:
      return load_row(static_cast<const e4m3_t*>(data) + offset, count, to);
    case DType::e5m2:
      return load_row(static_cast<const e5m2_t*>(data) + offset, count, to);
    case DType::i4:
      return load_nibbles(static_cast<const uint8_t*>(data) + offset / 2, count, to);
    default:
      return load_row(data, dtype, offset, count, to);
  }
}

/// True for dtypes whose numbers bf16 holds exactly.
inline bool is_exact_in_bf16(DType dtype) { return dtype == DType::bf16 || bits(dtype) <= 8; }

/// lanes() pairs that follow each other in a row of such a dtype.
HWY_INLINE WordV load_pairs(const bf16_t* from) {
  const hn::Repartition<uint16_t, WordTag> halves;
  return hn::BitCast(WordTag(), hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from)));
}
template <class Code>
HWY_INLINE WordV load_pairs(const Code* from) {
  static_assert(sizeof(Code) == 1);
  const hn::Repartition<uint16_t, WordTag> halves;
  const auto first = hn::BitCast(halves, load_floats(from)), second = hn::BitCast(halves, load_floats(from + lanes()));
  return hn::BitCast(WordTag(), hn::ConcatOdd(halves, second, first));  // the high half of a float is a bf16
}

/// The same as bf16 numbers, for a dtype that is exact in it. `floats` is scratch of padded(count); `to` has room for
/// padded(count).
inline void load_stored_row(const void* data, DType dtype, int64_t offset, int64_t count, float* floats, uint16_t* to) {
  if (dtype == DType::bf16) {
    std::memcpy(to, static_cast<const uint16_t*>(data) + offset, static_cast<size_t>(count) * sizeof(uint16_t));
    return;
  }
  load_stored_row(data, dtype, offset, count, floats);
  std::fill(floats + count, floats + padded(count), 0.0f);
  for (int64_t i = 0; i < count; i += lanes())
    store_in_row(hn::Load(FloatTag(), floats + i), reinterpret_cast<Pair*>(to), i);
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
