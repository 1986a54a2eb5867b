// flash_attention's CPU kernels on this operation's problem.
#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_internal.h"

namespace ejk {
namespace {

/// What both directions have in common: everything but `run` and its workspace.
template <class Op, class ConfigOf>
struct SdpaCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = ConfigOf;

  static Support supports(const Call<Op>& call, const DeviceProperties&) {
    return attn::supports_cpu(attn::flash_inputs(call.inputs));
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return attn::runs_here(config); }
  static Config heuristic(const Call<Op>& call, const DeviceProperties& device) {
    return attn::cpu_heuristic<Config>(attn::make_problem(call.inputs, call.params), device);
  }
  static std::vector<Config> candidates(const Call<Op>& call, const DeviceProperties&) {
    return attn::cpu_candidates<Config>(attn::make_problem(call.inputs, call.params));
  }
  static Cost cost(const Call<Op>& call, const Config& config, const DeviceProperties&) {
    return attn::cpu_cost(attn::make_problem(call.inputs, call.params), config);
  }
};

struct Forward : SdpaCpu<ScaledDotProductAttention, attn::CpuConfig> {
  static size_t workspace_bytes(const Call<ScaledDotProductAttention>& call, const Config& config,
                                const DeviceProperties& device) {
    return attn::forward_cpu_workspace(attn::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call<ScaledDotProductAttention>& call, const Config& config, const RunContext& context) {
    attn::forward_cpu(attn::make_problem(call.inputs, call.params), call.outputs.out, call.outputs.lse, config,
                      context);
  }
};

struct Backward : SdpaCpu<ScaledDotProductAttentionBackward, attn::CpuBackwardConfig> {
  static size_t workspace_bytes(const Call<ScaledDotProductAttentionBackward>& call, const Config& config,
                                const DeviceProperties& device) {
    return attn::backward_cpu_workspace(attn::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call<ScaledDotProductAttentionBackward>& call, const Config& config,
                  const RunContext& context) {
    const auto& in = call.inputs;
    const auto& to = call.outputs;
    attn::backward_cpu(attn::make_problem(in, call.params),
                       {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse},
                       {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias}, config, context);
  }
};

}  // namespace

const KernelInfo& scaled_dot_product_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<ScaledDotProductAttention, Forward>();
  return kernel;
}

const KernelInfo& scaled_dot_product_attention_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<ScaledDotProductAttentionBackward, Backward>();
  return kernel;
}

}  // namespace ejk
