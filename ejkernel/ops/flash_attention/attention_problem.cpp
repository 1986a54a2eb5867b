#include "ejkernel/ops/flash_attention/attention_problem.h"

#include <cmath>
#include <limits>

#include "ejkernel/core/philox.h"
#include "ejkernel/core/untrusted.h"

namespace ejk::attn {
namespace {

/// Entry `index` of a cu_seqlens tensor, cut to max_seqlen.
untrusted::Span cut_span(const Tensor& cu_seqlens, int64_t index, int64_t total, int64_t max_seqlen,
                         uint32_t* status_word) {
  untrusted::Span span = untrusted::packed_span(cu_seqlens, index, total, status_word);
  if (span.length > max_seqlen) {
    untrusted::raise(status_word, status::kLength);
    span.length = max_seqlen;
  }
  return span;
}

}  // namespace

Strides strides_of(const Tensor& t) {
  if (t.rank() == 3) return {.batch = 0, .row = t.strides[0], .head = t.strides[1]};
  return {.batch = t.strides[0], .row = t.strides[1], .head = t.strides[2]};
}

double soft_cap_of(const std::optional<double>& given) { return given ? std::clamp(*given, 1e-30, 1e30) : 0; }

Problem make_problem(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  Problem p;
  p.query = in.query, p.key = in.key, p.value = in.value;
  p.bias = in.bias, p.mask = in.attention_mask;
  p.q_segments = in.q_segment_ids;
  p.kv_segments = in.kv_segment_ids.present() ? in.kv_segment_ids : in.q_segment_ids;
  p.sinks = in.softmax_aux, p.dropout_seed = in.dropout_seed;
  p.q_scale = in.q_scale, p.k_scale = in.k_scale, p.v_scale = in.v_scale;
  p.cu_seqlens_q = in.cu_seqlens_q, p.cu_seqlens_k = in.cu_seqlens_k, p.used_k = in.seqused_k;

  p.packed = in.cu_seqlens_q.present();
  p.num_sequences = p.packed ? in.cu_seqlens_q.shape[0] - 1 : in.query.shape[0];
  p.q_rows = in.query.shape[-3], p.k_rows = in.key.shape[-3];
  p.num_q_heads = in.query.shape[-2], p.num_kv_heads = in.key.shape[-2];
  p.head_dim = in.query.shape[-1], p.value_dim = in.value.shape[-1];
  p.num_sinks = in.softmax_aux.present() ? in.softmax_aux.shape[-1] : 0;
  p.q = strides_of(in.query), p.k = strides_of(in.key), p.v = strides_of(in.value);

  p.scale = params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  p.soft_cap = soft_cap_of(params.logits_soft_cap);
  p.causal = params.causal;
  p.bottom_right = params.causal_align == CausalAlign::bottom_right;
  p.window = params.sliding_window.resolve(params.causal);
  p.sink_tokens = params.attention_sink_size;
  p.max_q = params.max_seqlen_q.value_or(INT64_MAX);
  p.max_k = params.max_seqlen_k.value_or(INT64_MAX);
  p.dropout_threshold = dropout_threshold(params.dropout_prob);
  p.keep_scale = dropout_scale(p.dropout_threshold);
  p.normalize = params.normalize_output;
  return p;
}

int64_t Problem::sequences_in_use(uint32_t* status) const {
  if (!pages.num_sequences.present()) return num_sequences;
  return untrusted::clamp_length(untrusted::index_at(pages.num_sequences, 0), num_sequences, status);
}

/// The query rows of a sequence whose keys lie in pages, and the slots that hold keys.
Sequence Problem::paged_sequence(int64_t index, uint32_t* status) const {
  Sequence s{.index = index, .q_begin = index, .q_len = 1, .k_len = k_rows};
  // Past the sequences in use nothing of a sequence counts, its faults neither.
  if (index >= sequences_in_use(status)) return {.index = index};
  if (cu_seqlens_q.present()) {
    const untrusted::Span rows = untrusted::packed_span(cu_seqlens_q, index, q_rows, status);
    s.q_begin = rows.begin, s.q_len = rows.length;
  }
  if (pages.begin.present()) {
    const int64_t first = untrusted::index_at(pages.begin, index), past = untrusted::index_at(pages.end, index);
    s.k_begin = std::clamp<int64_t>(first, 0, k_rows);
    const int64_t end = std::clamp<int64_t>(past, 0, k_rows);
    if (first != s.k_begin || past != end) untrusted::raise(status, status::kOffsets);
    s.k_len = std::max<int64_t>(end - s.k_begin, 0);
  }
  if (used_k.present()) s.k_len = untrusted::clamp_length(untrusted::index_at(used_k, index), s.k_len, status);
  s.offset = s.k_len - s.q_len;
  return s;
}

Sequence Problem::sequence(int64_t index, uint32_t* status) const {
  Sequence s{.index = index};
  if (pages.present) return paged_sequence(index, status);
  if (packed) {
    const untrusted::Span q_span = cut_span(cu_seqlens_q, index, q_rows, max_q, status);
    const untrusted::Span k_span = cut_span(cu_seqlens_k, index, k_rows, max_k, status);
    s.q_begin = q_span.begin, s.q_len = q_span.length;
    s.k_begin = k_span.begin, s.k_len = k_span.length;
  } else {
    s.q_len = used_q.present() ? untrusted::clamp_length(untrusted::index_at(used_q, index), q_rows, status) : q_rows;
    s.k_len = k_rows;
  }
  if (used_k.present()) s.k_len = untrusted::clamp_length(untrusted::index_at(used_k, index), s.k_len, status);
  s.offset = bottom_right ? s.k_len - s.q_len : 0;
  return s;
}

Problem::KeyRange Problem::key_range(const Sequence& s, int64_t i) const {
  const int64_t p = i + s.offset;
  int64_t begin = 0, end = s.k_len;
  if (causal) end = std::min(end, p + 1);
  constexpr int64_t kWide = INT64_MAX / 4;  // any window may be given: keep the sums in range
  if (window.right >= 0) end = std::min(end, p + std::min(window.right, kWide) + 1);
  if (window.left >= 0) begin = p - std::min(window.left, kWide);
  begin = std::clamp<int64_t>(begin, 0, s.k_len);
  return {begin, std::clamp<int64_t>(end, begin, s.k_len)};
}

int64_t Problem::sink_end(const Sequence& s, int64_t i) const {
  if (window.unbounded()) return 0;  // nothing to be exempt from
  int64_t end = std::min(sink_tokens, s.k_len);
  if (causal) end = std::min(end, i + s.offset + 1);
  return std::max<int64_t>(end, 0);
}

void Problem::report_pages(const Sequence& s, uint32_t* status) const {
  if (!pages.table.present() || status == nullptr || s.q_len == 0 || s.k_len == 0) return;
  // Windows slide: what lies before the first row's and after the sinks is needed by none.
  const int64_t first = key_range(s, 0).begin, sinks = std::max(sink_end(s, 0), sink_end(s, s.q_len - 1));
  const int64_t past = key_range(s, s.q_len - 1).end;
  for (int64_t j = 0; j < std::max(past, sinks); j = (j / pages.size + 1) * pages.size) {
    const int64_t last = std::min((j / pages.size + 1) * pages.size, s.k_len);
    if ((j < sinks || (last > first && j < past)) && page_of(s, j) < 0)
      return untrusted::raise(status, status::kPageId);
  }
}

bool Problem::element_visible(const Sequence& s, int64_t h, int64_t i, int64_t j) const {
  const int64_t b = s.index;
  if (q_segments.present()) {
    const int32_t of_query = q_segments.as<const int32_t>()[b * q_segments.strides[0] + i];
    const int32_t of_key = kv_segments.as<const int32_t>()[b * kv_segments.strides[0] + j];
    if (of_query < 0 || of_query != of_key) return false;
  }
  if (mask.present() && !mask.as<const uint8_t>()[broadcast_offset(mask, b, h, i, j)]) return false;
  return !bias.present() || bias_at(b, h, i, j) != -std::numeric_limits<double>::infinity();
}

bool Problem::visible(const Sequence& s, int64_t h, int64_t i, int64_t j) const {
  const KeyRange range = key_range(s, i);
  const bool in_range = (j >= range.begin && j < range.end) || j < sink_end(s, i);
  if (pages.present && in_range && page_of(s, s.k_begin + j) < 0) return false;
  return in_range && j < s.k_len && element_visible(s, h, i, j);
}

double Problem::sinks_lse(int64_t h) const {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t a = 0; a < num_sinks; ++a) max = std::max(max, sink_at(h, a));
  if (max == -std::numeric_limits<double>::infinity()) return max;
  for (int64_t a = 0; a < num_sinks; ++a) sum += std::exp(sink_at(h, a) - max);
  return max + std::log(sum);
}

double Problem::scale_at(const Tensor& scale, int64_t b, int64_t token, int64_t head) {
  if (!scale.present()) return 1;
  const float* values = scale.as<const float>();
  if (scale.rank() == 0) return values[0];
  if (scale.rank() == 1) return values[head * scale.strides[0]];
  return values[b * scale.strides[0] + token / 128 * scale.strides[1] + head * scale.strides[2]];
}

double Problem::page_scale_at(const Tensor& scale, const Sequence& s, int64_t j, int64_t kv_head, int64_t d,
                              int64_t dims) const {
  if (!scale.present() || scale.rank() < 4) return scale_at(scale, 0, 0, kv_head);
  const int64_t slot = s.k_begin + j, group = d / (dims / scale.shape[3]);
  return scale.as<const float>()[page_of(s, slot) * scale.strides[0] + slot % pages.size * scale.strides[1] +
                                 kv_head * scale.strides[2] + group * scale.strides[3]];
}

double Problem::dropout_factor(const Sequence& s, int64_t h, int64_t i, int64_t j) const {
  if (dropout_threshold == 0) return 1;
  const uint32_t* words = dropout_seed.as<const uint32_t>();
  const uint32_t seed = words != nullptr ? words[0] : 0, offset = words != nullptr ? words[1] : 0;
  const bool keep = dropout_keep(seed, offset, static_cast<uint32_t>(s.index), static_cast<uint32_t>(h),
                                 static_cast<uint32_t>(i), static_cast<uint32_t>(j), dropout_threshold);
  return keep ? keep_scale : 0;
}

double visible_pairs(const FlashAttention::Inputs& in, const FlashAttention::Params& params) {
  // From shapes alone: packed sequences count as equally long ones, as many as there are rows for.
  Problem p = make_problem(in, params);
  Sequence s;
  if (p.num_sequences == 0 || p.q_rows == 0) return 0;
  const auto share = [&](int64_t rows) { return p.packed ? (rows + p.num_sequences - 1) / p.num_sequences : rows; };
  s.q_len = share(p.q_rows), s.k_len = share(p.k_rows);
  s.offset = p.bottom_right ? s.k_len - s.q_len : 0;
  double pairs = 0;
  for (int64_t i = 0; i < s.q_len; ++i) {
    const Problem::KeyRange range = p.key_range(s, i);
    pairs += static_cast<double>(range.end - range.begin + std::min(p.sink_end(s, i), range.begin));
  }
  return p.packed ? pairs * static_cast<double>(p.q_rows) / static_cast<double>(s.q_len)
                  : pairs * static_cast<double>(p.num_sequences);
}

}  // namespace ejk::attn
