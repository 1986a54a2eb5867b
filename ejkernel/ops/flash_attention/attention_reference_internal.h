// The reference kernels of every softmax attention operation: the formula in double on a resolved problem. The
// operations differ only in how their fields become a Problem and in which results they want.
#pragma once

#include "ejkernel/ops/flash_attention/attention_problem.h"

namespace ejk::attn {

/// Where the forward's results go; absent ones are not wanted.
struct ForwardResults {
  Tensor out = {}, lse = {};
  Tensor weights = {};  ///< [batch, num_q_heads, q_len, kv_len]: what multiplies the values
};

size_t reference_workspace(const Problem& p);
void run_reference(const Problem& p, const ForwardResults& to, const RunContext& context);

/// What the backward reads besides the problem. Without `lse`, it and `out` are computed anew. Absent cotangents are
/// zero.
struct BackwardInputs {
  Tensor out = {}, lse = {}, d_out = {}, d_lse = {};
  Tensor d_weights = {};  ///< cotangent of `ForwardResults::weights`
};

size_t backward_reference_workspace(const Problem& p);
void run_backward_reference(const Problem& p, const BackwardInputs& in, const FlashAttentionBackward::Outputs& to,
                            const RunContext& context);

}  // namespace ejk::attn
