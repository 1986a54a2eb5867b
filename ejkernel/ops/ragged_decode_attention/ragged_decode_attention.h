// ragged_decode_attention: one query per batch entry over a contiguous cache, of which each uses a part.
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

/// out = softmax(softmax_scale * query @ keys^T, masked) @ values over the tokens sequence_start[b] …
/// sequence_end[b] - 1 of the cache; the query is the last of them. Positions count from sequence_start.
struct RaggedDecodeAttention {
  static constexpr std::string_view kName = "ragged_decode_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Decode attention over a contiguous cache, from a start to an end of its own in each batch entry.";
  static constexpr std::string_view kSource =
      "Vaswani et al. (arXiv:1706.03762), section 3.2, one row of it; split keys: Flash-Decoding (2023)";

  enum Form { kRow, kToken };
  static constexpr std::array<std::string_view, 2> kForms = {"row", "one token"};

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor sequence_start = {}, sequence_end = {};
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
        TensorField{"query", "float[batch, num_q_heads, head_dim] ; float[batch, 1, num_q_heads, head_dim]",
                    "the token at sequence_end - 1"},
        TensorField{"key", "stored[batch, kv_len, num_kv_heads, head_dim]",
                    "keys; query head h reads kv head h div (num_q_heads / num_kv_heads)"},
        TensorField{"value", "@key[batch, kv_len, num_kv_heads, value_dim]",
                    "values; value_dim may differ from head_dim"},
        TensorField{"sequence_start", "int32[batch]", "first token in use"},
        TensorField{"sequence_end", "int32[batch]", "past the last token in use; at or before the start: none is"},
        TensorField{"softmax_aux", "float?[num_q_heads, num_sinks] | float?[num_sinks]",
                    "sinks: extra logits in the denominator, neither scaled nor capped; rank 1 is shared by all heads"},
        TensorField{"k_scale",
                    "float32?[] | float32?[num_kv_heads] | float32?[batch, kv_len, num_kv_heads, num_k_groups]",
                    "what stored keys are multiplied by: one, per head, or per group of 16, 32, 64, 128 or head_dim "
                    "elements"},
        TensorField{"v_scale",
                    "float32?[] | float32?[num_kv_heads] | float32?[batch, kv_len, num_kv_heads, num_v_groups]",
                    "of stored values"}};
  }
  static constexpr auto params() { return decode_params<Params>(); }
  static constexpr auto outputs() {
    return std::array{
        TensorField{"out", "@query[batch, num_q_heads, value_dim] ; @query[batch, 1, num_q_heads, value_dim]",
                    "attention; 0 where no token is in use"},
        TensorField{"lse", "stats@query[batch, num_q_heads]",
                    "natural log of the softmax denominator, sinks included; -inf without key or sink"}};
  }

  static int form(const Inputs& in, const Params&) { return in.query.rank() == 4 ? kToken : kRow; }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<RaggedDecodeAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, lse = ragged_decode_attention(inputs, params)
inline RaggedDecodeAttention::Results ragged_decode_attention(const RaggedDecodeAttention::Inputs& inputs,
                                                              const RaggedDecodeAttention::Params& params = {},
                                                              const CallOptions& options = {}) {
  return execute<RaggedDecodeAttention>(inputs, params, options);
}

/// The kernels of this folder, for the list in ragged_decode_attention.cpp.
namespace ragged_decode_attention_kernels {
const KernelInfo& cuda_reference();
const KernelInfo& cpu();
const KernelInfo& reference();
}  // namespace ragged_decode_attention_kernels

}  // namespace ejk
