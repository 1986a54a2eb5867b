// rnns::Problem for device code.
#pragma once

#include "ejkernel/ops/rnn/rnn_cuda_problem.cuh"
#include "ejkernel/ops/rnn/rnn_internal.h"

namespace ejk::rnns {

/// Bytes of the workspace that the problem's numbers in double take.
size_t cuda_workspace(const Call<Rnn>& call);
size_t cuda_workspace(const Call<RnnBackward>& call);
/// The call as device code gets it, its numbers in the workspace.
cuda::RnnProblem cuda_problem(const Call<Rnn>& call, std::byte* workspace, uint32_t* status);
cuda::RnnProblem cuda_problem(const Call<RnnBackward>& call, std::byte* workspace, uint32_t* status);

}  // namespace ejk::rnns
