#include "ejkernel/ops/page_attention/paged_reference_internal.h"

namespace ejk {

const KernelInfo& ragged_decode_attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<RaggedDecodeAttention, attn::PagedReference<RaggedDecodeAttention>>();
  return kernel;
}

}  // namespace ejk
