#include "tools/ejk/docs_probe.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/call_flags.h"

namespace ejk::tool {
namespace {

const Operation& find_operation(const std::string& name) { return *KernelRegistry::instance().find(name)->declaration; }

CallFlags flags_for(const std::string& operation) {
  CallFlags flags;
  const std::string forward = forward_of(operation);
  flags.operation = forward.empty() ? operation : forward;
  flags.backward = !forward.empty();
  return flags;
}

/// The call, when it is a valid one.
std::optional<ToolCall> valid_call(const CallFlags& flags) {
  try {
    ToolCall call = make_specs(flags);
    check_call(find_operation(call.operation), call.inputs, call.params);
    return call;
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

Support ask(const KernelInfo& kernel, const ToolCall& call) {
  const CheckedCall checked = check_call(find_operation(call.operation), call.inputs, call.params);
  std::vector<Tensor> outputs;
  for (const OutputSpec& spec : checked.outputs)
    outputs.push_back(spec.present ? Tensor(nullptr, spec.dtype, spec.shape) : Tensor());
  return kernel.supports({call.inputs, &call.params, outputs}, device_properties({}));
}

/// Every dtype and form that the first input may have, each of which makes a call that other flags are tried on.
std::vector<CallFlags> bases(const std::string& operation) {
  const CallFlags plain = flags_for(operation);
  const Operation& op = find_operation(plain.operation);
  std::vector<CallFlags> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::e4m3, DType::e5m2, DType::i8})
    for (size_t form = 0; form < std::max<size_t>(1, op.forms.size()); ++form) {
      CallFlags flags = plain;
      flags.dtype = name(dtype);
      if (!op.forms.empty()) flags.form = op.forms[form];
      all.push_back(flags);
    }
  return all;
}

/// A value that differs from the default, as the command line writes it.
std::string sample_value(const Operation& op, const ParamField& field) {
  if (!field.choices.empty()) {
    const std::string now = to_string(field.get(op.default_params.data()));
    return std::string(field.choices[0] == now ? field.choices[1] : field.choices[0]);
  }
  switch (field.type) {
    case ParamType::boolean:
      return std::get<bool>(field.get(op.default_params.data())) ? "false" : "true";
    case ParamType::real:
      return field.range.contains(0.25) ? "0.25" : "1";
    case ParamType::integer:
      return "64";
    case ParamType::integers:
      return "64,0";
    case ParamType::text:
      return "f32";  // the only texts without a list of choices are dtypes
  }
  return "";
}

struct Probe {
  std::string label;
  ToolCall call;
};

/// The first valid call with `change` applied to a base.
template <class Change>
void add_probe(std::vector<Probe>& probes, const std::vector<CallFlags>& bases, std::string label, Change&& change) {
  for (CallFlags flags : bases) {
    change(flags);
    if (std::optional<ToolCall> call = valid_call(flags)) {
      probes.push_back({std::move(label), std::move(*call)});
      return;
    }
  }
}

std::vector<Probe> probes_of(const std::string& operation) {
  const std::vector<CallFlags> all = bases(operation);
  const Operation& op = find_operation(all.front().operation);
  std::vector<Probe> probes;
  for (const CallFlags& base : all)
    if (base.form.empty() || base.form == op.forms[0]) add_probe(probes, {base}, base.dtype, [](CallFlags&) {});
  for (const std::string_view form : op.forms)
    add_probe(probes, all, std::string(form), [&](CallFlags& flags) { flags.form = form; });
  for (const TensorField& field : op.inputs)
    if (std::any_of(field.contract.begin(), field.contract.end(), [](const Alternative& a) { return a.optional; }))
      add_probe(probes, all, std::string(field.name), [&](CallFlags& flags) { flags.inputs.emplace_back(field.name); });
  for (const ParamField& field : op.params)
    add_probe(probes, all, std::string(field.name),
              [&](CallFlags& flags) { flags.params.emplace_back(field.name, sample_value(op, field)); });
  return probes;
}

/// The sentence that planning the call raises; "" when it is valid.
std::string error_of(const ToolCall& call) {
  try {
    check_call(find_operation(call.operation), call.inputs, call.params);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

void add_range_errors(std::vector<std::string>& sentences, const ToolCall& valid) {
  const Operation& op = find_operation(valid.operation);
  for (const ParamField& field : op.params) {
    if (field.type != ParamType::real && field.type != ParamType::integer) continue;
    if (!std::isfinite(field.range.low)) continue;
    ToolCall call = valid;
    const ParamValue outside = field.type == ParamType::real ? ParamValue(field.range.low - 1)
                                                             : ParamValue(static_cast<int64_t>(field.range.low) - 1);
    set_param(op, call.params, field.name, outside);
    sentences.push_back(error_of(call));
  }
}

}  // namespace

std::vector<Decline> declines(const std::string& operation, const KernelInfo& kernel) {
  std::vector<Decline> all;
  for (const Probe& probe : probes_of(operation)) {
    const Support support = ask(kernel, probe.call);
    if (support.ok) continue;
    auto same = std::find_if(all.begin(), all.end(), [&](const Decline& d) { return d.reason == support.reason; });
    if (same == all.end()) same = all.insert(all.end(), {support.reason, {}});
    same->calls.push_back(probe.label);
  }
  return all;
}

std::vector<std::string> example_errors(const std::string& operation) {
  const Operation& op = find_operation(operation);
  const ToolCall valid = make_specs(flags_for(operation));
  std::vector<std::string> sentences;
  ToolCall call = valid;
  call.inputs[0] = {};
  sentences.push_back(error_of(call));
  call.inputs[0] = Tensor(nullptr, DType::boolean, valid.inputs[0].shape);
  sentences.push_back(error_of(call));
  call.inputs[0] = Tensor(nullptr, valid.inputs[0].dtype, {8});
  sentences.push_back(error_of(call));
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    call = valid;
    Tensor& input = call.inputs[i];
    if (!input.present() || input.rank() == 0) continue;
    Shape longer = input.shape;
    ++longer[-1];
    input = Tensor(nullptr, input.dtype, longer);
    const std::string sentence = error_of(call);
    if (sentence.empty()) continue;  // a dimension that this input alone has
    sentences.push_back(sentence);
    break;
  }
  add_range_errors(sentences, valid);
  std::erase(sentences, "");
  return sentences;
}

}  // namespace ejk::tool
