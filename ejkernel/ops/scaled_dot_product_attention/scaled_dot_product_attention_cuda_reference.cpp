// flash_attention's `cuda_reference` on this operation's problem.
#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_internal.h"

namespace ejk {
namespace {

struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static std::shared_ptr<const void> prepare(const Call<ScaledDotProductAttention>& call,
                                             const DeviceProperties& device) {
    return attn::prepare_cuda_reference(call.inputs.query.dtype, device);
  }
  static void run(const Call<ScaledDotProductAttention>& call, const RunContext& context) {
    attn::run_cuda_reference(attn::make_problem(call.inputs, call.params),
                             {.out = call.outputs.out, .lse = call.outputs.lse}, context);
  }
};

struct BackwardCudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static size_t workspace_bytes(const Call<ScaledDotProductAttentionBackward>& call, const NoConfig&,
                                const DeviceProperties&) {
    return attn::backward_cuda_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static std::shared_ptr<const void> prepare(const Call<ScaledDotProductAttentionBackward>& call,
                                             const DeviceProperties& device) {
    return attn::prepare_backward_cuda_reference(call.inputs.query.dtype, device);
  }
  static void run(const Call<ScaledDotProductAttentionBackward>& call, const RunContext& context) {
    const auto& in = call.inputs;
    const auto& to = call.outputs;
    attn::run_backward_cuda_reference(attn::make_problem(in, call.params),
                                      {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse},
                                      {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias}, context);
  }
};

}  // namespace

const KernelInfo& scaled_dot_product_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<ScaledDotProductAttention, CudaReference>();
  return kernel;
}

const KernelInfo& scaled_dot_product_attention_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<ScaledDotProductAttentionBackward, BackwardCudaReference>();
  return kernel;
}

}  // namespace ejk
