// gla_attention and its gradient: recurrent_attention with the gates of gated linear attention.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

struct GlaAttentionBackward;

/// recurrent_attention with gk and g_gamma alone:
///   h = exp(g_gamma + gk_t[:, None]) * h + key_t ⊗ value_t,  out_t = softmax_scale * query_t @ h.
struct GlaAttention {
  static constexpr std::string_view kName = "gla_attention";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Gated linear attention: recurrent_attention whose state decays by a gate per token and key dimension.";
  static constexpr std::string_view kSource = RecurrentAttention::kSource;
  static constexpr std::string_view kGradient = "gla_attention_backward";
  using Gradient = GlaAttentionBackward;

  using Form = RecurrentAttention::Form;
  static constexpr auto kForms = RecurrentAttention::kForms;

  struct Inputs {
    Tensor query = {}, key = {}, value = {};
    Tensor gk = {}, g_gamma = {};
    Tensor initial_state = {}, cu_seqlens = {};
  };
  using Params = RecurrentAttention::Params;
  template <class T>
  using Out = RecurrentAttention::Out<T>;
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    auto fields = fields_named(RecurrentAttention::inputs(),
                               {"query", "key", "value", "gk", "g_gamma", "initial_state", "cu_seqlens"});
    fields[3].python_name = "g";
    return fields;
  }
  static constexpr auto params() { return RecurrentAttention::params(); }
  static constexpr auto outputs() { return RecurrentAttention::outputs(); }

  static int form(const Inputs& in, const Params&) {
    return in.cu_seqlens.present() ? RecurrentAttention::kPacked : RecurrentAttention::kBatched;
  }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<GlaAttention>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of gla_attention, as recurrent_attention's.
struct GlaAttentionBackward {
  static constexpr std::string_view kName = "gla_attention_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Gradient of gla_attention for query, key, value, both gates and the initial state.";
  static constexpr std::string_view kSource = GlaAttention::kSource;
  static constexpr auto kForms = GlaAttention::kForms;

  struct Inputs : GlaAttention::Inputs {
    Tensor d_out = {}, d_final_state = {};
  };
  using Params = GlaAttention::Params;

  template <class T>
  struct Out {
    T query = {}, key = {}, value = {}, gk = {}, g_gamma = {}, initial_state = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(GlaAttention::inputs(),
                       fields_named(RecurrentAttentionBackward::inputs(), {"d_out", "d_final_state"}));
  }
  static constexpr auto params() { return GlaAttention::params(); }
  static constexpr auto outputs() {
    return fields_named(RecurrentAttentionBackward::outputs(),
                        {"query", "key", "value", "gk", "g_gamma", "initial_state"});
  }

  static int form(const Inputs& in, const Params& params) { return GlaAttention::form(in, params); }
  /// The gradient of g_gamma is a sum over the batch.
  static std::string_view batch_dim(const Params&) { return ""; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<GlaAttentionBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, final_state = gla_attention(inputs, params)
inline GlaAttention::Results gla_attention(const GlaAttention::Inputs& inputs, const GlaAttention::Params& params = {},
                                           const CallOptions& options = {}) {
  return execute<GlaAttention>(inputs, params, options);
}

/// The kernels of this folder, for the lists in gla_attention.cpp.
namespace gla_attention_kernels {
const KernelInfo& cpu();
const KernelInfo& reference();
const KernelInfo& cuda_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_reference();
const KernelInfo& backward_cuda_reference();
}  // namespace gla_attention_kernels

}  // namespace ejk
