// page_attention: the newest token of each sequence over a cache of pages.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/flash_attention/attention_params.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

/// out = softmax(softmax_scale * query @ keys^T, masked) @ values, where the query of sequence n is its newest token
/// (position context_lens[n] - 1) and token t of its cache lies in slot t mod page_size of page
/// block_tables[n][t div page_size].
struct PageAttention {
  static constexpr std::string_view kName = "page_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Decode attention over a paged cache: one query per sequence, windows, sinks, soft cap, 8-bit and int4 caches.";
  static constexpr std::string_view kSource =
      "Kwon et al., PagedAttention (arXiv:2309.06180), section 4; split keys: Flash-Decoding (2023)";

  enum Form { kPageMajor, kHeadMajor };
  static constexpr std::array<std::string_view, 2> kForms = {"page-major", "head-major"};

  struct Inputs {
    Tensor query = {}, key_cache = {}, value_cache = {};
    Tensor context_lens = {}, block_tables = {};
    Tensor softmax_aux = {}, k_scale = {}, v_scale = {};
  };

  struct Params {
    std::optional<double> softmax_scale = {};
    Window sliding_window = {};
    int64_t attention_sink_size = 0;
    std::optional<double> logits_soft_cap = {};
    bool batch_invariant = false;
    CacheLayout cache_layout = CacheLayout::page_major;
  };

  template <class T>
  struct Out {
    T out = {}, lse = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"query", "float[num_seqs, num_q_heads, head_dim]", "the newest token of each sequence"},
        TensorField{"key_cache",
                    "stored[num_pages, page_size, num_kv_heads, head_dim] ; "
                    "stored[num_pages, num_kv_heads, page_size, head_dim]",
                    "keys; query head h reads kv head h div (num_q_heads / num_kv_heads)"},
        TensorField{"value_cache",
                    "@key_cache[num_pages, page_size, num_kv_heads, value_dim] ; "
                    "@key_cache[num_pages, num_kv_heads, page_size, value_dim]",
                    "values; value_dim may differ from head_dim"},
        TensorField{"context_lens", "int32[num_seqs]", "tokens of each sequence, the query's own included"},
        TensorField{"block_tables", "int32[num_seqs, max_num_pages]",
                    "pages of each sequence, in order; entries beyond its length are not read"},
        TensorField{"softmax_aux", "float?[num_q_heads, num_sinks] | float?[num_sinks]",
                    "sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all heads"},
        TensorField{"k_scale",
                    "float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads, num_k_groups]",
                    "what stored keys are multiplied by: one, per head, or per group of 16, 32, 64, 128 or head_dim "
                    "elements"},
        TensorField{"v_scale",
                    "float32?[] | float32?[num_kv_heads] | float32?[num_pages, page_size, num_kv_heads, num_v_groups]",
                    "of stored values"}};
  }

  static constexpr auto params() {
    return concatenate(decode_params<Params>(), std::array{param<&Params::cache_layout>(
                                                    "cache_layout", Key::value,
                                                    "page_major: [num_pages, page_size, num_kv_heads, head_dim]; "
                                                    "head_major: [num_pages, num_kv_heads, page_size, head_dim]")});
  }

  static constexpr auto outputs() {
    return std::array{
        TensorField{"out", "@query[num_seqs, num_q_heads, value_dim]", "attention; 0 for an empty sequence"},
        TensorField{"lse", "stats@query[num_seqs, num_q_heads]",
                    "natural log of the softmax denominator, sinks included; -inf without key or sink"}};
  }

  static int form(const Inputs&, const Params& params) {
    return params.cache_layout == CacheLayout::head_major ? kHeadMajor : kPageMajor;
  }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<PageAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, lse = page_attention(inputs, params)
inline PageAttention::Results page_attention(const PageAttention::Inputs& inputs,
                                             const PageAttention::Params& params = {},
                                             const CallOptions& options = {}) {
  return execute<PageAttention>(inputs, params, options);
}

/// The kernels of this folder, for the list in page_attention.cpp.
namespace page_attention_kernels {
const KernelInfo& cuda_reference();
const KernelInfo& cpu();
const KernelInfo& reference();
}  // namespace page_attention_kernels

}  // namespace ejk
