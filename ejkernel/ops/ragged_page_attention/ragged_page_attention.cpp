#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"

#include <array>

#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk {

void RaggedPageAttention::check(const Inputs& in, const Params&, Dims&) {
  attn::check_paged({.operation = kName,
                     .key = attn::interleaved_view(in.kv_pages, 0),
                     .value = attn::interleaved_view(in.kv_pages, 1),
                     .interleaved = in.kv_pages,
                     .k_scale = in.k_scale,
                     .v_scale = in.v_scale,
                     .sinks = in.softmax_aux,
                     .num_q_heads = in.queries.shape[1]});
}

Work RaggedPageAttention::work(const Call<RaggedPageAttention>& call) {
  return attn::paged_work(attn::paged_call(call), bytes_of(std::array{call.inputs.queries, call.outputs.out}));
}

std::span<const KernelInfo* const> RaggedPageAttention::kernels() {
  using namespace ragged_page_attention_kernels;
  static const KernelInfo* const list[] = {&cuda_reference(), &cpu(), &reference()};
  return list;
}

}  // namespace ejk
