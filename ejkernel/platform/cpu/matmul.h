// Products of matrices that do not fit in cache, as tasks of a kernel compute them: what is the same for every
// instruction set. matmul-inl.h multiplies, matmul_pack-inl.h brings factors into the layouts for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ejkernel/core/dtype.h"
#include "ejkernel/platform/cpu/layout.h"

namespace ejk::cpu {

/// A factor as it lies in memory: f32, f16, bf16 or 8-bit codes, each number times the scale of its block.
struct Factor {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t row = 0, column = 0;   ///< strides in elements
  bool rows_in_memory = true;    ///< columns that follow each other do so in memory; otherwise rows do
  const float* scale = nullptr;  ///< null: 1
  int64_t scale_row = 0, scale_column = 0;
  int64_t scale_block_rows = 1, scale_block_columns = 1;

  Factor transposed() const {
    Factor t = *this;
    t.rows_in_memory = !rows_in_memory;
    std::swap(t.row, t.column);
    std::swap(t.scale_row, t.scale_column);
    std::swap(t.scale_block_rows, t.scale_block_columns);
    return t;
  }
};

/// Elements E of the summed dimension that are packed at a time. Eight strips of the right factor so long (float: 32
/// columns) and the sums of a task of 512 rows stay in the second-level cache, and a panel of rows of the left in the
/// first.
inline constexpr int64_t kDepthBlock = 256;

/// The same of a matrix unit, whose tiles of sums pass the second-level cache once for every such block.
inline constexpr int64_t kUnitDepthBlock = 512;

/// Columns of the right factor that are packed at a time.
inline constexpr int64_t kPackedColumns = 512;

/// Elements from row to row of a packed left factor: constant, so that all rows are addressed from one pointer, and
/// apart in the sets of the first-level cache.
inline constexpr int64_t kLeftStride = kDepthBlock + 16, kUnitLeftStride = kUnitDepthBlock + 16;

/// Columns of a strip and rows of a panel that a matrix unit takes: two tiles each way.
inline constexpr int64_t kUnitColumns = 32, kUnitRows = 32;

/// Rows of the left factor up to which the right one is read as it lies in memory, not packed.
inline constexpr int64_t kMostStreamedRows = 14;

/// A packed factor has at most so many rows, and a strip so many columns, more than it was given.
inline constexpr int64_t kMaxPanelRows = 32, kMaxStripColumns = 32;

/// Rows [row, row + rows) times columns [column, column + columns), summed over [depth, depth + count).
struct MatmulBlock {
  int64_t row, rows;
  int64_t column, columns;
  int64_t depth, count;
};

/// Memory of one task, for blocks up to a size.
template <class E>
struct MatmulScratch {
  E* left;        ///< a panel: [row][kLeftStride or kUnitLeftStride], or [element of the depth][row]
  E* right;       ///< strips of columns: [strip][element of the depth][column]
  float* c;       ///< sums: [row][c_stride]; from multiply_block on those of padding are anything finite or not
  float* turned;  ///< rows on their way into panels or strips, columns of sums on their way out, or a row of floats
  int64_t c_stride;

  static MatmulScratch carve(Carver& carver, int64_t most_rows, int64_t most_columns) {
    MatmulScratch s;
    // Not a power of two: rows of sums lie apart in the sets of the caches.
    s.c_stride = round_up(most_columns, kMaxStripColumns) + kMaxLanes;
    // First what lies at the same place for every E: who multiplies pairs stores floats.
    s.c = carver.take<float>((most_rows + kMaxPanelRows) * s.c_stride);
    s.turned =
        carver.take<float>(std::max(kMaxLanes * std::max<int64_t>(padded(most_rows), 128), padded(most_columns)));
    constexpr bool kPairs = std::is_same_v<E, Pair>;  // which a matrix unit may multiply
    s.left = carver.take<E>(kMaxPanelRows * (kPairs ? kUnitLeftStride : kLeftStride));
    s.right = carver.take<E>((kPairs ? kUnitDepthBlock : kDepthBlock) *
                             round_up(std::min(most_columns, kPackedColumns), kMaxStripColumns));
    return s;
  }
};

}  // namespace ejk::cpu
