// scaled_dot_product_attention and its gradient: flash_attention behind the signature people know.
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

struct ScaledDotProductAttentionBackward;

/// out = softmax(softmax_scale * query @ key^T + bias, masked) @ value, over the rows and keys in use.
struct ScaledDotProductAttention {
  static constexpr std::string_view kName = "scaled_dot_product_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "flash_attention behind the usual signature: lengths per batch entry, causal from the top left.";
  static constexpr std::string_view kSource =
      "Vaswani et al., Attention Is All You Need (arXiv:1706.03762), section 3.2";
  static constexpr std::string_view kGradient = "scaled_dot_product_attention_backward";
  using Gradient = ScaledDotProductAttentionBackward;

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor bias = {}, attention_mask = {};
    Tensor query_seq_lengths = {}, key_value_seq_lengths = {};
  };

  struct Params {
    std::optional<double> softmax_scale = {};
    bool causal = false;
    CausalAlign causal_align = CausalAlign::top_left;
    Window sliding_window = {};
  };

  template <class T>
  struct Out {
    T out = {}, lse = {};
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
        TensorField{"attention_mask", "bool?[batch/1, num_q_heads/1, q_len/1, kv_len]", "true: the key is visible",
                    "mask"},
        TensorField{"query_seq_lengths", "int32?[batch]",
                    "queries in use, the first ones of each batch entry; the others give 0", "cum_seqlens_q"},
        TensorField{"key_value_seq_lengths", "int32?[batch]", "keys in use, the first ones of each batch entry",
                    "cum_seqlens_k"}};
  }

  static constexpr auto params() { return visibility_params<Params>(); }

  static constexpr auto outputs() {
    return std::array{TensorField{"out", "@query[batch, q_len, num_q_heads, value_dim]",
                                  "attention; 0 for a query that sees no key or is not in use"},
                      TensorField{"lse", "stats@query[batch, num_q_heads, q_len]",
                                  "natural log of the softmax denominator; -inf where out is 0 for want of keys"}};
  }

  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<ScaledDotProductAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of scaled_dot_product_attention; probabilities are recomputed from lse. Rows and keys that are not in use
/// get 0, whatever their cotangents hold.
struct ScaledDotProductAttentionBackward {
  static constexpr std::string_view kName = "scaled_dot_product_attention_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Gradient of scaled_dot_product_attention for query, key, value and bias.";
  static constexpr std::string_view kSource = "Dao et al., FlashAttention-2 (arXiv:2307.08691), algorithm 2";

  struct Inputs : ScaledDotProductAttention::Inputs {
    Tensor out = {}, lse = {}, d_out = {}, d_lse = {};
  };
  using Params = ScaledDotProductAttention::Params;

  template <class T>
  struct Out {
    T query = {}, key = {}, value = {}, bias = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(
        ScaledDotProductAttention::inputs(),
        std::array{TensorField{"out", "@query[batch, q_len, num_q_heads, value_dim]", "the forward's out"},
                   TensorField{"lse", "stats@query[batch, num_q_heads, q_len]", "the forward's lse"},
                   TensorField{"d_out", "@query[batch, q_len, num_q_heads, value_dim]", "cotangent of out"},
                   TensorField{"d_lse", "stats@query?[batch, num_q_heads, q_len]", "cotangent of lse; absent: zero"}});
  }
  static constexpr auto params() { return ScaledDotProductAttention::params(); }
  static constexpr auto outputs() {
    return std::array{TensorField{"query", "@query[batch, q_len, num_q_heads, head_dim]", "gradient of query"},
                      TensorField{"key", "@key[batch, kv_len, num_kv_heads, head_dim]",
                                  "gradient of key, summed over its query heads"},
                      TensorField{"value", "@value[batch, kv_len, num_kv_heads, value_dim]",
                                  "gradient of value, summed over its query heads"},
                      TensorField{"bias", "@bias?[batch/1, num_q_heads/1, q_len/1, kv_len]",
                                  "gradient of bias, summed over its broadcast axes"}};
  }

  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<ScaledDotProductAttentionBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, lse = scaled_dot_product_attention(inputs, params)
inline ScaledDotProductAttention::Results scaled_dot_product_attention(
    const ScaledDotProductAttention::Inputs& inputs, const ScaledDotProductAttention::Params& params = {},
    const CallOptions& options = {}) {
  return execute<ScaledDotProductAttention>(inputs, params, options);
}

/// The kernels of this folder, for the lists in scaled_dot_product_attention.cpp.
namespace scaled_dot_product_attention_kernels {
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& cuda_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
const KernelInfo& backward_cuda_reference();
}  // namespace scaled_dot_product_attention_kernels

}  // namespace ejk
