// What the host halves of mean_pooling's CUDA kernels share.
#pragma once

#include <memory>

#include "ejkernel/ops/mean_pooling/mean_pooling_cuda_problem.cuh"
#include "ejkernel/ops/mean_pooling/mean_pooling_internal.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk::pooling {

/// What a call is for its kernels: `x` and `out` are the tensors, or their gradient and cotangent.
struct CudaCall {
  Problem p;  ///< with heads merged where that is possible
  Tensor x, out, chunk_offsets;
  bool backward = false;
};
CudaCall cuda_call(const Call<MeanPooling>& call);
CudaCall cuda_call(const Call<MeanPoolingBackward>& call);

/// Bytes of the workspace that the survey fills, a multiple of 64.
size_t survey_bytes(const CudaCall& call);
/// The call as device code gets it, with the survey's results at the workspace's begin.
cuda::PoolingProblem cuda_problem(const CudaCall& call, std::byte* workspace, uint32_t* status);

/// The survey's program; null where no call of this form needs it.
std::shared_ptr<const cuda::Program> prepare_survey(const CudaCall& call, const DeviceProperties& device);
/// Launches it if this call needs it.
void run_survey(const std::shared_ptr<const cuda::Program>& program, const CudaCall& call,
                const cuda::PoolingProblem& problem, const RunContext& context);

}  // namespace ejk::pooling
