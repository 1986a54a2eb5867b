// Every write, then the streams and tiles of the other operations over a cache.
#include "ejkernel/ops/page_append/append_cpu_internal.h"
#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

namespace ejk {
namespace {

struct RaggedPageAttentionV3Cpu : attn::PagedCpu<RaggedPageAttentionV3> {
  static void run(const Call<RaggedPageAttentionV3>& call, const Config& config, const RunContext& context) {
    attn::append_cpu(attn::append_of(call), context);
    attn::PagedCpu<RaggedPageAttentionV3>::run(call, config, context);
  }
};

}  // namespace

const KernelInfo& ragged_page_attention_v3_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttentionV3, RaggedPageAttentionV3Cpu>();
  return kernel;
}

}  // namespace ejk
