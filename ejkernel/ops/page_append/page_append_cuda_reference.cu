// A block per row of new keys and values. See page_append_formula.cuh.
#include "ejkernel/ops/page_append/page_append_formula.cuh"

namespace ejk::cuda {

__global__ void __launch_bounds__(kAttentionThreads) page_append(const __grid_constant__ PageAppendProblem p) {
  __shared__ int64 shared[kAttentionThreads];
  const PageAppendFormula<ThreadBlock, kAttentionThreads> formula(p, {}, shared);
  if (blockIdx.x == 0) formula.raise_faults();
  formula.write(blockIdx.x, gridDim.x);
}

}  // namespace ejk::cuda
