#include <fmt/format.h>

#include "ejkernel/runtime/batch_fold_internal.h"
#include "ejkernel/runtime/devices.h"

namespace ejk::batches {
namespace {

DimAxis find_dim_in(const Alternative& alternative, std::string_view dim) {
  DimAxis found;
  for (int axis = 0; axis < alternative.rank; ++axis) {
    const Dim& here = alternative.dims[static_cast<size_t>(axis)];
    if (here.name != dim) continue;
    const bool is_plain = here.kind == Dim::Kind::name || here.kind == Dim::Kind::broadcast;
    found = {.axis = axis,
             .broadcasts = here.kind == Dim::Kind::broadcast,
             .is_clear = is_plain && found.axis == kNone && found.is_clear};
  }
  return found;
}

}  // namespace

/// Alternatives of one rank must agree.
DimAxis find_dim(const Contract& contract, int form, int rank, std::string_view dim) {
  std::optional<DimAxis> found;
  for (const Alternative& alternative : contract) {
    if (!contract.applies(alternative, form) || alternative.rank != rank) continue;
    const DimAxis here = find_dim_in(alternative, dim);
    if (found && !(*found == here)) return {.is_clear = false};
    found = here;
  }
  return found.value_or(DimAxis());
}

namespace {

/// One call on its way to a fold; what stands in the way of it is a sentence.
class Folder {
 public:
  Folder(const Call& call, const ParamsBlock& params, const PlanOptions& options)
      : call_(call), op_(call.declaration()), params_(params), options_(options) {}

  Fold run() {
    if (const std::string why = why_not(); !why.empty()) fold_.answer = Support::no(why);
    return std::move(fold_);
  }

 private:
  std::string why_not() {
    if (op_.batch_dim == nullptr) return "the operation declares no dimension whose entries are calls of their own";
    dim_ = op_.batch_dim(params_);
    if (dim_.empty()) return "with these parameters a result depends on its entry's number";
    const Dims::Entry* batch = call_.slice.dims.find(dim_);
    if (batch == nullptr) return fmt::format("this form has no dimension {}", dim_);
    fold_.num_slices = call_.num_slices;
    fold_.batch = batch->value;
    if (__builtin_mul_overflow(fold_.num_slices, fold_.batch, &fold_.num_entries)) return "there are too many entries";
    std::string why = find_dims();
    if (why.empty()) why = merge_in_either_order();
    if (why.empty()) why = sum_over_entries();
    return why.empty() ? lost_kernel() : why;
  }

  std::string find_dims() {
    const int form = call_.slice.form;
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      const TensorField& field = op_.inputs[i];
      const Place place{call_.in_axes[i], find_dim(field.contract, form, call_.slice_inputs[i].rank(), dim_)};
      fold_.inputs.push_back(place);
      if (!call_.inputs[i].present()) continue;
      if (!place.dim.is_clear) return unclear(field);
      if (place.dim.axis == kNone && place.mapped_axis != kNone)
        return fmt::format("{} differs from slice to slice and has no dimension {}", field.name, dim_);
    }
    for (size_t i = 0; i < call_.outputs.size(); ++i) {
      const TensorField& field = op_.outputs[i];
      const OutputSpec& slice = call_.slice.outputs[i];
      const DimAxis dim = find_dim(field.contract, form, slice.shape.rank(), dim_);
      fold_.outputs.push_back({call_.out_axes[i], dim});
      if (!slice.present) continue;
      if (!dim.is_clear) return unclear(field);
      if (dim.axis == kNone || slice.shape[dim.axis] != fold_.batch) return is_a_sum(field);
    }
    return {};
  }

  std::string unclear(const TensorField& field) const {
    return fmt::format("{} has the dimension {} in several places", field.name, dim_);
  }
  std::string is_a_sum(const TensorField& field) const {
    return fmt::format("{} is no result per entry of {}", field.name, dim_);
  }

  std::string merge_in_either_order() {
    const std::string_view first = unmerged();
    if (first.empty()) return {};
    fold_.slices_are_outer = false;
    const std::string_view second = unmerged();
    if (second.empty()) return {};
    const std::string why = fmt::format("slices and {} make no one axis of {}", dim_, first);
    return first == second ? why : fmt::format("{} in one order, and none of {} in the other", why, second);
  }

  /// Makes views of all tensors in the order that `fold_` says. The first that has none, or nothing.
  std::string_view unmerged() {
    inputs_.clear();
    outputs_.clear();
    for (size_t i = 0; i < call_.inputs.size(); ++i) {
      const auto merged = fold_.merged(call_.inputs[i], fold_.inputs[i]);
      if (!merged) return op_.inputs[i].name;
      inputs_.push_back(*merged);
    }
    for (size_t i = 0; i < call_.outputs.size(); ++i) {
      const OutputSpec& spec = call_.outputs[i];
      Tensor whole = spec.present ? Tensor(nullptr, spec.dtype, spec.shape, call_.device) : Tensor();
      if (spec.aliased_input >= 0) whole = call_.inputs[static_cast<size_t>(spec.aliased_input)];
      const auto merged = fold_.merged(whole, fold_.outputs[i]);
      if (!merged) return op_.outputs[i].name;
      outputs_.push_back(*merged);
    }
    return {};
  }

  /// An output that follows an input of extent 1 would be one sum for all slices.
  std::string sum_over_entries() {
    const CheckedCall whole = check_call(op_, inputs_, params_);
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_[i].present() && !(whole.outputs[i].shape == outputs_[i].shape)) return is_a_sum(op_.outputs[i]);
    return {};
  }

  /// A kernel that takes a slice may refuse the fold: TMA has no stride of 0, and some counts have 32 bits. Slices one
  /// by one with that kernel are faster than all of them with the next.
  std::string lost_kernel() const {
    std::vector<Tensor> slice_outputs;
    for (const OutputSpec& spec : call_.slice.outputs)
      slice_outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape, call_.device) : Tensor());
    const CallView slice{call_.slice_inputs, &params_, slice_outputs}, whole{inputs_, &params_, outputs_};
    const DeviceProperties& properties = device_properties(call_.device);
    for (const auto& kernel : call_.operation->kernels) {
      if (!may_be_asked(*kernel, options_, call_.device) || !kernel->supports(slice, properties).ok) continue;
      const Support support = kernel->supports(whole, properties);
      return support.ok ? ""
                        : fmt::format("kernel {} takes a slice and not the fold: {}", kernel->name, support.reason);
    }
    return {};
  }

  const Call& call_;
  const Operation& op_;
  const ParamsBlock& params_;
  const PlanOptions& options_;
  std::string_view dim_;
  Fold fold_;
  std::vector<Tensor> inputs_, outputs_;
};

}  // namespace

Shape without_axis(const Shape& shape, int axis) {
  Shape rest;
  for (int i = 0; i < shape.rank(); ++i)
    if (i != axis) rest.push_back(shape[i]);
  return rest;
}

Shape with_axis(const Shape& shape, int axis, int64_t extent) {
  Shape more;
  for (int i = 0; i <= shape.rank(); ++i) {
    if (i == axis) more.push_back(extent);
    if (i < shape.rank()) more.push_back(shape[i]);
  }
  return more;
}

Tensor first_slice(const Tensor& whole, int axis) {
  if (axis == kNone) return whole;
  return Tensor(whole.data, whole.dtype, without_axis(whole.shape, axis), without_axis(whole.strides, axis),
                whole.device);
}

/// The stride that leads over two axes as if they were one.
static std::optional<int64_t> common_stride(int64_t outer, int64_t inner, int64_t inner_extent) {
  int64_t past_inner = 0;
  if (__builtin_mul_overflow(inner_extent, inner, &past_inner) || outer != past_inner) return std::nullopt;
  return inner;
}

std::optional<Tensor> Fold::merged(const Tensor& whole, const Place& place) const {
  const auto& [mapped_axis, dim] = place;
  if (!whole.present() || dim.axis == kNone) return whole;
  Tensor t = first_slice(whole, mapped_axis);
  int64_t& extent = t.shape[dim.axis];
  int64_t& stride = t.strides[dim.axis];
  if (mapped_axis == kNone && dim.broadcasts && extent == 1) return whole;  // to all entries of all slices
  const int64_t over_slices = mapped_axis == kNone ? 0 : whole.strides[mapped_axis];
  const int64_t over_entries = extent == batch ? stride : 0;
  std::optional<int64_t> over_both = over_entries;  // of one slice, and where there is nothing
  if (batch == 1)
    over_both = over_slices;
  else if (num_slices > 1 && batch > 1)
    over_both = slices_are_outer ? common_stride(over_slices, over_entries, batch)
                                 : common_stride(over_entries, over_slices, num_slices);
  if (!over_both) return std::nullopt;
  extent = num_entries;
  stride = *over_both;
  const bool is_last = dim.axis == t.rank() - 1;
  return is_last && extent > 1 && stride != 1 ? std::nullopt : std::optional(t);
}

Fold fold_of(const Call& call, const ParamsBlock& params, const PlanOptions& options) {
  return Folder(call, params, options).run();
}

}  // namespace ejk::batches
