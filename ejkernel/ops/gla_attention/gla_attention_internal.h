// A gla_attention call in recurrent_attention's words.
#pragma once

#include "ejkernel/ops/gla_attention/gla_attention.h"

namespace ejk {

inline RecurrentAttention::Inputs recurrent_inputs(const GlaAttention::Inputs& in) {
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .g_gamma = in.g_gamma,
          .gk = in.gk,
          .initial_state = in.initial_state,
          .cu_seqlens = in.cu_seqlens};
}

inline Call<RecurrentAttention> recurrent_call(const Call<GlaAttention>& call) {
  return {recurrent_inputs(call.inputs), call.params, call.outputs};
}

inline Call<RecurrentAttentionBackward> recurrent_call(const Call<GlaAttentionBackward>& call) {
  const auto& to = call.outputs;
  return {{recurrent_inputs(call.inputs), call.inputs.d_out, call.inputs.d_final_state},
          call.params,
          {.query = to.query,
           .key = to.key,
           .value = to.value,
           .g_gamma = to.g_gamma,
           .gk = to.gk,
           .initial_state = to.initial_state}};
}

}  // namespace ejk
