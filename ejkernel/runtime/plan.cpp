#include "ejkernel/runtime/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/out_of_memory.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/recorded_internal.h"
#include "ejkernel/runtime/trace_internal.h"

namespace ejk {

constexpr int kAllThreads = std::numeric_limits<int>::max();

struct Plan::State {
  std::shared_ptr<const Choice> choice;
  std::optional<Circumstances> circumstances;  ///< of the choice; none: it was for one call alone
  PlanOptions options;
  std::vector<Tensor> inputs;
  ParamsBlock params;
  CheckedCall checked;
  Device device;
  const DeviceProperties* properties = nullptr;
  size_t workspace_bytes = 0;
  int most_threads = kAllThreads;  ///< of a CPU

  ChooseRequest request_for(std::shared_ptr<const RegisteredOperation> operation) const {
    return {.operation = std::move(operation),
            .inputs = inputs,
            .params = &params,
            .checked = &checked,
            .options = &options,
            .device = device};
  }
  std::vector<Tensor> output_specs() const {
    std::vector<Tensor> specs;
    specs.reserve(checked.outputs.size());
    for (const OutputSpec& spec : checked.outputs)
      specs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, device) : Tensor());
    return specs;
  }
};

// What a plan keeps of an address: how it is aligned, which kernels may ask for. A spec without data counts as aligned.
static void* alignment_of(const void* data) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) % kHostAlignment);
}

// On a device an allocation takes the host half as long as a launch. So small outputs share a block, which lives as
// long as one of them.
constexpr int64_t kSharedBytes = 64 << 10;

static int64_t padded_bytes(const OutputSpec& spec) {
  constexpr int64_t kAlignment = 256;  // what the driver's allocations have
  const bool is_allocated = spec.present && spec.aliased_input < 0;
  return is_allocated ? (num_bytes(spec.dtype, spec.shape) + kAlignment - 1) / kAlignment * kAlignment : 0;
}
static int64_t padded_bytes(std::span<const OutputSpec> specs) {
  int64_t bytes = 0;
  for (const OutputSpec& spec : specs) bytes += padded_bytes(spec);
  return bytes;
}

/// All where bytes alone are worth all of them: to count operations may take a step for each row.
static int most_threads_of(const CallView& call, const Operation& op, int num_units) {
  const double bytes = bytes_of(call.inputs) + bytes_of(call.outputs);
  if (bytes == 0 || cpu::worthwhile_threads(0, bytes) >= num_units) return kAllThreads;
  const Work work = op.work(call);
  const bool is_counted = work.flops > 0 || work.bytes > 0;
  return is_counted ? cpu::worthwhile_threads(work.flops, work.bytes) : kAllThreads;
}

Plan Plan::make(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                const PlanOptions& options) try {
  return make(KernelRegistry::instance().find(operation), inputs, params, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Plan Plan::make(std::shared_ptr<const RegisteredOperation> operation, std::span<const Tensor> inputs,
                const ParamsBlock& params, const PlanOptions& options) try {
  if (recording::state.load(std::memory_order_relaxed) == recording::State::unknown) recording::settle();
  if (tracing::state.load(std::memory_order_relaxed) == tracing::State::unknown) tracing::settle();
  auto state = std::make_shared<State>();
  state->inputs.assign(inputs.begin(), inputs.end());
  state->params = params;
  state->options = options;
  state->checked = check_call(*operation->declaration, inputs, params);
  for (Tensor& input : state->inputs) {
    if (input.present()) state->device = input.device;
    input.data = alignment_of(input.data);
  }
  state->properties = &device_properties(state->device);
  state->circumstances = circumstances_of(options);
  state->choice = choose(state->request_for(std::move(operation)), nullptr);
  const std::vector<Tensor> outputs = state->output_specs();
  state->workspace_bytes = state->choice->kernel->workspace_bytes({state->inputs, &state->params, outputs},
                                                                  state->choice->config, *state->properties);
  if (state->device.kind == DeviceKind::cpu)
    state->most_threads = most_threads_of({state->inputs, &state->params, outputs},
                                          *state->choice->operation->declaration, state->properties->num_units);
  return Plan(std::move(state));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Plan Plan::on(Device device) const try {
  if (device == state_->device) return *this;
  if (device_fingerprint(device) != device_fingerprint(state_->device))
    throw_invalid(operation().name, "the device", fmt::format("be like {}", to_string(state_->device)),
                  fmt::format("{}, {}", to_string(device), device_fingerprint(device)), "plan for it");
  auto state = std::make_shared<State>(*state_);
  state->device = device;
  state->properties = &device_properties(device);
  for (Tensor& input : state->inputs) input.device = device;
  auto choice = std::make_shared<Choice>(*state_->choice);
  if (choice->kernel->prepare != nullptr)
    choice->code = choice->kernel->prepare({state->inputs, &state->params, state->output_specs()}, choice->config,
                                           *state->properties);
  state->choice = std::move(choice);
  return Plan(std::move(state));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

/// Equal to the last bit, which tells 0 from -0.
static bool is_same(const ParamValue& a, const ParamValue& b) {
  const double *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return x != nullptr && y != nullptr ? std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y) : a == b;
}

/// Mostly their bytes tell; the value of an optional that has none may be anything.
static bool are_same(const Operation& op, const ParamsBlock& a, const ParamsBlock& b) {
  return a == b || std::all_of(op.params.begin(), op.params.end(), [&](const ParamField& field) {
           return is_same(field.get(a.data()), field.get(b.data()));
         });
}

bool Plan::serves(const RegisteredOperation& operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                  const PlanOptions& options) const {
  const State& s = *state_;
  const auto is_planned = [](const Tensor& input, const Tensor& planned) {
    return is_same_spec(input, planned) && alignment_of(input.data) == planned.data;
  };
  return s.choice->operation->declaration == operation.declaration &&
         std::equal(inputs.begin(), inputs.end(), s.inputs.begin(), s.inputs.end(), is_planned) &&
         are_same(*operation.declaration, s.params, params) && s.options == options && s.circumstances &&
         s.circumstances == circumstances_of(options) && !s.choice->is_for_now &&
         s.properties == &device_properties(s.device) && still_runs_here(*s.choice, *s.properties);
}

void Plan::run(std::span<const Tensor> inputs, std::span<const Tensor> outputs, const RunOptions& options) const try {
  const State& s = *state_;
  check_buffers(operation(), inputs, outputs, s.checked.outputs, s.inputs);
  if (options.workspace.size() < s.workspace_bytes)
    throw_invalid(operation().name, "the workspace", fmt::format("have at least {} bytes", s.workspace_bytes),
                  fmt::format("{}", options.workspace.size()), "allocate plan.workspace_bytes()");
  if (s.workspace_bytes > 0 && options.workspace.data() == nullptr)
    throw_invalid(operation().name, "the workspace", fmt::format("point at {} bytes", s.workspace_bytes),
                  "a null pointer", "allocate plan.workspace_bytes()");
  if (s.workspace_bytes > 0 && reinterpret_cast<uintptr_t>(options.workspace.data()) % 64 != 0)
    throw_invalid(operation().name, "the workspace", "be aligned to 64 bytes", "another address",
                  "allocate it with an aligned allocator");
  if (reinterpret_cast<uintptr_t>(options.status) % alignof(uint32_t) != 0)
    throw_invalid(operation().name, "the status word", "be aligned to 4 bytes", "another address",
                  "pass the address of a uint32_t");
  const recording::Run recorded(*this, inputs);
  const tracing::Range traced(*this);
  const cpu::ScopedMaxThreads threads(s.most_threads);  // a small call is done before another thread is awake
  s.choice->kernel->run({inputs, &s.params, outputs}, s.choice->config,
                        {.stream = options.stream,
                         .workspace = options.workspace,
                         .status = options.status,
                         .code = s.choice->code.get(),
                         .device = s.properties});
  if (s.device.kind == DeviceKind::cuda && environment::sync() && !cuda::is_capturing(s.device, options.stream))
    synchronize(s.device, options.stream);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

const Operation& Plan::operation() const { return *state_->choice->operation->declaration; }
const KernelInfo& Plan::kernel() const { return *state_->choice->kernel; }
const Choice& Plan::choice() const { return *state_->choice; }
const PlanOptions& Plan::options() const { return state_->options; }
const Dims& Plan::dims() const { return state_->checked.dims; }
int Plan::form() const { return state_->checked.form; }
std::span<const Tensor> Plan::inputs() const { return state_->inputs; }
const ParamsBlock& Plan::params() const { return state_->params; }
std::span<const OutputSpec> Plan::outputs() const { return state_->checked.outputs; }
Device Plan::device() const { return state_->device; }
size_t Plan::workspace_bytes() const { return state_->workspace_bytes; }
ChooseRequest Plan::request() const { return state_->request_for(state_->choice->operation); }

Work Plan::work() const { return operation().work({state_->inputs, &state_->params, state_->output_specs()}); }

std::vector<Array> Plan::allocate_outputs(void* stream) const try {
  const Device device = state_->device;
  std::vector<Array> arrays;
  arrays.reserve(state_->checked.outputs.size());
  const int64_t together = device.kind == DeviceKind::cpu ? 0 : padded_bytes(state_->checked.outputs);
  const bool share = together > 0 && together <= kSharedBytes;
  const auto block = share ? std::make_shared<Array>(DType::u8, Shape{together}, device, stream) : nullptr;
  auto* at = share ? block->as<std::byte>() : nullptr;
  for (const OutputSpec& spec : state_->checked.outputs) {
    if (!spec.present || spec.aliased_input >= 0) {
      arrays.emplace_back();
    } else if (share) {
      arrays.emplace_back(Tensor(at, spec.dtype, spec.shape, device), block);
      at += padded_bytes(spec);
    } else {
      arrays.emplace_back(spec.dtype, spec.shape, device, stream);
    }
  }
  return arrays;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void view_aliased(std::span<const OutputSpec> specs, std::span<const Tensor> inputs, std::vector<Array>& outputs) {
  for (size_t o = 0; o < specs.size(); ++o)
    if (specs[o].aliased_input >= 0) outputs[o] = Array(inputs[static_cast<size_t>(specs[o].aliased_input)], nullptr);
}

void set_memory_config(const Plan& plan, const ConfigValues& values) {
  const Choice& choice = plan.choice();
  const ConfigBlock config = config_from_values(plan.operation().name, *choice.kernel, choice.config, values);
  set_memory_config(plan.request(), *choice.kernel, config);
}

}  // namespace ejk
