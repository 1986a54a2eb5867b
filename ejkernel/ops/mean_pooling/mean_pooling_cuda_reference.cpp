// The host half of `cuda_reference`: mean_pooling and its gradient in double, for every dtype and any strides.
#include <algorithm>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_cuda_internal.h"

namespace ejk {
namespace {

using pooling::CudaCall;

struct Programs {
  std::shared_ptr<const cuda::Program> survey, main;
};

/// Forward and backward differ in the kernel's name and in whose rows a block takes.
template <class Op>
struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;
  static constexpr bool kBackward = std::is_same_v<Op, MeanPoolingBackward>;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return pooling::survey_bytes(pooling::cuda_call(call));
  }

  static std::shared_ptr<const void> prepare(const Call<Op>& call, const DeviceProperties& device) {
    const char* instance =
        kBackward ? "ejk::cuda::mean_pooling_backward_reference" : "ejk::cuda::mean_pooling_reference";
    return std::make_shared<const Programs>(
        Programs{pooling::prepare_survey(pooling::cuda_call(call), device),
                 cuda::load_program({.file = "ejkernel/ops/mean_pooling/mean_pooling_cuda_reference.cu",
                                     .instance = instance,
                                     .may_spill = true},
                                    device)});
  }

  static void run(const Call<Op>& call, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    const CudaCall c = pooling::cuda_call(call);
    const cuda::PoolingProblem problem = pooling::cuda_problem(c, context.workspace.data(), context.status);
    pooling::run_survey(programs.survey, c, problem, context);
    if (!(kBackward ? c.x : c.out).present()) return;
    const int64_t rows = c.p.num_batches * (kBackward ? c.p.num_tokens : c.p.num_means) * c.p.num_heads;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, INT32_MAX));
    cuda::launch(*programs.main, context, {.x = blocks}, {.x = cuda::kPoolingReferenceThreads}, 0, problem);
  }
};

}  // namespace

const KernelInfo& mean_pooling_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<MeanPooling, CudaReference<MeanPooling>>();
  return kernel;
}

const KernelInfo& mean_pooling_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<MeanPoolingBackward, CudaReference<MeanPoolingBackward>>();
  return kernel;
}

}  // namespace ejk
