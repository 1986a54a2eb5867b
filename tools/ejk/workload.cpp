#include "tools/ejk/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/device_timer.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/random.h"

namespace ejk::tool {
namespace {

using testing::Random;

const Operation& declaration_of(const ToolCall& call) {
  return *KernelRegistry::instance().find(call.operation)->declaration;
}

/// Fills one input; the names and contracts of the declaration say what its numbers mean.
class Filler {
 public:
  Filler(const Tensor& tensor, std::string_view name, const Dims& dims, uint64_t seed)
      : t_(tensor), name_(name), dims_(dims), random_(seed) {}

  void run() {
    if (t_.dtype == DType::boolean) return each([&](int64_t) { return random_.chance(0.9) ? 1 : 0; });
    if (t_.dtype == DType::i8) return each([&](int64_t) { return random_.between(-100, 100); });
    if (is_float(t_.dtype)) return fill_reals();
    if (name_.starts_with("cu_")) return fill_offsets();
    if (name_.find("segment") != std::string_view::npos)
      return each([&](int64_t n) { return 4 * (n % t_.shape[-1]) / t_.shape[-1]; });
    if (name_.find("seq") != std::string_view::npos) return each([&](int64_t) { return length_bound(); });
    each([&](int64_t) { return random_.below(1 << 16); });
  }

 private:
  template <class F>
  void each(F&& value) {
    for (int64_t n = 0; n < t_.num_elements(); ++n) set(t_, n, static_cast<double>(value(n)));
  }

  void fill_reals() {
    const bool scale = name_.ends_with("scale");
    each([&](int64_t) { return scale ? 0.5 + random_.uniform() : random_.normal(); });
  }

  /// The rows that offsets cut up: `total_q` for cu_seqlens_q, or the number of tokens.
  int64_t total() const {
    for (const Dims::Entry& dim : dims_.entries())
      if (dim.name.starts_with("total_") && name_.back() == dim.name.back()) return dim.value;
    for (const Dims::Entry& dim : dims_.entries())
      if (dim.name == "num_tokens") return dim.value;
    return 0;
  }

  /// Sorted random cuts, the first at 0 and the last at the end.
  void fill_offsets() {
    const int64_t count = t_.num_elements();
    std::vector<int64_t> cuts(static_cast<size_t>(count));
    for (int64_t& cut : cuts) cut = random_.between(0, total());
    std::sort(cuts.begin(), cuts.end());
    cuts.front() = 0;
    cuts.back() = total();
    each([&](int64_t n) { return cuts[static_cast<size_t>(n)]; });
  }

  /// The longest a sequence may be.
  int64_t length_bound() const {
    const std::string_view dim = name_.starts_with("q") ? "q_len" : "kv_len";
    if (const Dims::Entry* found = dims_.find(dim)) return found->value;
    return total();
  }

  const Tensor& t_;
  std::string_view name_;
  const Dims& dims_;
  Random random_;
};

/// The same elements of host memory in memory of its own, with the same strides, gaps included.
Tensor duplicate(const Tensor& t, Device device, std::vector<std::shared_ptr<const void>>& owners) {
  if (!t.present()) return t;
  const auto [first, last] = element_range(t);
  const int64_t size = std::max(1, bits(t.dtype) / 8), bytes = (last - first) * size;
  const Tensor source(static_cast<char*>(t.data) + first * size, DType::u8, {bytes});
  const auto block =
      std::make_shared<Array>(device.kind == DeviceKind::cpu ? contiguous(source) : to_device(source, device));
  owners.push_back(block);
  Tensor copy = t;
  copy.device = device;
  copy.data = block->as<char>() - first * size;
  return copy;
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

std::vector<Tensor> on_device(std::vector<Tensor> specs, Device device) {
  for (Tensor& spec : specs) spec.device = device;
  return specs;
}

}  // namespace

void fill_inputs(ToolCall& call, uint64_t seed) {
  const Operation& op = declaration_of(call);
  const CheckedCall checked = check_call(op, call.inputs, call.params);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    Tensor& input = call.inputs[i];
    if (!input.present()) continue;
    const auto array = std::make_shared<Array>(input.dtype, input.shape);
    input = array->view();
    call.owners.push_back(array);
    // Offsets of queries and keys share their draws, so that equal totals mean self-attention.
    const bool offsets = op.inputs[i].name.starts_with("cu_");
    Filler(input, op.inputs[i].name, checked.dims, seed * 64 + (offsets ? 63 : i)).run();
  }
}

ToolCall make_call_with_data(const CallFlags& flags) {
  ToolCall call = make_call(flags);
  if (flags.case_name.empty()) fill_inputs(call, flags.seed);
  if (!flags.backward) return call;
  const auto outputs = std::make_shared<std::vector<Array>>(flags.device.kind == DeviceKind::cpu
                                                                ? execute(call.operation, call.inputs, call.params)
                                                                : execute_on(flags.device, call));
  Array cotangent(outputs->front().dtype(), outputs->front().shape());
  Filler(cotangent, "d_out", {}, flags.seed + 1).run();
  ToolCall gradient = gradient_of(call, std::vector<Tensor>(outputs->begin(), outputs->end()), cotangent);
  gradient.owners.insert(gradient.owners.end(), call.owners.begin(), call.owners.end());
  gradient.owners.push_back(outputs);
  gradient.owners.push_back(std::make_shared<Array>(cotangent));
  return gradient;
}

Workload::Workload(const ToolCall& call, const CallFlags& flags, double cold_bytes)
    : plan_(Plan::make(call.operation, on_device(call.inputs, flags.device), call.params, plan_options(flags))) {
  double set_bytes = bytes_of(call.inputs);
  for (const OutputSpec& spec : plan_.outputs())
    if (spec.present) set_bytes += static_cast<double>(num_bytes(spec.dtype, spec.shape));
  const double wanted = std::ceil(cold_bytes / std::max(set_bytes, 1.0));
  const auto count = static_cast<size_t>(std::clamp(wanted, 1.0, 32.0));
  bytes_in_turn_ = set_bytes * static_cast<double>(count);
  for (size_t n = 0; n < count; ++n) {
    Copy copy;
    copy.inputs = call.inputs;
    copy.owners = call.owners;
    if (n > 0 || flags.device.kind != DeviceKind::cpu)
      for (Tensor& input : copy.inputs) input = duplicate(input, flags.device, copy.owners);
    copy.owned_outputs = plan_.allocate_outputs();
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

TimedWorkload::TimedWorkload(const ToolCall& call, const CallFlags& flags, bool warm, double sample_seconds)
    : workload_(call, flags, warm || flags.device.kind != DeviceKind::cpu ? 0 : cold_bytes({})) {
  const bool own = sample_seconds == 0;
  if (flags.device.kind == DeviceKind::cpu) {
    const auto run = [this](int64_t i) { workload_.run(i); };
    sampler_ = own ? make_sampler(run) : make_sampler(run, sample_seconds);
  } else {
    const auto run = [this](int64_t i, void* stream) { workload_.run(i, stream); };
    const double bytes = warm ? 0 : cold_bytes(flags.device);
    sampler_ = own ? make_device_sampler(flags.device, run, bytes)
                   : make_device_sampler(flags.device, run, bytes, sample_seconds);
  }
}

}  // namespace ejk::tool
