// A recurrent_attention call, forward or backward, as device code gets it, by value; host code fills it in from
// recurrence::Problem. The rules here are those of recurrent_attention_internal.h.
#pragma once

#include "ejkernel/platform/cuda/device/tensor.cuh"
#include "ejkernel/platform/cuda/device/untrusted.cuh"

namespace ejk::cuda {

inline constexpr int kRecurrenceThreads = 128;

/// Rows of tokens are [batch, row, head, dim], states [sequence, head, key, value].
struct RecurrenceProblem {
  TensorRef query, key, value, g, g_gamma, gk, gv, initial_state;
  TensorRef out, final_state;  ///< forward: results; backward: their cotangents
  TensorRef d_query, d_key, d_value, d_g, d_g_gamma, d_gk, d_gv, d_initial_state;
  const int* cu_seqlens = nullptr;
  uint32* status = nullptr;

  int64 num_sequences = 0, num_rows = 0, num_q_heads = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  double scale = 1;
  bool reverse = false;

  double* memory = nullptr;  ///< forward: a state per sequence and head; backward: see RecurrenceMemory
  int64 segment = 1;         ///< backward: tokens between two saved states
  int64 num_blocks = 1;      ///< backward: each has memory of its own

  EJK_DEVICE bool packed() const { return cu_seqlens != nullptr; }
  EJK_DEVICE int64 num_batches() const { return packed() ? 1 : num_sequences; }
  EJK_DEVICE int64 state_size() const { return key_dim * value_dim; }
  EJK_DEVICE int64 heads_per_kv_head() const { return num_q_heads / num_kv_heads; }
};

/// One batch entry or packed sequence.
struct RecurrenceSequence {
  int64 index = 0, batch = 0;
  Span rows = {};
  int64 last_rival = 0;  ///< the last sequence that claims a row of this one; itself if there is no later one
};

EJK_DEVICE RecurrenceSequence recurrence_sequence(const RecurrenceProblem& p, int64 index) {
  if (!p.packed()) return {index, index, {0, p.num_rows}, index};
  uint32 unused = 0;
  RecurrenceSequence s = {index, 0, packed_span(p.cu_seqlens, index, p.num_rows, unused), index};
  for (int64 n = index + 1; n < p.num_sequences; ++n) {
    const Span other = packed_span(p.cu_seqlens, n, p.num_rows, unused);
    const bool meets =
        max<int64>(s.rows.begin, other.begin) < min<int64>(s.rows.begin + s.rows.length, other.begin + other.length);
    if (meets) s.last_rival = n;
  }
  return s;
}

/// Whether a row's results are this sequence's: of several that claim it the last one's are.
EJK_DEVICE bool is_owner(const RecurrenceProblem& p, const RecurrenceSequence& s, int64 row) {
  uint32 unused = 0;
  for (int64 n = s.index + 1; n <= s.last_rival; ++n) {
    const Span other = packed_span(p.cu_seqlens, n, p.num_rows, unused);
    if (row >= other.begin && row < other.begin + other.length) return false;
  }
  return true;
}

/// The row of a sequence's token `i`, counted in the order in which the recurrence takes them.
EJK_DEVICE int64 row_of(const RecurrenceProblem& p, const RecurrenceSequence& s, int64 i) {
  return s.rows.begin + (p.reverse ? s.rows.length - 1 - i : i);
}

/// An element, or 0 of a tensor that is not there; and one that is stored if it is wanted. One copy of each, since
/// every dtype is in it.
EJK_DEVICE_CALL double read(const TensorRef& t, int64 a, int64 b, int64 c, int64 d) {
  return t.present() ? t.at(a, b, c, d) : 0.0;
}
EJK_DEVICE_CALL void write(const TensorRef& t, int64 a, int64 b, int64 c, int64 d, double value) {
  if (t.present()) t.set(a, b, c, d, value);
}

/// What element (k, v) of a head's state is multiplied by at a row.
EJK_DEVICE double decay_at(const RecurrenceProblem& p, int64 batch, int64 row, int64 h, int64 k, int64 v) {
  return exp(read(p.g, batch, row, h, 0) + read(p.g_gamma, 0, 0, 0, h) + read(p.gk, batch, row, h, k) +
             read(p.gv, batch, row, h, v));
}

}  // namespace ejk::cuda
