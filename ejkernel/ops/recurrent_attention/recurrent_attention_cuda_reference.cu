// recurrent_attention and its gradient in double. See recurrent_attention_formula.cuh.
#include "ejkernel/ops/recurrent_attention/recurrent_attention_formula.cuh"

namespace ejk::cuda {

EJK_DEVICE int64 first_item() { return int64{blockIdx.x} * blockDim.x + threadIdx.x; }
EJK_DEVICE int64 item_stride() { return int64{gridDim.x} * blockDim.x; }

// Templates, so that a compilation is of the one that is named.

template <bool kBackward>
__global__ void __launch_bounds__(kRecurrenceThreads)
    recurrent_attention_clear(const __grid_constant__ RecurrenceProblem p) {
  clear_rows(p, kBackward, first_item(), item_stride());
}

template <bool kBackward>
__global__ void __launch_bounds__(kRecurrenceThreads)
    recurrent_attention_reference(const __grid_constant__ RecurrenceProblem p) {
  if constexpr (kBackward) {
    __shared__ double sums[kRecurrenceThreads];
    RecurrenceBackward<ThreadBlock> backward(p, blockIdx.x, ThreadBlock(), sums);
    for (int64 n = blockIdx.x; n < p.num_sequences * p.num_kv_heads; n += gridDim.x) backward.run(n);
  } else {
    recur(p, first_item(), item_stride());
  }
}

__global__ void __launch_bounds__(kRecurrenceThreads)
    recurrent_attention_sum_g_gamma(const __grid_constant__ RecurrenceProblem p) {
  sum_g_gamma(p, first_item(), item_stride());
}

}  // namespace ejk::cuda
