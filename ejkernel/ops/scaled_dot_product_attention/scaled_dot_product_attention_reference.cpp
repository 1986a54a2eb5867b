// flash_attention's reference on this operation's problem.
#include "ejkernel/ops/flash_attention/attention_reference_internal.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_internal.h"

namespace ejk {
namespace {

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<ScaledDotProductAttention>& call, const NoConfig&, const DeviceProperties&) {
    return attn::reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<ScaledDotProductAttention>& call, const RunContext& context) {
    attn::run_reference(attn::make_problem(call.inputs, call.params),
                        {.out = call.outputs.out, .lse = call.outputs.lse}, context);
  }
};

struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<ScaledDotProductAttentionBackward>& call, const NoConfig&,
                                const DeviceProperties&) {
    return attn::backward_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<ScaledDotProductAttentionBackward>& call, const RunContext& context) {
    const auto& in = call.inputs;
    const auto& to = call.outputs;
    attn::run_backward_reference(attn::make_problem(in, call.params),
                                 {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse},
                                 {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias}, context);
  }
};

}  // namespace

const KernelInfo& scaled_dot_product_attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<ScaledDotProductAttention, Reference>();
  return kernel;
}

const KernelInfo& scaled_dot_product_attention_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<ScaledDotProductAttentionBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
