#include "ejkernel/ops/gla_attention/gla_attention.h"

#include "ejkernel/ops/gla_attention/gla_attention_internal.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_internal.h"

namespace ejk {

void GlaAttention::check(const Inputs&, const Params& params, Dims& dims) { recurrence::check(kName, params, dims); }

Work GlaAttention::work(const Call<GlaAttention>& call) { return RecurrentAttention::work(recurrent_call(call)); }

std::span<const KernelInfo* const> GlaAttention::kernels() {
  using namespace gla_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

void GlaAttentionBackward::check(const Inputs&, const Params& params, Dims& dims) {
  recurrence::check(kName, params, dims);
}

Work GlaAttentionBackward::work(const Call<GlaAttentionBackward>& call) {
  return RecurrentAttentionBackward::work(recurrent_call(call));
}

std::span<const KernelInfo* const> GlaAttentionBackward::kernels() {
  using namespace gla_attention_kernels;
  static const KernelInfo* const list[] = {&backward_cuda_reference(), &backward_cpu(), &backward_reference()};
  return list;
}

}  // namespace ejk
