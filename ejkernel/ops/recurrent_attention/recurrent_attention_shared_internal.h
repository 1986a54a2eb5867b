// Kernels of recurrent_attention for the operations that are it with some of its gates. Such an operation says what its
// call is in recurrent_attention's words, `recurrent_call(call)` beside its declaration, and gets its kernels from
// here.
#pragma once

#include <array>

#include "ejkernel/core/operation.h"

namespace ejk::recurrence {

/// A call with its types erased, for as long as this lives.
template <class Op>
class Erased {
 public:
  explicit Erased(const Call<Op>& call)
      : inputs_(to_array(call.inputs)), params_(ParamsBlock::of(call.params)), outputs_(to_array(call.outputs)) {}
  CallView view() const { return {inputs_, &params_, outputs_}; }

 private:
  std::array<Tensor, kNumTensors<typename Op::Inputs>> inputs_;
  ParamsBlock params_;
  std::array<Tensor, kNumTensors<typename Op::Outputs>> outputs_;
};

/// A call of Op in recurrent_attention's words.
template <class Op>
auto recurrent(const CallView& view) {
  return Erased(recurrent_call(typed<Op>(view)));
}

/// A kernel of recurrent_attention, or of its gradient, as one of Op's: the same name, configs and sources.
template <class Op, const KernelInfo& (*kKernel)()>
KernelInfo shared_kernel() {
  KernelInfo info = kKernel();
  info.supports = [](const CallView& view, const DeviceProperties& device) {
    return kKernel().supports(recurrent<Op>(view).view(), device);
  };
  info.heuristic = [](const CallView& view, const DeviceProperties& device) {
    return kKernel().heuristic(recurrent<Op>(view).view(), device);
  };
  info.candidates = [](const CallView& view, const DeviceProperties& device) {
    return kKernel().candidates(recurrent<Op>(view).view(), device);
  };
  if (info.cost != nullptr)
    info.cost = [](const CallView& view, const ConfigBlock& config, const DeviceProperties& device) {
      return kKernel().cost(recurrent<Op>(view).view(), config, device);
    };
  info.workspace_bytes = [](const CallView& view, const ConfigBlock& config, const DeviceProperties& device) {
    return kKernel().workspace_bytes(recurrent<Op>(view).view(), config, device);
  };
  if (info.prepare != nullptr)
    info.prepare = [](const CallView& view, const ConfigBlock& config, const DeviceProperties& device) {
      return kKernel().prepare(recurrent<Op>(view).view(), config, device);
    };
  info.run = [](const CallView& view, const ConfigBlock& config, const RunContext& context) {
    kKernel().run(recurrent<Op>(view).view(), config, context);
  };
  return info;
}

}  // namespace ejk::recurrence
