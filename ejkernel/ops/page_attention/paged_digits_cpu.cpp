// Numbers to digits and back, and values side by side, for paged_digits-inl.h.
#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/page_attention/paged_digits_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After that:
#include "ejkernel/ops/page_attention/paged_digits-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

DigitUnit split_digits(const float* from, int64_t count, int8_t* to, int64_t plane, int64_t row_numbers,
                       int64_t row_bytes) {
  const FloatTag d;
  const WordTag dw;
  const hn::Rebind<uint8_t, WordTag> bytes;
  FloatV most = hn::Zero(d);
  auto finite = hn::Eq(most, most);
  for (int64_t i = 0; i < count; i += lanes()) {
    const FloatV size = hn::Abs(hn::Load(d, from + i));
    finite = hn::And(finite, hn::Lt(size, hn::Inf(d)));
    most = hn::Max(most, size);
  }
  float largest = hn::ReduceMax(d, most);
  const bool is_finite = hn::AllTrue(d, finite);
  if (!is_finite) largest = 0;
  const float boost = largest < 0x1p-60f ? 0x1p60f : 1;
  constexpr float kHighest = 127 * 65536;  // and the digits below it: no sum of bytes carries out of 24 bits
  const FloatV factor = hn::Set(d, largest > 0 ? kHighest / (largest * boost) : 0);
  const auto middle = hn::Set(dw, 0x808080u);
  for (int64_t row = 0; row < count; row += row_numbers, to += row_bytes)
    for (int64_t i = 0; i < row_numbers; i += lanes()) {
      const FloatV x = is_finite ? hn::Mul(hn::Load(d, from + row + i), hn::Set(d, boost)) : hn::Zero(d);
      const auto sum = hn::Add(hn::BitCast(dw, hn::NearestInt(hn::Mul(x, factor))), middle);
      const auto digits = hn::Xor(sum, middle);
      auto* at = reinterpret_cast<uint8_t*>(to) + i;
      hn::StoreU(hn::TruncateTo(bytes, hn::ShiftRight<16>(digits)), bytes, at);
      hn::StoreU(hn::TruncateTo(bytes, hn::ShiftRight<8>(digits)), bytes, at + plane);
      hn::StoreU(hn::TruncateTo(bytes, digits), bytes, at + 2 * plane);
    }
  return {is_finite ? largest * boost / 127 : std::numeric_limits<float>::quiet_NaN(), 1 / boost};
}

/// Three digits' products are one number's.
template <class D>
HWY_INLINE hn::Vec<D> join_digits(D d, const int32_t* from, int64_t plane) {
  const hn::RebindToSigned<D> di;
  const auto part = [&](int64_t n) HWY_ATTR { return hn::ConvertTo(d, hn::LoadU(di, from + n * plane)); };
  return hn::MulAdd(part(2), hn::Set(d, 0x1p-16f), hn::MulAdd(part(1), hn::Set(d, 0x1p-8f), part(0)));
}

void join_columns(const int32_t* from, int64_t count, const DigitUnit* units, int64_t rows, float* to, int64_t stride) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  constexpr int64_t kColumns = cpu::kDigitColumns, kRows = cpu::kDigitRows;
  if constexpr (HWY_MAX_LANES_D(FloatTag) == 16) {
    alignas(64) float unit[16], rest[16];
    for (int64_t c = 0; c < 16; ++c) {
      const DigitUnit& of = units[c % kRows];
      unit[c] = c < kRows ? of.unit : c < 2 * kRows ? of.unit * 0x1p-8f : c < 3 * kRows ? of.unit * 0x1p-16f : 0;
      rest[c] = of.rest;
    }
    const FloatV x = hn::Load(d, unit), y = hn::Load(d, rest);
    const auto key = [&](int64_t j)
                         HWY_ATTR { return hn::Mul(hn::ConvertTo(d, hn::Load(di, from + j * kColumns)), x); };
    // Of four keys the sums over digits, [key][row]; a block of four lanes to each.
    const auto four = [&](int64_t j) HWY_ATTR {
      const FloatV k0 = key(j), k1 = key(j + 4), k2 = key(j + 8), k3 = key(j + 12);
      const FloatV even = hn::Add(hn::ConcatLowerLower(d, k2, k0), hn::ConcatUpperUpper(d, k2, k0));
      const FloatV odd = hn::Add(hn::ConcatLowerLower(d, k3, k1), hn::ConcatUpperUpper(d, k3, k1));
      const FloatV sums =
          hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)), hn::Add(even, hn::SwapAdjacentBlocks(even)));
      return hn::Mul(sums, y);
    };
    for (int64_t j = 0; j < count; j += 16, from += 16 * kColumns, to += 16) {
      const FloatV f0 = four(0), f1 = four(1), f2 = four(2), f3 = four(3);
      const auto lower02 = hn::InterleaveLower(d, f0, f2), upper02 = hn::InterleaveUpper(d, f0, f2);
      const auto lower13 = hn::InterleaveLower(d, f1, f3), upper13 = hn::InterleaveUpper(d, f1, f3);
      hn::StoreU(hn::InterleaveLower(d, lower02, lower13), d, to);
      if (rows > 1) hn::StoreU(hn::InterleaveUpper(d, lower02, lower13), d, to + stride);
      if (rows > 2) hn::StoreU(hn::InterleaveLower(d, upper02, upper13), d, to + 2 * stride);
      if (rows > 3) hn::StoreU(hn::InterleaveUpper(d, upper02, upper13), d, to + 3 * stride);
    }
  } else {
    for (int64_t j = 0; j < count; ++j, from += kColumns)
      for (int64_t r = 0; r < rows; ++r)
        to[r * stride + j] = (static_cast<float>(from[r]) + static_cast<float>(from[kRows + r]) * 0x1p-8f +
                              static_cast<float>(from[2 * kRows + r]) * 0x1p-16f) *
                             units[r].unit * units[r].rest;
  }
}

void add_joined_rows(const int32_t* from, const DigitUnit* units, int64_t rows, float* sums, int64_t stride) {
  constexpr int64_t dims = cpu::kCodeColumns;
  const FloatTag d;
  for (int64_t r = 0; r < rows; ++r, from += dims, sums += stride) {
    const FloatV unit = hn::Set(d, units[r].unit), rest = hn::Set(d, units[r].rest);
    for (int64_t i = 0; i < dims; i += lanes()) {
      const FloatV x = hn::Mul(join_digits(d, from + i, cpu::kDigitRows * dims), unit);
      hn::Store(hn::MulAdd(x, rest, hn::Load(d, sums + i)), d, sums + i);
    }
  }
}

/// Undoes what interleaving in blocks of 16 bytes does to the order of columns.
void restore_columns(float* sums, int64_t dims) {
  float chunk[4 * cpu::kMaxLanes];
  const int64_t blocks = lanes() / 4;
  for (int64_t at = 0; at < dims; at += 4 * lanes()) {
    std::copy_n(sums + at, 4 * lanes(), chunk);
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t b = 0; b < blocks; ++b) std::copy_n(chunk + i * lanes() + 4 * b, 4, sums + at + 16 * b + 4 * i);
  }
}

void interleave_values(const std::byte* const* values, int64_t skip, int64_t count, int8_t* to,
                       cpu::LinesAhead& ahead) {
  const hn::Repartition<int8_t, FloatTag> d;
  const hn::Repartition<int16_t, FloatTag> twos;
  for (int64_t j = 0; j < count; j += 4) {
    ahead.ask(2);  // half of what is read
    for (int64_t at = 0; at < cpu::kCodeColumns; at += 4 * lanes()) {
      const auto load = [&](int64_t n) HWY_ATTR {
        return hn::LoadU(d, reinterpret_cast<const int8_t*>(values[j + n] + skip) + at);
      };
      const auto x0 = load(0), x1 = load(1), x2 = load(2), x3 = load(3);
      const auto lower01 = hn::BitCast(twos, hn::InterleaveLower(d, x0, x1));
      const auto upper01 = hn::BitCast(twos, hn::InterleaveUpper(d, x0, x1));
      const auto lower23 = hn::BitCast(twos, hn::InterleaveLower(d, x2, x3));
      const auto upper23 = hn::BitCast(twos, hn::InterleaveUpper(d, x2, x3));
      const auto put = [&](auto fours) HWY_ATTR {
        hn::Store(hn::BitCast(d, fours), d, to);
        to += 4 * lanes();
      };
      put(hn::InterleaveLower(twos, lower01, lower23));
      put(hn::InterleaveUpper(twos, lower01, lower23));
      put(hn::InterleaveLower(twos, upper01, upper23));
      put(hn::InterleaveUpper(twos, upper01, upper23));
    }
  }
}

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
