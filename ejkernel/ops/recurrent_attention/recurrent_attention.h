// recurrent_attention and its gradient: linear attention whose state decays, as one recurrence with four optional
// gates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_fields.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

struct RecurrentAttentionBackward;

/// For each query head a state h [key_dim, value_dim], and for each token t in order
///   h = exp(g_t + g_gamma + gk_t[:, None] + gv_t[None, :]) * h + key_t ⊗ value_t,  out_t = softmax_scale * query_t @
///   h.
/// Gates are logarithms of decays: -inf forgets everything, and above 0 the state grows. It is kept in float32 (float64
/// for float64 inputs).
struct RecurrentAttention {
  static constexpr std::string_view kName = "recurrent_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Linear attention with a decaying state: scalar, per-head, key-wise and value-wise gates, initial and final "
      "state, packing.";
  static constexpr std::string_view kSource =
      "Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training (arXiv:2312.06635), sections "
      "2 "
      "to 4";
  static constexpr std::string_view kGradient = "recurrent_attention_backward";
  using Gradient = RecurrentAttentionBackward;

  enum Form { kBatched, kPacked };
  static constexpr std::array<std::string_view, 2> kForms = {"batched", "packed"};

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor g = {}, g_gamma = {}, gk = {}, gv = {};
    Tensor initial_state = {}, cu_seqlens = {};
  };

  struct Params {
    std::optional<double> softmax_scale = {};
    bool reverse = false;
    std::optional<DType> state_dtype = {};
  };

  template <class T>
  struct Out {
    T out = {}, final_state = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"query", "float[batch, seq_len, num_q_heads, key_dim] ; float[num_tokens, num_q_heads, key_dim]",
                    "queries"},
        TensorField{"key", "@query[batch, seq_len, num_kv_heads, key_dim] ; @query[num_tokens, num_kv_heads, key_dim]",
                    "keys; query head h reads kv head h div (num_q_heads / num_kv_heads)"},
        TensorField{"value",
                    "@query[batch, seq_len, num_kv_heads, value_dim] ; @query[num_tokens, num_kv_heads, value_dim]",
                    "values; value_dim may differ from key_dim"},
        TensorField{"g", "float?[batch, seq_len, num_q_heads] ; float?[num_tokens, num_q_heads]",
                    "log decay of a token: one number for the whole state"},
        TensorField{"g_gamma", "float?[num_q_heads]", "log decay of a head, the same for every token"},
        TensorField{"gk", "float?[batch, seq_len, num_q_heads, key_dim] ; float?[num_tokens, num_q_heads, key_dim]",
                    "log decay of a token for each row of the state"},
        TensorField{"gv", "float?[batch, seq_len, num_q_heads, value_dim] ; float?[num_tokens, num_q_heads, value_dim]",
                    "log decay of a token for each column of the state"},
        TensorField{
            "initial_state",
            "float?[batch, num_q_heads, key_dim, value_dim] ; float?[num_seqs, num_q_heads, key_dim, value_dim]",
            "the state before a sequence's first token; absent: 0. A bfloat16 one halves what a decoding step "
            "moves"},
        TensorField{"cu_seqlens", "- ; int32[num_seqs+1]",
                    "packed: sequence s owns rows [s], [s+1); an end before its start is an empty sequence"}};
  }

  static constexpr auto params() { return recurrence_params<Params>(); }

  static constexpr auto outputs() {
    return std::array{
        TensorField{"out",
                    "@query[batch, seq_len, num_q_heads, value_dim] ; @query[num_tokens, num_q_heads, value_dim]",
                    "what each token reads, after its own update; 0 in rows of no sequence"},
        TensorField{"final_state",
                    "state@query[batch, num_q_heads, key_dim, value_dim] ; "
                    "state@query[num_seqs, num_q_heads, key_dim, value_dim]",
                    "the state after a sequence's last token; an empty sequence's is its initial state"}};
  }

  static int form(const Inputs& in, const Params&) { return in.cu_seqlens.present() ? kPacked : kBatched; }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<RecurrentAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of recurrent_attention. States are computed anew, at most one per chunk of tokens is kept.
struct RecurrentAttentionBackward {
  static constexpr std::string_view kName = "recurrent_attention_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Gradient of recurrent_attention for query, key, value, every gate and the initial state.";
  static constexpr std::string_view kSource = RecurrentAttention::kSource;
  static constexpr auto kForms = RecurrentAttention::kForms;

  struct Inputs : RecurrentAttention::Inputs {
    Tensor d_out = {}, d_final_state = {};
  };
  using Params = RecurrentAttention::Params;

  template <class T>
  struct Out {
    T query = {}, key = {}, value = {}, g = {}, g_gamma = {}, gk = {}, gv = {}, initial_state = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(
        RecurrentAttention::inputs(),
        std::array{
            TensorField{"d_out",
                        "@query?[batch, seq_len, num_q_heads, value_dim] ; @query?[num_tokens, num_q_heads, value_dim]",
                        "cotangent of out; absent: zero"},
            TensorField{"d_final_state",
                        "state@query?[batch, num_q_heads, key_dim, value_dim] ; "
                        "state@query?[num_seqs, num_q_heads, key_dim, value_dim]",
                        "cotangent of final_state; absent: zero"}});
  }
  static constexpr auto params() { return RecurrentAttention::params(); }
  static constexpr auto outputs() {
    return std::array{
        TensorField{"query", "@query[batch, seq_len, num_q_heads, key_dim] ; @query[num_tokens, num_q_heads, key_dim]",
                    "gradient of query"},
        TensorField{"key", "@key[batch, seq_len, num_kv_heads, key_dim] ; @key[num_tokens, num_kv_heads, key_dim]",
                    "gradient of key, summed over its query heads"},
        TensorField{"value",
                    "@value[batch, seq_len, num_kv_heads, value_dim] ; @value[num_tokens, num_kv_heads, value_dim]",
                    "gradient of value, summed over its query heads"},
        TensorField{"g", "@g?[batch, seq_len, num_q_heads] ; @g?[num_tokens, num_q_heads]", "gradient of g"},
        TensorField{"g_gamma", "@g_gamma?[num_q_heads]", "gradient of g_gamma, summed over the tokens"},
        TensorField{"gk", "@gk?[batch, seq_len, num_q_heads, key_dim] ; @gk?[num_tokens, num_q_heads, key_dim]",
                    "gradient of gk"},
        TensorField{"gv", "@gv?[batch, seq_len, num_q_heads, value_dim] ; @gv?[num_tokens, num_q_heads, value_dim]",
                    "gradient of gv"},
        TensorField{"initial_state",
                    "@initial_state?[batch, num_q_heads, key_dim, value_dim] ; "
                    "@initial_state?[num_seqs, num_q_heads, key_dim, value_dim]",
                    "gradient of initial_state"}};
  }

  static int form(const Inputs& in, const Params& params) { return RecurrentAttention::form(in, params); }
  static std::string_view batch_dim(const Params&) { return ""; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<RecurrentAttentionBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, final_state = recurrent_attention(inputs, params)
inline RecurrentAttention::Results recurrent_attention(const RecurrentAttention::Inputs& inputs,
                                                       const RecurrentAttention::Params& params = {},
                                                       const CallOptions& options = {}) {
  return execute<RecurrentAttention>(inputs, params, options);
}

/// The kernels of this folder, for the lists in recurrent_attention.cpp.
namespace recurrent_attention_kernels {
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& cuda_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
const KernelInfo& backward_cuda_reference();
}  // namespace recurrent_attention_kernels

}  // namespace ejk
