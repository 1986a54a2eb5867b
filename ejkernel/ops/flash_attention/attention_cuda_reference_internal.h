// The `cuda_reference` kernels of every softmax attention operation: attention_formula.cuh on a resolved problem. The
// operations differ only in how their fields become a Problem and in which results they want.
#pragma once

#include <memory>

#include "ejkernel/ops/flash_attention/attention_cuda_problem.cuh"
#include "ejkernel/ops/flash_attention/attention_reference_internal.h"

namespace ejk::attn {

/// The kernel's first three axes, each by its axis of t; -1 where t has none.
cuda::TensorRef tensor_ref(const Tensor& t, int first, int second, int third);

// What the kernels are handed.
cuda::AttentionProblem cuda_problem(const Problem& p, uint32_t* status);
cuda::AttentionResults cuda_results(const ForwardResults& to);
cuda::AttentionGradients cuda_gradients(const Problem& p, const BackwardInputs& in,
                                        const FlashAttentionBackward::Outputs& to, std::byte* workspace);

std::shared_ptr<const void> prepare_cuda_reference(DType dtype, const DeviceProperties& device);
void run_cuda_reference(const Problem& p, const ForwardResults& to, const RunContext& context);

size_t backward_cuda_reference_workspace(const Problem& p);
std::shared_ptr<const void> prepare_backward_cuda_reference(DType dtype, const DeviceProperties& device);
void run_backward_cuda_reference(const Problem& p, const BackwardInputs& in, const FlashAttentionBackward::Outputs& to,
                                 const RunContext& context);

}  // namespace ejk::attn
