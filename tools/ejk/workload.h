// A call with data, ready to run over and over: what `run` and `bench` do their work on. Calls are made in host memory;
// a workload takes them to its device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/timer.h"
#include "tools/ejk/call_flags.h"

namespace ejk::tool {

/// Gives the inputs of a call memory with synthetic contents (runtime/synthetic.h).
void fill_inputs(ToolCall& call, uint64_t seed);

/// The same specs on a device.
std::vector<Tensor> on_device(std::vector<Tensor> specs, Device device);

/// The call that the flags ask for, with data in host memory. For a gradient the forward is run first, on the flags'
/// device.
ToolCall make_call_with_data(const CallFlags& flags);

/// A planned call with its outputs and workspace, in as many copies as it takes for what they touch to pass
/// `cold_bytes` (at most 32, and 4 GB; none more than one for 0): running them in turn finds their data in memory, not
/// in a cache.
class Workload {
 public:
  Workload(const ToolCall& call, const CallFlags& flags, double cold_bytes);
  void run(int64_t i, void* stream = nullptr) const;

  const Plan& plan() const { return plan_; }
  /// Of the first copy, on the device.
  std::span<const Tensor> inputs() const { return copies_.front().inputs; }
  std::span<const Array> outputs() const { return copies_.front().owned_outputs; }

 private:
  struct Copy {
    std::vector<Tensor> inputs, outputs;
    std::vector<Array> owned_outputs;
    std::vector<std::shared_ptr<const void>> owners;
  };
  Plan plan_;
  std::vector<Copy> copies_;
  Array workspace_;
};

/// Times calls, one after the other: on the host with as many copies as pass the last-level cache twice over, on a GPU
/// with that much written between runs; `warm`: with their data still in the caches. At least `sample_seconds` a
/// sample; 0: the timer's own.
class TimedWorkload {
 public:
  /// Each the call that its flags ask for, all on the device of the first.
  TimedWorkload(std::span<const CallFlags> calls, bool warm, double sample_seconds = 0);
  TimedWorkload(const CallFlags& call, bool warm, double sample_seconds = 0)
      : TimedWorkload(std::span(&call, 1), warm, sample_seconds) {}
  TimedWorkload(const TimedWorkload&) = delete;  // the sampler points at the workload
  TimedWorkload& operator=(const TimedWorkload&) = delete;
  /// Of the last call.
  const Plan& plan() const { return workloads_.back().plan(); }
  std::span<const Array> outputs() const { return workloads_.back().outputs(); }
  const Sampler& sampler() const { return sampler_; }

 private:
  std::vector<Workload> workloads_;
  Sampler sampler_;
};

/// Beyond this many bytes nothing of an earlier run is in a cache of the device.
double cold_bytes(Device device);

}  // namespace ejk::tool
