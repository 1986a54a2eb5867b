#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"

namespace ejk {

const KernelInfo& ragged_decode_attention_kernels::cuda_reference() {
  static const KernelInfo kernel =
      make_kernel<RaggedDecodeAttention, attn::PagedCudaReference<RaggedDecodeAttention>>();
  return kernel;
}

}  // namespace ejk
