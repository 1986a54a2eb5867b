// New keys and values into their pages, as attn::Append writes them: a block per row, its threads share the elements.
// The host compiles the same text for its tests.
#pragma once

#include "ejkernel/ops/flash_attention/attention_formula.cuh"
#include "ejkernel/ops/page_attention/paged_cuda_problem.cuh"

namespace ejk::cuda {

template <class Block, int kThreads>
class PageAppendFormula {
 public:
  using Shared = int64[kThreads];

  EJK_DEVICE PageAppendFormula(const PageAppendProblem& p, Block block, Shared& shared)
      : p_(p), block_(block), shared_(shared) {}

  EJK_DEVICE void raise_faults() const { raise_sequence_faults(p_.cache, block_); }

  /// Rows `first`, `first + stride`, …; one that several sequences claim is written for each.
  EJK_DEVICE void write(int64 first, int64 stride) const {
    for (int64 r = first; r < p_.cache.q_rows; r += stride)
      for (int64 n = next_owner(r, -1); n < p_.cache.num_sequences; n = next_owner(r, n))
        write_row(p_.cache.sequence(n), r);
  }

 private:
  EJK_DEVICE int64 next_owner(int64 r, int64 after) const {
    return next_sequence(p_.cache, block_, shared_, after, [&](const AttentionSequence& s) { return s.has_row(r); });
  }

  EJK_DEVICE void write_row(const AttentionSequence& s, int64 r) const {
    const PagedAttentionProblem& to = p_.cache;
    const int64 position = r - s.q_begin + s.offset;
    if (position < 0) return report(kLengthFault);
    const KeyPlace place = to.place(s, position);
    if (place.entry < 0) return report(kPageFault);
    if (is_overwritten(s, position, place)) return;
    write_elements(p_.keys, r, to.key, place, to.k_scale, to.head_dim);
    write_elements(p_.values, r, to.value, place, to.v_scale, to.value_dim);
  }
  /// Whether a later write goes to the same slot, of a later sequence or further on in this one: of two writes the
  /// later one stays, whole, in whatever order blocks run.
  EJK_DEVICE bool is_overwritten(const AttentionSequence& by, int64 position, const KeyPlace& place) const {
    const PagedAttentionProblem& to = p_.cache;
    int64 found = 0;
    for (int64 n = by.index + block_.thread(); n < to.num_sequences; n += block_.threads()) {
      const AttentionSequence s = to.sequence(n);
      const int64 first = max<int64>(s.offset, n == by.index ? position + 1 : 0);
      const int64 ahead = place.row - (s.k_begin + first) % to.page_size;
      for (int64 j = first + (ahead < 0 ? ahead + to.page_size : ahead); j < s.k_len; j += to.page_size)
        if (to.place(s, j).entry == place.entry) found = 1;
    }
    return reduce(block_, shared_, found, [](int64 one, int64 other) { return max<int64>(one, other); }) > 0;
  }
  EJK_DEVICE void report(uint32 fault) const {
    if (block_.thread() == 0) raise(p_.cache.status, fault);
  }

  /// x / scale, rounded once.
  EJK_DEVICE void write_elements(const TensorRef& from, int64 r, const TensorRef& to, const KeyPlace& place,
                                 const TensorRef& scale, int64 dims) const {
    for (int64 n = block_.thread(); n < p_.cache.num_kv_heads * dims; n += block_.threads()) {
      const int64 g = n / dims, d = n - g * dims;
      const double factor = scale.present() ? scale.at(0, 0, g, 0) : 1;
      store_stored(to.data, to.number, to.offset(place.entry, place.row, g, d), from.at(0, r, g, d) / factor);
    }
  }

  const PageAppendProblem& p_;
  Block block_;
  Shared& shared_;
};

}  // namespace ejk::cuda
