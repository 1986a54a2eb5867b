// A mean_pooling call, forward or backward, with its form resolved: sequences of rows, cut into groups that are
// averaged. What the kernels and the test oracle share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ejkernel/core/operation.h"
#include "ejkernel/core/untrusted.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"

namespace ejk::pooling {

/// Element strides of a [batch, row, head, dim] view; axes that a form does not have are 0.
struct Layout {
  int64_t batch = 0, row = 0, head = 0;
  int64_t offset(int64_t b, int64_t r, int64_t h) const { return b * batch + r * row + h * head; }
};

/// One batch entry or packed sequence: rows [begin, begin + length) of x, whose first mean is row `first_mean` of out.
struct Sequence {
  int64_t batch = 0, begin = 0, length = 0, first_mean = 0;
};

/// Rows [begin, begin + length) of batch entry `batch`, whose mean is row `mean` there.
struct Group {
  int64_t batch = 0, begin = 0, length = 0, mean = 0;
};

struct Problem {
  Tensor mask, cu_seqlens;  ///< as given; absent ones stay absent
  int64_t num_batches = 1, num_tokens = 0, num_heads = 1, dim = 0;
  int64_t num_sequences = 0;
  int64_t num_means = 0;   ///< rows of out in each batch entry
  int64_t chunk_size = 0;  ///< 0: whole sequences

  bool packed() const { return cu_seqlens.present(); }
  bool chunked() const { return chunk_size > 0; }

  /// Sequence `index`; `first_mean` is where the one before it ended (only packed chunks need it).
  Sequence sequence(int64_t index, int64_t first_mean, uint32_t* status) const;
  /// Means that a sequence of this length has. The rows of out are enough for all of them unless cu_seqlens overlap:
  /// `first_mean` then stops at `num_means`, and the means that have no row are dropped.
  int64_t num_means_of(int64_t length) const;
  int64_t mean_after(const Sequence& s) const { return std::min(s.first_mean + num_means_of(s.length), num_means); }
  /// The group that row `i` of a sequence (counted from its first) belongs to.
  Group group_of_row(const Sequence& s, int64_t i) const;
  /// Group `c` of a sequence.
  Group group(const Sequence& s, int64_t c) const;

  bool selected(int64_t b, int64_t row) const {
    return !mask.present() || mask.as<const uint8_t>()[b * mask.strides[0] + row * mask.strides[1]] != 0;
  }
  /// Selected rows, at least 1: the divisor of the mean.
  int64_t count(const Group& g) const;

  /// Takes all heads for one of as many columns, where both tensors hold them without gaps.
  void merge_heads(const Tensor& x, const Tensor& out);
  /// Strides of x (or its gradient) and of out (or its cotangent).
  Layout rows_of(const Tensor& x) const;
  Layout means_of(const Tensor& out) const;
};

/// Where sequences and means lie, for kernels that begin anywhere: found once per call, in memory of the caller.
class SequenceMap {
 public:
  /// Numbers that `first_means` must have room for.
  static int64_t size(const Problem& p) { return p.packed() && p.chunked() ? p.num_sequences + 1 : 0; }
  SequenceMap(const Problem& p, int64_t* first_means, uint32_t* status);

  Sequence sequence(int64_t index) const { return p_.sequence(index, first_mean(index), nullptr); }
  /// Row of out where the means of a sequence begin; at num_sequences, how many of its rows hold means.
  int64_t first_mean(int64_t index) const { return first_means_ != nullptr ? first_means_[index] : 0; }
  /// The group whose mean is a row of out; it has no rows past the last mean.
  Group group_of_mean(int64_t b, int64_t mean) const;
  /// True when cu_seqlens falls somewhere: then a row may belong to several sequences.
  bool overlapping() const { return overlapping_; }
  /// The first sequence that ends after this row, unless sequences overlap.
  int64_t first_sequence_past(int64_t row) const;

 private:
  const Problem& p_;
  const int64_t* first_means_;
  bool overlapping_ = false;
};

Problem make_problem(const MeanPooling::Inputs& in, const MeanPooling::Params& params);
Problem make_problem(const MeanPoolingBackward::Inputs& in, const MeanPoolingBackward::Params& params);

}  // namespace ejk::pooling
