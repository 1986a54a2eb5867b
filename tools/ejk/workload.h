// A call with data, ready to run over and over: what `run` and `bench` do their work on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ejkernel/runtime/plan.h"
#include "tools/ejk/call_flags.h"

namespace ejk::tool {

/// Gives the inputs of a call memory with random contents that respect what they mean: offsets rise from 0 to the
/// number of rows, lengths fit, segments are runs, masks let most through.
void fill_inputs(ToolCall& call, uint64_t seed);

/// The call that the flags ask for, with data. For a gradient the forward is run first.
ToolCall make_call_with_data(const CallFlags& flags);

/// A planned call with its outputs and workspace, in as many copies as it takes to pass `cold_bytes` (at most 32; none
/// more than one for 0): running them in turn finds their data in memory, not in a cache.
class Workload {
 public:
  Workload(const ToolCall& call, const PlanOptions& options, double cold_bytes);
  void run(int64_t i) const;

  const Plan& plan() const { return plan_; }
  /// Of the first copy.
  std::span<const Array> outputs() const { return copies_.front().owned_outputs; }
  double bytes_in_turn() const { return bytes_in_turn_; }

 private:
  struct Copy {
    std::vector<Tensor> inputs, outputs;
    std::vector<Array> owned_outputs;
    std::vector<std::shared_ptr<const void>> owners;
  };
  Plan plan_;
  std::vector<Copy> copies_;
  Array workspace_;
  double bytes_in_turn_ = 0;
};

}  // namespace ejk::tool
