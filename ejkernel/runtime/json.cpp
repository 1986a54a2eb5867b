#include "ejkernel/runtime/json.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include "ejkernel/core/validate.h"
#include "ejkernel/core/version.h"
#include "ejkernel/runtime/batch_fold_internal.h"
#include "ejkernel/runtime/planned_call.h"

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
  static constexpr std::string_view kRules[] = {"one_of", "same_as", "result_of", "stats_of", "state_of"};
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
  if (is_aliased(field)) json["aliased"] = true;
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

/// Where the entries lie that are calls of their own; null where none are.
Json batch_json(const Plan& plan) {
  const Operation& op = plan.operation();
  const std::string_view dim = op.batch_dim == nullptr ? "" : op.batch_dim(plan.params());
  const Dims::Entry* batch = dim.empty() ? nullptr : plan.dims().find(dim);
  if (batch == nullptr) return nullptr;
  Json json = {{"dim", dim}, {"size", batch->value}, {"inputs", Json::object()}, {"outputs", Json::object()}};
  bool is_clear = true;
  const auto add = [&](const char* side, const TensorField& field, int rank) {
    const batches::DimAxis found = batches::find_dim(field.contract, plan.form(), rank, dim);
    if (found.axis != batches::kNone) json[side][std::string(field.name)] = found.axis;
    is_clear = is_clear && found.is_clear;
  };
  for (size_t i = 0; i < op.inputs.size(); ++i)
    if (plan.inputs()[i].present()) add("inputs", op.inputs[i], plan.inputs()[i].rank());
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (plan.outputs()[i].present) add("outputs", op.outputs[i], plan.outputs()[i].shape.rank());
  return is_clear ? json : Json(nullptr);
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
  Json json = {{"operation", op.name}, {"label", label_of(plan)}, {"outputs", Json::array()}};
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const OutputSpec& spec = plan.outputs()[i];
    json["outputs"].push_back(spec.present ? Json{{"name", op.outputs[i].name},
                                                  {"dtype", name(spec.dtype)},
                                                  {"shape", std::vector<int64_t>(spec.shape.begin(), spec.shape.end())}}
                                           : Json(nullptr));
  }
  json["dims"] = Json::object();
  for (const Dims::Entry& dim : plan.dims().entries()) json["dims"][std::string(dim.name)] = dim.value;
  json["batch"] = batch_json(plan);
  const Work work = plan.work();
  json["workspace_bytes"] = plan.workspace_bytes();
  json["kernel"] = plan.kernel().name;
  json["platform"] = name(plan.kernel().platform);
  json["config"] = config_object(plan.kernel(), plan.choice().config);
  json["tier"] = name(plan.choice().tier);
  json["flops"] = work.flops;
  json["bytes"] = work.bytes;
  const Explanation explanation = explain(op.name, plan.inputs(), plan.params(), plan.options());
  json["explain"] = explanation_json(explanation);
  json["text"] = to_text(explanation);
  json["call"] = planned_call_json(plan);
  return dump(json, indent);
}

ConfigValues config_values_from_json(std::string_view operation, std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string fix = "for example {\"block_q\": 64}";
  if (!json.is_object()) throw_invalid(operation, "the config", "be a JSON object", "'" + std::string(text) + "'", fix);
  ConfigValues values;
  for (const auto& [field, value] : json.items()) {
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!value.is_number_integer() || !fits)
      throw_invalid(operation, "config field " + field, "be an integer",
                    value.is_structured() ? "an " + std::string(value.type_name()) : value.dump(), fix);
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

std::string to_json(const TuneReport& report) {
  const KernelInfo& kernel = *report.kernel;
  Json json = {{"kernel", kernel.name},
               {"faster", report.faster},
               {"config", config_object(kernel, report.best)},
               {"heuristic", config_object(kernel, report.candidates.front().config)},
               {"complete", report.complete},
               {"published", report.published},
               {"seconds", report.seconds}};
  if (!report.transferred_from.empty()) json["transferred_from"] = report.transferred_from;
  if (report.faster) {
    json["ratio"] = report.comparison.ratio.median;
    json["ratio_low"] = report.comparison.ratio.low;
    json["ratio_high"] = report.comparison.ratio.high;
  }
  json["candidates"] = Json::array();
  for (const CandidateReport& c : report.candidates) {
    Json candidate = {{"config", config_object(kernel, c.config)}};
    if (!c.rejected.empty()) candidate["rejected"] = c.rejected;
    if (c.num_samples > 0) candidate.update({{"seconds", c.seconds}, {"samples", c.num_samples}});
    json["candidates"].push_back(std::move(candidate));
  }
  return dump(json, -1);
}

}  // namespace ejk
