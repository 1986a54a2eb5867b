#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"

namespace ejk {

const KernelInfo& ragged_page_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<RaggedPageAttention, attn::PagedCudaReference<RaggedPageAttention>>();
  return kernel;
}

}  // namespace ejk
