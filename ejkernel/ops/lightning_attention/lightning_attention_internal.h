// A lightning_attention call in recurrent_attention's words: with the heads' decays as a tensor, which its kernels make
// in their workspace.
#pragma once

#include <cstddef>

#include "ejkernel/ops/lightning_attention/lightning_attention.h"
#include "ejkernel/ops/lightning_attention/lightning_attention_decays.cuh"

namespace ejk {

inline RecurrentAttention::Params recurrent_params(const LightningAttention::Params& params) {
  return {.softmax_scale = params.softmax_scale, .reverse = params.reverse, .state_dtype = params.state_dtype};
}

inline RecurrentAttention::Inputs recurrent_inputs(const LightningAttention::Inputs& in, std::byte* decays) {
  const DType dtype = in.query.dtype == DType::f64 ? DType::f64 : DType::f32;
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .g_gamma = Tensor(decays, dtype, {in.query.shape[-2]}, in.query.device),
          .initial_state = in.initial_state,
          .cu_seqlens = in.cu_seqlens};
}

/// `decays`: memory of the heads' decays; null where no data is needed.
inline Call<RecurrentAttention> recurrent_call(const Call<LightningAttention>& call, std::byte* decays = nullptr) {
  return {recurrent_inputs(call.inputs, decays), recurrent_params(call.params), call.outputs};
}

inline Call<RecurrentAttentionBackward> recurrent_call(const Call<LightningAttentionBackward>& call,
                                                       std::byte* decays = nullptr) {
  const auto& to = call.outputs;
  return {{recurrent_inputs(call.inputs, decays), call.inputs.d_out, call.inputs.d_final_state},
          recurrent_params(call.params),
          {.query = to.query, .key = to.key, .value = to.value, .initial_state = to.initial_state}};
}

namespace recurrence {

/// What makes the decays of a call.
inline cuda::LightningDecays lightning_decays(const Tensor& g_gamma, const LightningAttention::Params& params) {
  const auto layer = static_cast<double>(*params.layer_idx), layers = static_cast<double>(*params.num_layers);
  const int64_t heads = g_gamma.shape[0];
  return {.to = {g_gamma.data, static_cast<cuda::Number>(g_gamma.dtype), {}},
          .num_heads = heads,
          .slope = -8 / static_cast<double>(heads) * (1 - layer / layers)};
}

/// Bytes of a kernel's workspace that the decays take, before its own, which must begin at a multiple of 64.
inline size_t decays_bytes(const Tensor& query) {
  return (static_cast<size_t>(query.shape[-2]) * sizeof(double) + 63) / 64 * 64;
}

}  // namespace recurrence
}  // namespace ejk
