// mean_pooling and its gradient in double. See mean_pooling_formula.cuh.
#include "ejkernel/ops/mean_pooling/mean_pooling_formula.cuh"

namespace ejk::cuda {

__global__ void __launch_bounds__(kPoolingReferenceThreads)
    mean_pooling_reference(const __grid_constant__ PoolingProblem p) {
  pool_rows(p, blockIdx.x, gridDim.x, ThreadBlock());
}

__global__ void __launch_bounds__(kPoolingReferenceThreads)
    mean_pooling_backward_reference(const __grid_constant__ PoolingProblem p) {
  spread_means(p, blockIdx.x, gridDim.x, ThreadBlock());
}

}  // namespace ejk::cuda
