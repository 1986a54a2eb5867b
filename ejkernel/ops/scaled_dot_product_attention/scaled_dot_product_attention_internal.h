// A scaled_dot_product_attention call in flash_attention's words.
#pragma once

#include "ejkernel/ops/flash_attention/attention_problem.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace ejk::attn {

inline FlashAttention::Inputs flash_inputs(const ScaledDotProductAttention::Inputs& in) {
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .bias = in.bias,
          .attention_mask = in.attention_mask,
          .seqused_k = in.key_value_seq_lengths};
}

inline FlashAttention::Params flash_params(const ScaledDotProductAttention::Params& params) {
  return {.softmax_scale = params.softmax_scale,
          .causal = params.causal,
          .causal_align = params.causal_align,
          .sliding_window = params.sliding_window};
}

/// The one thing that flash_attention has no field for: the queries in use.
inline Problem make_problem(const ScaledDotProductAttention::Inputs& in,
                            const ScaledDotProductAttention::Params& params) {
  Problem p = make_problem(flash_inputs(in), flash_params(params));
  p.used_q = in.query_seq_lengths;
  return p;
}

}  // namespace ejk::attn
