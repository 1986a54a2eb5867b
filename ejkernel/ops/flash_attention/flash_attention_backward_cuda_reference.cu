// The gradient of softmax attention in double: a block per row of each gradient, so nothing is added atomically. The
// rows of query come first: they find what the others need to know. See attention_formula.cuh.
#include "ejkernel/ops/flash_attention/attention_formula.cuh"

namespace ejk::cuda {

enum class AttentionStep : int { rows, keys, bias, sinks };

template <Number kNumber, AttentionStep kStep>
__global__ void __launch_bounds__(kAttentionThreads)
    attention_backward(const __grid_constant__ AttentionProblem p, const __grid_constant__ AttentionGradients g) {
  __shared__ AttentionShared<kAttentionThreads> shared;
  const AttentionFormula<kNumber, ThreadBlock, kAttentionThreads> formula(p, {}, shared);
  const int64 first = blockIdx.x, step = gridDim.x;
  if constexpr (kStep == AttentionStep::rows) {
    if (first == 0) formula.raise_faults();
    formula.backward_rows(g, first, step);
  }
  if constexpr (kStep == AttentionStep::keys) formula.backward_keys(g, first, step);
  if constexpr (kStep == AttentionStep::bias) formula.backward_bias(g, first, step);
  if constexpr (kStep == AttentionStep::sinks) formula.backward_sinks(g, first, step);
}

}  // namespace ejk::cuda
