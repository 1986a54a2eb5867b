#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_internal.h"

namespace ejk {

void ScaledDotProductAttention::check(const Inputs& in, const Params& params, Dims& dims) {
  attn::check(kName, attn::flash_inputs(in), attn::flash_params(params), dims);
}

Work ScaledDotProductAttention::work(const Call<ScaledDotProductAttention>& call) {
  const auto& in = call.inputs;
  Work work = attn::forward_work(attn::flash_inputs(in), attn::flash_params(call.params));
  work.bytes += bytes_of(std::array{in.query_seq_lengths}) + bytes_of(to_array(call.outputs));
  return work;
}

std::span<const KernelInfo* const> ScaledDotProductAttention::kernels() {
  using namespace scaled_dot_product_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

void ScaledDotProductAttentionBackward::check(const Inputs& in, const Params& params, Dims& dims) {
  attn::check(kName, attn::flash_inputs(in), attn::flash_params(params), dims);
}

Work ScaledDotProductAttentionBackward::work(const Call<ScaledDotProductAttentionBackward>& call) {
  const auto& in = call.inputs;
  Work work = attn::backward_work(attn::flash_inputs(in), attn::flash_params(call.params));
  work.bytes +=
      bytes_of(std::array{in.query_seq_lengths, in.out, in.lse, in.d_out, in.d_lse}) + bytes_of(to_array(call.outputs));
  return work;
}

std::span<const KernelInfo* const> ScaledDotProductAttentionBackward::kernels() {
  using namespace scaled_dot_product_attention_kernels;
  static const KernelInfo* const list[] = {&backward_cuda_reference(), &backward_cpu(), &backward_reference()};
  return list;
}

}  // namespace ejk
