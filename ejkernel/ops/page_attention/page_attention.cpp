#include "ejkernel/ops/page_attention/page_attention.h"

#include <array>

#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk {

void PageAttention::check(const Inputs& in, const Params& params, Dims&) {
  attn::check_paged({.operation = kName,
                     .key = attn::page_view(in.key_cache, params.cache_layout),
                     .value = attn::page_view(in.value_cache, params.cache_layout),
                     .k_scale = in.k_scale,
                     .v_scale = in.v_scale,
                     .sinks = in.softmax_aux,
                     .num_q_heads = in.query.shape[1]});
}

Work PageAttention::work(const Call<PageAttention>& call) {
  return attn::paged_work(attn::paged_call(call), bytes_of(std::array{call.inputs.query, call.outputs.out}));
}

std::span<const KernelInfo* const> PageAttention::kernels() {
  using namespace page_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

}  // namespace ejk
