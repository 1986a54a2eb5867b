// recurrent_attention's kernels on this operation's call.
#include "ejkernel/ops/gla_attention/gla_attention_internal.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_shared_internal.h"

namespace ejk {

namespace whole = recurrent_attention_kernels;

const KernelInfo& gla_attention_kernels::cpu() {
  static const KernelInfo kernel = recurrence::shared_kernel<GlaAttention, whole::cpu>();
  return kernel;
}

const KernelInfo& gla_attention_kernels::reference() {
  static const KernelInfo kernel = recurrence::shared_kernel<GlaAttention, whole::reference>();
  return kernel;
}

const KernelInfo& gla_attention_kernels::cuda_reference() {
  static const KernelInfo kernel = recurrence::shared_kernel<GlaAttention, whole::cuda_reference>();
  return kernel;
}

const KernelInfo& gla_attention_kernels::backward_cpu() {
  static const KernelInfo kernel = recurrence::shared_kernel<GlaAttentionBackward, whole::backward_cpu>();
  return kernel;
}

const KernelInfo& gla_attention_kernels::backward_reference() {
  static const KernelInfo kernel = recurrence::shared_kernel<GlaAttentionBackward, whole::backward_reference>();
  return kernel;
}

const KernelInfo& gla_attention_kernels::backward_cuda_reference() {
  static const KernelInfo kernel = recurrence::shared_kernel<GlaAttentionBackward, whole::backward_cuda_reference>();
  return kernel;
}

}  // namespace ejk
