// Products of groups of matrices in double. See grouped_matmul_formula.cuh.
#include "ejkernel/ops/grouped_matmul/grouped_matmul_formula.cuh"

namespace ejk::cuda {

__global__ void __launch_bounds__(kMatmulSurveyThreads, 1)
    grouped_matmul_survey(const __grid_constant__ MatmulProblem p) {
  __shared__ int64 memory[kMatmulSurveyThreads];
  find_groups(p, ThreadBlock(), memory);
}

__global__ void __launch_bounds__(kMatmulReferenceThreads)
    grouped_matmul_reference(const __grid_constant__ MatmulProblem p) {
  const int64 threads = kMatmulReferenceThreads;
  multiply(p, blockIdx.x * threads + threadIdx.x, gridDim.x * threads);
}

}  // namespace ejk::cuda
