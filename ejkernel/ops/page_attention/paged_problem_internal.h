// The operations over a cache, in flash_attention's terms: queries packed by sequence, the newest tokens of each, over
// keys that lie in pages. What every kernel of theirs starts from.
#pragma once

#include <cstdint>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/flash_attention/attention_problem.h"
#include "ejkernel/ops/page_append/page_append.h"
#include "ejkernel/ops/page_attention/page_attention.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"

namespace ejk::attn {

/// A call as one problem: `out` is [rows, num_q_heads, value_dim] and `lse` [num_q_heads, rows], whatever the
/// operation's own shapes are.
struct PagedCall {
  Problem problem = {};
  bool batch_invariant = false;
  Tensor out = {}, lse = {};
};
PagedCall paged_call(const Call<PageAttention>& call);
PagedCall paged_call(const Call<RaggedDecodeAttention>& call);
PagedCall paged_call(const Call<RaggedPageAttention>& call);
/// Of the part that attends, after the writing.
PagedCall paged_call(const Call<RaggedPageAttentionV3>& call);

/// What an operation asks beyond its contracts, in its name. `key` and `value` are the [page, slot, head, dim] views,
/// of `interleaved` where there is one.
struct PagedCheck {
  std::string_view operation = {};
  Tensor key = {}, value = {};
  Tensor interleaved = {};
  Tensor k_scale = {}, v_scale = {}, sinks = {};
  int64_t num_q_heads = 0;
};
void check_paged(const PagedCheck& check);
/// Work of `rows` queries per sequence over full pages: an upper bound, because lengths are not known from shapes.
Work paged_work(const PagedCall& call, double bytes);

/// A cache as [page, slot, head, dim].
Tensor page_view(const Tensor& cache, CacheLayout layout);
/// Keys (part 0) or values (part 1) of a cache that interleaves them, as [page, slot, head, dim].
Tensor interleaved_view(const Tensor& cache, int64_t part);

/// What page_append's rows go to: rows, lengths, pages, caches and scales; nothing else of it is set.
Problem append_problem(const Call<PageAppend>& call);

/// New keys and values and where they go: the part of page_append and ragged_page_attention_v3 that writes.
struct Append {
  const Tensor& keys;  ///< [rows, num_kv_heads, dim]
  const Tensor& values;
  const Problem& cache;

  /// Writes the rows of sequence `index`. Sequences may be written at the same time; two rows for one slot leave one
  /// of them, whole or mixed by element.
  void write(int64_t index, uint32_t* status) const;
};

}  // namespace ejk::attn
