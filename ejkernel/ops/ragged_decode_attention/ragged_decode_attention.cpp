#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"

#include <array>

#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk {

void RaggedDecodeAttention::check(const Inputs& in, const Params&, Dims&) {
  attn::check_paged({.operation = kName,
                     .key = in.key,
                     .value = in.value,
                     .k_scale = in.k_scale,
                     .v_scale = in.v_scale,
                     .sinks = in.softmax_aux,
                     .num_q_heads = in.query.shape[-2]});
}

Work RaggedDecodeAttention::work(const Call<RaggedDecodeAttention>& call) {
  return attn::paged_work(attn::paged_call(call), bytes_of(std::array{call.inputs.query, call.outputs.out}));
}

std::span<const KernelInfo* const> RaggedDecodeAttention::kernels() {
  using namespace ragged_decode_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

}  // namespace ejk
