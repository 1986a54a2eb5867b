#include "ejkernel/ops/page_attention/paged_problem_internal.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ejkernel/core/log.h"
#include "ejkernel/core/untrusted.h"
#include "ejkernel/core/validate.h"

namespace ejk::attn {
namespace {

constexpr int64_t kMaxHeadDim = 512;

/// Axes in another order: a view.
Tensor permuted(const Tensor& t, std::initializer_list<int> axes) {
  if (!t.present()) return {};
  Shape shape, strides;
  for (const int axis : axes) shape.push_back(t.shape[axis]), strides.push_back(t.strides[axis]);
  return Tensor(t.data, t.dtype, shape, strides, t.device);
}

/// [batch, 1, heads, dim] as [batch, heads, dim].
Tensor without_token_axis(const Tensor& t) { return t.rank() == 4 ? permuted(t, {0, 2, 3}) : t; }

/// A flat table of `num_sequences` equal parts as [num_sequences, pages].
Tensor table_view(const Tensor& flat, int64_t num_sequences) {
  const int64_t pages = num_sequences == 0 ? 0 : flat.shape[0] / num_sequences;
  return Tensor(flat.data, flat.dtype, {num_sequences, pages}, {pages, 1}, flat.device);
}

Tensor element(const Tensor& t, int64_t index) {
  if (t.data == nullptr) return Tensor(nullptr, t.dtype, {1}, t.device);
  return Tensor(t.as<int32_t>() + index * t.strides[0], t.dtype, {1}, t.device);
}

template <class Params>
void set_params(PagedCall& to, const Params& params) {
  Problem& p = to.problem;
  p.scale = params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(p.head_dim)));
  p.soft_cap = soft_cap_of(params.logits_soft_cap);
  p.causal = true, p.bottom_right = true;
  p.window = params.sliding_window.resolve(true);
  p.sink_tokens = params.attention_sink_size;
  to.batch_invariant = params.batch_invariant;
}

/// `key` and `value` are [page, slot, head, dim] views.
void set_tensors(Problem& p, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& sinks) {
  p.query = query, p.key = key, p.value = value, p.sinks = sinks;
  p.packed = true;
  p.q_rows = query.shape[0];
  p.num_q_heads = query.shape[1], p.num_kv_heads = key.shape[2];
  p.head_dim = query.shape[2], p.value_dim = value.shape[3];
  p.num_sinks = sinks.present() ? sinks.shape[-1] : 0;
  p.q = strides_of(query), p.k = strides_of(key), p.v = strides_of(value);
}

void set_pages(Problem& p, const Tensor& key, const Tensor& table, const Tensor& context_lens) {
  p.pages = {.present = true, .table = table, .count = key.shape[0], .size = key.shape[1]};
  p.num_sequences = table.shape[0];
  p.used_k = context_lens;
  // No length is larger than int32 holds; extents of tensors without elements may be.
  constexpr int64_t kMost = INT32_MAX;
  p.k_rows = std::min(std::min(table.shape[1], kMost) * std::min(key.shape[1], kMost), kMost);
}

void require(bool ok, std::string_view op, std::string_view argument, std::string_view expected, const std::string& got,
             std::string_view fix) {
  if (!ok) throw_invalid(op, argument, expected, got, fix);
}

/// Whether every row of a cache does.
bool begins_at_bytes(const Tensor& cache) {
  for (int axis = 0; axis < 3; ++axis)
    if (cache.dtype == DType::i4 && cache.shape[axis] > 1 && cache.strides[axis] % 2 != 0) return false;
  return true;
}

void check_groups(std::string_view op, std::string_view name, const Tensor& scale, int64_t dims) {
  if (scale.rank() != 4) return;
  const int64_t groups = scale.shape[3], size = groups == 0 || dims % groups != 0 ? 0 : dims / groups;
  const bool known = size == dims || size == 16 || size == 32 || size == 64 || size == 128;
  require(known, op, name, "have one scale per 16, 32, 64, 128 or all of " + std::to_string(dims) + " elements",
          std::to_string(groups) + " groups", "regroup the scales");
}

/// A row of numbers as a row of codes: x / scale, rounded to nearest even and saturated.
void store_row(const Tensor& from, int64_t from_offset, double scale, const Tensor& to, int64_t to_offset) {
  for (int64_t d = 0; d < from.shape[-1]; ++d)
    store_from_double(to.data, to.dtype, to_offset + d, load_as_double(from.data, from.dtype, from_offset + d) / scale);
}

}  // namespace

Tensor page_view(const Tensor& cache, CacheLayout layout) {
  return layout == CacheLayout::head_major ? permuted(cache, {0, 2, 1, 3}) : cache;
}

Tensor interleaved_view(const Tensor& cache, int64_t part) {
  const Shape& shape = cache.shape;
  const int64_t head = cache.num_elements() == 0 ? 0 : cache.strides[2];  // of nothing: any number
  Tensor view(cache.data, cache.dtype, {shape[0], shape[1], shape[2] / 2, shape[3]},
              {cache.strides[0], cache.strides[1], 2 * head, cache.strides[3]}, cache.device);
  // Rows of i4 begin at whole bytes (check_paged). A plan knows an address's last bits only: hence integers.
  if (cache.data != nullptr)
    view.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(cache.data) +
                                        static_cast<uintptr_t>(part * head * bits(cache.dtype) / 8));
  return view;
}

PagedCall paged_call(const Call<PageAttention>& call) {
  const auto& in = call.inputs;
  PagedCall to = {.out = call.outputs.out, .lse = permuted(call.outputs.lse, {1, 0})};
  Problem& p = to.problem;
  const Tensor key = page_view(in.key_cache, call.params.cache_layout);
  set_tensors(p, in.query, key, page_view(in.value_cache, call.params.cache_layout), in.softmax_aux);
  set_pages(p, key, in.block_tables, in.context_lens);
  p.k_scale = in.k_scale, p.v_scale = in.v_scale;
  set_params(to, call.params);
  return to;
}

PagedCall paged_call(const Call<RaggedDecodeAttention>& call) {
  const auto& in = call.inputs;
  PagedCall to = {.out = without_token_axis(call.outputs.out), .lse = permuted(call.outputs.lse, {1, 0})};
  Problem& p = to.problem;
  set_tensors(p, without_token_axis(in.query), in.key, in.value, in.softmax_aux);
  p.pages = {.present = true,
             .count = in.key.shape[0],
             .size = in.key.shape[1],
             .begin = in.sequence_start,
             .end = in.sequence_end};
  p.num_sequences = in.key.shape[0];
  p.k_rows = std::min<int64_t>(in.key.shape[1], INT32_MAX);
  p.k_scale = in.k_scale, p.v_scale = in.v_scale;
  set_params(to, call.params);
  return to;
}

PagedCall paged_call(const Call<RaggedPageAttention>& call) {
  const auto& in = call.inputs;
  PagedCall to = {.out = call.outputs.out, .lse = call.outputs.lse};
  Problem& p = to.problem;
  const Tensor key = interleaved_view(in.kv_pages, 0);
  set_tensors(p, in.queries, key, interleaved_view(in.kv_pages, 1), in.softmax_aux);
  set_pages(p, key, in.block_tables, in.context_lens);
  p.cu_seqlens_q = in.query_start_loc;
  p.pages.num_sequences = in.num_seqs;
  p.k_scale = in.k_scale, p.v_scale = in.v_scale;
  set_params(to, call.params);
  return to;
}

PagedCall paged_call(const Call<RaggedPageAttentionV3>& call) {
  const auto& in = call.inputs;
  PagedCall to = {.out = call.outputs.out, .lse = call.outputs.lse};
  Problem& p = to.problem;
  const Tensor key = interleaved_view(in.kv_cache, 0);
  set_tensors(p, in.queries, key, interleaved_view(in.kv_cache, 1), in.softmax_aux);
  set_pages(p, key, table_view(in.block_tables, in.context_lens.shape[0]), in.context_lens);
  p.cu_seqlens_q = in.query_start_loc;
  p.pages.num_sequences = element(in.distribution, 2);
  p.q_scale = in.q_scale, p.k_scale = in.k_scale, p.v_scale = in.v_scale;
  set_params(to, call.params);
  return to;
}

void check_paged(const PagedCheck& c) {
  const std::string_view op = c.operation;
  const int64_t kv_heads = c.key.shape[2];
  require(c.num_q_heads >= 1, op, "num_q_heads", "be at least 1", std::to_string(c.num_q_heads),
          "pass at least one head");
  require(kv_heads >= 1, op, "num_kv_heads", "be at least 1", std::to_string(kv_heads), "pass at least one head");
  require(c.num_q_heads % kv_heads == 0, op, "num_q_heads", "be a multiple of num_kv_heads " + std::to_string(kv_heads),
          std::to_string(c.num_q_heads), "every kv head serves the same number of query heads");
  for (const auto& [name, dims] : {std::pair{"head_dim", c.key.shape[3]}, std::pair{"value_dim", c.value.shape[3]}}) {
    require(dims >= 1 && dims <= kMaxHeadDim, op, name, "be 1 to 512", std::to_string(dims), "split larger heads");
    require(c.key.dtype != DType::i4 || dims % 2 == 0, op, name, "be even for an i4 cache", std::to_string(dims),
            "i4 packs two elements to a byte");
  }
  for (const Tensor& cache : {c.key, c.value, c.interleaved})
    require(!cache.present() || begins_at_bytes(cache), op, "the cache", "have rows that begin at whole bytes",
            "odd strides of i4", "pad rows to an even number of elements");
  check_groups(op, "k_scale", c.k_scale, c.key.shape[3]);
  check_groups(op, "v_scale", c.v_scale, c.value.shape[3]);
  if (c.sinks.present() && c.sinks.rank() == 1 && c.sinks.shape[0] == c.num_q_heads && c.num_q_heads > 1)
    log_once("softmax_aux rank", LogLevel::warning,
             "softmax_aux of rank 1 is shared by all heads; one sink per head has shape [num_q_heads, 1]");
}

Work paged_work(const PagedCall& call, double bytes) {
  const Problem& p = call.problem;
  double keys = static_cast<double>(p.k_rows);
  if (p.window.left >= 0)
    keys = std::min(keys, static_cast<double>(p.window.left) + 1 + static_cast<double>(p.sink_tokens));
  const double row_bits = static_cast<double>((p.head_dim + p.value_dim) * bits(p.key.dtype));
  return {.flops = 2.0 * static_cast<double>(p.q_rows * p.num_q_heads) * keys *
                   static_cast<double>(p.head_dim + p.value_dim),
          .bytes = bytes + static_cast<double>(p.num_sequences * p.num_kv_heads) * keys * row_bits / 8};
}

Problem append_problem(const Call<PageAppend>& call) {
  const auto& in = call.inputs;
  Problem p;
  p.packed = true, p.q_rows = in.keys.shape[0];
  p.cu_seqlens_q = in.query_start_loc;
  p.key = page_view(in.key_cache, call.params.cache_layout);
  p.value = page_view(in.value_cache, call.params.cache_layout);
  p.num_kv_heads = p.key.shape[2], p.head_dim = p.key.shape[3], p.value_dim = p.value.shape[3];
  p.k_scale = in.k_scale, p.v_scale = in.v_scale;
  set_pages(p, p.key, in.block_tables, in.context_lens);
  return p;
}

void Append::write(int64_t index, uint32_t* status) const {
  const Sequence s = cache.sequence(index, status);
  const Strides from_k = strides_of(keys), from_v = strides_of(values);
  const Strides to_k = strides_of(cache.key), to_v = strides_of(cache.value);
  for (int64_t r = 0; r < s.q_len; ++r) {
    const int64_t position = r + s.offset, row = s.q_begin + r;
    if (position < 0) {
      untrusted::raise(status, status::kLength);
      continue;
    }
    const int64_t page = cache.page_of(s, position), slot = position % cache.pages.size;
    if (page < 0) {
      untrusted::raise(status, status::kPageId);
      continue;
    }
    for (int64_t g = 0; g < cache.num_kv_heads; ++g) {
      store_row(keys, from_k.offset(0, row, g), Problem::scale_at(cache.k_scale, 0, 0, g), cache.key,
                to_k.offset(page, slot, g));
      store_row(values, from_v.offset(0, row, g), Problem::scale_at(cache.v_scale, 0, 0, g), cache.value,
                to_v.offset(page, slot, g));
    }
  }
}

}  // namespace ejk::attn
