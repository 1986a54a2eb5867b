// The `cuda_reference` kernels of the operations over a cache: flash_attention's formula on keys in pages, and the
// writing of new ones.
#pragma once

#include <memory>
#include <string_view>

#include "ejkernel/ops/page_attention/paged_cuda_problem.cuh"
#include "ejkernel/ops/page_attention/paged_problem_internal.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk::attn {

// What the kernels are handed.
cuda::PagedAttentionProblem cuda_paged_problem(const Problem& p, uint32_t* status);
cuda::PageAppendProblem cuda_append_problem(const Append& append, uint32_t* status);

std::shared_ptr<const cuda::Program> prepare_paged_cuda_reference(DType query, const DeviceProperties& device);
void run_paged_cuda_reference(const cuda::Program& program, const PagedCall& call, const RunContext& context);

std::shared_ptr<const cuda::Program> prepare_append_cuda_reference(const DeviceProperties& device);
void run_append_cuda_reference(const cuda::Program& program, const Append& append, const RunContext& context);

template <class Op>
struct PagedCudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static std::shared_ptr<const void> prepare(const Call<Op>& call, const DeviceProperties& device) {
    return prepare_paged_cuda_reference(paged_call(call).problem.query.dtype, device);
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    run_paged_cuda_reference(*static_cast<const cuda::Program*>(context.code), paged_call(call), context);
  }
};

}  // namespace ejk::attn
