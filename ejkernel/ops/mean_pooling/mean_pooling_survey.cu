// The first launch of mean_pooling's kernels, where sequences are packed or rows masked. See mean_pooling_survey.cuh.
#include "ejkernel/ops/mean_pooling/mean_pooling_survey.cuh"

namespace ejk::cuda {

__global__ void __launch_bounds__(kPoolingSurveyThreads, 1)
    mean_pooling_survey(const __grid_constant__ PoolingProblem p) {
  __shared__ int64 memory[kPoolingSurveyThreads];
  survey(p, blockIdx.x, ThreadBlock(), memory);
}

}  // namespace ejk::cuda
