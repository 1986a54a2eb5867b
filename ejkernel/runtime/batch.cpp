#include "ejkernel/runtime/batch.h"

#include <fmt/format.h>

#include "ejkernel/core/allocator.h"
#include "ejkernel/runtime/batch_fold_internal.h"

namespace ejk {

using batches::kNone;

struct BatchPlan::State {
  batches::Call call;
  batches::Fold fold;
  Plan plan;
};

namespace {

/// The axis from the front.
int input_axis(const Operation& op, const TensorField& field, const Tensor& t, int axis) {
  const int rank = t.rank();
  if (axis < -rank || axis >= rank)
    throw_invalid(op.name, fmt::format("the axis of {}", field.name),
                  rank == 0 ? "be left out of an input without axes" : fmt::format("be {} to {}", -rank, rank - 1),
                  fmt::format("{} ({} {})", axis, field.name, to_string(t.shape)),
                  "name one of its axes, or leave it out to give every slice the whole");
  return axis < 0 ? axis + rank : axis;
}

void place_named(const Operation& op, std::span<const Tensor> inputs, const InAxes::Named& named,
                 std::vector<int>& axes) {
  const int found = find_input(op, named.input);
  if (found < 0) {
    std::string known;
    for (const TensorField& field : op.inputs) known += fmt::format("{}{}", known.empty() ? "" : ", ", field.name);
    throw_invalid(op.name, fmt::format("the name {} of a mapped input", named.input), "be one of its inputs",
                  "an unknown name", "it has " + known);
  }
  const auto i = static_cast<size_t>(found);
  if (!inputs[i].present())
    throw_invalid(op.name, named.input, "be given where it has an axis", "nothing", "pass it, or leave its axis out");
  if (axes[i] != kNone)
    throw_invalid(op.name, fmt::format("the axis of {}", named.input), "be named once", "two", "leave one out");
  axes[i] = input_axis(op, op.inputs[i], inputs[i], named.axis);
}

std::vector<int> input_axes(const Operation& op, std::span<const Tensor> inputs, const InAxes& in) {
  std::vector<int> axes(inputs.size(), kNone);
  for (const InAxes::Named& named : in.named()) place_named(op, inputs, named, axes);
  if (in.of_all())
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].present()) axes[i] = input_axis(op, op.inputs[i], inputs[i], *in.of_all());
  return axes;
}

/// All mapped axes are as long.
int64_t count_slices(const Operation& op, std::span<const Tensor> inputs, const std::vector<int>& axes) {
  std::optional<size_t> first;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (axes[i] == kNone) continue;
    if (!first) first = i;
    const int64_t expected = inputs[*first].shape[axes[*first]], got = inputs[i].shape[axes[i]];
    if (got != expected)
      throw_invalid(op.name, fmt::format("axis {} of {}", axes[i], op.inputs[i].name),
                    fmt::format("equal axis {} of {}, {}", axes[*first], op.inputs[*first].name, expected),
                    fmt::format("{} ({} {}, {} {})", got, op.inputs[*first].name, to_string(inputs[*first].shape),
                                op.inputs[i].name, to_string(inputs[i].shape)),
                    "give all mapped inputs the same number of slices");
  }
  if (!first)
    throw_invalid(op.name, "the axes", "name an input that differs from slice to slice", "none",
                  "map one, as in {.in = 0}, or call the operation itself");
  return inputs[*first].shape[axes[*first]];
}

/// The first slice, with an address that is aligned as the worst of all slices' are: what a kernel may ask for holds
/// for every slice or for none.
Tensor slice_spec(const Tensor& whole, int axis, int64_t num_slices) {
  Tensor slice = batches::first_slice(whole, axis);
  if (axis == kNone || num_slices < 2 || whole.num_elements() == 0) return slice;
  const auto step = static_cast<uintptr_t>(whole.strides[axis] * bits(whole.dtype) / 8);
  const uintptr_t low_bits = (reinterpret_cast<uintptr_t>(whole.data) | step) % kHostAlignment;
  slice.data = reinterpret_cast<void*>(low_bits & (~low_bits + 1));  // the lowest bit
  return slice;
}

/// The axis from the front, of the output with its slices.
int output_axis(const Operation& op, const TensorField& field, int slice_rank, int axis) {
  const int rank = slice_rank + 1, last = std::max(slice_rank - 1, 0);
  const int from_front = axis < 0 ? axis + rank : axis;
  if (from_front < 0 || from_front > last)
    throw_invalid(op.name, fmt::format("the axis of the slices in {}", field.name),
                  fmt::format("be 0 to {} or {} to {}", last, -rank, last - rank), std::to_string(axis),
                  "a slice's last axis stays contiguous");
  return from_front;
}

/// The axis of the slices in an input that they write: each has a part of its own.
int written_axis(const Operation& op, const batches::Call& call, size_t input) {
  const TensorField& field = op.inputs[input];
  if (call.in_axes[input] == kNone)
    throw_invalid(op.name, field.name, "have an axis of slices, since each slice writes it", "none",
                  "give each slice one of its own");
  check_writable(op, field, call.inputs[input]);
  return call.in_axes[input];
}

batches::Call checked_call(std::string_view operation, std::span<const Tensor> inputs, const BatchAxes& axes,
                           const ParamsBlock& params) {
  batches::Call call{
      .operation = KernelRegistry::instance().find(operation), .inputs = {inputs.begin(), inputs.end()}, .in_axes = {}};
  const Operation& op = call.declaration();
  check_count(op, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].present()) continue;
    check_tensor(op, op.inputs[i], inputs[i]);
    call.device = inputs[i].device;
  }
  call.in_axes = input_axes(op, inputs, axes.in);
  call.num_slices = count_slices(op, inputs, call.in_axes);
  for (size_t i = 0; i < inputs.size(); ++i)
    call.slice_inputs.push_back(slice_spec(inputs[i], call.in_axes[i], call.num_slices));
  call.slice = check_call(op, call.slice_inputs, params);
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    OutputSpec spec = call.slice.outputs[i];
    if (spec.aliased_input >= 0)
      call.out_axes.push_back(written_axis(op, call, static_cast<size_t>(spec.aliased_input)));
    else
      call.out_axes.push_back(spec.present ? output_axis(op, op.outputs[i], spec.shape.rank(), axes.out) : kNone);
    if (spec.present) spec.shape = batches::with_axis(spec.shape, call.out_axes[i], call.num_slices);
    call.outputs.push_back(spec);
  }
  return call;
}

std::vector<Tensor> folded(const Operation& op, std::span<const TensorField> fields, const batches::Fold& fold,
                           std::span<const Tensor> whole, const std::vector<batches::Place>& places) {
  std::vector<Tensor> views;
  views.reserve(whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto merged = fold.merged(whole[i], places[i]);
    if (!merged)
      throw_invalid(op.name, fields[i].name, "have slices and entries in one axis, as a fold writes them",
                    fmt::format("{} with strides {}", to_string(whole[i]), to_string(whole[i].strides)),
                    "pass what allocate_outputs gives");
    views.push_back(*merged);
  }
  return views;
}

/// The same slice of several tensors.
class Slices {
 public:
  Slices(const Operation& op, std::span<const TensorField> fields, std::span<const Tensor> whole,
         const std::vector<int>& axes)
      : whole_(whole) {
    views_.reserve(whole.size());
    steps_.reserve(whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      views_.push_back(whole[i].present() ? batches::first_slice(whole[i], axes[i]) : Tensor());
      steps_.push_back(step(op, fields[i], whole[i], axes[i]));
    }
  }
  /// Views of slice n until the next call.
  std::span<const Tensor> at(int64_t n) {
    for (size_t i = 0; i < views_.size(); ++i)
      if (steps_[i] != 0) views_[i].data = whole_[i].as<std::byte>() + n * steps_[i];
    return views_;
  }

 private:
  /// Bytes from one slice to the next.
  static int64_t step(const Operation& op, const TensorField& field, const Tensor& whole, int axis) {
    if (axis == kNone || whole.num_elements() == 0) return 0;
    const int64_t num_bits = whole.strides[axis] * bits(whole.dtype);
    if (num_bits % 8 != 0 && whole.shape[axis] > 1)
      throw_invalid(op.name, field.name, "have slices that begin at whole bytes",
                    fmt::format("{} with strides {}", to_string(whole), to_string(whole.strides)), "pad its slices");
    return num_bits / 8;
  }

  std::span<const Tensor> whole_;
  std::vector<Tensor> views_;
  std::vector<int64_t> steps_;
};

}  // namespace

BatchPlan BatchPlan::make(std::string_view operation, std::span<const Tensor> inputs, const BatchAxes& axes,
                          const ParamsBlock& params, const PlanOptions& options) {
  batches::Call call = checked_call(operation, inputs, axes, params);
  batches::Fold fold = batches::fold_of(call, params, options);
  const Operation& op = call.declaration();
  const std::vector<Tensor> planned =
      fold.answer.ok ? folded(op, op.inputs, fold, inputs, fold.inputs) : call.slice_inputs;
  Plan plan = Plan::make(call.operation, planned, params, options);
  return BatchPlan(std::make_shared<State>(State{std::move(call), std::move(fold), std::move(plan)}));
}

void BatchPlan::run(std::span<const Tensor> inputs, std::span<const Tensor> outputs, const RunOptions& options) const {
  const auto& [call, fold, plan] = *state_;
  const Operation& op = call.declaration();
  check_buffers(op, inputs, outputs, call.outputs, call.inputs);
  if (fold.answer.ok)
    return plan.run(folded(op, op.inputs, fold, inputs, fold.inputs),
                    folded(op, op.outputs, fold, outputs, fold.outputs), options);
  Slices in(op, op.inputs, inputs, call.in_axes), out(op, op.outputs, outputs, call.out_axes);
  for (int64_t n = 0; n < call.num_slices; ++n) plan.run(in.at(n), out.at(n), options);
}

const Plan& BatchPlan::plan() const { return state_->plan; }
const Support& BatchPlan::folding() const { return state_->fold.answer; }
int64_t BatchPlan::num_slices() const { return state_->call.num_slices; }
std::span<const OutputSpec> BatchPlan::outputs() const { return state_->call.outputs; }

std::vector<Array> BatchPlan::allocate_outputs(void* stream) const {
  std::vector<Array> arrays;
  for (const OutputSpec& spec : state_->call.outputs) {
    arrays.emplace_back();
    if (spec.present && spec.aliased_input < 0)
      arrays.back() = Array(spec.dtype, spec.shape, state_->call.device, stream);
  }
  return arrays;
}

std::vector<Array> vmap_with_config(std::string_view operation, std::span<const Tensor> inputs, const BatchAxes& axes,
                                    const ParamsBlock& params, const CallOptions& options) {
  const BatchPlan batch = [&] {
    const CallAtHand call(inputs, options.stream);
    return BatchPlan::make(operation, inputs, axes, params, options.plan);
  }();
  std::vector<Array> outputs = batch.allocate_outputs(options.stream);
  const std::vector<Tensor> views(outputs.begin(), outputs.end());
  const Array workspace = allocate_workspace(batch.plan(), options.stream);
  batch.run(inputs, views,
            {.stream = options.stream,
             .workspace = {workspace.as<std::byte>(), batch.plan().workspace_bytes()},
             .status = options.status});
  view_aliased(batch.outputs(), inputs, outputs);
  return outputs;
}

}  // namespace ejk
