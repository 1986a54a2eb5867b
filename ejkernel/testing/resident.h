// A call whose tensors stay on a device, to be launched again and again: for reruns, graphs and several streams.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "ejkernel/core/digest.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/testing/check.h"

namespace ejk::testing {

/// Outputs are contiguous, and full of NaN until they are written; those that alias an input are that input, which
/// holds until then what it held at first. What it puts on a stream nothing waits for, except where it says so; one
/// launch at a time.
class Resident {
 public:
  /// Throws Unsupported when the kernel declines.
  Resident(const Problem& problem, const Kernel& kernel, Device device,
           const std::optional<ConfigValues>& config = std::nullopt);
  /// A call that was placed by hand: `inputs` are on the plan's device and stay the caller's.
  Resident(Plan plan, std::vector<Tensor> inputs);

  void run(void* stream) const;
  /// NaN into every output, or the first contents into one that is an input.
  void poison(void* stream) const;
  /// Input contents of another resident of the same shapes, whose tensors are contiguous as well; of what the call
  /// writes the first contents, from the next `poison` on.
  void take_inputs(const Resident& other, void* stream) const;
  /// Of all bits of all outputs; waits for the stream.
  Digest digest(void* stream) const;
  /// poison, run and digest.
  Digest result(void* stream) const;

  const Plan& plan() const { return plan_; }
  const std::vector<Array>& outputs() const { return outputs_; }

 private:
  void allocate();

  Plan plan_;
  std::vector<Array> owned_;
  std::vector<Tensor> inputs_;
  std::vector<Array> first_contents_;  ///< per input: of those that the call writes
  std::vector<Array> outputs_;
  std::vector<Tensor> output_views_;
  Array workspace_;
};

}  // namespace ejk::testing
