// The gradient of softmax attention in double: a block per row of a gradient, so nothing is added atomically. See
// attention_formula.cuh.
#include "ejkernel/ops/flash_attention/attention_formula.cuh"

namespace ejk::cuda {

/// One launch per step; the rows' comes first.
template <Number kNumber>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward(const __grid_constant__ AttentionProblem p, const __grid_constant__ AttentionGradients g,
                       const AttentionStep step) {
  __shared__ AttentionShared<kAttentionThreads> shared;
  const AttentionFormula<kNumber, ThreadBlock, kAttentionThreads> formula(p, {}, shared);
  if (step == AttentionStep::rows && blockIdx.x == 0) formula.raise_faults();
  formula.backward(g, step, blockIdx.x, gridDim.x);
}

}  // namespace ejk::cuda
