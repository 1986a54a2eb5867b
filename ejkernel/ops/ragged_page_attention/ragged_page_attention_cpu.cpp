#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

namespace ejk {

const KernelInfo& ragged_page_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttention, attn::PagedCpu<RaggedPageAttention>>();
  return kernel;
}

}  // namespace ejk
