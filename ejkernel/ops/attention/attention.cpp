#include "ejkernel/ops/attention/attention.h"

#include "ejkernel/ops/attention/attention_internal.h"

namespace ejk {

void Attention::check(const Inputs& in, const Params& params, Dims& dims) {
  attn::check(kName, attn::flash_inputs(in), attn::flash_params(params), dims);
}

Work Attention::work(const Call<Attention>& call) {
  Work work = attn::forward_work(attn::flash_inputs(call.inputs), attn::flash_params(call.params));
  work.bytes += bytes_of(to_array(call.outputs));
  return work;
}

std::span<const KernelInfo* const> Attention::kernels() {
  using namespace attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

void AttentionBackward::check(const Inputs& in, const Params& params, Dims& dims) {
  attn::check(kName, attn::flash_inputs(in), attn::flash_params(params), dims);
}

Work AttentionBackward::work(const Call<AttentionBackward>& call) {
  const auto& in = call.inputs;
  Work work = attn::backward_work(attn::flash_inputs(in), attn::flash_params(call.params));
  work.bytes += bytes_of(std::array{in.d_out, in.d_weights}) + bytes_of(to_array(call.outputs));
  return work;
}

std::span<const KernelInfo* const> AttentionBackward::kernels() {
  using namespace attention_kernels;
  static const KernelInfo* const list[] = {&backward_cuda_reference(), &backward_cpu(), &backward_reference()};
  return list;
}

}  // namespace ejk
