#include "ejkernel/runtime/device_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/error.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"

namespace ejk {

struct DeviceGroup::State {
  std::vector<Device> devices;
  std::vector<std::unique_ptr<cuda::Stream>> streams;  ///< null for the host
};

namespace {

constexpr std::string_view kName = "DeviceGroup";

/// An error of one device's part says whose it is.
template <class Body>
auto naming_device(const DeviceGroup& group, size_t i, Body body) {
  const auto named = [&](const Error& error) {
    return fmt::format("device {} of the group, {}: {}", i, to_string(group.device(i)), error.what());
  };
  try {
    return body();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(named(error));
  } catch (const Unsupported& error) {
    throw Unsupported(named(error), error.code());
  } catch (const Internal& error) {
    throw Internal(named(error), error.code());
  }
}

/// Equal but for their device and their data: one plan serves both, on devices that are alike.
bool are_alike(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, Tensor y) {
    y.device = x.device;
    const auto offset = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % kHostAlignment; };
    return is_same_spec(x, y) && offset(x) == offset(y);
  });
}

void check_devices(const Operation& op, Device device, const std::vector<Tensor>& inputs) {
  for (size_t i = 0; i < std::min(inputs.size(), op.inputs.size()); ++i)
    if (inputs[i].present() && !(inputs[i].device == device))
      throw_invalid(op.name, op.inputs[i].name, fmt::format("be on {}", to_string(device)), to_string(inputs[i].device),
                    "give each device tensors of its own");
}

void check_counts(const Operation& op, const DeviceGroup& group, size_t num_lists, size_t num_words) {
  if (num_lists != group.size())
    throw_invalid(op.name, "the lists of inputs", fmt::format("be {}, one per device of the group", group.size()),
                  std::to_string(num_lists), "pass one list per device");
  if (num_words != 0 && num_words != group.size())
    throw_invalid(op.name, "the status words", fmt::format("be {}, one per device of the group, or none", group.size()),
                  std::to_string(num_words), "pass one per device, null where none is wanted");
}

/// One choice for all devices that are alike and have equal specs.
std::vector<Plan> plans_of(const DeviceGroup& group, const std::shared_ptr<const RegisteredOperation>& operation,
                           std::span<const std::vector<Tensor>> inputs, const ParamsBlock& params,
                           const PlanOptions& options) {
  std::vector<Plan> plans;
  for (size_t i = 0; i < group.size(); ++i) {
    const Device device = group.device(i);
    plans.push_back(naming_device(group, i, [&] {
      check_devices(*operation->declaration, device, inputs[i]);
      for (size_t j = 0; j < i; ++j)
        if (device_fingerprint(group.device(j)) == device_fingerprint(device) && are_alike(inputs[j], inputs[i]))
          return plans[j].on(device);
      const CallAtHand call(inputs[i], group.stream(i));
      return Plan::make(operation, inputs[i], params, options);
    }));
  }
  return plans;
}

}  // namespace

DeviceGroup::DeviceGroup(std::vector<Device> devices) {
  if (devices.empty())
    throw_invalid(kName, "the devices", "be at least one", "none", "name them, as in {{DeviceKind::cuda, 0}}");
  auto state = std::make_shared<State>();
  for (const Device& device : devices) {
    device_properties(device);
    state->streams.push_back(device.kind == DeviceKind::cuda ? std::make_unique<cuda::Stream>(device) : nullptr);
  }
  state->devices = std::move(devices);
  state_ = std::move(state);
}

size_t DeviceGroup::size() const { return state_->devices.size(); }
const Device& DeviceGroup::device(size_t i) const { return state_->devices[i]; }
void* DeviceGroup::stream(size_t i) const {
  return state_->streams[i] == nullptr ? nullptr : state_->streams[i]->handle();
}

void DeviceGroup::synchronize() const {
  for (size_t i = 0; i < size(); ++i) naming_device(*this, i, [&] { ejk::synchronize(device(i), stream(i)); });
}

/// A copy of a host tensor for device i.
static Array copy_for(const DeviceGroup& group, size_t i, const Tensor& host) {
  return naming_device(group, i, [&] {
    const Device device = group.device(i);
    if (device.kind == DeviceKind::cpu) return contiguous(host);
    return group.keeping_streams(to_device(host, device, group.stream(i)));
  });
}

std::vector<Array> DeviceGroup::shard(const Tensor& host, int axis) const {
  std::vector<Array> shards(size());
  if (!host.present()) return shards;
  const int rank = host.rank(), at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank)
    throw_invalid(kName, "the axis of the shards",
                  rank == 0 ? "belong to a tensor with axes" : fmt::format("be {} to {}", -rank, rank - 1),
                  fmt::format("{} for {}", axis, to_string(host)), "name an axis of the tensor");
  const auto num_parts = static_cast<int64_t>(size());
  if (host.shape[at] % num_parts != 0)
    throw_invalid(
        kName, fmt::format("axis {} of the tensor", at), fmt::format("be a multiple of the {} devices", num_parts),
        fmt::format("{} ({})", host.shape[at], to_string(host)), "pad it, or give each device tensors of its own");
  Tensor part = host;
  part.shape[at] /= num_parts;
  const int64_t num_bits = host.num_elements() == 0 ? 0 : part.shape[at] * host.strides[at] * bits(host.dtype);
  if (num_bits % 8 != 0)
    throw_invalid(kName, "the parts", "begin at whole bytes", to_string(host), "give each device tensors of its own");
  for (size_t i = 0; i < size(); ++i) {
    part.data = host.as<std::byte>() + static_cast<int64_t>(i) * (num_bits / 8);
    shards[i] = copy_for(*this, i, part);
  }
  return shards;
}

std::vector<Array> DeviceGroup::replicate(const Tensor& host) const {
  std::vector<Array> copies(size());
  for (size_t i = 0; i < size() && host.present(); ++i) copies[i] = copy_for(*this, i, host);
  return copies;
}

Array DeviceGroup::keeping_streams(const Array& array) const {
  struct Kept {
    std::shared_ptr<const State> streams;
    Array array;  // goes first
  };
  if (!array.present()) return array;
  return Array(array.view(), std::make_shared<Kept>(Kept{state_, array}));
}

/// GPUs first: they work while the host does.
static std::vector<size_t> launch_order(const DeviceGroup& group) {
  std::vector<size_t> order(group.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return group.device(i).kind == DeviceKind::cuda; });
  return order;
}

std::vector<std::vector<Array>> pmap_with_config(const DeviceGroup& group, std::string_view operation,
                                                 std::span<const std::vector<Tensor>> inputs, const ParamsBlock& params,
                                                 const GroupOptions& options) {
  const auto registered = KernelRegistry::instance().find(operation);
  check_counts(*registered->declaration, group, inputs.size(), options.status.size());
  const std::vector<Plan> plans = plans_of(group, registered, inputs, params, options.plan);
  std::vector<std::vector<Array>> results(group.size());
  for (const size_t i : launch_order(group))
    naming_device(group, i, [&] {
      std::vector<Array>& outputs = results[i] = plans[i].allocate_outputs(group.stream(i));
      const std::vector<Tensor> views(outputs.begin(), outputs.end());
      uint32_t* status = options.status.empty() ? nullptr : options.status[i];
      run_with_workspace(plans[i], inputs[i], views, {.stream = group.stream(i), .status = status});
      for (Array& output : outputs) output = group.keeping_streams(output);
      view_aliased(plans[i].outputs(), inputs[i], outputs);
    });
  if (options.wait) group.synchronize();
  return results;
}

}  // namespace ejk
