// ragged_page_attention: prefill and decode in one batch over a cache of pages.
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

/// out = softmax(softmax_scale * queries @ keys^T, masked) @ values. Sequence s owns the rows query_start_loc[s] …
/// query_start_loc[s + 1] - 1 of the queries, which are its newest tokens: row r has position
/// context_lens[s] - (its number of rows) + r and sees the tokens up to it. Their keys and values are in the cache.
struct RaggedPageAttention {
  static constexpr std::string_view kName = "ragged_page_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Attention of packed queries, prefill and decode mixed, over a paged cache of interleaved keys and values.";
  static constexpr std::string_view kSource =
      "Kwon et al., PagedAttention (arXiv:2309.06180); Agrawal et al., Sarathi-Serve (arXiv:2403.02310), mixed batches";

  struct Inputs {
    Tensor queries = {}, kv_pages = {};
    Tensor context_lens = {}, block_tables = {}, query_start_loc = {}, num_seqs = {};
    Tensor softmax_aux = {}, k_scale = {}, v_scale = {};
  };

  struct Params {
    std::optional<double> softmax_scale = {};
    Window sliding_window = {};
    int64_t attention_sink_size = 0;
    std::optional<double> logits_soft_cap = {};
    bool batch_invariant = false;
  };

  template <class T>
  struct Out {
    T out = {}, lse = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"queries", "float[total_tokens, num_q_heads, head_dim]", "the newest tokens of all sequences"},
        TensorField{"kv_pages", "stored[num_pages, page_size, 2*num_kv_heads, head_dim]",
                    "keys of kv head g at 2g, its values at 2g + 1; query head h reads kv head "
                    "h div (num_q_heads / num_kv_heads)"},
        TensorField{"context_lens", "int32[max_num_seqs]", "tokens of each sequence, the new ones included"},
        TensorField{"block_tables", "int32[max_num_seqs, max_num_pages]",
                    "pages of each sequence, in order; entries beyond its length are not read"},
        TensorField{"query_start_loc", "int32[max_num_seqs+1]", "sequence s owns query rows [s], [s+1)"},
        TensorField{"num_seqs", "int32[1]", "sequences in use, the first ones"},
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
  static constexpr auto params() { return decode_params<Params>(); }
  static constexpr auto outputs() {
    return std::array{TensorField{"out", "@queries[total_tokens, num_q_heads, head_dim]",
                                  "attention; 0 for rows of no sequence and for rows that see nothing"},
                      TensorField{"lse", "stats@queries[num_q_heads, total_tokens]",
                                  "natural log of the softmax denominator, sinks included; -inf without key or sink"}};
  }

  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<RaggedPageAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, lse = ragged_page_attention(inputs, params)
inline RaggedPageAttention::Results ragged_page_attention(const RaggedPageAttention::Inputs& inputs,
                                                          const RaggedPageAttention::Params& params = {},
                                                          const CallOptions& options = {}) {
  return execute<RaggedPageAttention>(inputs, params, options);
}

/// The kernels of this folder, for the list in ragged_page_attention.cpp.
namespace ragged_page_attention_kernels {
const KernelInfo& cuda_reference();
const KernelInfo& cpu();
const KernelInfo& reference();
}  // namespace ragged_page_attention_kernels

}  // namespace ejk
