// gmm::Product for device code.
#pragma once

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cuda_problem.cuh"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_internal.h"

namespace ejk::gmm {

/// Bytes that the groups' offsets take, a multiple of 64.
size_t offset_bytes(const Product& p);
/// The product as device code gets it, with room for the offsets at the workspace's begin.
cuda::MatmulProblem cuda_problem(const Product& p, std::byte* workspace, uint32_t* status);

}  // namespace ejk::gmm
