// The host half of `cuda_reference`, forward and backward, for every softmax attention operation.
#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace attn {
namespace {

/// One block per item; a grid that cannot be that large goes around, and an empty one still looks for faults.
cuda::Dim3 grid(int64_t items) { return {.x = static_cast<unsigned>(std::clamp<int64_t>(items, 1, INT32_MAX))}; }
constexpr cuda::Dim3 kBlock = {.x = cuda::kAttentionThreads};

std::shared_ptr<const void> prepare(std::string_view file, std::string_view kernel, DType dtype,
                                    const DeviceProperties& device) {
  return cuda::load_program(
      {.file = file,
       .instance = fmt::format("ejk::cuda::{}<{}>", kernel, cuda::literal(static_cast<cuda::Number>(dtype))),
       .may_spill = true},
      device);
}

int64_t num_batches(const Problem& p) { return p.packed ? 1 : p.num_sequences; }
int64_t num_query_rows(const Problem& p) { return num_batches(p) * p.num_q_heads * p.q_rows; }

}  // namespace

std::shared_ptr<const void> prepare_cuda_reference(DType dtype, const DeviceProperties& device) {
  return prepare("ejkernel/ops/flash_attention/flash_attention_cuda_reference.cu", "attention_forward", dtype, device);
}

void run_cuda_reference(const Problem& p, const ForwardResults& to, const RunContext& context) {
  cuda::launch(context, grid(num_query_rows(p)), kBlock, cuda_problem(p, context.status), cuda_results(to));
}

std::shared_ptr<const void> prepare_backward_cuda_reference(DType dtype, const DeviceProperties& device) {
  return prepare("ejkernel/ops/flash_attention/flash_attention_backward_cuda_reference.cu", "attention_backward", dtype,
                 device);
}

size_t backward_cuda_reference_workspace(const Problem& p) {
  return static_cast<size_t>(num_query_rows(p)) * sizeof(cuda::AttentionRow);
}

void run_backward_cuda_reference(const Problem& p, const BackwardInputs& in, const FlashAttentionBackward::Outputs& to,
                                 const RunContext& context) {
  const cuda::AttentionProblem problem = cuda_problem(p, context.status);
  const cuda::AttentionGradients g = cuda_gradients(p, in, to, context.workspace.data());
  const auto launch = [&](cuda::AttentionStep step, int64_t items) {
    cuda::launch(context, grid(items), kBlock, problem, g, step);
  };
  launch(cuda::AttentionStep::rows, num_query_rows(p));
  if (to.key.present() || to.value.present())
    launch(cuda::AttentionStep::keys, num_batches(p) * p.num_kv_heads * p.k_rows);
  if (to.bias.present()) launch(cuda::AttentionStep::bias, to.bias.num_elements());
  if (to.softmax_aux.present()) launch(cuda::AttentionStep::sinks, to.softmax_aux.num_elements());
}

}  // namespace attn

namespace {

struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static std::shared_ptr<const void> prepare(const Call<FlashAttention>& call, const DeviceProperties& device) {
    return attn::prepare_cuda_reference(call.inputs.query.dtype, device);
  }
  static void run(const Call<FlashAttention>& call, const RunContext& context) {
    attn::run_cuda_reference(attn::make_problem(call.inputs, call.params),
                             {.out = call.outputs.out, .lse = call.outputs.lse}, context);
  }
};

struct BackwardCudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static size_t workspace_bytes(const Call<FlashAttentionBackward>& call, const NoConfig&, const DeviceProperties&) {
    return attn::backward_cuda_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static std::shared_ptr<const void> prepare(const Call<FlashAttentionBackward>& call, const DeviceProperties& device) {
    return attn::prepare_backward_cuda_reference(call.inputs.query.dtype, device);
  }
  static void run(const Call<FlashAttentionBackward>& call, const RunContext& context) {
    const auto& in = call.inputs;
    attn::run_backward_cuda_reference(attn::make_problem(in, call.params),
                                      {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse},
                                      call.outputs, context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<FlashAttention, CudaReference>();
  return kernel;
}

const KernelInfo& flash_attention_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, BackwardCudaReference>();
  return kernel;
}

}  // namespace ejk
