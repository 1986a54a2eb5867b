// Softmax attention in double: a block per query row and head. See attention_formula.cuh.
#include "ejkernel/ops/flash_attention/attention_formula.cuh"

namespace ejk::cuda {

template <Number kNumber>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_forward(const __grid_constant__ AttentionProblem p, const __grid_constant__ AttentionResults to) {
  __shared__ AttentionShared<kAttentionThreads> shared;
  const AttentionFormula<kNumber, ThreadBlock, kAttentionThreads> formula(p, {}, shared);
  if (blockIdx.x == 0) formula.raise_faults();
  formula.forward(to, blockIdx.x, gridDim.x);
}

}  // namespace ejk::cuda
