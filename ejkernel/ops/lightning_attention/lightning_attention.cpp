#include "ejkernel/ops/lightning_attention/lightning_attention.h"

#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/lightning_attention/lightning_attention_internal.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_internal.h"

namespace ejk {
namespace {

void check_lightning(std::string_view op, const LightningAttention::Params& params, const Dims& dims) {
  recurrence::check(op, recurrent_params(params), dims);
  if (!params.layer_idx)
    throw_invalid(op, "layer_idx", "be given", "nothing", "pass the layer's number, counted from 0");
  if (!params.num_layers) throw_invalid(op, "num_layers", "be given", "nothing", "pass how many layers the model has");
  if (*params.layer_idx >= *params.num_layers)
    throw_invalid(op, "layer_idx", "be below num_layers " + std::to_string(*params.num_layers),
                  std::to_string(*params.layer_idx), "layers are counted from 0");
}

}  // namespace

void LightningAttention::check(const Inputs&, const Params& params, Dims& dims) {
  check_lightning(kName, params, dims);
}

Work LightningAttention::work(const Call<LightningAttention>& call) {
  auto recurrent = recurrent_call(call);
  recurrent.inputs.g_gamma = {};  // it is no input, and crosses no memory
  return RecurrentAttention::work(recurrent);
}

std::span<const KernelInfo* const> LightningAttention::kernels() {
  using namespace lightning_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

void LightningAttentionBackward::check(const Inputs&, const Params& params, Dims& dims) {
  check_lightning(kName, params, dims);
}

Work LightningAttentionBackward::work(const Call<LightningAttentionBackward>& call) {
  auto recurrent = recurrent_call(call);
  recurrent.inputs.g_gamma = {};
  return RecurrentAttentionBackward::work(recurrent);
}

std::span<const KernelInfo* const> LightningAttentionBackward::kernels() {
  using namespace lightning_attention_kernels;
  static const KernelInfo* const list[] = {&backward_cuda_reference(), &backward_cpu(), &backward_reference()};
  return list;
}

}  // namespace ejk
