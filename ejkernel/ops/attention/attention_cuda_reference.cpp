// flash_attention's `cuda_reference` with the weights among its results and their cotangents among its inputs.
#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/attention/attention_internal.h"
#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"

namespace ejk {
namespace {

struct CudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static std::shared_ptr<const void> prepare(const Call<Attention>& call, const DeviceProperties& device) {
    return attn::prepare_cuda_reference(call.inputs.query.dtype, device);
  }
  static void run(const Call<Attention>& call, const RunContext& context) {
    attn::run_cuda_reference(attn::make_problem(call.inputs, call.params),
                             {.out = call.outputs.out, .weights = call.outputs.weights}, context);
  }
};

struct BackwardCudaReference {
  static constexpr std::string_view kName = "cuda_reference";
  static constexpr Platform kPlatform = Platform::cuda;

  static size_t workspace_bytes(const Call<AttentionBackward>& call, const NoConfig&, const DeviceProperties&) {
    return attn::backward_cuda_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static std::shared_ptr<const void> prepare(const Call<AttentionBackward>& call, const DeviceProperties& device) {
    return attn::prepare_backward_cuda_reference(call.inputs.query.dtype, device);
  }
  static void run(const Call<AttentionBackward>& call, const RunContext& context) {
    const auto& to = call.outputs;
    attn::run_backward_cuda_reference(
        attn::make_problem(call.inputs, call.params), {.d_out = call.inputs.d_out, .d_weights = call.inputs.d_weights},
        {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias, .softmax_aux = to.softmax_aux}, context);
  }
};

}  // namespace

const KernelInfo& attention_kernels::cuda_reference() {
  static const KernelInfo kernel = make_kernel<Attention, CudaReference>();
  return kernel;
}

const KernelInfo& attention_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = make_kernel<AttentionBackward, BackwardCudaReference>();
  return kernel;
}

}  // namespace ejk
