// Products of matrices larger than cache, piece by piece: a few rows of a packed left factor times a strip of columns
// of the right one, all their sums in registers while the depth passes. Included once per instruction set, after
// simd-inl.h, gemm-inl.h, tiles-inl.h and matmul_pack-inl.h.

#include <algorithm>
#include <type_traits>

#include "ejkernel/platform/cpu/matmul.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

namespace matmul_detail {

/// One vector of the right factor: numbers of a storage type as floats, or pairs.
template <class B>
HWY_INLINE FloatV load_right(const B* from) {
  return load_floats(from);
}
HWY_INLINE WordV load_right(const Pair* from) { return hn::LoadU(WordTag(), &from->bits); }

/// c0 += *x * b0 and, of two vectors, c1 += *x * b1.
template <int kVectors, class E, class V>
HWY_INLINE void add_product(const E* x, V b0, V b1, FloatV& c0, FloatV& c1) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_ZEN4
  // The multiplication itself reads and broadcasts *x. A compiler would load it once for both vectors: an instruction
  // more, where they are scarce because another thread shares the core. Older processors lack a third load port.
  const auto add = [&](V b, FloatV& c) HWY_ATTR {
    if constexpr (std::is_same_v<E, float>)
      asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c.raw) : "v"(b.raw), "m"(*x));
    else
      asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c.raw) : "v"(b.raw), "m"(*x));
  };
#else
  const V numbers = gemm_detail::broadcast(x);
  const auto add = [&](V b, FloatV& c) HWY_ATTR { c = gemm_detail::multiply_add(numbers, b, c); };
#endif
  add(b0, c0);
  if constexpr (kVectors == 2) add(b1, c1);
}

template <Left kLeft, int kRow, int kNumRows, int kVectors, class E, class V>
HWY_INLINE void step(const E* a, V b0, V b1, FloatV& c0, FloatV& c1) {
  if constexpr (kRow < kNumRows)
    add_product<kVectors>(a + kRow * (kLeft == Left::kRows ? kLeftStride : 1), b0, b1, c0, c1);
}

template <int kRow, int kNumRows, int kVectors>
HWY_INLINE void begin(const float* c, int64_t stride, FloatV& c0, FloatV& c1) {
  if constexpr (kRow < kNumRows) {
    c0 = hn::LoadU(FloatTag(), c + kRow * stride);
    if constexpr (kVectors == 2) c1 = hn::LoadU(FloatTag(), c + kRow * stride + lanes());
  }
}

template <int kRow, int kNumRows, int kVectors>
HWY_INLINE void finish(float* c, int64_t stride, FloatV c0, FloatV c1) {
  if constexpr (kRow < kNumRows) {
    hn::StoreU(c0, FloatTag(), c + kRow * stride);
    if constexpr (kVectors == 2) hn::StoreU(c1, FloatTag(), c + kRow * stride + lanes());
  }
}

/// kNumRows rows x kVectors vectors of c, one or two; a's rows are as pack_left_rows or, transposed, as pack_left_steps
/// left them. Vectors of scalable size cannot stand in arrays: hence the names.
template <Left kLeft, int kNumRows, int kVectors, class E, class B>
HWY_NOINLINE void block(int64_t k, const E* HWY_RESTRICT a, const B* HWY_RESTRICT b, int64_t b_stride,
                        float* HWY_RESTRICT c, int64_t c_stride, bool add) {
  const FloatTag d;
  FloatV p0 = hn::Zero(d), p1 = p0, p2 = p0, p3 = p0, p4 = p0, p5 = p0, p6 = p0, p7 = p0, p8 = p0, p9 = p0, p10 = p0,
         p11 = p0, p12 = p0, p13 = p0;
  FloatV q0 = p0, q1 = p0, q2 = p0, q3 = p0, q4 = p0, q5 = p0, q6 = p0, q7 = p0, q8 = p0, q9 = p0, q10 = p0, q11 = p0,
         q12 = p0, q13 = p0;
  if (add) {
    begin<0, kNumRows, kVectors>(c, c_stride, p0, q0);
    begin<1, kNumRows, kVectors>(c, c_stride, p1, q1);
    begin<2, kNumRows, kVectors>(c, c_stride, p2, q2);
    begin<3, kNumRows, kVectors>(c, c_stride, p3, q3);
    begin<4, kNumRows, kVectors>(c, c_stride, p4, q4);
    begin<5, kNumRows, kVectors>(c, c_stride, p5, q5);
    begin<6, kNumRows, kVectors>(c, c_stride, p6, q6);
    begin<7, kNumRows, kVectors>(c, c_stride, p7, q7);
    begin<8, kNumRows, kVectors>(c, c_stride, p8, q8);
    begin<9, kNumRows, kVectors>(c, c_stride, p9, q9);
    begin<10, kNumRows, kVectors>(c, c_stride, p10, q10);
    begin<11, kNumRows, kVectors>(c, c_stride, p11, q11);
    begin<12, kNumRows, kVectors>(c, c_stride, p12, q12);
    begin<13, kNumRows, kVectors>(c, c_stride, p13, q13);
  }
  HWY_UNROLL(4)
  for (int64_t i = 0; i < k; ++i, a += kLeft == Left::kRows ? 1 : kPanelStep, b += b_stride) {
    const auto b0 = load_right(b), b1 = kVectors == 2 ? load_right(b + lanes()) : b0;
    step<kLeft, 0, kNumRows, kVectors>(a, b0, b1, p0, q0);
    step<kLeft, 1, kNumRows, kVectors>(a, b0, b1, p1, q1);
    step<kLeft, 2, kNumRows, kVectors>(a, b0, b1, p2, q2);
    step<kLeft, 3, kNumRows, kVectors>(a, b0, b1, p3, q3);
    step<kLeft, 4, kNumRows, kVectors>(a, b0, b1, p4, q4);
    step<kLeft, 5, kNumRows, kVectors>(a, b0, b1, p5, q5);
    step<kLeft, 6, kNumRows, kVectors>(a, b0, b1, p6, q6);
    step<kLeft, 7, kNumRows, kVectors>(a, b0, b1, p7, q7);
    step<kLeft, 8, kNumRows, kVectors>(a, b0, b1, p8, q8);
    step<kLeft, 9, kNumRows, kVectors>(a, b0, b1, p9, q9);
    step<kLeft, 10, kNumRows, kVectors>(a, b0, b1, p10, q10);
    step<kLeft, 11, kNumRows, kVectors>(a, b0, b1, p11, q11);
    step<kLeft, 12, kNumRows, kVectors>(a, b0, b1, p12, q12);
    step<kLeft, 13, kNumRows, kVectors>(a, b0, b1, p13, q13);
  }
  finish<0, kNumRows, kVectors>(c, c_stride, p0, q0);
  finish<1, kNumRows, kVectors>(c, c_stride, p1, q1);
  finish<2, kNumRows, kVectors>(c, c_stride, p2, q2);
  finish<3, kNumRows, kVectors>(c, c_stride, p3, q3);
  finish<4, kNumRows, kVectors>(c, c_stride, p4, q4);
  finish<5, kNumRows, kVectors>(c, c_stride, p5, q5);
  finish<6, kNumRows, kVectors>(c, c_stride, p6, q6);
  finish<7, kNumRows, kVectors>(c, c_stride, p7, q7);
  finish<8, kNumRows, kVectors>(c, c_stride, p8, q8);
  finish<9, kNumRows, kVectors>(c, c_stride, p9, q9);
  finish<10, kNumRows, kVectors>(c, c_stride, p10, q10);
  finish<11, kNumRows, kVectors>(c, c_stride, p11, q11);
  finish<12, kNumRows, kVectors>(c, c_stride, p12, q12);
  finish<13, kNumRows, kVectors>(c, c_stride, p13, q13);
}

/// Rows of the smallest block that holds so many.
HWY_INLINE int64_t block_rows(int64_t rows) {
  if (rows <= 2) return rows;
  if (rows <= 4) return 4;
  return kMaxRows > 8 && rows <= 8 ? 8 : kMaxRows;
}

/// Rows of a packed panel times a strip of kVectors vectors: block_rows(rows) rows of c are written.
template <Left kLeft, int kVectors = 2, class E, class B>
HWY_INLINE void multiply_strip(int64_t rows, int64_t k, const E* a, const B* b, int64_t b_stride, float* c,
                               int64_t c_stride, bool add) {
  const int64_t most = block_rows(rows);
  if (most == 1) return block<kLeft, 1, kVectors>(k, a, b, b_stride, c, c_stride, add);
  if (most == 2) return block<kLeft, 2, kVectors>(k, a, b, b_stride, c, c_stride, add);
  if (most == 4) return block<kLeft, 4, kVectors>(k, a, b, b_stride, c, c_stride, add);
  if constexpr (kMaxRows > 8)
    if (most == 8) return block<kLeft, 8, kVectors>(k, a, b, b_stride, c, c_stride, add);
  block<kLeft, kMaxRows, kVectors>(k, a, b, b_stride, c, c_stride, add);
}

/// At most lanes() elements of a storage type as floats; zeros behind them.
HWY_INLINE FloatV load_first_floats(const float* from, int64_t count) {
  return hn::LoadN(FloatTag(), from, static_cast<size_t>(count));
}
template <class T>
HWY_INLINE FloatV load_first_floats(const T* from, int64_t count) {
  static_assert(sizeof(T) == sizeof(uint16_t));
  const hn::Rebind<uint16_t, FloatTag> half;
  HWY_ALIGN T elements[kMaxLanes];
  const auto bits = hn::LoadN(half, reinterpret_cast<const uint16_t*>(from), static_cast<size_t>(count));
  hn::Store(bits, half, reinterpret_cast<uint16_t*>(elements));
  return load_floats(elements);
}

/// Copies a strip of fewer columns than others have, and completes it with zeros up to one vector or two: how many.
template <class B>
HWY_INLINE int pack_last_strip(int64_t k, const B* b, int64_t b_stride, int64_t columns, float* to) {
  const FloatTag d;
  if (columns <= lanes()) {
    for (int64_t r = 0; r < k; ++r, b += b_stride, to += lanes()) hn::Store(load_first_floats(b, columns), d, to);
    return 1;
  }
  for (int64_t r = 0; r < k; ++r, b += b_stride, to += 2 * lanes()) {
    hn::Store(load_floats(b), d, to);
    hn::Store(load_first_floats(b + lanes(), columns - lanes()), d, to + lanes());
  }
  return 2;
}

/// multiply_block of at most kPackedColumns.
template <class E>
void multiply_columns(const MatrixUnit* unit, const Factor& a, const Factor& b, const MatmulBlock& at, bool add,
                      const MatmulScratch<E>& s) {
  const int64_t panel = unit != nullptr ? kUnitRows : kMaxRows;
  const int64_t width = unit != nullptr ? kUnitColumns : 2 * lanes();
  const int64_t num_strips = ceil_div(at.columns, width);
  const int64_t numbers = (std::is_same_v<E, Pair> ? 2 : 1) * (unit != nullptr ? kUnitDepthBlock : kDepthBlock);
  for (int64_t k = 0; k < at.count; k += numbers, add = true) {
    const int64_t count = std::min(numbers, at.count - k);
    // The unit's tiles are full.
    const int64_t length = unit != nullptr ? round_up(units<E>(count), kUnitColumns / 2) : units<E>(count);
    pack_right(b, at.depth + k, count, length, at.column, at.columns, width, s.turned, s.right);
    for (int64_t m = 0; m < at.rows; m += panel) {
      const int64_t rows = std::min(panel, at.rows - m), next_rows = std::min(panel, at.rows - m - rows);
      if (unit != nullptr)
        pack_left_rows(a, at.row + m, rows, panel, at.depth + k, count, length, s.turned, s.left, kUnitLeftStride);
      else
        pack_left_steps(a, at.row + m, rows, at.depth + k, count, s.turned, s.left);
      const E* strip = s.right;
      float* c = s.c + m * s.c_stride;
      for (int64_t n = 0; n < at.columns; n += width, strip += length * width, c += width) {
        // A share of the next panel: many requests at once would keep loads waiting.
        prefetch_left(a, at.row + m + panel, next_rows, at.depth + k, count, n / width, num_strips);
        if constexpr (std::is_same_v<E, Pair>) {
          if (unit != nullptr) {
            unit->multiply({.m = round_up(rows, kUnitRows / 2),
                            .n = width,
                            .k = length,
                            .a = s.left,
                            .a_stride = kUnitLeftStride,
                            .b = strip,
                            .b_stride = width,
                            .c = c,
                            .c_stride = s.c_stride},
                           add);
            continue;
          }
        }
        multiply_strip<Left::kTransposed>(rows, length, s.left, strip, width, c, s.c_stride, add);
      }
    }
  }
}

}  // namespace matmul_detail

/// Sums of a block, s.c = or += a * b, with packed factors. Each sum runs along the depth, one number or pair after the
/// other (a matrix unit: 32 numbers after the others): it depends on nothing else. Rows and columns of s.c that only
/// complete panels and strips are written too.
template <class E>
void multiply_block(const MatrixUnit* unit, const Factor& a, const Factor& b, const MatmulBlock& at, bool add,
                    const MatmulScratch<E>& s) {
  for (int64_t n = 0; n < at.columns; n += kPackedColumns) {
    MatmulBlock part = at;
    part.column += n, part.columns = std::min(kPackedColumns, at.columns - n);
    MatmulScratch<E> of_part = s;
    of_part.c += n;
    matmul_detail::multiply_columns(unit, a, b, part, add, of_part);
  }
}

/// The same of at most kMostStreamedRows rows, and a right factor of floats, f16 or bf16 whose rows lie in memory and
/// which is not scaled. Nothing of it is copied: it is read once, a few of its rows side by side, while the
/// second-level cache is asked for those that follow.
template <class B>
void stream_block(const Factor& a, const B* b, int64_t b_stride, const MatmulBlock& at, bool add,
                  const MatmulScratch<float>& s) {
  using matmul_detail::block_rows, matmul_detail::kMaxRows;
  // Sums are loaded and stored once for every `streamed` rows. The fewer of them, the nearer to the order of memory, as
  // long as rows are long.
  constexpr int64_t kFew = 8, kPiece = 2048;
  const int64_t streamed = std::clamp(kPiece / at.columns, at.rows <= 4 ? kFew : 2 * kFew, kDepthBlock);
  const int64_t ahead = 2 * streamed;
  const int64_t panel = block_rows(ceil_div(at.rows, ceil_div(at.rows, kMaxRows)));
  const int64_t width = 2 * lanes(), whole = at.columns / width * width;
  for (int64_t k = 0; k < at.count; k += kDepthBlock) {
    const int64_t block_end = std::min(at.count, k + kDepthBlock);
    pack_left_rows(a, at.row, at.rows, round_up(at.rows, panel), at.depth + k, block_end - k, block_end - k, s.turned,
                   s.left, kLeftStride);
    for (int64_t i = k; i < block_end; i += streamed) {
      const int64_t count = std::min(streamed, block_end - i);
      const B* rows = b + (at.depth + i) * b_stride + at.column;
      for (int64_t m = 0; m < at.rows; m += panel) {
        const int64_t num_rows = std::min(panel, at.rows - m);
        const int64_t num_ahead = m > 0 ? 0 : std::clamp<int64_t>(at.count - (i + ahead), 0, streamed);
        const float* left = s.left + m * kLeftStride + (i - k);
        float* c = s.c + m * s.c_stride;
        for (int64_t n = 0; n < whole; n += width) {
          for (int64_t r = 0; r < num_ahead; ++r)
            matmul_detail::prefetch_bytes(rows + (ahead + r) * b_stride + n, width * static_cast<int64_t>(sizeof(B)));
          matmul_detail::multiply_strip<Left::kRows>(num_rows, count, left, rows + n, b_stride, c + n, s.c_stride,
                                                     add || i > 0);
        }
      }
    }
    if (whole == at.columns) continue;
    const int64_t count = block_end - k;
    const B* rows = b + (at.depth + k) * b_stride + at.column + whole;
    const int vectors = matmul_detail::pack_last_strip(count, rows, b_stride, at.columns - whole, s.right);
    const auto multiply = vectors == 1 ? matmul_detail::multiply_strip<Left::kRows, 1, float, float>
                                       : matmul_detail::multiply_strip<Left::kRows, 2, float, float>;
    for (int64_t m = 0; m < at.rows; m += panel)
      multiply(std::min(panel, at.rows - m), count, s.left + m * kLeftStride, s.right, vectors * lanes(),
               s.c + m * s.c_stride + whole, s.c_stride, add || k > 0);
  }
}

// Compiled in matmul_floats.cpp and matmul_pairs.cpp, apart from what calls them: together they would take a compiler
// too long.
extern template void multiply_block(const MatrixUnit* unit, const Factor& a, const Factor& b, const MatmulBlock& at,
                                    bool add, const MatmulScratch<float>& s);
extern template void multiply_block(const MatrixUnit* unit, const Factor& a, const Factor& b, const MatmulBlock& at,
                                    bool add, const MatmulScratch<Pair>& s);
extern template void stream_block(const Factor& a, const float* b, int64_t b_stride, const MatmulBlock& at, bool add,
                                  const MatmulScratch<float>& s);
extern template void stream_block(const Factor& a, const f16_t* b, int64_t b_stride, const MatmulBlock& at, bool add,
                                  const MatmulScratch<float>& s);
extern template void stream_block(const Factor& a, const bf16_t* b, int64_t b_stride, const MatmulBlock& at, bool add,
                                  const MatmulScratch<float>& s);

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
