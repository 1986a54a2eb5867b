// lightning_attention and its gradient: recurrent_attention whose heads decay at rates that follow from the layer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

struct LightningAttentionBackward;

/// recurrent_attention with g_gamma alone, for head n
///   g_gamma[n] = -(8 / num_q_heads) * (1 - layer_idx / num_layers) * n
/// rounded to float32 (float64 for float64 queries). Head 0 does not decay.
struct LightningAttention {
  static constexpr std::string_view kName = "lightning_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Lightning attention: recurrent_attention whose heads decay at fixed rates, slower in later layers.";
  static constexpr std::string_view kSource =
      "Qin et al., Lightning Attention-2 (arXiv:2401.04658), sections 2 and 3; MiniMax-01 (arXiv:2501.08313), section "
      "2.2";
  static constexpr std::string_view kGradient = "lightning_attention_backward";
  using Gradient = LightningAttentionBackward;

  using Form = RecurrentAttention::Form;
  static constexpr auto kForms = RecurrentAttention::kForms;

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor initial_state = {}, cu_seqlens = {};
  };

  struct Params {
    std::optional<int64_t> layer_idx = {}, num_layers = {};
    std::optional<double> softmax_scale = {};
    bool reverse = false;
    std::optional<DType> state_dtype = {};
  };

  template <class T>
  using Out = RecurrentAttention::Out<T>;
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return fields_named(RecurrentAttention::inputs(), {"query", "key", "value", "initial_state", "cu_seqlens"});
  }
  static constexpr auto params() {
    return concatenate(
        std::array{
            param<&Params::layer_idx>("layer_idx", Key::none,
                                      "the layer's number, from 0 to num_layers - 1; must be given", at_least(0)),
            param<&Params::num_layers>("num_layers", Key::none, "layers of the model; must be given", at_least(1))},
        recurrence_params<Params>());
  }
  static constexpr auto outputs() { return RecurrentAttention::outputs(); }

  static int form(const Inputs& in, const Params&) {
    return in.cu_seqlens.present() ? RecurrentAttention::kPacked : RecurrentAttention::kBatched;
  }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<LightningAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of lightning_attention, as recurrent_attention's.
struct LightningAttentionBackward {
  static constexpr std::string_view kName = "lightning_attention_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Gradient of lightning_attention for query, key, value and the initial state.";
  static constexpr std::string_view kSource = LightningAttention::kSource;
  static constexpr auto kForms = LightningAttention::kForms;

  struct Inputs : LightningAttention::Inputs {
    Tensor d_out = {}, d_final_state = {};
  };
  using Params = LightningAttention::Params;

  template <class T>
  struct Out {
    T query = {}, key = {}, value = {}, initial_state = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(LightningAttention::inputs(),
                       fields_named(RecurrentAttentionBackward::inputs(), {"d_out", "d_final_state"}));
  }
  static constexpr auto params() { return LightningAttention::params(); }
  static constexpr auto outputs() {
    return fields_named(RecurrentAttentionBackward::outputs(), {"query", "key", "value", "initial_state"});
  }

  static int form(const Inputs& in, const Params& params) { return LightningAttention::form(in, params); }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<LightningAttentionBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, final_state = lightning_attention(inputs, params)
inline LightningAttention::Results lightning_attention(const LightningAttention::Inputs& inputs,
                                                       const LightningAttention::Params& params,
                                                       const CallOptions& options = {}) {
  return execute<LightningAttention>(inputs, params, options);
}

/// The kernels of this folder, for the lists in lightning_attention.cpp.
namespace lightning_attention_kernels {
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& cuda_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
const KernelInfo& backward_cuda_reference();
}  // namespace lightning_attention_kernels

}  // namespace ejk
