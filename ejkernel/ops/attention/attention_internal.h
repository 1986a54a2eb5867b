// An attention call in flash_attention's words: the same problem with another result.
#pragma once

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/flash_attention/attention_problem.h"

namespace ejk::attn {

inline FlashAttention::Inputs flash_inputs(const Attention::Inputs& in) {
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .bias = in.bias,
          .attention_mask = in.attention_mask,
          .q_segment_ids = in.q_segment_ids,
          .kv_segment_ids = in.kv_segment_ids,
          .softmax_aux = in.softmax_aux,
          .dropout_seed = in.dropout_seed,
          .seqused_k = in.seqused_k};
}

inline FlashAttention::Params flash_params(const Attention::Params& params) {
  return {.softmax_scale = params.softmax_scale,
          .causal = params.causal,
          .causal_align = params.causal_align,
          .sliding_window = params.sliding_window,
          .attention_sink_size = params.attention_sink_size,
          .logits_soft_cap = params.logits_soft_cap,
          .dropout_prob = params.dropout_prob,
          .deterministic = params.deterministic,
          .out_dtype = params.out_dtype};
}

inline Problem make_problem(const Attention::Inputs& in, const Attention::Params& params) {
  return make_problem(flash_inputs(in), flash_params(params));
}

}  // namespace ejk::attn
