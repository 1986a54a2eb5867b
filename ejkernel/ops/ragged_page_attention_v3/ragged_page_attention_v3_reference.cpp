// Every write, then the formula in double.
#include "ejkernel/ops/page_attention/paged_reference_internal.h"

namespace ejk {
namespace {

struct Reference : attn::PagedReference<RaggedPageAttentionV3> {
  static void run(const Call<RaggedPageAttentionV3>& call, const RunContext& context) {
    const attn::PagedCall paged = attn::paged_call(call);
    const attn::Append append = {call.inputs.keys, call.inputs.values, paged.problem};
    const int64_t used = paged.problem.sequences_in_use(context.status);
    for (int64_t n = 0; n < used; ++n) append.write(n, context.status);
    attn::run_reference(paged.problem, {.out = paged.out, .lse = paged.lse}, context);
  }
};

}  // namespace

const KernelInfo& ragged_page_attention_v3_kernels::reference() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttentionV3, Reference>();
  return kernel;
}

}  // namespace ejk
