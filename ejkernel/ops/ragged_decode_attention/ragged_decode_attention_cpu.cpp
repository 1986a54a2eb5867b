#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

namespace ejk {

const KernelInfo& ragged_decode_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<RaggedDecodeAttention, attn::PagedCpu<RaggedDecodeAttention>>();
  return kernel;
}

}  // namespace ejk
