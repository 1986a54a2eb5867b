#include "ejkernel/runtime/json.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include "ejkernel/core/validate.h"
#include "ejkernel/core/version.h"

namespace ejk {
namespace {

using Json = nlohmann::ordered_json;

/// Names and reasons of kernels from outside may hold anything; what is no UTF-8 is replaced, never an exception.
std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json to_json(const ParamValue& value) {
  if (const bool* v = std::get_if<bool>(&value)) return *v;
  if (const int64_t* v = std::get_if<int64_t>(&value)) return *v;
  if (const double* v = std::get_if<double>(&value)) return *v;
  if (const std::string* v = std::get_if<std::string>(&value)) return *v;
  if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) return *v;
  return nullptr;
}

std::string dim_text(const Dim& dim) {
  switch (dim.kind) {
    case Dim::Kind::number:
      return std::to_string(dim.number);
    case Dim::Kind::name:
      return std::string(dim.name);
    case Dim::Kind::plus:
      return std::string(dim.name) + "+" + std::to_string(dim.number);
    case Dim::Kind::times:
      return std::to_string(dim.number) + "*" + std::string(dim.name);
    case Dim::Kind::broadcast:
      return std::string(dim.name) + "/1";
  }
  return {};
}

Json alternative_json(const Alternative& alternative) {
  Json json;
  static constexpr std::string_view kRules[] = {"one_of", "same_as", "result_of", "stats_of"};
  json["rule"] = kRules[static_cast<size_t>(alternative.rule)];
  if (alternative.rule == DTypeRule::one_of) {
    json["dtypes"] = Json::array();
    for (int i = 0; i < kNumDTypes; ++i)
      if ((alternative.dtypes & (DTypeSet{1} << i)) != 0) json["dtypes"].push_back(name(static_cast<DType>(i)));
  } else {
    json["field"] = alternative.dtype_text;
  }
  json["dims"] = Json::array();
  for (int axis = 0; axis < alternative.rank; ++axis)
    json["dims"].push_back(dim_text(alternative.dims[static_cast<size_t>(axis)]));
  json["optional"] = alternative.optional;
  if (alternative.aliased) json["aliased"] = true;
  return json;
}

Json tensor_field_json(const TensorField& field) {
  Json json = {{"name", field.name}, {"contract", field.contract.text()}, {"doc", field.doc}};
  if (!field.python_name.empty()) json["python_name"] = field.python_name;
  bool optional = true;
  json["forms"] = Json::array();
  for (int form = 0; form < field.contract.num_forms(); ++form) {
    Json alternatives = Json::array();
    for (const Alternative& alternative : field.contract)
      if (field.contract.applies(alternative, form)) {
        alternatives.push_back(alternative_json(alternative));
        optional = optional && alternative.optional;
      }
    optional = optional || alternatives.empty();
    json["forms"].push_back(std::move(alternatives));
  }
  json["optional"] = optional;
  return json;
}

Json param_json(const Operation& op, const ParamField& field) {
  static constexpr std::string_view kKeys[] = {"none", "present", "value", "bucket"};
  Json json = {{"name", field.name},
               {"type", name(field.type)},
               {"default", to_json(field.get(op.default_params.data()))},
               {"key", kKeys[static_cast<size_t>(field.key)]},
               {"doc", field.doc}};
  if (!field.choices.empty()) json["choices"] = std::vector<std::string>(field.choices.begin(), field.choices.end());
  Json range = Json::object();
  if (std::isfinite(field.range.low)) range[field.range.low_open ? "above" : "at_least"] = field.range.low;
  if (std::isfinite(field.range.high)) range[field.range.high_open ? "below" : "at_most"] = field.range.high;
  if (!range.empty()) json["range"] = range;
  return json;
}

Json kernel_json(const KernelInfo& kernel) {
  Json json = {{"name", kernel.name},
               {"platform", name(kernel.platform)},
               {"backend", name(kernel.backend)},
               {"revision", kernel.revision}};
  json["config"] = Json::array();
  for (const ConfigField& field : kernel.config_fields)
    json["config"].push_back({{"name", field.name},
                              {"legal", std::vector<int64_t>(field.legal.begin(), field.legal.end())},
                              {"doc", field.doc}});
  return json;
}

Json operation_json(const RegisteredOperation& registered) {
  const Operation& op = *registered.declaration;
  Json json = {{"name", op.name}, {"revision", op.revision}, {"summary", op.summary}, {"source", op.source}};
  json["forms"] = std::vector<std::string>(op.forms.begin(), op.forms.end());
  json["gradient"] = op.gradient.empty() ? Json(nullptr) : Json(op.gradient);
  json["inputs"] = Json::array();
  for (const TensorField& field : op.inputs) json["inputs"].push_back(tensor_field_json(field));
  json["params"] = Json::array();
  for (const ParamField& field : op.params) json["params"].push_back(param_json(op, field));
  json["outputs"] = Json::array();
  for (const TensorField& field : op.outputs) json["outputs"].push_back(tensor_field_json(field));
  json["kernels"] = Json::array();
  for (const auto& kernel : registered.kernels) json["kernels"].push_back(kernel_json(*kernel));
  return json;
}

Json config_object(const KernelInfo& kernel, const ConfigBlock& config) {
  Json json = Json::object();
  for (const auto& [field, value] : config_values(kernel, config)) json[field] = value;
  return json;
}

Json explanation_json(const Explanation& e) {
  Json json = {{"problem", e.problem}, {"digest", e.digest}};
  json["kernels"] = Json::array();
  for (const KernelAnswer& answer : e.trail.kernels)
    json["kernels"].push_back({{"kernel", answer.kernel},
                               {"platform", name(answer.platform)},
                               {"accepted", answer.accepted},
                               {"reason", answer.reason}});
  json["tiers"] = Json::array();
  for (const TierAnswer& answer : e.trail.tiers)
    json["tiers"].push_back(
        {{"number", static_cast<int>(answer.tier)}, {"tier", name(answer.tier)}, {"answer", answer.answer}});
  json["kernel"] = e.kernel.empty() ? Json(nullptr) : Json(e.kernel);
  json["platform"] = name(e.platform);
  json["config"] = e.config;
  json["tier"] = name(e.tier);
  if (!e.error.empty()) json["error"] = e.error;
  return json;
}

}  // namespace

std::string operations_json(int indent) {
  Json json = {{"version", kVersion}, {"operations", Json::array()}};
  const KernelRegistry& registry = KernelRegistry::instance();
  for (const std::string& name : registry.names()) json["operations"].push_back(operation_json(*registry.find(name)));
  return dump(json, indent);
}

std::string to_json(const Explanation& explanation, int indent) { return dump(explanation_json(explanation), indent); }

std::string plan_json(const Plan& plan, int indent) {
  const Operation& op = plan.operation();
  Json json = {{"operation", op.name}, {"outputs", Json::array()}};
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const OutputSpec& spec = plan.outputs()[i];
    json["outputs"].push_back(spec.present ? Json{{"name", op.outputs[i].name},
                                                  {"dtype", name(spec.dtype)},
                                                  {"shape", std::vector<int64_t>(spec.shape.begin(), spec.shape.end())}}
                                           : Json(nullptr));
  }
  const Work work = plan.work();
  json["workspace_bytes"] = plan.workspace_bytes();
  json["kernel"] = plan.kernel().name;
  json["platform"] = name(plan.kernel().platform);
  json["config"] = config_object(plan.kernel(), plan.choice().config);
  json["tier"] = name(plan.choice().tier);
  json["flops"] = work.flops;
  json["bytes"] = work.bytes;
  json["explain"] = explanation_json(explain(op.name, plan.inputs(), plan.params(), plan.options()));
  return dump(json, indent);
}

ConfigValues config_values_from_json(std::string_view operation, std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string fix = "for example {\"block_q\": 64}";
  if (!json.is_object()) throw_invalid(operation, "the config", "be a JSON object", std::string(text), fix);
  ConfigValues values;
  for (const auto& [field, value] : json.items()) {
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!value.is_number_integer() || !fits)
      throw_invalid(operation, "config field " + field, "be an integer", value.dump(), fix);
    values.emplace_back(field, value.get<int64_t>());
  }
  return values;
}

std::string config_json(const KernelInfo& kernel, const ConfigBlock& config) {
  return dump(config_object(kernel, config), -1);
}

std::string choice_json(const Choice& choice) {
  return dump({{"operation", choice.operation->declaration->name},
               {"kernel", choice.kernel->name},
               {"platform", name(choice.kernel->platform)},
               {"tier", name(choice.tier)},
               {"config", config_object(*choice.kernel, choice.config)}},
              -1);
}

}  // namespace ejk
