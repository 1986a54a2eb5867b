// A softmax attention call with every optional thing resolved: what the host kernels of the attention operations share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"

namespace ejk::attn {

/// Element strides of a [batch, row, head, dim] tensor; packed tensors have batch stride 0 and rows counted from 0.
struct Strides {
  int64_t batch = 0, row = 0, head = 0;
  int64_t offset(int64_t b, int64_t r, int64_t h) const { return b * batch + r * row + h * head; }
};
Strides strides_of(const Tensor& t);

/// One batch entry or packed sequence. Rows and keys of the tensors are `q_begin + i`, `k_begin + j`.
struct Sequence {
  int64_t index = 0;
  int64_t q_begin = 0, q_len = 0;  ///< rows in use
  int64_t k_begin = 0, k_len = 0;  ///< keys in use
  int64_t offset = 0;              ///< aligned position of row i is p = i + offset
};

/// Keys and values that lie in pages: tensors are [page, slot, head, dim], and a sequence's keys fill the slots of the
/// pages that its row of the table names, one after the other. Without a table, page n holds the keys of sequence n.
struct Pages {
  bool present = false;
  Tensor table = {};  ///< int32 [num_seqs, max_num_pages]
  int64_t count = 0, size = 0;
  Tensor num_sequences = {};    ///< int32 [1]: sequences in use, the first ones; absent: all
  Tensor begin = {}, end = {};  ///< int32 [num_seqs]: the slots that hold keys; absent: the first ones, as used_k says
};

struct EJK_API Problem {
  // Tensors as given; absent ones stay absent.
  Tensor query, key, value, bias, mask, q_segments, kv_segments, sinks, dropout_seed, q_scale, k_scale, v_scale;
  Tensor cu_seqlens_q, cu_seqlens_k, used_q, used_k;
  Pages pages;  ///< instead of cu_seqlens_k; without cu_seqlens_q each sequence has one query row

  bool packed = false;
  int64_t num_sequences = 0;
  int64_t q_rows = 0,
          k_rows = 0;  ///< rows of the tensors: q_len and kv_len, or total_q and total_k; slots of a sequence
  int64_t num_q_heads = 0, num_kv_heads = 0, head_dim = 0, value_dim = 0, num_sinks = 0;
  Strides q, k, v;

  double scale = 1;
  double soft_cap = 0;  ///< 0: none
  bool causal = false, bottom_right = true;
  Window window = {};  ///< resolved
  int64_t sink_tokens = 0;
  int64_t max_q = INT64_MAX, max_k = INT64_MAX;
  uint32_t dropout_threshold = 0;  ///< 0: no dropout
  double keep_scale = 1;
  bool normalize = true;

  int64_t group() const { return num_q_heads / num_kv_heads; }
  int64_t kv_head(int64_t h) const { return h / group(); }
  /// Index of the tensors' batch axis for a sequence.
  int64_t batch_of(const Sequence& s) const { return packed ? 0 : s.index; }

  /// Lengths and offsets clamped to what the tensors hold; faults set bits of `status` when it is given.
  Sequence sequence(int64_t index, uint32_t* status) const;
  /// The first ones, as many as the call says it has.
  int64_t sequences_in_use(uint32_t* status) const;

  /// Offset of key j's row in `key` (with `k`) or `value` (with `v`); kNoRow where its page does not exist.
  int64_t key_offset(const Strides& strides, const Sequence& s, int64_t j, int64_t kv_head) const {
    if (!pages.present) return strides.offset(batch_of(s), s.k_begin + j, kv_head);
    const int64_t slot = s.k_begin + j, page = page_of(s, slot);
    return page < 0 ? kNoRow : strides.offset(page, slot % pages.size, kv_head);
  }
  static constexpr int64_t kNoRow = -1;
  /// The page that holds a slot of a sequence; -1 where the table names none.
  int64_t page_of(const Sequence& s, int64_t slot) const {
    if (!pages.table.present()) return s.index;
    const Tensor& t = pages.table;
    const int64_t page = t.as<const int32_t>()[s.index * t.strides[0] + slot / pages.size * t.strides[1]];
    return page < pages.count ? std::max<int64_t>(page, -1) : -1;
  }
  /// Raises the status bit where a page that a row of the sequence may need does not exist.
  void report_pages(const Sequence& s, uint32_t* status) const;

  /// Half-open range of keys that causal mask, window and length leave to row i, window sinks apart. Keys below
  /// `sink_end(s, i)` are visible as well.
  struct KeyRange {
    int64_t begin, end;
  };
  KeyRange key_range(const Sequence& s, int64_t i) const;
  int64_t sink_end(const Sequence& s, int64_t i) const;

  /// Whether the element masks (boolean mask, segments, a bias of -inf) let row i see key j. Ranges are tested apart.
  bool element_visible(const Sequence& s, int64_t h, int64_t i, int64_t j) const;
  /// Everything that rule 4 of the specification asks for.
  bool visible(const Sequence& s, int64_t h, int64_t i, int64_t j) const;
  bool has_element_masks() const { return mask.present() || q_segments.present() || bias.present(); }

  int64_t bias_offset(int64_t b, int64_t h, int64_t i, int64_t j) const { return broadcast_offset(bias, b, h, i, j); }
  double bias_at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return load_as_double(bias.data, bias.dtype, bias_offset(b, h, i, j));
  }
  double sink_at(int64_t h, int64_t a) const {
    const int64_t row = sinks.rank() == 1 ? 0 : h * sinks.strides[0];
    return load_as_double(sinks.data, sinks.dtype, row + a * sinks.strides[-1]);
  }
  /// log(sum(exp(sinks of h))), -inf without sinks: the lse of a row that sees no key.
  double sinks_lse(int64_t h) const;
  /// Factor of an 8-bit tensor's codes: one, per head, or per block of 128 tokens.
  static double scale_at(const Tensor& scale, int64_t b, int64_t token, int64_t head);
  /// Factor of element d of key j's codes in pages, whose scales may also be [page, slot, head, group of elements].
  double page_scale_at(const Tensor& scale, const Sequence& s, int64_t j, int64_t kv_head, int64_t d,
                       int64_t dims) const;
  /// 1 without dropout; keep * 65536 / (65536 - t) otherwise.
  double dropout_factor(const Sequence& s, int64_t h, int64_t i, int64_t j) const;

  /// Offset in a [batch|1, heads|1, q|1, k] tensor.
  static int64_t broadcast_offset(const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t j) {
    return (t.shape[0] == 1 ? 0 : b * t.strides[0]) + (t.shape[1] == 1 ? 0 : h * t.strides[1]) +
           (t.shape[2] == 1 ? 0 : i * t.strides[2]) + j * t.strides[3];
  }

 private:
  Sequence paged_sequence(int64_t index, uint32_t* status) const;
};

/// A cap as float32 can compute with it; 0: none. Beyond these bounds it makes no difference that float32 could show.
double soft_cap_of(const std::optional<double>& given);

EJK_API Problem make_problem(const FlashAttention::Inputs& in, const FlashAttention::Params& params);

/// What every softmax attention operation asks beyond its contracts. Throws InvalidArgument in that operation's name.
void check(std::string_view operation, const FlashAttention::Inputs& in, const FlashAttention::Params& params,
           const Dims& dims);

/// (query, key) pairs that the masks known from shapes leave, over all batch entries, per query head.
double visible_pairs(const FlashAttention::Inputs& in, const FlashAttention::Params& params);
/// Arithmetic of all heads, and the bytes of these inputs.
Work forward_work(const FlashAttention::Inputs& in, const FlashAttention::Params& params);
Work backward_work(const FlashAttention::Inputs& in, const FlashAttention::Params& params);

}  // namespace ejk::attn
