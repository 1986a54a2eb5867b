// A mean_pooling call, forward or backward, as device code gets it, by value; host code fills it in from
// pooling::Problem. The rules here are those of mean_pooling_internal.h.
#pragma once

#include "ejkernel/platform/cuda/device/tensor.cuh"
#include "ejkernel/platform/cuda/device/untrusted.cuh"

namespace ejk::cuda {

inline constexpr int kPoolingSurveyThreads = 512, kPoolingReferenceThreads = 128;

/// Rows [begin, begin + length) of batch entry `batch`, whose mean is row `mean` there.
struct PoolingGroup {
  int64 batch = 0, begin = 0, length = 0, mean = 0;
  EJK_DEVICE bool has(int64 row) const { return row >= begin && row < begin + length; }
};

struct PoolingProblem {
  TensorRef x, out;  ///< [batch, row, head, dim] and [batch, mean, head, dim]; or their gradient and cotangent
  const unsigned char* mask = nullptr;
  int64 mask_batch_stride = 0;
  const int* cu_seqlens = nullptr;
  int* chunk_offsets = nullptr;  ///< the second output; null where it is not wanted
  uint32* status = nullptr;

  int64 num_batches = 0, num_tokens = 0, num_heads = 0, dim = 0;
  int64 num_sequences = 0;
  int64 num_means = 0;   ///< rows of out in each batch entry
  int64 chunk_size = 0;  ///< at most num_tokens; 0: whole sequences

  // Found by the first launch (mean_pooling_survey.cuh), in the workspace; null where nobody asks.
  int64* first_means = nullptr;  ///< packed chunks: row of out where a sequence's begin; at the end, how many there are
  int64* counts = nullptr;       ///< masked: selected rows of each batch entry
  int* overlapping = nullptr;    ///< packed: 1 when a row may belong to several sequences

  EJK_DEVICE bool packed() const { return cu_seqlens != nullptr; }
  EJK_DEVICE bool chunked() const { return chunk_size > 0; }
  EJK_DEVICE bool selected(int64 b, int64 row) const {
    return mask == nullptr || mask[b * mask_batch_stride + row] != 0;
  }

  EJK_DEVICE Span rows_of_sequence(int64 index, uint32& faults) const {
    return packed() ? packed_span(cu_seqlens, index, num_tokens, faults) : Span{0, num_tokens};
  }
  EJK_DEVICE Span rows_of_sequence(int64 index) const {
    uint32 unused = 0;
    return rows_of_sequence(index, unused);
  }
  /// Means that a sequence of this length has. Where cu_seqlens overlap, some may have no row in out.
  EJK_DEVICE int64 num_means_of(int64 length) const { return chunked() ? (length + chunk_size - 1) / chunk_size : 1; }

  /// Group `c` of a sequence, which may be a batch entry.
  EJK_DEVICE PoolingGroup group(int64 index, int64 c) const {
    const Span rows = rows_of_sequence(index);
    const int64 batch = packed() ? 0 : index;
    if (!chunked()) return {batch, rows.begin, rows.length, packed() ? index : 0};
    const int64 from = c * chunk_size, first_mean = packed() ? first_means[index] : 0;
    return {batch, rows.begin + from, min<int64>(chunk_size, rows.length - from), first_mean + c};
  }
  /// The group of a sequence's row.
  EJK_DEVICE PoolingGroup group_of_row(int64 index, int64 row) const {
    return group(index, chunked() ? (row - rows_of_sequence(index).begin) / chunk_size : 0);
  }
  /// The group whose mean is a row of out; it has no rows past the last mean.
  EJK_DEVICE PoolingGroup group_of_mean(int64 b, int64 mean) const {
    if (!packed()) return group(b, mean);
    if (!chunked()) return group(mean, 0);
    const int64 index = last_at_most(mean);
    return index == num_sequences ? PoolingGroup{0, 0, 0, mean} : group(index, mean - first_means[index]);
  }
  /// Rows that a mean is divided by.
  EJK_DEVICE double divisor(const PoolingGroup& g) const {
    return static_cast<double>(max<int64>(mask != nullptr ? counts[g.batch] : g.length, 1));
  }

  /// Calls visit(group) for every group that averages a row, in the order of sequences.
  template <class F>
  EJK_DEVICE void for_each_group_of_row(int64 b, int64 row, F visit) const {
    if (!selected(b, row)) return;
    int64 first = b, past = b + 1;
    if (packed()) {
      first = *overlapping != 0 ? 0 : first_sequence_past(row);
      past = *overlapping != 0 ? num_sequences : min<int64>(first + 1, num_sequences);
    }
    for (int64 n = first; n < past; ++n) {
      const Span rows = rows_of_sequence(n);
      if (row < rows.begin || row >= rows.begin + rows.length) continue;
      const PoolingGroup g = group_of_row(n, row);
      if (g.mean < num_means) visit(g);
    }
  }

 private:
  /// The first sequence that ends after a row, unless sequences overlap.
  EJK_DEVICE int64 first_sequence_past(int64 row) const {
    int64 low = 0, high = num_sequences;
    while (low < high) {
      const int64 middle = low + (high - low) / 2;
      if (cu_seqlens[middle + 1] > row)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  /// The last sequence whose means begin at `mean` or before; num_sequences past the last mean.
  EJK_DEVICE int64 last_at_most(int64 mean) const {
    int64 low = 0, high = num_sequences + 1;  // the first one that begins later
    while (low < high) {
      const int64 middle = low + (high - low) / 2;
      if (first_means[middle] > mean)
        high = middle;
      else
        low = middle + 1;
    }
    return low - 1;
  }
};

/// What the fast kernels (mean_pooling_tiles.cuh) need besides.
struct PoolingLaunch {
  uint32 slices = 1;             ///< forward: parts that each group's rows are cut into
  double* slice_sums = nullptr;  ///< [batch, mean, slice, head, dim] when there are several
  uint32 combining = 1;          ///< threads of a block that add an element's slices
  int64 block_rows = 1;          ///< backward: rows of a block
  bool whole_vectors = false;    ///< both tensors' rows begin at multiples of 16 bytes
};

}  // namespace ejk::cuda
