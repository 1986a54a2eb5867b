// recurrent_attention's kernels on this operation's call. The heads' decays lie before their own workspace; on a GPU a
// launch of one block stores them there.
#include <memory>

#include "ejkernel/ops/lightning_attention/lightning_attention_internal.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_shared_internal.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace {

namespace whole = recurrent_attention_kernels;

/// What a kernel on a GPU launches.
struct Code {
  std::shared_ptr<const cuda::Program> decays;
  std::shared_ptr<const void> recurrence;
};

template <class Op, const KernelInfo& (*kKernel)()>
std::shared_ptr<const void> prepare(const CallView& view, const ConfigBlock& config, const DeviceProperties& device) {
  return std::make_shared<const Code>(
      Code{.decays = cuda::load_program({.file = "ejkernel/ops/lightning_attention/lightning_attention_decays.cu",
                                         .instance = "ejk::cuda::lightning_attention_decays"},
                                        device),
           .recurrence = kKernel().prepare(recurrence::recurrent<Op>(view).view(), config, device)});
}

template <class Op, const KernelInfo& (*kKernel)()>
void run(const CallView& view, const ConfigBlock& config, const RunContext& context) {
  const Call<Op> call = typed<Op>(view);
  const auto recurrent = recurrent_call(call, context.workspace.data());
  const cuda::LightningDecays decays = recurrence::lightning_decays(recurrent.inputs.g_gamma, call.params);
  RunContext rest = context;
  rest.workspace = context.workspace.subspan(recurrence::decays_bytes(call.inputs.query));
  if (const auto* code = static_cast<const Code*>(context.code); code != nullptr) {
    cuda::launch(*code->decays, context, {}, {.x = cuda::kLightningDecaysThreads}, 0, decays);
    rest.code = code->recurrence.get();
  } else {
    store_decays(decays, 0, 1);
  }
  kKernel().run(recurrence::Erased(recurrent).view(), config, rest);
}

template <class Op, const KernelInfo& (*kKernel)()>
KernelInfo lightning_kernel() {
  KernelInfo info = recurrence::shared_kernel<Op, kKernel>();
  info.workspace_bytes = [](const CallView& view, const ConfigBlock& config, const DeviceProperties& device) {
    return recurrence::decays_bytes(typed<Op>(view).inputs.query) +
           kKernel().workspace_bytes(recurrence::recurrent<Op>(view).view(), config, device);
  };
  if (info.prepare != nullptr) info.prepare = prepare<Op, kKernel>;
  info.run = run<Op, kKernel>;
  return info;
}

}  // namespace

const KernelInfo& lightning_attention_kernels::cpu() {
  static const KernelInfo kernel = lightning_kernel<LightningAttention, whole::cpu>();
  return kernel;
}

const KernelInfo& lightning_attention_kernels::reference() {
  static const KernelInfo kernel = lightning_kernel<LightningAttention, whole::reference>();
  return kernel;
}

const KernelInfo& lightning_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = lightning_kernel<LightningAttention, whole::cuda_reference>();
  return kernel;
}

const KernelInfo& lightning_attention_kernels::backward_cpu() {
  static const KernelInfo kernel = lightning_kernel<LightningAttentionBackward, whole::backward_cpu>();
  return kernel;
}

const KernelInfo& lightning_attention_kernels::backward_reference() {
  static const KernelInfo kernel = lightning_kernel<LightningAttentionBackward, whole::backward_reference>();
  return kernel;
}

const KernelInfo& lightning_attention_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = lightning_kernel<LightningAttentionBackward, whole::backward_cuda_reference>();
  return kernel;
}

}  // namespace ejk
