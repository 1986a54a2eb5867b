// Factors of a product on their way from memory into the layouts of matmul-inl.h: any dtype becomes floats, times its
// scales, or pairs of bf16, which hold bf16 numbers and 8-bit codes exactly. A panel of the left factor lies step by
// step of the depth, or row by row for a matrix unit and where the right one is read in place; columns of the right one
// become strips. What lies across is turned. Included once per instruction set, after simd-inl.h and tiles-inl.h.

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ejkernel/platform/cpu/matmul.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

namespace matmul_detail {

/// Rows of a panel. Times two vectors they are the sums that stand in registers beside two vectors of the right factor
/// and one number of the left: what the 16 registers of AVX2 and SSE hold, and the 32 of the others. Each step of the
/// depth loads kMaxRows + 2 vectors for 2 * kMaxRows multiply-adds.
inline constexpr int kMaxRows = (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3) ? 6 : 14;
/// Elements from step to step of a panel that is packed step by step.
inline constexpr int64_t kPanelStep = kMaxRows > 8 ? 16 : 8;

// ---- 8-bit codes ----

/// `count` codes as floats or bf16.
template <class T, class To>
HWY_INLINE void load_codes(const T* from, int64_t count, To* to) {
  int64_t i = 0;
  for (; i + lanes() <= count; i += lanes()) store_floats(load_floats(from + i), to + i);
  if (i == count) return;
  HWY_ALIGN T rest[kMaxLanes] = {};
  HWY_ALIGN To values[kMaxLanes];
  std::copy_n(from + i, count - i, rest);
  store_floats(load_floats(rest), values);
  std::copy_n(values, count - i, to + i);
}

template <class To>
HWY_INLINE void load_codes(const void* data, DType dtype, int64_t offset, int64_t count, To* to) {
  switch (dtype) {
    case DType::i8:
      return load_codes(static_cast<const int8_t*>(data) + offset, count, to);
    case DType::e4m3:
      return load_codes(static_cast<const e4m3_t*>(data) + offset, count, to);
    default:
      return load_codes(static_cast<const e5m2_t*>(data) + offset, count, to);
  }
}

HWY_INLINE void scale_line(const Factor& f, int64_t row, int64_t column, int64_t count, float* line) {
  const float* scale = f.scale + row / f.scale_block_rows * f.scale_row;
  for (int64_t i = 0; i < count; ++i) line[i] *= scale[(column + i) / f.scale_block_columns * f.scale_column];
}

// ---- lines: neighbours in memory, of a factor whose columns are ----

/// Numbers column … column + count of a row, as they are multiplied.
HWY_INLINE void load_line(const Factor& f, int64_t row, int64_t column, int64_t count, float* to) {
  const int64_t offset = row * f.row + column * f.column;
  if (bits(f.dtype) == 8)
    load_codes(f.data, f.dtype, offset, count, to);
  else
    load_row(f.data, f.dtype, offset, count, to);
  if (f.scale != nullptr) scale_line(f, row, column, count, to);
}

/// The same two by two, without scales.
inline void load_line(const Factor& f, int64_t row, int64_t column, int64_t count, Pair* to) {
  const int64_t offset = row * f.row + column * f.column;
  if (bits(f.dtype) == 16) return load_elements(f.data, f.dtype, offset, count, to);
  if (count % 2 != 0) to[count / 2].bits = 0;
  load_codes(f.data, f.dtype, offset, count, reinterpret_cast<bf16_t*>(to));
}

/// Two lines interleaved: pairs along the rows; without the second, zeros take its place.
inline void load_two_lines(const Factor& f, int64_t row, bool has_second, int64_t column, int64_t count, Pair* to) {
  const int64_t offset = row * f.row + column * f.column;
  if (bits(f.dtype) == 16) {
    const auto* first = static_cast<const uint16_t*>(f.data) + offset;
    return interleave(first, has_second ? first + f.row : nullptr, count, to);
  }
  HWY_ALIGN bf16_t lines[2][kMaxStripColumns];
  load_codes(f.data, f.dtype, offset, count, lines[0]);
  if (has_second) load_codes(f.data, f.dtype, offset + f.row, count, lines[1]);
  interleave(&lines[0]->bits, has_second ? &lines[1]->bits : nullptr, count, to);
}

/// Asks memory for numbers column … column + count of `rows` rows, which need not be there. What is packed lies in
/// pieces too short for the processor to see a pattern.
HWY_INLINE void prefetch_line(const Factor& f, int64_t row, int64_t rows, int64_t column, int64_t count) {
  const int64_t size = bits(f.dtype) / 8;
  for (int64_t r = row; r < row + rows; ++r)
    for (int64_t at = 0; at < count * size; at += 64) prefetch(f.data, (r * f.row + column * f.column) * size + at);
}

/// Asks the second-level cache for bytes that are needed later.
HWY_INLINE void prefetch_bytes(const void* from, int64_t count) {
  for (int64_t at = 0; at < count; at += 64) prefetch_far(static_cast<const std::byte*>(from) + at);
}

/// A row of the right factor, or two that make pairs, on its way into strips.
template <class E>
class Line {
 public:
  Line(const Factor& f, int64_t row, bool has_second, int64_t column)
      : f_(f), row_(row), column_(column), has_second_(has_second) {
    const int64_t size = bits(f.dtype) / 8;
    const auto* data = static_cast<const std::byte*>(f.data) + (row * f.row + column * f.column) * size;
    const bool is_plain = f.scale == nullptr && f.dtype == (kPairs ? DType::bf16 : DType::f32);
    first_ = is_plain ? reinterpret_cast<const Number*>(data) : nullptr;
  }

  /// Numbers n … n + num, and zeros up to `width`.
  HWY_INLINE void load(int64_t n, int64_t num, int64_t width, E* to) const {
    if (first_ != nullptr && num == width)
      load_plain(first_ + n, width, to);
    else
      load_any(n, num, width, to);
  }

 private:
  static constexpr bool kPairs = std::is_same_v<E, Pair>;
  using Number = std::conditional_t<kPairs, uint16_t, float>;
  static constexpr int64_t kAhead = 8;  // rows that memory is asked for before they are needed

  HWY_INLINE void load_plain(const Number* from, int64_t width, E* to) const {
    const auto step = f_.row * static_cast<int64_t>(sizeof(Number));
    prefetch(from, (kPairs ? 2 : 1) * kAhead * step);
    if constexpr (kPairs) {
      prefetch(from, (2 * kAhead + 1) * step);
      interleave(from, has_second_ ? from + f_.row : nullptr, width, to);
    } else {
      prefetch(from + kMaxLanes, kAhead * step);
      for (int64_t i = 0; i < width; i += lanes()) hn::StoreU(hn::LoadU(FloatTag(), from + i), FloatTag(), to + i);
    }
  }
  HWY_NOINLINE void load_any(int64_t n, int64_t num, int64_t width, E* to) const {
    if constexpr (kPairs)
      load_two_lines(f_, row_, has_second_, column_ + n, num, to);
    else
      load_line(f_, row_, column_ + n, num, to);
    std::fill(to + num, to + width, E{});
  }

  const Factor& f_;
  const int64_t row_, column_;
  const bool has_second_;
  const Number* first_;
};

}  // namespace matmul_detail

/// A panel of the left factor: its rows from number `depth` on, each `padded_depth` elements E long and `stride` from
/// the one before, and rows of zeros up to `padded_rows`. `turned` is scratch (MatmulScratch).
template <class E>
HWY_NOINLINE void pack_left_rows(const Factor& a, int64_t row, int64_t rows, int64_t padded_rows, int64_t depth,
                                 int64_t count, int64_t padded_depth, float* turned, E* to, int64_t stride) {
  const int64_t length = units<E>(count);
  if (a.rows_in_memory) {
    for (int64_t r = 0; r < rows; ++r) matmul_detail::load_line(a, row + r, depth, count, to + r * stride);
  } else {
    const Factor lines = a.transposed();
    E* chunk = reinterpret_cast<E*>(turned);
    constexpr int64_t kChunk = 64, kPer = std::is_same_v<E, Pair> ? 2 : 1;
    for (int64_t k = 0; k < length; k += kChunk) {
      const int64_t chunk_length = std::min(kChunk, length - k);
      for (int64_t i = 0; i < chunk_length; ++i) {
        const int64_t line = kPer * (k + i);
        if constexpr (kPer == 2)
          matmul_detail::load_two_lines(lines, depth + line, line + 1 < count, row, rows, chunk + i * kMaxPanelRows);
        else
          matmul_detail::load_line(lines, depth + line, row, rows, chunk + i * kMaxPanelRows);
      }
      transpose_elements(chunk, kMaxPanelRows, chunk_length, rows, to + k, stride);
    }
  }
  for (int64_t r = 0; r < rows; ++r) std::fill(to + r * stride + length, to + r * stride + padded_depth, E{});
  for (int64_t r = rows; r < padded_rows; ++r) std::fill_n(to + r * stride, padded_depth, E{});
}

/// The same a step of the depth after the other, [element of the depth][kPanelStep]: of `count` numbers, and with zeros
/// for rows up to a panel's.
template <class E>
HWY_NOINLINE void pack_left_steps(const Factor& a, int64_t row, int64_t rows, int64_t depth, int64_t count,
                                  float* turned, E* to) {
  using matmul_detail::kPanelStep;
  constexpr bool kPairs = std::is_same_v<E, Pair>;
  constexpr int64_t kPer = kPairs ? 2 : 1, kChunk = 64;
  const int64_t length = units<E>(count);
  if (rows < matmul_detail::kMaxRows) std::fill_n(to, length * kPanelStep, E{});
  if (!a.rows_in_memory) {
    const Factor lines = a.transposed();
    for (int64_t k = 0; k < length; ++k, to += kPanelStep) {
      const int64_t line = kPer * k;
      if constexpr (kPairs)
        matmul_detail::load_two_lines(lines, depth + line, line + 1 < count, row, rows, to);
      else
        matmul_detail::load_line(lines, depth + line, row, rows, to);
    }
    return;
  }
  // What lies in memory as it is multiplied: floats, and pairs of bf16 where each row begins with one.
  const int64_t first = row * a.row + depth * a.column;
  const bool is_plain = a.dtype == (kPairs ? DType::bf16 : DType::f32) && a.scale == nullptr;
  const auto* bytes = static_cast<const std::byte*>(a.data) + first * (bits(a.dtype) / 8);
  if (is_plain && count % kPer == 0 && a.row % kPer == 0 && reinterpret_cast<uintptr_t>(bytes) % sizeof(E) == 0)
    return transpose_elements(reinterpret_cast<const E*>(bytes), a.row / kPer, rows, length, to, kPanelStep);
  E* chunk = reinterpret_cast<E*>(turned);
  for (int64_t k = 0; k < length; k += kChunk) {
    const int64_t numbers = std::min(kPer * kChunk, count - kPer * k);
    for (int64_t r = 0; r < rows; ++r)
      matmul_detail::load_line(a, row + r, depth + kPer * k, numbers, chunk + r * kChunk);
    transpose_elements(chunk, kChunk, rows, units<E>(numbers), to + k * kPanelStep, kPanelStep);
  }
}

/// Asks the second-level cache for one of `parts` parts of what packing rows will take.
HWY_INLINE void prefetch_left(const Factor& a, int64_t row, int64_t rows, int64_t depth, int64_t count, int64_t part,
                              int64_t parts) {
  const Factor lines = a.rows_in_memory ? a : a.transposed();
  if (!a.rows_in_memory) std::swap(row, depth), std::swap(rows, count);
  const int64_t size = bits(a.dtype) / 8;
  for (int64_t r = row + rows * part / parts; r < row + rows * (part + 1) / parts; ++r)
    matmul_detail::prefetch_bytes(static_cast<const std::byte*>(a.data) + (r * lines.row + depth * lines.column) * size,
                                  count * size);
}

/// Strips of `width` columns of the right factor, each [padded_depth][width]: the last one and the depth are completed
/// with zeros.
template <class E>
HWY_NOINLINE void pack_right(const Factor& b, int64_t depth, int64_t count, int64_t padded_depth, int64_t column,
                             int64_t columns, int64_t width, float* turned, E* to) {
  const int64_t length = units<E>(count), strip = padded_depth * width;
  constexpr int64_t kPer = std::is_same_v<E, Pair> ? 2 : 1;
  const auto for_each_strip = [&](auto f) HWY_ATTR {
    E* at = to;
    for (int64_t n = 0; n < columns; n += width, at += strip) f(column + n, std::min(width, columns - n), at);
  };
  if (b.rows_in_memory) {
    for (int64_t k = 0; k < length; ++k) {
      const matmul_detail::Line<E> line(b, depth + kPer * k, kPer * k + 1 < count, column);
      for_each_strip([&](int64_t n, int64_t num, E* at)
                         HWY_ATTR { line.load(n - column, num, width, at + k * width); });
    }
  } else {
    const Factor lines = b.transposed();
    E* chunk = reinterpret_cast<E*>(turned);
    constexpr int64_t kChunk = 64;
    E* at = to;
    for (int64_t n = 0; n < columns; n += width, at += strip) {
      const int64_t num = std::min(width, columns - n);
      for (int64_t k = 0; k < length; k += kChunk) {
        const int64_t chunk_length = std::min(kChunk, length - k);
        for (int64_t i = 0; i < num; ++i) {
          const int64_t line = column + n + i;
          matmul_detail::prefetch_line(lines, line, 1, depth + kPer * (k + kChunk), kPer * kChunk);
          matmul_detail::load_line(lines, line, depth + kPer * k, std::min(kPer * chunk_length, count - kPer * k),
                                   chunk + i * kChunk);
        }
        for (int64_t i = num; i < width; ++i) std::fill_n(chunk + i * kChunk, chunk_length, E{});
        transpose_elements(chunk, kChunk, width, chunk_length, at + k * width, width);
      }
    }
  }
  for_each_strip([&](int64_t, int64_t, E* at) HWY_ATTR { std::fill(at + length * width, at + strip, E{}); });
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
