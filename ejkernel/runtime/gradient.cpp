#include "ejkernel/runtime/gradient.h"

#include <fmt/format.h>

#include "ejkernel/core/error.h"
#include "ejkernel/core/out_of_memory.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

bool is_required(const TensorField& field, int form) {
  for (const Alternative& alternative : field.contract)
    if (field.contract.applies(alternative, form)) return !alternative.optional;
  return false;
}

}  // namespace

GradientCall gradient_call(const ForwardCall& forward, std::span<const Tensor> cotangents, void* stream) try {
  const KernelRegistry& registry = KernelRegistry::instance();
  const Operation& op = *registry.find(forward.operation)->declaration;
  if (op.gradient.empty())
    throw_invalid(op.name, "the operation", "have a gradient", "one without", "differentiate another operation");
  if (cotangents.size() != op.outputs.size())
    throw_invalid(op.name, "the cotangents", fmt::format("be {} tensors", op.outputs.size()),
                  std::to_string(cotangents.size()), "pass one per output, absent ones default-constructed");
  if (forward.outputs.size() != op.outputs.size())
    throw_invalid(op.name, "the forward's outputs", fmt::format("be {} tensors", op.outputs.size()),
                  std::to_string(forward.outputs.size()), "pass all that it gave, absent ones default-constructed");
  const Operation& gradient = *registry.find(op.gradient)->declaration;
  const CheckedCall checked = check_call(op, forward.inputs, forward.params);
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    const std::string_view name = op.outputs[o].name;
    if (cotangents[o].present() && is_float(checked.outputs[o].dtype) &&
        find_input(gradient, fmt::format("d_{}", name)) < 0)
      throw Unsupported(fmt::format(
          "{}: its output {} has no derivative, and a cotangent of it was given; leave it out", op.name, name));
  }

  GradientCall call{
      .operation = std::string(op.gradient), .inputs = {}, .params = gradient.default_params, .zeros = {}};
  for (const TensorField& field : gradient.inputs) {
    if (const int i = find_input(op, field.name); i >= 0) {
      call.inputs.push_back(forward.inputs[static_cast<size_t>(i)]);
    } else if (const int o = find_output(op, field.name); o >= 0) {
      call.inputs.push_back(forward.outputs[static_cast<size_t>(o)]);
    } else if (const int d = field.name.starts_with("d_") ? find_output(op, field.name.substr(2)) : -1; d >= 0) {
      Tensor cotangent = cotangents[static_cast<size_t>(d)];
      const OutputSpec& spec = checked.outputs[static_cast<size_t>(d)];
      if (!cotangent.present() && spec.present && is_required(field, checked.form)) {
        call.zeros.push_back(Array::zeros(spec.dtype, spec.shape, forward.inputs[0].device, stream));
        cotangent = call.zeros.back();
      }
      call.inputs.push_back(cotangent);
    } else {
      throw Internal(fmt::format("{}: input {} is neither an input, an output nor a cotangent of {}", gradient.name,
                                 field.name, op.name));
    }
  }
  for (const ParamField& field : gradient.params) {
    for (const ParamField& known : op.params)
      if (known.name == field.name) field.set(call.params.data(), known.get(forward.params.data()));
    if (const Dims::Entry* dim = checked.dims.find(field.name)) field.set(call.params.data(), ParamValue(dim->value));
  }
  return call;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::vector<Array> pull_back(const ForwardCall& forward, std::span<const Tensor> cotangents,
                             const CallOptions& options) {
  const GradientCall call = gradient_call(forward, cotangents, options.stream);
  // A kernel and its config are the forward's alone.
  CallOptions ours = options;
  ours.plan.kernel.clear();
  ours.plan.config.reset();
  return execute(call.operation, call.inputs, call.params, ours);
}

}  // namespace ejk
