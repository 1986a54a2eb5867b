// flash_attention and its gradient: softmax attention that never stores the score matrix.
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

struct FlashAttentionBackward;

/// out = softmax(softmax_scale * query @ key^T + bias, masked) @ value, in O(q_len + kv_len) memory.
struct FlashAttention {
  static constexpr std::string_view kName = "flash_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Softmax attention without the score matrix: grouped heads, masks, windows, sinks, soft cap, dropout, packing.";
  static constexpr std::string_view kSource = "Dao et al., FlashAttention-2 (arXiv:2307.08691)";
  static constexpr std::string_view kGradient = "flash_attention_backward";
  using Gradient = FlashAttentionBackward;

  enum Form { kBatched, kPacked };
  static constexpr std::array<std::string_view, 2> kForms = {"batched", "packed"};

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor bias = {}, attention_mask = {}, q_segment_ids = {}, kv_segment_ids = {};
    Tensor softmax_aux = {}, dropout_seed = {};
    Tensor q_scale = {}, k_scale = {}, v_scale = {};
    Tensor cu_seqlens_q = {}, cu_seqlens_k = {}, seqused_k = {};
  };

  struct Params {
    std::optional<double> softmax_scale = {};
    bool causal = false;
    CausalAlign causal_align = CausalAlign::bottom_right;
    Window sliding_window = {};
    int64_t attention_sink_size = 0;
    std::optional<double> logits_soft_cap = {};
    double dropout_prob = 0;
    bool deterministic = false;
    std::optional<DType> out_dtype = {};
    bool normalize_output = true;
    std::optional<int64_t> max_seqlen_q = {};
    std::optional<int64_t> max_seqlen_k = {};
  };

  template <class T>
  struct Out {
    T out = {}, lse = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"query", "number[batch, q_len, num_q_heads, head_dim] ; number[total_q, num_q_heads, head_dim]",
                    "queries; 8-bit ones are codes, scaled by q_scale"},
        TensorField{"key", "@query[batch, kv_len, num_kv_heads, head_dim] ; @query[total_k, num_kv_heads, head_dim]",
                    "keys; query head h reads kv head h div (num_q_heads / num_kv_heads)"},
        TensorField{"value",
                    "@query[batch, kv_len, num_kv_heads, value_dim] ; @query[total_k, num_kv_heads, value_dim]",
                    "values; value_dim may differ from head_dim"},
        TensorField{"bias", "float?[batch/1, num_q_heads/1, q_len/1, kv_len] ; -",
                    "added to the scaled logits; -inf excludes a key"},
        TensorField{"attention_mask", "bool?[batch/1, num_q_heads/1, q_len/1, kv_len] ; -", "true: the key is visible"},
        TensorField{"q_segment_ids", "int32?[batch, q_len] ; -", "equal ids attend; a negative id is padding"},
        TensorField{"kv_segment_ids", "int32?[batch, kv_len] ; -", "q_segment_ids when the lengths are equal"},
        TensorField{"softmax_aux", "float?[num_q_heads, num_sinks] | float?[num_sinks]",
                    "sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all heads"},
        TensorField{"dropout_seed", "uint32?[2]", "(seed, offset) of the dropout mask; (0, 0) when absent"},
        TensorField{"q_scale",
                    "float32?[] | float32?[num_q_heads] | float32?[batch, num_q_blocks, num_q_heads] ; "
                    "float32?[] | float32?[num_q_heads]",
                    "scale of 8-bit queries: one, per head, or per block of 128 tokens"},
        TensorField{"k_scale",
                    "float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks, num_kv_heads] ; "
                    "float32?[] | float32?[num_kv_heads]",
                    "scale of 8-bit keys"},
        TensorField{"v_scale",
                    "float32?[] | float32?[num_kv_heads] | float32?[batch, num_kv_blocks, num_kv_heads] ; "
                    "float32?[] | float32?[num_kv_heads]",
                    "scale of 8-bit values"},
        TensorField{"cu_seqlens_q", "- ; int32[num_seqs+1]", "packed: sequence s owns query rows [s], [s+1)",
                    "cum_seqlens_q"},
        TensorField{"cu_seqlens_k", "- ; int32[num_seqs+1]", "packed: sequence s owns key rows [s], [s+1)",
                    "cum_seqlens_k"},
        TensorField{"seqused_k", "int32?[batch] ; int32?[num_seqs]", "keys in use, the first ones of each sequence"}};
  }

  static constexpr auto params() {
    return concatenate(
        attention_params<Params>(),
        std::array{
            param<&Params::out_dtype>("out_dtype", Key::value,
                                      "dtype of out; absent: the query's (bf16 for 8-bit queries)"),
            param<&Params::normalize_output>("normalize_output", Key::value,
                                             "false: out is the sum of e^(s - max) * v, not divided; forward only"),
            param<&Params::max_seqlen_q>("max_seqlen_q", Key::bucket,
                                         "packed: longer sequences are cut to it; absent: none is", at_least(0)),
            param<&Params::max_seqlen_k>("max_seqlen_k", Key::bucket, "packed: as max_seqlen_q, for keys",
                                         at_least(0))});
  }

  static constexpr auto outputs() {
    return std::array{
        TensorField{
            "out", "result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q, num_q_heads, value_dim]",
            "attention; 0 for a query that sees no key"},
        TensorField{"lse", "stats@query[batch, num_q_heads, q_len] ; stats@query[num_q_heads, total_q]",
                    "natural log of the softmax denominator, sinks included; -inf for a row without key or sink"}};
  }

  static int form(const Inputs& in, const Params&) { return in.cu_seqlens_q.present() ? kPacked : kBatched; }
  /// The dropout mask depends on the entry's number.
  static std::string_view batch_dim(const Params& params) { return params.dropout_prob > 0 ? "" : "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<FlashAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of flash_attention from its outputs' cotangents; probabilities are recomputed from lse.
struct FlashAttentionBackward {
  static constexpr std::string_view kName = "flash_attention_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of flash_attention for query, key, value, bias and sinks.";
  static constexpr std::string_view kSource = "Dao et al., FlashAttention-2 (arXiv:2307.08691), algorithm 2";
  static constexpr auto kForms = FlashAttention::kForms;

  struct Inputs : FlashAttention::Inputs {
    Tensor out = {}, lse = {}, d_out = {}, d_lse = {};
  };
  using Params = FlashAttention::Params;

  template <class T>
  struct Out {
    T query = {}, key = {}, value = {}, bias = {}, softmax_aux = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(
        FlashAttention::inputs(),
        std::array{
            TensorField{
                "out",
                "result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q, num_q_heads, value_dim]",
                "the forward's out"},
            TensorField{"lse", "stats@query[batch, num_q_heads, q_len] ; stats@query[num_q_heads, total_q]",
                        "the forward's lse"},
            TensorField{
                "d_out",
                "result@query[batch, q_len, num_q_heads, value_dim] ; result@query[total_q, num_q_heads, value_dim]",
                "cotangent of out"},
            TensorField{"d_lse", "stats@query?[batch, num_q_heads, q_len] ; stats@query?[num_q_heads, total_q]",
                        "cotangent of lse; absent: zero"}});
  }
  static constexpr auto params() { return FlashAttention::params(); }
  static constexpr auto outputs() {
    return std::array{
        TensorField{"query", "@query[batch, q_len, num_q_heads, head_dim] ; @query[total_q, num_q_heads, head_dim]",
                    "gradient of query"},
        TensorField{"key", "@key[batch, kv_len, num_kv_heads, head_dim] ; @key[total_k, num_kv_heads, head_dim]",
                    "gradient of key, summed over its query heads"},
        TensorField{"value",
                    "@value[batch, kv_len, num_kv_heads, value_dim] ; @value[total_k, num_kv_heads, value_dim]",
                    "gradient of value, summed over its query heads"},
        TensorField{"bias", "@bias?[batch/1, num_q_heads/1, q_len/1, kv_len] ; -",
                    "gradient of bias, summed over its broadcast axes"},
        TensorField{"softmax_aux", "@softmax_aux?[num_q_heads, num_sinks] | @softmax_aux?[num_sinks]",
                    "gradient of the sinks"}};
  }

  static int form(const Inputs& in, const Params& params) { return FlashAttention::form(in, params); }
  static std::string_view batch_dim(const Params& params) { return FlashAttention::batch_dim(params); }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<FlashAttentionBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, lse = flash_attention(inputs, params)
inline FlashAttention::Results flash_attention(const FlashAttention::Inputs& inputs,
                                               const FlashAttention::Params& params = {},
                                               const CallOptions& options = {}) {
  return execute<FlashAttention>(inputs, params, options);
}

/// The kernels of this folder, for the lists in flash_attention.cpp.
namespace flash_attention_kernels {
const KernelInfo& cuda_sm90();
const KernelInfo& cuda_sm80();
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& cuda_reference();
const KernelInfo& backward_cuda_sm90();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
const KernelInfo& backward_cuda_reference();
}  // namespace flash_attention_kernels

}  // namespace ejk
