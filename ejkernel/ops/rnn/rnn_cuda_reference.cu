// rnn and its gradient in double. See rnn_formula.cuh.
#include "ejkernel/ops/rnn/rnn_formula.cuh"

namespace ejk::cuda {

__global__ void __launch_bounds__(kRnnThreads) rnn_reference(const __grid_constant__ RnnProblem p) {
  run_rnn(p, false, blockIdx.x, gridDim.x, ThreadBlock());
}

__global__ void __launch_bounds__(kRnnThreads) rnn_backward_reference(const __grid_constant__ RnnProblem p) {
  run_rnn(p, true, blockIdx.x, gridDim.x, ThreadBlock());
}

__global__ void __launch_bounds__(kRnnThreads) rnn_weights_reference(const __grid_constant__ RnnProblem p) {
  const int64 threads = kRnnThreads;
  sum_rnn_weights(p, blockIdx.x * threads + threadIdx.x, gridDim.x * threads);
}

}  // namespace ejk::cuda
