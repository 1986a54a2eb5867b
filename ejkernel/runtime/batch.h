// Batches: many calls that differ in their data alone, by one plan. Each mapped input has an axis that runs over the
// calls; the outputs get one.
//
//   // q, k and v are [slices, batch, seq, heads, dim], and so is out
//   auto [out, lse] = vmap_with_config<FlashAttention>({.query = q, .key = k, .value = v}, {.in = 0});
//   // x is [batch, slices, num_tokens, dim], every slice has this mask, out is [batch, slices, dim]
//   auto [means, offsets] = vmap_with_config<MeanPooling>({.x = x, .mask = mask}, {.in = {{"x", 1}}, .out = 1});
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

/// Which axis of which input runs over the slices; a negative one counts from the end. An input without one goes whole
/// to every slice.
class InAxes {
 public:
  struct Named {
    std::string_view input;
    int axis;
  };
  /// This axis of every input that is given.
  InAxes(int axis) : of_all_(axis) {}  // NOLINT: `.in = 0`
  /// These axes of these inputs: `.in = {{"query", 0}, {"bias", 1}}`.
  InAxes(std::initializer_list<Named> axes) : named_(axes) {}  // NOLINT: as above
  explicit InAxes(std::vector<Named> axes) : named_(std::move(axes)) {}

  const std::optional<int>& of_all() const { return of_all_; }
  std::span<const Named> named() const { return named_; }

 private:
  std::optional<int> of_all_;
  std::vector<Named> named_;
};

/// Where the slices lie in the inputs, and where in every output: at `out` of its axes, negative from the end, but not
/// past a slice's last axis, which stays contiguous. An output that aliases an input has them where that has them, and
/// every slice must have a part of its own there.
struct BatchAxes {
  InAxes in = 0;
  int out = 0;
};

/// One plan for all slices of a batch. Immutable, thread-safe, cheap to copy.
///
/// It folds where it can: slices become entries of the operation's own batch dimension, by views, and the batch is one
/// run. That takes an operation that says so, strides that make one axis of slices and entries, and a kernel that takes
/// the whole as it takes a slice. Otherwise it runs slice by slice, in the order of the stream, with one workspace.
class EJK_API BatchPlan {
 public:
  /// Validates, decides, chooses once and binds. Tensors are specs here, as for Plan::make; their alignments count.
  /// InvalidArgument for axes that do not fit, and for slices that the operation refuses (shapes in that message are
  /// those of one slice).
  static BatchPlan make(std::string_view operation, std::span<const Tensor> inputs, const BatchAxes& axes,
                        const ParamsBlock& params, const PlanOptions& options = {});

  /// Launches. Inputs must equal the planned specs; an absent output is not wanted. Outputs may have any strides that
  /// a plan takes; those of a fold, slices and entries in one axis, as `allocate_outputs` makes them. Puts two lists of
  /// views on the host's heap and nothing per slice.
  void run(std::span<const Tensor> inputs, std::span<const Tensor> outputs, const RunOptions& options = {}) const;

  /// Of the folded call, or of every slice: its kernel, config and workspace are the batch's.
  const Plan& plan() const;
  /// Whether the batch is one run; if not, why.
  const Support& folding() const;
  int64_t num_slices() const;
  /// With the axis of the slices.
  std::span<const OutputSpec> outputs() const;
  /// Fresh contiguous outputs in field order, on a device in the order of `stream`; absent where the call has none, and
  /// where one aliases an input.
  std::vector<Array> allocate_outputs(void* stream = nullptr) const;

 private:
  struct State;
  explicit BatchPlan(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

/// Plans the batch, allocates its outputs and workspace, and runs it. Results are those of one `execute` per slice: to
/// the bit slice by slice, within the kernel's rounding where the batch folds.
EJK_API std::vector<Array> vmap_with_config(std::string_view operation, std::span<const Tensor> inputs,
                                            const BatchAxes& axes, const ParamsBlock& params,
                                            const CallOptions& options = {});

/// A BatchPlan that knows its operation's structs.
template <class Op>
class BatchPlanFor : public BatchPlan {
 public:
  explicit BatchPlanFor(BatchPlan plan) : BatchPlan(std::move(plan)) {}
  void run(const typename Op::Inputs& inputs, const typename Op::Outputs& outputs,
           const RunOptions& options = {}) const {
    BatchPlan::run(to_array(inputs), to_array(outputs), options);
  }
  typename Op::Results allocate_outputs(void* stream = nullptr) const {
    return api_detail::to_results<typename Op::Results>(BatchPlan::allocate_outputs(stream));
  }
};

template <class Op>
BatchPlanFor<Op> plan_batch(const typename Op::Inputs& specs, const BatchAxes& axes,
                            const typename Op::Params& params = {}, const PlanOptions& options = {}) {
  return BatchPlanFor<Op>(BatchPlan::make(Op::kName, to_array(specs), axes, ParamsBlock::of(params), options));
}

template <class Op>
typename Op::Results vmap_with_config(const typename Op::Inputs& inputs, const BatchAxes& axes,
                                      const typename Op::Params& params = {}, const CallOptions& options = {}) {
  return api_detail::to_results<typename Op::Results>(
      vmap_with_config(Op::kName, to_array(inputs), axes, ParamsBlock::of(params), options));
}

}  // namespace ejk
