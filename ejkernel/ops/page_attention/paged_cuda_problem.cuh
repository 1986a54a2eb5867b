// Attention over keys that lie in pages, as device code gets it; the rules are those of attn::Problem with Pages.
#pragma once

#include "ejkernel/ops/flash_attention/attention_cuda_problem.cuh"

namespace ejk::cuda {

/// Keys and values are [page, slot, head, dim], of a dtype of their own, and their scales [page, slot, head, group of
/// elements]. Without cu_seqlens_q each sequence has one query row.
struct PagedAttentionProblem : AttentionProblem {
  static constexpr bool kPaged = true;

  const int* table = nullptr;  ///< [num_sequences, pages]; absent: page n holds the keys of sequence n
  int64 table_stride = 0;
  int64 num_pages = 0, page_size = 0;
  const int* used_sequences = nullptr;                   ///< one number: the first ones are in use; absent: all
  const int *slot_begin = nullptr, *slot_end = nullptr;  ///< [num_sequences]: slots that hold keys; absent: the first
  uint32 key_group = 1, value_group = 1;                 ///< elements that share a scale

  EJK_DEVICE int64 num_batches() const { return 1; }
  EJK_DEVICE int64 batch_of(const AttentionSequence&) const { return 0; }
  EJK_DEVICE int64 only_owner(int64, int64 r) const { return r; }

  EJK_DEVICE int64 sequences_in_use(uint32& faults) const {
    return used_sequences != nullptr ? clamp_length(used_sequences[0], num_sequences, faults) : num_sequences;
  }

  EJK_DEVICE AttentionSequence sequence(int64 index, uint32& faults) const {
    AttentionSequence s;
    s.index = index;
    if (index >= sequences_in_use(faults)) return s;  // nothing of it counts
    s.q_begin = index, s.q_len = 1, s.k_len = k_rows;
    if (packed()) {
      const Span rows = packed_span(cu_seqlens_q, index, q_rows, faults);
      s.q_begin = rows.begin, s.q_len = rows.length;
    }
    if (slot_begin != nullptr) {
      s.k_begin = clamp_offset(slot_begin[index], k_rows, faults);
      s.k_len = max<int64>(clamp_offset(slot_end[index], k_rows, faults) - s.k_begin, 0);
    }
    if (used_k != nullptr) s.k_len = clamp_length(used_k[index], s.k_len, faults);
    s.offset = s.k_len - s.q_len;
    return s;
  }
  EJK_DEVICE AttentionSequence sequence(int64 index) const {
    uint32 unused = 0;
    return sequence(index, unused);
  }

  /// Key j's page and slot; a page that does not exist is -1.
  EJK_DEVICE KeyPlace place(const AttentionSequence& s, int64 j) const {
    const int64 slot = s.k_begin + j;
    if (table == nullptr) return {s.index, slot};
    const int64 nth = slot / page_size, page = table[s.index * table_stride + nth];
    return {page >= 0 && page < num_pages ? page : -1, slot - nth * page_size};
  }

  /// A page that a row needs and that does not exist sets its status bit.
  EJK_DEVICE bool visible(const AttentionSequence& s, int64, int64 i, int64 j) const {
    const KeyRange window = window_keys(s, i);
    if ((j < window.begin || j >= window.end) && j >= sink_end(s, i)) return false;
    if (place(s, j).entry >= 0) return true;
    raise(status, kPageFault);
    return false;
  }

  // The query's dtype does not matter, and scales go with the elements.
  template <Number>
  EJK_DEVICE double key_at(const KeyPlace& at, int64 g, int64 d) const {
    return element(key, k_scale, key_group, at, g, d);
  }
  template <Number>
  EJK_DEVICE double value_at(const KeyPlace& at, int64 g, int64 d) const {
    return element(value, v_scale, value_group, at, g, d);
  }
  EJK_DEVICE double key_scale(const AttentionSequence&, int64, int64) const { return 1; }
  EJK_DEVICE double value_scale(const AttentionSequence&, int64, int64) const { return 1; }

 private:
  static EJK_DEVICE int64 clamp_offset(int64 offset, int64 total, uint32& faults) {
    if (offset < 0 || offset > total) faults |= kOffsetsFault;
    return max<int64>(0, min<int64>(offset, total));
  }
  static EJK_DEVICE double element(const TensorRef& t, const TensorRef& scale, uint32 group, const KeyPlace& at,
                                   int64 g, int64 d) {
    const double code = load_stored(t.data, t.number, t.offset(at.entry, at.row, g, d));
    if (!scale.present()) return code;
    const auto nth = static_cast<uint32>(d) / group;
    return code * static_cast<const float*>(scale.data)[scale.offset(at.entry, at.row, g, nth)];
  }
};

/// New keys and values, and the cache that they are written to.
struct PageAppendProblem {
  PagedAttentionProblem cache;  ///< and the sequences that own the rows; there is no query
  TensorRef keys, values;       ///< [-, row, head, dim]
};

}  // namespace ejk::cuda
