// Every write, then the streams and tiles of the other operations over a cache.
#include "ejkernel/ops/page_append/append_cpu_internal.h"
#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

namespace ejk {
namespace {

struct RaggedPageAttentionV3Cpu : attn::PagedCpu<RaggedPageAttentionV3> {
  static void run(const Call<RaggedPageAttentionV3>& call, const Config& config, const RunContext& context) {
    const attn::PagedCall paged = attn::paged_call(call);
    attn::append_cpu({call.inputs.keys, call.inputs.values, paged.problem}, context);
    attn::paged_cpu(paged, config, context);
  }
};

}  // namespace

const KernelInfo& ragged_page_attention_v3_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttentionV3, RaggedPageAttentionV3Cpu>();
  return kernel;
}

}  // namespace ejk
