// A recurrent_attention call, forward or backward, with its form resolved: sequences of rows, each with a state per
// query head. What the kernels share.
#pragma once

#include <cstdint>

#include "ejkernel/core/operation.h"
#include "ejkernel/core/untrusted.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"

namespace ejk::recurrence {

/// Element strides of a [batch, row, head, …] view; axes that a form does not have are 0.
struct Rows {
  int64_t batch = 0, row = 0, head = 0;
  int64_t offset(int64_t b, int64_t r, int64_t h) const { return b * batch + r * row + h * head; }
};

/// Element strides of a [sequence, head, key, value] view of states.
struct States {
  int64_t sequence = 0, head = 0, key = 0;
  int64_t offset(int64_t s, int64_t h) const { return s * sequence + h * head; }
};

/// One batch entry or packed sequence: rows [begin, begin + length) of batch entry `batch`.
struct Sequence {
  int64_t batch = 0, begin = 0, length = 0;
};

struct Problem {
  RecurrentAttention::Inputs in;  ///< as given; absent ones stay absent
  int64_t num_sequences = 0;      ///< batch entries, or packed sequences
  int64_t num_rows = 0;           ///< tokens of a batch entry, or of all packed sequences
  int64_t num_q_heads = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  double scale = 1;
  bool reverse = false;

  bool packed() const { return in.cu_seqlens.present(); }
  int64_t num_batches() const { return packed() ? 1 : num_sequences; }
  int64_t heads_per_kv_head() const { return num_q_heads / num_kv_heads; }
  int64_t state_size() const { return key_dim * value_dim; }

  Sequence sequence(int64_t index, uint32_t* status) const {
    if (!packed()) return {.batch = index, .begin = 0, .length = num_rows};
    const untrusted::Span span = untrusted::packed_span(in.cu_seqlens, index, num_rows, status);
    return {.batch = 0, .begin = span.begin, .length = span.length};
  }
  /// The row of a sequence's token `i`, counted in the order in which the recurrence takes them.
  int64_t row(const Sequence& s, int64_t i) const { return s.begin + (reverse ? s.length - 1 - i : i); }

  /// Of any tensor with a row per token, and of one with a state per sequence; absent ones get zeros.
  Rows rows_of(const Tensor& t) const;
  States states_of(const Tensor& t) const;
};

Problem make_problem(const RecurrentAttention::Inputs& in, const RecurrentAttention::Params& params);

/// What contracts cannot say, of every operation with these dimensions and parameters.
void check(std::string_view op, const RecurrentAttention::Params& params, const Dims& dims);

}  // namespace ejk::recurrence
