#include "ejkernel/ops/page_attention/paged_reference_internal.h"

namespace ejk {

const KernelInfo& ragged_page_attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttention, attn::PagedReference<RaggedPageAttention>>();
  return kernel;
}

}  // namespace ejk
