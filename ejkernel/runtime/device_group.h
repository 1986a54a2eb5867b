// Device groups: one call on each of several devices at the same time, each with tensors of its own.
//
//   const DeviceGroup group({{DeviceKind::cuda, 0}, {DeviceKind::cuda, 1}});
//   const auto q = group.shard(host_q), k = group.shard(host_k), v = group.shard(host_v);   // halves of the batch
//   const auto results = pmap_with_config<FlashAttention>(
//       group, {{.query = q[0], .key = k[0], .value = v[0]}, {.query = q[1], .key = k[1], .value = v[1]}});
//   group.synchronize();                                         // results[1].out is on cuda:1
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

/// Devices in the order of their shards, each GPU with a stream of the group's own. A device may stand in it more than
/// once: then it has that many streams. Immutable, thread-safe, cheap to copy; the streams live as long as a copy of
/// the group or an array that came out of it.
class EJK_API DeviceGroup {
 public:
  /// InvalidArgument for no device, Unsupported for one that is not here.
  explicit DeviceGroup(std::vector<Device> devices);

  size_t size() const;
  const Device& device(size_t i) const;
  /// Null for the host.
  void* stream(size_t i) const;
  /// Waits for everything on the group's streams.
  void synchronize() const;

  /// A host tensor cut into equal parts along an axis (negative: from the end), part i copied to device i. Waits for
  /// the copies. InvalidArgument for an extent that is no multiple of the group's size.
  std::vector<Array> shard(const Tensor& host, int axis = 0) const;
  /// All of a host tensor, copied to every device.
  std::vector<Array> replicate(const Tensor& host) const;

  /// The same array, which now keeps the streams alive as well: its memory is released in the order of one of them.
  Array keeping_streams(const Array& array) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// What a call on a group may ask for.
struct GroupOptions {
  PlanOptions plan = {};
  std::vector<uint32_t*> status = {};  ///< empty, or one optional word per device, on that device
  bool wait = false;                   ///< return when every device is done
};

/// Runs the operation on each device of the group with that device's inputs: what is on device i goes to results[i].
/// Chooses once for all devices that are alike (equal fingerprints) and have tensors of equal shapes, dtypes, strides
/// and alignments; each shard's own shapes are what a config is found by. All devices are planned before any runs, GPUs
/// are launched before the host works, and none waits for another. Inputs must be ready for the group's streams, and
/// live until those are done. A result that aliases an input views that device's own. Errors name the device.
EJK_API std::vector<std::vector<Array>> pmap_with_config(const DeviceGroup& group, std::string_view operation,
                                                         std::span<const std::vector<Tensor>> inputs,
                                                         const ParamsBlock& params, const GroupOptions& options = {});

template <class Op>
std::vector<typename Op::Results> pmap_with_config(const DeviceGroup& group,
                                                   const std::vector<typename Op::Inputs>& inputs,
                                                   const typename Op::Params& params = {},
                                                   const GroupOptions& options = {}) {
  std::vector<std::vector<Tensor>> lists;
  for (const typename Op::Inputs& of_device : inputs) {
    const auto tensors = to_array(of_device);
    lists.emplace_back(tensors.begin(), tensors.end());
  }
  std::vector<typename Op::Results> results;
  for (auto& arrays : pmap_with_config(group, Op::kName, lists, ParamsBlock::of(params), options))
    results.push_back(api_detail::to_results<typename Op::Results>(std::move(arrays)));
  return results;
}

}  // namespace ejk
