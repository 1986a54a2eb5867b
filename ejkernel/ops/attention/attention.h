// attention and its gradient: softmax attention that returns its weights. The readable one; memory O(q_len * kv_len).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

struct AttentionBackward;

/// weights = dropout(softmax(softmax_scale * query @ key^T + bias, masked)), out = weights @ value. Semantics are those
/// of flash_attention; use that one when the weights are not needed.
struct Attention {
  static constexpr std::string_view kName = "attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Softmax attention that returns the weights as well: grouped heads, masks, windows, sinks, soft cap, dropout.";
  static constexpr std::string_view kSource =
      "Vaswani et al., Attention Is All You Need (arXiv:1706.03762), section 3.2";
  static constexpr std::string_view kGradient = "attention_backward";
  using Gradient = AttentionBackward;

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor bias = {}, attention_mask = {}, q_segment_ids = {}, kv_segment_ids = {};
    Tensor softmax_aux = {}, dropout_seed = {}, seqused_k = {};
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
  };

  template <class T>
  struct Out {
    T out = {}, weights = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"query", "float[batch, q_len, num_q_heads, head_dim]", "queries"},
        TensorField{"key", "@query[batch, kv_len, num_kv_heads, head_dim]",
                    "keys; query head h reads kv head h div (num_q_heads / num_kv_heads)"},
        TensorField{"value", "@query[batch, kv_len, num_kv_heads, value_dim]",
                    "values; value_dim may differ from head_dim"},
        TensorField{"bias", "float?[batch/1, num_q_heads/1, q_len/1, kv_len]",
                    "added to the scaled logits; -inf excludes a key"},
        TensorField{"attention_mask", "bool?[batch/1, num_q_heads/1, q_len/1, kv_len]", "true: the key is visible"},
        TensorField{"q_segment_ids", "int32?[batch, q_len]", "equal ids attend; a negative id is padding"},
        TensorField{"kv_segment_ids", "int32?[batch, kv_len]", "q_segment_ids when the lengths are equal"},
        TensorField{"softmax_aux", "float?[num_q_heads, num_sinks] | float?[num_sinks]",
                    "sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all heads"},
        TensorField{"dropout_seed", "uint32?[2]", "(seed, offset) of the dropout mask; (0, 0) when absent"},
        TensorField{"seqused_k", "int32?[batch]", "keys in use, the first ones of each batch entry"}};
  }

  static constexpr auto params() {
    return concatenate(attention_params<Params>(), std::array{param<&Params::out_dtype>(
                                                       "out_dtype", Key::value, "dtype of out; absent: the query's")});
  }

  static constexpr auto outputs() {
    return std::array{TensorField{"out", "result@query[batch, q_len, num_q_heads, value_dim]",
                                  "attention; 0 for a query that sees no key"},
                      TensorField{"weights", "@query[batch, num_q_heads, q_len, kv_len]",
                                  "what multiplies the values, after dropout; 0 for keys that are not visible. Without "
                                  "dropout a row sums to 1 minus the sinks' share"}};
  }

  /// The dropout mask depends on the entry's number.
  static std::string_view batch_dim(const Params& params) { return params.dropout_prob > 0 ? "" : "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<Attention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of attention from the cotangents of out and of the weights; both are computed anew from the inputs.
struct AttentionBackward {
  static constexpr std::string_view kName = "attention_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of attention for query, key, value, bias and sinks.";
  static constexpr std::string_view kSource = Attention::kSource;

  struct Inputs : Attention::Inputs {
    Tensor d_out = {}, d_weights = {};
  };
  using Params = Attention::Params;

  template <class T>
  struct Out {
    T query = {}, key = {}, value = {}, bias = {}, softmax_aux = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(
        Attention::inputs(),
        std::array{TensorField{"d_out", "result@query?[batch, q_len, num_q_heads, value_dim]",
                               "cotangent of out; absent: zero"},
                   TensorField{"d_weights", "@query?[batch, num_q_heads, q_len, kv_len]",
                               "cotangent of the weights; absent: zero. Not read where a key is not visible"}});
  }
  static constexpr auto params() { return Attention::params(); }
  static constexpr auto outputs() {
    return std::array{TensorField{"query", "@query[batch, q_len, num_q_heads, head_dim]", "gradient of query"},
                      TensorField{"key", "@key[batch, kv_len, num_kv_heads, head_dim]",
                                  "gradient of key, summed over its query heads"},
                      TensorField{"value", "@value[batch, kv_len, num_kv_heads, value_dim]",
                                  "gradient of value, summed over its query heads"},
                      TensorField{"bias", "@bias?[batch/1, num_q_heads/1, q_len/1, kv_len]",
                                  "gradient of bias, summed over its broadcast axes"},
                      TensorField{"softmax_aux", "@softmax_aux?[num_q_heads, num_sinks] | @softmax_aux?[num_sinks]",
                                  "gradient of the sinks"}};
  }

  static std::string_view batch_dim(const Params& params) { return Attention::batch_dim(params); }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<AttentionBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, weights = attention(inputs, params)
inline Attention::Results attention(const Attention::Inputs& inputs, const Attention::Params& params = {},
                                    const CallOptions& options = {}) {
  return execute<Attention>(inputs, params, options);
}

/// The kernels of this folder, for the lists in attention.cpp.
namespace attention_kernels {
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& cuda_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
const KernelInfo& backward_cuda_reference();
}  // namespace attention_kernels

}  // namespace ejk
