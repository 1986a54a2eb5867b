// flash_attention's reference with the weights among its results and their cotangents among its inputs.
#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/attention/attention_internal.h"
#include "ejkernel/ops/flash_attention/attention_reference_internal.h"

namespace ejk {
namespace {

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<Attention>& call, const NoConfig&, const DeviceProperties&) {
    return attn::reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<Attention>& call, const RunContext& context) {
    attn::run_reference(attn::make_problem(call.inputs, call.params),
                        {.out = call.outputs.out, .weights = call.outputs.weights}, context);
  }
};

struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<AttentionBackward>& call, const NoConfig&, const DeviceProperties&) {
    return attn::backward_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<AttentionBackward>& call, const RunContext& context) {
    const auto& to = call.outputs;
    attn::run_backward_reference(
        attn::make_problem(call.inputs, call.params), {.d_out = call.inputs.d_out, .d_weights = call.inputs.d_weights},
        {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias, .softmax_aux = to.softmax_aux}, context);
  }
};

}  // namespace

const KernelInfo& attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<Attention, Reference>();
  return kernel;
}

const KernelInfo& attention_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<AttentionBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
