#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"

namespace ejk {

const KernelInfo& page_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<PageAttention, attn::PagedCudaReference<PageAttention>>();
  return kernel;
}

}  // namespace ejk
