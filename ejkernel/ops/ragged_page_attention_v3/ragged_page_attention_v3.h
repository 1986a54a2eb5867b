// ragged_page_attention_v3: write the new keys and values to their pages, then attend.
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

/// ragged_page_attention that first stores the keys and values of the new tokens in the cache, in place: row r of
/// sequence s goes to position context_lens[s] - (its number of rows) + r. All writes come before any read, and
/// attention uses what was stored. A write to a page that does not exist, or to a negative position, is dropped.
struct RaggedPageAttentionV3 {
  static constexpr std::string_view kName = "ragged_page_attention_v3";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Stores new keys and values in a paged cache, then attends: prefill and decode mixed.";
  static constexpr std::string_view kSource =
      "Kwon et al., PagedAttention (arXiv:2309.06180); Agrawal et al., Sarathi-Serve (arXiv:2403.02310), mixed batches";

  struct Inputs {
    Tensor queries = {}, keys = {}, values = {}, kv_cache = {};
    Tensor context_lens = {}, block_tables = {}, query_start_loc = {}, distribution = {};
    Tensor softmax_aux = {}, q_scale = {}, k_scale = {}, v_scale = {};
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
    T out = {}, kv_cache = {}, lse = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"queries", "float[total_tokens, num_q_heads, head_dim]", "the newest tokens of all sequences"},
        TensorField{"keys", "@queries[total_tokens, num_kv_heads, head_dim]",
                    "their keys; query head h reads kv head h div (num_q_heads / num_kv_heads)"},
        TensorField{"values", "@queries[total_tokens, num_kv_heads, head_dim]", "their values"},
        TensorField{"kv_cache", "number[num_pages, page_size, 2*num_kv_heads, head_dim]",
                    "written in place: keys of kv head g at 2g, its values at 2g + 1"},
        TensorField{"context_lens", "int32[max_num_seqs]", "tokens of each sequence, the new ones included", "kv_lens"},
        TensorField{"block_tables", "int32[table_num_pages]",
                    "pages of each sequence, in order: table_num_pages / max_num_seqs of each, one sequence after the "
                    "other"},
        TensorField{"query_start_loc", "int32[max_num_seqs+1]", "sequence s owns rows [s], [s+1)"},
        TensorField{"distribution", "int32[3]",
                    "(decode_end, prefill_end, total): total sequences are in use, the first ones; results do not "
                    "depend on the other two"},
        TensorField{"softmax_aux", "float?[num_q_heads, num_sinks] | float?[num_sinks]",
                    "sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all heads"},
        TensorField{"q_scale", "float32?[]", "what the logits are multiplied by"},
        TensorField{"k_scale", "float32?[] | float32?[num_kv_heads]",
                    "keys are stored as key / k_scale, rounded to nearest even and saturated"},
        TensorField{"v_scale", "float32?[] | float32?[num_kv_heads]", "of values"}};
  }
  static constexpr auto params() { return decode_params<Params>(); }
  static constexpr auto outputs() {
    return std::array{
        TensorField{"out", "@queries[total_tokens, num_q_heads, head_dim]",
                    "attention; 0 for rows of no sequence and for rows that see nothing"},
        TensorField{"kv_cache", "@kv_cache&[num_pages, page_size, 2*num_kv_heads, head_dim]", "the cache itself"},
        TensorField{"lse", "stats@queries[num_q_heads, total_tokens]",
                    "natural log of the softmax denominator, sinks included; -inf without key or sink"}};
  }

  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<RaggedPageAttentionV3>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, kv_cache, lse = ragged_page_attention_v3(inputs, params); writes inputs.kv_cache
inline RaggedPageAttentionV3::Results ragged_page_attention_v3(const RaggedPageAttentionV3::Inputs& inputs,
                                                               const RaggedPageAttentionV3::Params& params = {},
                                                               const CallOptions& options = {}) {
  return execute<RaggedPageAttentionV3>(inputs, params, options);
}

/// The kernels of this folder, for the list in ragged_page_attention_v3.cpp.
namespace ragged_page_attention_v3_kernels {
const KernelInfo& cuda_reference();
const KernelInfo& cpu();
const KernelInfo& reference();
}  // namespace ragged_page_attention_v3_kernels

}  // namespace ejk
