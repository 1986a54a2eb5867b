// A product of pairs in the tiles of a matrix unit, written over what the unit's instructions do, so that a test can
// stand in for the processor:
//
//   struct Tiles {                                                 // eight tiles: 16 rows of 16 words, or of 16 floats
//     template <int kTile> static void zero();              // tiles are full, or of the shapes that were configured
//     template <int kTile> static void load(const void* rows, int64_t stride);    // rows are `stride` bytes apart
//     template <int kTile> static void store(void* rows, int64_t stride);
//     template <int kSums, int kLeft, int kRight> static void dot();              // kSums += kLeft * kRight, of pairs
//     template <int kSums, int kLeft, int kRight> static void dot_i8();           // of int8 numbers, summed in int32
//   };
//
// Two by two tiles of sums stand in registers: four loads for four products of tiles, as many as keep the unit busy,
// because a load takes half as long as a product. Every tile is full. What the matrices do not fill is loaded from, or
// stored to, a copy that zeros complete: changing the shape of tiles would clear them.
#pragma once

#include <algorithm>

#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/gemm.h"

namespace ejk::cpu {

inline constexpr int64_t kTileSide = 16;

/// The shapes of tiles, as ldtilecfg reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

  constexpr void set(int tile, int num_rows, int row_words) {
    rows[tile] = static_cast<uint8_t>(num_rows), row_bytes[tile] = static_cast<uint16_t>(4 * row_words);
  }
};
static_assert(sizeof(TileShapes) == 64);

template <class Tiles>
class TileProduct {
 public:
  TileProduct(const Gemm<Pair>& g, bool add) : g_(g), add_(add) {}

  void run() const {
    // Down the columns: the right factor's stay in the first-level cache meanwhile.
    for (int64_t n = 0; n < g_.n; n += 2 * kTileSide)
      for (int64_t m = 0; m < g_.m; m += 2 * kTileSide) {
        const bool two_down = m + kTileSide < g_.m, two_across = n + kTileSide < g_.n;
        if (two_down)
          two_across ? block<2, 2>(m, n) : block<2, 1>(m, n);
        else
          two_across ? block<1, 2>(m, n) : block<1, 1>(m, n);
      }
  }

 private:
  /// kDown x kAcross tiles of sums: 0 and 1, and below them 2 and 3. Factors go through tiles 4 to 7.
  template <int kDown, int kAcross>
  void block(int64_t m, int64_t n) const {
    begin<0>(m, n);
    if constexpr (kAcross == 2) begin<1>(m, n + kTileSide);
    if constexpr (kDown == 2) begin<2>(m + kTileSide, n);
    if constexpr (kDown == 2 && kAcross == 2) begin<3>(m + kTileSide, n + kTileSide);
    // Most products are of whole tiles: nothing is asked between them.
    const bool is_whole = m + kDown * kTileSide <= g_.m && n + kAcross * kTileSide <= g_.n;
    const int64_t whole = is_whole ? g_.k / kTileSide * kTileSide : 0;
    if (whole > 0) add_whole<kDown, kAcross>(g_.a + m * g_.a_stride, g_.b + n, whole);
    for (int64_t k = whole; k < g_.k; k += kTileSide) {
      load<4>(g_.a, g_.a_stride, m, k, g_.m, g_.k);
      load<6>(g_.b, g_.b_stride, k, n, g_.k, g_.n);
      Tiles::template dot<0, 4, 6>();
      if constexpr (kAcross == 2) {
        load<7>(g_.b, g_.b_stride, k, n + kTileSide, g_.k, g_.n);
        Tiles::template dot<1, 4, 7>();
      }
      if constexpr (kDown == 2) {
        load<5>(g_.a, g_.a_stride, m + kTileSide, k, g_.m, g_.k);
        Tiles::template dot<2, 5, 6>();
        if constexpr (kAcross == 2) Tiles::template dot<3, 5, 7>();
      }
    }
    finish<0>(m, n);
    if constexpr (kAcross == 2) finish<1>(m, n + kTileSide);
    if constexpr (kDown == 2) finish<2>(m + kTileSide, n);
    if constexpr (kDown == 2 && kAcross == 2) finish<3>(m + kTileSide, n + kTileSide);
  }

  /// The products of `depth` pairs, all tiles whole. Tiles are loaded as soon as the products of the step before have
  /// taken theirs: the unit multiplies while the second-level cache answers.
  template <int kDown, int kAcross>
  void add_whole(const Pair* a, const Pair* b, int64_t depth) const {
    const int64_t a_stride = g_.a_stride * kBytes<Pair>, b_stride = g_.b_stride * kBytes<Pair>;
    const int64_t below = kTileSide * g_.a_stride, next = kTileSide * g_.b_stride;
    Tiles::template load<4>(a, a_stride);
    Tiles::template load<6>(b, b_stride);
    if constexpr (kAcross == 2) Tiles::template load<7>(b + kTileSide, b_stride);
    if constexpr (kDown == 2) Tiles::template load<5>(a + below, a_stride);
    for (; depth > kTileSide; depth -= kTileSide) {
      a += kTileSide, b += next;
      Tiles::template dot<0, 4, 6>();
      if constexpr (kAcross == 2) Tiles::template dot<1, 4, 7>();
      Tiles::template load<4>(a, a_stride);
      if constexpr (kDown == 2) Tiles::template dot<2, 5, 6>();
      Tiles::template load<6>(b, b_stride);
      if constexpr (kDown == 2 && kAcross == 2) Tiles::template dot<3, 5, 7>();
      if constexpr (kAcross == 2) Tiles::template load<7>(b + kTileSide, b_stride);
      if constexpr (kDown == 2) Tiles::template load<5>(a + below, a_stride);
    }
    Tiles::template dot<0, 4, 6>();
    if constexpr (kAcross == 2) Tiles::template dot<1, 4, 7>();
    if constexpr (kDown == 2) Tiles::template dot<2, 5, 6>();
    if constexpr (kDown == 2 && kAcross == 2) Tiles::template dot<3, 5, 7>();
  }

  template <int kTile>
  void begin(int64_t m, int64_t n) const {
    if (add_)
      load<kTile>(g_.c, g_.c_stride, m, n, g_.m, g_.n);
    else
      Tiles::template zero<kTile>();
  }

  /// The tile that begins at (row, column) of a rows x columns matrix.
  template <int kTile, class T>
  static void load(const T* matrix, int64_t stride, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const T* from = matrix + row * stride + column;
    const int64_t down = std::min(rows - row, kTileSide), across = std::min(columns - column, kTileSide);
    if (down == kTileSide && across == kTileSide) return Tiles::template load<kTile>(from, stride * kBytes<T>);
    load_part<kTile>(from, stride, down, across);
  }
  // Parts of tiles out of line: between whole ones there shall be little else for the processor to read.
  template <int kTile, class T>
  [[gnu::noinline]] static void load_part(const T* from, int64_t stride, int64_t down, int64_t across) {
    alignas(kAlignment) T copy[kTileSide * kTileSide] = {};
    for (int64_t r = 0; r < down; ++r) std::copy_n(from + r * stride, across, copy + r * kTileSide);
    Tiles::template load<kTile>(copy, kTileSide * kBytes<T>);
  }

  template <int kTile>
  void finish(int64_t m, int64_t n) const {
    float* to = g_.c + m * g_.c_stride + n;
    const int64_t down = std::min(g_.m - m, kTileSide), across = std::min(g_.n - n, kTileSide);
    if (down == kTileSide && across == kTileSide) return Tiles::template store<kTile>(to, g_.c_stride * kBytes<float>);
    store_part<kTile>(to, g_.c_stride, down, across);
  }
  template <int kTile>
  [[gnu::noinline]] static void store_part(float* to, int64_t stride, int64_t down, int64_t across) {
    alignas(kAlignment) float copy[kTileSide * kTileSide];
    Tiles::template store<kTile>(copy, kTileSide * kBytes<float>);
    for (int64_t r = 0; r < down; ++r) std::copy_n(copy + r * kTileSide, across, to + r * stride);
  }

  template <class T>
  static constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T));

  const Gemm<Pair> g_;
  const bool add_;
};

/// Products with a few rows or columns, in tiles that are so high or so wide; all else is whole tiles. Two tiles of
/// sums at a time, because each product of a chain waits for the one before.
template <class Tiles>
class FewProduct {
 public:
  static constexpr TileShapes shapes(int few) {
    TileShapes shapes;
    const int columns = (few + 3) / 4 * 4;
    for (const int tile : {0, 1, 2}) shapes.set(tile, 16, columns);
    for (const int tile : {5, 6, 7}) shapes.set(tile, few, 16);
    return shapes;
  }

  /// c = a * b: b's tiles, and those of sums, are a few columns wide.
  static void multiply_columns(const Gemm<Pair>& g) {
    for (int64_t m = 0; m < g.m; m += 2 * kTileSide) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      for (int64_t k = 0; k < g.k; k += kTileSide) {
        Tiles::template load<2>(g.b + k * g.b_stride, g.b_stride * kBytes);
        Tiles::template load<3>(g.a + m * g.a_stride + k, g.a_stride * kBytes);
        Tiles::template dot<0, 3, 2>();
        Tiles::template load<4>(g.a + (m + kTileSide) * g.a_stride + k, g.a_stride * kBytes);
        Tiles::template dot<1, 4, 2>();
      }
      Tiles::template store<0>(g.c + m * g.c_stride, g.c_stride * kBytes);
      Tiles::template store<1>(g.c + (m + kTileSide) * g.c_stride, g.c_stride * kBytes);
    }
  }

  /// c += a * b: a's tiles, and those of sums, are a few rows high.
  static void add_rows(const Gemm<Pair>& g) {
    for (int64_t n = 0; n < g.n; n += 2 * kTileSide) {
      Tiles::template load<6>(g.c + n, g.c_stride * kBytes);
      Tiles::template load<7>(g.c + n + kTileSide, g.c_stride * kBytes);
      for (int64_t k = 0; k < g.k; k += kTileSide) {
        Tiles::template load<5>(g.a + k, g.a_stride * kBytes);
        Tiles::template load<3>(g.b + k * g.b_stride + n, g.b_stride * kBytes);
        Tiles::template dot<6, 5, 3>();
        Tiles::template load<4>(g.b + k * g.b_stride + n + kTileSide, g.b_stride * kBytes);
        Tiles::template dot<7, 5, 4>();
      }
      Tiles::template store<6>(g.c + n, g.c_stride * kBytes);
      Tiles::template store<7>(g.c + n + kTileSide, g.c_stride * kBytes);
    }
  }

 private:
  static constexpr int64_t kBytes = 4;  ///< of a pair, and of a float
};

/// Products of int8 numbers with digits of a few rows: four tiles of sums, so that none waits for another.
template <class Tiles>
class DigitProduct {
 public:
  static void multiply_codes(const CodeTiles& codes, int64_t k, const int8_t* digits, int32_t* c, LinesAhead& ahead) {
    zero();
    for (int64_t at = 0; at < k; at += kRowBytes) {
      Tiles::template load<4>(digits + at * kDigitColumns, kRowBytes);
      Tiles::template load<5>(codes.first[0] + at, codes.stride[0]);
      ahead.ask(kLinesOfTile);
      Tiles::template dot_i8<0, 5, 4>();
      Tiles::template load<6>(codes.first[1] + at, codes.stride[1]);
      ahead.ask(kLinesOfTile);
      Tiles::template dot_i8<1, 6, 4>();
      Tiles::template load<7>(codes.first[2] + at, codes.stride[2]);
      ahead.ask(kLinesOfTile);
      Tiles::template dot_i8<2, 7, 4>();
      Tiles::template load<5>(codes.first[3] + at, codes.stride[3]);
      ahead.ask(kLinesOfTile);
      Tiles::template dot_i8<3, 5, 4>();
    }
    store(c, kDigitColumns, kTileSide * kDigitColumns);
  }

  static void multiply_digits(const int8_t* digits, int64_t k, const int8_t* codes, int32_t* c, LinesAhead& ahead) {
    constexpr int64_t kStride = 4 * kCodeColumns;
    zero();
    for (int64_t at = 0; at < k; at += kDigitDepth, codes += kDigitDepth * kCodeColumns) {
      Tiles::template load<4>(digits + at * kDigitColumns, kDigitDepth);
      Tiles::template load<5>(codes, kStride);
      Tiles::template dot_i8<0, 4, 5>();
      ahead.ask(kLinesOfProduct);
      Tiles::template load<6>(codes + kRowBytes, kStride);
      Tiles::template dot_i8<1, 4, 6>();
      ahead.ask(kLinesOfProduct);
      Tiles::template load<7>(codes + 2 * kRowBytes, kStride);
      Tiles::template dot_i8<2, 4, 7>();
      ahead.ask(kLinesOfProduct);
      Tiles::template load<5>(codes + 3 * kRowBytes, kStride);
      Tiles::template dot_i8<3, 4, 5>();
      ahead.ask(kLinesOfProduct);
    }
    store(c, kCodeColumns, kTileSide);
  }

 private:
  static constexpr int64_t kRowBytes = 64;  ///< of a tile
  // A tile of codes is 16 lines; softmax and packing ask for the rest.
  static constexpr int64_t kLinesOfTile = 10, kLinesOfProduct = 8;

  static void zero() {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  }
  /// The sums, each tile `next` numbers behind the one before.
  static void store(int32_t* to, int64_t stride, int64_t next) {
    Tiles::template store<0>(to, 4 * stride);
    Tiles::template store<1>(to + next, 4 * stride);
    Tiles::template store<2>(to + 2 * next, 4 * stride);
    Tiles::template store<3>(to + 3 * next, 4 * stride);
  }
};

}  // namespace ejk::cpu
