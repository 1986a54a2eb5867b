// A softmax attention call as device code gets it, by value; host code fills it in from attn::Problem. The rules
// here are those of attention_problem.h.
#pragma once

#include "ejkernel/platform/cuda/device/philox.cuh"
#include "ejkernel/platform/cuda/device/tensor.cuh"
#include "ejkernel/platform/cuda/device/untrusted.cuh"

namespace ejk::cuda {

inline constexpr int kAttentionThreads = 128;

/// One batch entry or packed sequence: rows q_begin + i and keys k_begin + j of the tensors. The default one has none.
struct AttentionSequence {
  int64 index = 0;
  int64 q_begin = 0, q_len = 0, k_begin = 0, k_len = 0;
  int64 offset = 0;  ///< aligned position of row i is p = i + offset

  EJK_DEVICE bool has_row(int64 row) const { return row >= q_begin && row < q_begin + q_len; }
  EJK_DEVICE bool has_key(int64 row) const { return row >= k_begin && row < k_begin + k_len; }
};

/// Half-open.
struct KeyRange {
  int64 begin, end;
};

/// Where a key and its value lie: indices of their tensors' first two axes.
struct KeyPlace {
  int64 entry, row;
};

/// One id per row of each batch entry.
struct SegmentIds {
  const int* data = nullptr;
  int64 batch_stride = 0;
  EJK_DEVICE int at(int64 b, int64 row) const { return data[b * batch_stride + row]; }
};

/// A problem whose keys lie elsewhere derives from this one, and says so in functions of the same names
/// (ops/page_attention/paged_cuda_problem.cuh).
struct AttentionProblem {
  static constexpr bool kPaged = false;

  TensorRef query, key, value;          ///< [batch, row, head, dim]; packed: batch stride 0
  TensorRef bias, mask;                 ///< [batch, head, row, key]
  TensorRef sinks;                      ///< [-, -, head, sink]
  TensorRef q_scale, k_scale, v_scale;  ///< [batch, token / 128, head, -]
  SegmentIds q_segments, kv_segments;
  const int *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr, *used_q = nullptr, *used_k = nullptr;
  const uint32* dropout_seed = nullptr;
  uint32* status = nullptr;

  int64 num_sequences = 0;
  int64 q_rows = 0, k_rows = 0;  ///< rows of the tensors: q_len and kv_len, or total_q and total_k
  int64 num_q_heads = 0, num_kv_heads = 0, head_dim = 0, value_dim = 0, num_sinks = 0;
  double scale = 1;
  double soft_cap = 0;  ///< 0: none
  int64 window_left = -1, window_right = -1, sink_tokens = 0;
  int64 max_q = 0, max_k = 0;  ///< packed sequences are cut to these
  double keep_scale = 1;
  uint32 dropout_threshold = 0;  ///< 0: no dropout
  bool causal = false, bottom_right = true, normalize = true;

  EJK_DEVICE bool packed() const { return cu_seqlens_q != nullptr; }
  EJK_DEVICE int64 num_batches() const { return packed() ? 1 : num_sequences; }
  /// Index of the tensors' batch axis for a sequence.
  EJK_DEVICE int64 batch_of(const AttentionSequence& s) const { return packed() ? 0 : s.index; }
  /// The sequence that alone may own row r of batch entry b when they are not packed.
  EJK_DEVICE int64 only_owner(int64 b, int64) const { return b; }
  EJK_DEVICE int64 group() const { return num_q_heads / num_kv_heads; }

  EJK_DEVICE int64 sequences_in_use(uint32&) const { return num_sequences; }
  EJK_DEVICE AttentionSequence sequence(int64 index, uint32& faults) const {
    AttentionSequence s;
    s.index = index;
    if (packed()) {
      const Span q = cut_span(cu_seqlens_q, index, q_rows, max_q, faults);
      const Span k = cut_span(cu_seqlens_k, index, k_rows, max_k, faults);
      s.q_begin = q.begin, s.q_len = q.length, s.k_begin = k.begin, s.k_len = k.length;
    } else {
      s.q_len = used_q != nullptr ? clamp_length(used_q[index], q_rows, faults) : q_rows;
      s.k_len = k_rows;
    }
    if (used_k != nullptr) s.k_len = clamp_length(used_k[index], s.k_len, faults);
    s.offset = bottom_right ? s.k_len - s.q_len : 0;
    return s;
  }
  EJK_DEVICE AttentionSequence sequence(int64 index) const {
    uint32 unused = 0;
    return sequence(index, unused);
  }

  /// Keys that causal mask, window and length leave to row i, window sinks apart.
  EJK_DEVICE KeyRange window_keys(const AttentionSequence& s, int64 i) const {
    const int64 p = i + s.offset;
    int64 begin = 0, end = s.k_len;
    if (causal) end = min<int64>(end, p + 1);
    constexpr int64 kWide = 1ll << 60;  // any window may be given: keep the sums in range
    if (window_right >= 0) end = min<int64>(end, p + min<int64>(window_right, kWide) + 1);
    if (window_left >= 0) begin = p - min<int64>(window_left, kWide);
    begin = max<int64>(0, min<int64>(begin, s.k_len));
    return {begin, max<int64>(begin, end)};
  }
  /// Keys below this are exempt from the window.
  EJK_DEVICE int64 sink_end(const AttentionSequence& s, int64 i) const {
    if (window_left < 0 && window_right < 0) return 0;
    int64 end = min<int64>(sink_tokens, s.k_len);
    if (causal) end = min<int64>(end, i + s.offset + 1);
    return max<int64>(end, 0);
  }
  /// All keys that row i may see lie in here.
  EJK_DEVICE KeyRange keys(const AttentionSequence& s, int64 i) const {
    const KeyRange window = window_keys(s, i);
    const int64 sinks_past = sink_end(s, i);
    return sinks_past > 0 ? KeyRange{0, max<int64>(window.end, sinks_past)} : window;
  }

  EJK_DEVICE bool visible(const AttentionSequence& s, int64 h, int64 i, int64 j) const {
    const KeyRange window = window_keys(s, i);
    if ((j < window.begin || j >= window.end) && j >= sink_end(s, i)) return false;
    if (q_segments.data != nullptr) {
      const int of_query = q_segments.at(s.index, i);
      if (of_query < 0 || of_query != kv_segments.at(s.index, j)) return false;
    }
    if (mask.present() && static_cast<const unsigned char*>(mask.data)[mask.offset(s.index, h, i, j)] == 0)
      return false;
    return !bias.present() || bias.at(s.index, h, i, j) != -infinity();
  }

  EJK_DEVICE double sink(int64 h, int64 a) const { return sinks.at(0, 0, h, a); }

  // Key j of a sequence and its value, of kv head g. They have the query's dtype.
  EJK_DEVICE KeyPlace place(const AttentionSequence& s, int64 j) const { return {batch_of(s), s.k_begin + j}; }
  template <Number kNumber>
  EJK_DEVICE double key_at(const KeyPlace& at, int64 g, int64 d) const {
    return load(key.data, kNumber, key.offset(at.entry, at.row, g, d));
  }
  template <Number kNumber>
  EJK_DEVICE double value_at(const KeyPlace& at, int64 g, int64 d) const {
    return load(value.data, kNumber, value.offset(at.entry, at.row, g, d));
  }
  EJK_DEVICE double key_scale(const AttentionSequence& s, int64 j, int64 g) const {
    return scale_at(k_scale, batch_of(s), j, g);
  }
  EJK_DEVICE double value_scale(const AttentionSequence& s, int64 j, int64 g) const {
    return scale_at(v_scale, batch_of(s), j, g);
  }

  /// Factor of an 8-bit tensor's codes: one, per head, or per block of 128 tokens.
  static EJK_DEVICE double scale_at(const TensorRef& scale, int64 b, int64 token, int64 head) {
    return scale.present() ? scale.at(b, token / 128, head, 0) : 1;
  }
  /// 1 without dropout; keep * 65536 / (65536 - t) otherwise.
  EJK_DEVICE double dropout_factor(const AttentionSequence& s, int64 h, int64 i, int64 j) const {
    if (dropout_threshold == 0) return 1;
    const uint32 seed = dropout_seed != nullptr ? dropout_seed[0] : 0;
    const uint32 offset = dropout_seed != nullptr ? dropout_seed[1] : 0;
    const bool keep = dropout_keep(seed, offset, static_cast<uint32>(s.index), static_cast<uint32>(h),
                                   static_cast<uint32>(i), static_cast<uint32>(j), dropout_threshold);
    return keep ? keep_scale : 0;
  }

 private:
  static EJK_DEVICE Span cut_span(const int* cu_seqlens, int64 index, int64 total, int64 longest, uint32& faults) {
    Span span = packed_span(cu_seqlens, index, total, faults);
    if (span.length > longest) {
      faults |= kLengthFault;
      span.length = longest;
    }
    return span;
  }
};

/// Sets the status word's bits for every sequence.
template <class Problem, class Block>
EJK_DEVICE void raise_sequence_faults(const Problem& p, const Block& block) {
  uint32 faults = 0;
  const int64 used = p.sequences_in_use(faults);
  for (int64 n = block.thread(); n < used; n += block.threads()) p.sequence(n, faults);
  raise(p.status, faults);
}

/// Where the forward's results go; absent ones are not wanted.
struct AttentionResults {
  TensorRef out;      ///< [batch, row, head, dim]
  TensorRef lse;      ///< [row, batch, head, -]
  TensorRef weights;  ///< [batch, head, row, key]: what multiplies the values
};

/// What the backward's launches do, in this order; each needs what the first one left of the rows.
enum class AttentionStep : int {
  rows,  ///< gradient of query
  keys,  ///< gradients of key and value
  bias,
  sinks,
};

/// What rows hand to the kernels behind them.
struct AttentionRow {
  double lse;
  double delta;       ///< of the keys that the row sees
  double sink_delta;  ///< of its sinks, summed over the sequences that claim the row
};

/// What the backward reads besides the problem, and where gradients go; absent ones are not wanted, and absent
/// cotangents are zero. Without `lse` it is computed anew.
struct AttentionGradients {
  TensorRef out, d_out;         ///< [batch, row, head, dim]
  TensorRef lse, d_lse;         ///< [row, batch, head, -]
  TensorRef d_weights;          ///< [batch, head, row, key]
  TensorRef query, key, value;  ///< [batch, row, head, dim]
  TensorRef bias;               ///< [batch, head, row, key]
  TensorRef sinks;              ///< [-, -, head, sink]
  int64 bias_batches = 0, bias_heads = 0, bias_rows = 0;
  int64 sink_heads = 0;          ///< 1: the sinks are shared by all heads
  AttentionRow* rows = nullptr;  ///< [batch, head, row], in the workspace

  EJK_DEVICE AttentionRow& row(const AttentionProblem& p, int64 b, int64 h, int64 r) const {
    return rows[(b * p.num_q_heads + h) * p.q_rows + r];
  }
};

}  // namespace ejk::cuda
