// A product of groups of matrices as device code gets it, by value; host code fills it in from gmm::Product, whose
// rules these are.
#pragma once

#include "ejkernel/platform/cuda/device/number.cuh"
#include "ejkernel/platform/cuda/device/untrusted.cuh"

namespace ejk::cuda {

inline constexpr int kMatmulSurveyThreads = 256, kMatmulReferenceThreads = 256;

/// Element (batch, group, row, column) of the matrices that groups and batch entries have.
struct MatrixRef {
  void* data = nullptr;
  Number number = Number::f32;
  int64 strides[4] = {};
  EJK_DEVICE int64 offset(int64 b, int64 g, int64 r, int64 c) const {
    return b * strides[0] + g * strides[1] + r * strides[2] + c * strides[3];
  }
  EJK_DEVICE double at(int64 b, int64 g, int64 r, int64 c) const { return load(data, number, offset(b, g, r, c)); }
  EJK_DEVICE void set(int64 b, int64 g, int64 r, int64 c, double value) const {
    store(data, number, offset(b, g, r, c), value);
  }
};

/// Numbers that blocks of a matrix share: scales, or a mask's.
template <class T>
struct BlockGridRef {
  const T* data = nullptr;  ///< null: `otherwise` everywhere
  int64 strides[3] = {};
  int64 block_rows = 1, block_columns = 1;
  EJK_DEVICE T at(int64 g, int64 r, int64 c, T otherwise) const {
    if (data == nullptr) return otherwise;
    return data[g * strides[0] + r / block_rows * strides[1] + c / block_columns * strides[2]];
  }
};
using ScaleRef = BlockGridRef<float>;
using MaskRef = BlockGridRef<unsigned char>;

struct OperandRef {
  MatrixRef matrix;
  ScaleRef scale;
  MaskRef mask;
  EJK_DEVICE bool selects(int64 g, int64 r, int64 c) const { return mask.at(g, r, c, 1) != 0; }
  EJK_DEVICE double at(int64 b, int64 g, int64 r, int64 c) const {
    return static_cast<double>(scale.at(g, r, c, 1)) * matrix.at(b, g, r, c);
  }
};

enum class RaggedAxis : int { none, rows, depth };

struct MatmulProblem {
  int64 num_batches = 1, num_groups = 0;
  int64 rows = 0, depth = 0, columns = 0;
  RaggedAxis ragged = RaggedAxis::none;
  const int* group_sizes = nullptr;
  int64 num_all_groups = 0, group_offset = 0;
  OperandRef a, b;
  MatrixRef existing, out;
  MaskRef out_mask;
  int64* offsets = nullptr;  ///< in the workspace: where groups begin in the ragged extent, and where the last one ends
  uint32* status = nullptr;

  EJK_DEVICE int64 ragged_extent() const { return ragged == RaggedAxis::rows ? rows : depth; }
  /// The product's group that owns a row; -1: none does.
  EJK_DEVICE int64 group_of_row(int64 row) const {
    if (row < offsets[0] || row >= offsets[num_groups]) return -1;
    int64 low = 0, high = num_groups;  // the first group that ends after the row
    while (low < high) {
      const int64 middle = low + (high - low) / 2;
      if (offsets[middle + 1] > row)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

}  // namespace ejk::cuda
