#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

namespace ejk {

const KernelInfo& page_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<PageAttention, attn::PagedCpu<PageAttention>>();
  return kernel;
}

}  // namespace ejk
