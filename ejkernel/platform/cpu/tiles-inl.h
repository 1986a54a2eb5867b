// The layouts in which a matrix X takes part in products (gemm-inl.h), with elements E: floats, or pairs of bf16
// (Pair):
//
//   rows       [r][units(c)]  as it lies in memory: left factor of a sum over columns
//   panel      [units(c)][r]  rows transposed: right factor of a sum over columns
//   row pairs  [units(r)][c]  two rows interleaved: either factor of a sum over rows
//
// Floats are what every dtype can be widened to; pairs are exact copies of bf16 tensors. For floats, rows and row pairs
// are the same. Included once per instruction set, after simd-inl.h.

#include <algorithm>
#include <cstring>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

/// `count` numbers of a floating dtype, from element `offset` of `data` on, as one row.
inline void load_elements(const void* data, DType dtype, int64_t offset, int64_t count, float* to) {
  load_row(data, dtype, offset, count, to);
}

/// The same of bf16 numbers, two by two.
inline void load_elements(const void* data, DType, int64_t offset, int64_t count, Pair* to) {
  if (count % 2 != 0) to[count / 2].bits = 0;
  std::memcpy(to, static_cast<const uint16_t*>(data) + offset, static_cast<size_t>(count) * sizeof(uint16_t));
}

inline void transpose_elements(const float* rows, int64_t stride, int64_t count, int64_t columns, float* panel,
                               int64_t panel_stride) {
  transpose(rows, stride, count, columns, panel, panel_stride);
}
inline void transpose_elements(const Pair* rows, int64_t stride, int64_t count, int64_t columns, Pair* panel,
                               int64_t panel_stride) {
  transpose(&rows->bits, stride, count, columns, &panel->bits, panel_stride);
}

/// One row of row pairs: rows `first` and `second` of bf16 numbers, interleaved; a null one counts as zeros.
inline void interleave(const uint16_t* first, const uint16_t* second, int64_t count, Pair* to) {
  const WordTag d;
  const hn::Rebind<uint16_t, WordTag> half;
  const auto load = [&](const uint16_t* from, int64_t c) HWY_ATTR {
    return from == nullptr ? hn::Zero(d) : hn::PromoteTo(d, hn::LoadU(half, from + c));
  };
  int64_t c = 0;
  for (; c + lanes() <= count; c += lanes())
    hn::StoreU(hn::Or(load(first, c), hn::ShiftLeft<16>(load(second, c))), d, &to[c].bits);
  for (; c < count; ++c)
    to[c].bits = (first == nullptr ? 0u : first[c]) | (second == nullptr ? 0u : uint32_t{second[c]} << 16);
}

/// Stands for a row of zeros in place of a row's offset, which may be negative where strides are.
inline constexpr int64_t kZeros = std::numeric_limits<int64_t>::min();

/// Row pairs of `rows` rows of a tensor; row r begins at element offset_of(r), or is kZeros.
template <class Offset>
inline void load_row_pairs(const void* data, DType dtype, int64_t rows, int64_t columns, Offset offset_of, float* to,
                           int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    if (const int64_t offset = offset_of(r); offset != kZeros)
      load_row(data, dtype, offset, columns, to + r * stride);
    else
      std::fill_n(to + r * stride, columns, 0.0f);
  }
}
template <class Offset>
inline void load_row_pairs(const void* data, DType, int64_t rows, int64_t columns, Offset offset_of, Pair* to,
                           int64_t stride) {
  const auto row = [&](int64_t r) -> const uint16_t* {
    const int64_t offset = r < rows ? offset_of(r) : kZeros;
    return offset == kZeros ? nullptr : static_cast<const uint16_t*>(data) + offset;
  };
  for (int64_t r = 0; r < rows; r += 2) interleave(row(r), row(r + 1), columns, to + r / 2 * stride);
}

/// The bits of x rounded to bf16, ties away from zero, in the high half of each lane.
HWY_INLINE WordV round_to_bf16(FloatV x) {
  const WordTag d;
  return hn::Add(hn::BitCast(d, x), hn::Set(d, 0x8000u));
}

/// Stores computed numbers as elements of rows: lanes() of them from number `at` of the row on.
HWY_INLINE void store_in_row(FloatV x, float* row, int64_t at) { hn::Store(x, FloatTag(), row + at); }
HWY_INLINE void store_in_row(FloatV x, Pair* row, int64_t at) {
  const hn::Rebind<uint16_t, WordTag> half;
  hn::StoreU(hn::TruncateTo(half, hn::ShiftRight<16>(round_to_bf16(x))), half, reinterpret_cast<uint16_t*>(row) + at);
}

/// Stores computed numbers of rows 2r and 2r + 1 as elements of row pairs, whose row r begins at `to`.
HWY_INLINE void store_two_rows(FloatV first, FloatV second, float* to, int64_t stride) {
  hn::Store(first, FloatTag(), to);
  hn::Store(second, FloatTag(), to + stride);
}
HWY_INLINE void store_two_rows(FloatV first, FloatV second, Pair* to, int64_t) {
  const WordTag d;
  const WordV high = hn::And(round_to_bf16(second), hn::Set(d, 0xffff0000u));
  hn::Store(hn::Or(hn::ShiftRight<16>(round_to_bf16(first)), high), d, &to->bits);
}

/// Stores the last one of an odd number of rows.
HWY_INLINE void store_last_row(FloatV x, float* to) { hn::Store(x, FloatTag(), to); }
HWY_INLINE void store_last_row(FloatV x, Pair* to) { store_two_rows(x, hn::Zero(FloatTag()), to, 0); }

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
