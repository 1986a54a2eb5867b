#include "ejkernel/ops/page_attention/paged_reference_internal.h"

namespace ejk {

const KernelInfo& page_attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<PageAttention, attn::PagedReference<PageAttention>>();
  return kernel;
}

}  // namespace ejk
