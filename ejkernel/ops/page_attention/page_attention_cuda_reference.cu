// Softmax attention over pages, in double: a block per query row and head. See attention_formula.cuh.
#include "ejkernel/ops/page_attention/page_attention_formula.cuh"

namespace ejk::cuda {

template <Number kNumber>
__global__ void __launch_bounds__(kAttentionThreads)
    paged_attention_forward(const __grid_constant__ PagedAttentionProblem p,
                            const __grid_constant__ AttentionResults to) {
  __shared__ PagedAttentionShared<kAttentionThreads> shared;
  const PagedAttentionFormula<kNumber, ThreadBlock, kAttentionThreads> formula(p, {}, shared);
  if (blockIdx.x == 0) formula.raise_faults();
  formula.forward(to, blockIdx.x, gridDim.x);
}

}  // namespace ejk::cuda
