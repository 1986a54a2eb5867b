// A call of any operation of this folder as products of matrices, with forms, transposition, masks and scales resolved:
// what all kernels share. grouped_matmul is one product, its gradient two.
#pragma once

#include <cstdint>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"

namespace ejk::gmm {

/// Codes along k and n that share one scale of a block.
inline constexpr int64_t kScaleBlock = 128;

/// A matrix for each group of each batch entry. An axis that a tensor does not have, or that is counted over all
/// groups, has stride 0 here: rows of a ragged matrix are rows of the tensor.
struct Matrix {
  void* data = nullptr;  ///< null: absent or empty
  DType dtype = DType::f32;
  int64_t batch = 0, group = 0, row = 0, column = 0;  ///< strides in elements
  int64_t offset(int64_t b, int64_t g, int64_t r, int64_t c) const {
    return b * batch + g * group + r * row + c * column;
  }
};

/// Numbers that blocks of a matrix share.
struct BlockGrid {
  int64_t group = 0, row = 0, column = 0;  ///< strides in elements, from block to block
  int64_t block_rows = 1, block_columns = 1;
  int64_t offset(int64_t g, int64_t r, int64_t c) const {
    return g * group + r / block_rows * row + c / block_columns * column;
  }
};

struct Scale : BlockGrid {
  const float* data = nullptr;  ///< null: 1 everywhere
  double at(int64_t g, int64_t r, int64_t c) const { return data == nullptr ? 1.0 : data[offset(g, r, c)]; }
  /// One for each row, whatever the column, and the other way round. A stride of 0 alone does not say so: blocks may
  /// share a number as well.
  bool is_of_rows() const { return data != nullptr && column == 0 && block_rows == 1; }
  bool is_of_columns() const { return data != nullptr && row == 0 && block_columns == 1; }
};

/// What a mask takes away is selected away: it may hold NaN.
struct Mask : BlockGrid {
  const uint8_t* data = nullptr;  ///< null: everything is selected
  bool selects(int64_t g, int64_t r, int64_t c) const { return data == nullptr || data[offset(g, r, c)] != 0; }
};

struct Operand {
  Matrix matrix;
  Scale scale;
  Mask mask;
  /// Its rows as columns.
  Operand transposed() const;
};

/// Which extent of a product group_sizes cuts: a group then has rows [begin, end) of both matrices that share it.
enum class Ragged : uint8_t { none, rows, depth };

/// out(i, j) = existing(i, j) + sum over p of a(i, p) * b(p, j), for every group of every batch entry. Where the rows
/// are ragged, those of no group are existing alone. Where the depth is ragged, a group sums over its own part.
struct Product {
  int64_t num_batches = 1, num_groups = 0;
  int64_t rows = 0, depth = 0, columns = 0;  ///< of a group's matrices; a ragged extent: of all groups together
  Ragged ragged = Ragged::none;
  Tensor group_sizes;  ///< of all groups, untrusted; absent unless ragged
  int64_t group_offset = 0;
  Operand a, b;
  Matrix existing, out;   ///< existing without data: 0
  Mask out_mask;          ///< unselected elements of out are existing alone
  bool is_wanted = true;  ///< false: the output is absent; only faults of group_sizes are to be told

  /// Numbers that find_groups writes.
  int64_t num_offsets() const { return ragged == Ragged::none ? 0 : num_groups + 1; }
  /// Where the groups of this product lie in the ragged extent: group g is [offsets[g], offsets[g + 1]). Never falls
  /// and stays within the extent, whatever group_sizes holds; faults of any group are told.
  void find_groups(int64_t* offsets, uint32_t* status) const;

  struct Range {
    int64_t begin = 0, end = 0;
  };
  Range rows_of(const int64_t* offsets, int64_t g) const {
    return ragged == Ragged::rows ? Range{offsets[g], offsets[g + 1]} : Range{0, rows};
  }
  Range depth_of(const int64_t* offsets, int64_t g) const {
    return ragged == Ragged::depth ? Range{offsets[g], offsets[g + 1]} : Range{0, depth};
  }
};

/// The product behind each output. Tensors of the call may lack data: then strides and extents are still right.
Product out_product(const Call<GroupedMatmul>& call);
Product out_product(const Call<TransposedGroupedMatmul>& call);
Product lhs_product(const Call<GroupedMatmulBackward>& call);
Product rhs_product(const Call<GroupedMatmulBackward>& call);
Product existing_out_product(const Call<GroupedMatmulBackward>& call);  ///< without depth: a copy of d_out

}  // namespace ejk::gmm
