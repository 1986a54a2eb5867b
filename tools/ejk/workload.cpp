#include "tools/ejk/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/device_timer.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/synthetic.h"

namespace ejk::tool {
namespace {

const Operation& declaration_of(const ToolCall& call) {
  return *KernelRegistry::instance().find(call.operation)->declaration;
}

/// A copy of a tensor, kept alive by `owners`.
Tensor duplicate(const Tensor& t, Device device, std::vector<std::shared_ptr<const void>>& owners) {
  Copy copy = copy_to(device, t);
  owners.push_back(std::make_shared<Array>(std::move(copy.memory)));
  return copy.tensor;
}

/// Outputs of a call in host memory, computed on a device.
std::vector<Array> execute_on(Device device, const ToolCall& call) {
  std::vector<std::shared_ptr<const void>> owners;
  std::vector<Tensor> inputs;
  for (const Tensor& input : call.inputs) inputs.push_back(duplicate(input, device, owners));
  std::vector<Array> outputs = execute(call.operation, inputs, call.params);
  for (Array& output : outputs)
    if (output.present()) output = to_host(output);
  return outputs;
}

}  // namespace

std::vector<Tensor> on_device(std::vector<Tensor> specs, Device device) {
  for (Tensor& spec : specs) spec.device = device;
  return specs;
}

void fill_inputs(ToolCall& call, uint64_t seed) {
  auto made =
      std::make_shared<SyntheticInputs>(make_synthetic_inputs(declaration_of(call), call.inputs, call.params, seed));
  call.inputs = made->tensors;
  call.owners.push_back(std::move(made));
}

ToolCall make_call_with_data(const CallFlags& flags) {
  if (!flags.case_name.empty() && !flags.backward && flags.seed != 0)
    throw_invalid("ejk", "--seed", "be left out beside --case, whose data are its own", std::to_string(flags.seed),
                  "leave one of them out");
  ToolCall call = make_call(flags);
  if (flags.case_name.empty()) fill_inputs(call, flags.seed);
  if (!flags.backward) return call;
  const auto outputs = std::make_shared<std::vector<Array>>(flags.device.kind == DeviceKind::cpu
                                                                ? execute(call.operation, call.inputs, call.params)
                                                                : execute_on(flags.device, call));
  Array cotangent(outputs->front().dtype(), outputs->front().shape());
  fill_normal(cotangent, flags.seed + 1);
  ToolCall gradient = gradient_of(call, std::vector<Tensor>(outputs->begin(), outputs->end()), cotangent);
  gradient.owners.insert(gradient.owners.end(), call.owners.begin(), call.owners.end());
  gradient.owners.push_back(outputs);
  gradient.owners.push_back(std::make_shared<Array>(cotangent));
  return gradient;
}

Workload::Workload(const ToolCall& call, const CallFlags& flags, double cold_bytes)
    : plan_(Plan::make(call.operation, on_device(call.inputs, flags.device), call.params, plan_options(flags))) {
  constexpr double kMostCopies = 32, kMostBytes = 4e9;
  double set_bytes = bytes_of(call.inputs);
  for (const OutputSpec& spec : plan_.outputs())
    if (spec.present && spec.aliased_input < 0) set_bytes += static_cast<double>(num_bytes(spec.dtype, spec.shape));
  // A call may touch a small part of what it is given, as of a cache of many pages.
  const double touched = std::min(set_bytes, plan_.work().bytes);
  const double wanted = std::ceil(cold_bytes / std::max(touched, 1.0));
  const double most = std::clamp(kMostBytes / std::max(set_bytes, 1.0), 1.0, kMostCopies);
  const auto count = static_cast<size_t>(std::clamp(wanted, 1.0, most));
  for (size_t n = 0; n < count; ++n) {
    Copy copy;
    copy.inputs = call.inputs;
    copy.owners = call.owners;
    if (n > 0 || flags.device.kind != DeviceKind::cpu)
      for (Tensor& input : copy.inputs) input = duplicate(input, flags.device, copy.owners);
    copy.owned_outputs = plan_.allocate_outputs();
    view_aliased(plan_.outputs(), copy.inputs, copy.owned_outputs);
    copy.outputs.assign(copy.owned_outputs.begin(), copy.owned_outputs.end());
    copies_.push_back(std::move(copy));
  }
  if (plan_.workspace_bytes() > 0)
    workspace_ = Array(DType::u8, {static_cast<int64_t>(plan_.workspace_bytes())}, flags.device);
  // What was uploaded and allocated in the order of the default stream is there for every other one.
  if (flags.device.kind != DeviceKind::cpu) synchronize(flags.device);
}

void Workload::run(int64_t i, void* stream) const {
  const Copy& copy = copies_[static_cast<size_t>(i) % copies_.size()];
  plan_.run(copy.inputs, copy.outputs,
            {.stream = stream, .workspace = {workspace_.as<std::byte>(), plan_.workspace_bytes()}});
}

double cold_bytes(Device device) {
  return 2 * static_cast<double>(std::max<int64_t>(device_properties(device).cache_bytes, 1 << 20));
}

TimedWorkload::TimedWorkload(std::span<const CallFlags> calls, bool warm, double sample_seconds) {
  const Device device = calls.front().device;
  const bool own = sample_seconds == 0, on_host = device.kind == DeviceKind::cpu;
  for (const CallFlags& call : calls)
    workloads_.emplace_back(make_call_with_data(call), call, warm || !on_host ? 0 : cold_bytes({}));
  const auto run = [this](int64_t i, void* stream) {
    for (const Workload& workload : workloads_) workload.run(i, stream);
  };
  if (on_host) {
    const auto run_here = [run](int64_t i) { run(i, nullptr); };
    sampler_ = own ? make_sampler(run_here) : make_sampler(run_here, sample_seconds);
  } else {
    const double bytes = warm ? 0 : cold_bytes(device);
    sampler_ = own ? make_device_sampler(device, run, bytes) : make_device_sampler(device, run, bytes, sample_seconds);
  }
}

}  // namespace ejk::tool
