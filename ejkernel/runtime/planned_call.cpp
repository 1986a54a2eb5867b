#include "ejkernel/runtime/planned_call.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/problem.h"

namespace ejk {
namespace {

constexpr int kVersion = 1;

}  // namespace

std::string label_of(const Plan& plan) {
  const Operation& op = plan.operation();
  const CheckedCall checked = check_call(op, plan.inputs(), plan.params());
  const std::string key = problem_key(op, plan.inputs(), plan.params(), checked, device_fingerprint(plan.device()));
  return fmt::format("ejkernel.{}@{}:{}", op.name, op.revision, to_string(digest_of(key)));
}

std::string planned_call_json(const Plan& plan) {
  Invocation call{.operation = std::string(plan.operation().name),
                  .inputs = {plan.inputs().begin(), plan.inputs().end()},
                  .params = plan.params(),
                  .options = {.kernel = plan.kernel().name}};
  return fmt::format(R"({{"version":{},"label":"{}","config":{},"call":{}}})", kVersion, label_of(plan),
                     config_json(plan.kernel(), plan.choice().config), to_json(call));
}

PlannedCall planned_call_from_json(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string fix = "lower the program again with this version of the library";
  if (!json.is_object() || !json.contains("version") || json["version"] != kVersion)
    throw_invalid("planned call", "its version", fmt::format("be {}", kVersion),
                  json.is_object() && json.contains("version") ? json["version"].dump() : "none", fix);
  PlannedCall planned;
  for (const char* field : {"label", "config", "call"})
    if (!json.contains(field)) throw_invalid("planned call", field, "be there", "nothing", fix);
  if (!json["label"].is_string()) throw_invalid("planned call", "label", "be a text", json["label"].dump(), fix);
  planned.label = json["label"].get<std::string>();
  planned.call = invocation_from_json(json["call"].dump());
  planned.config = config_values_from_json(planned.call.operation, json["config"].dump());
  if (const auto wanted = json.find("outputs"); wanted != json.end()) {
    if (!wanted->is_array()) throw_invalid("planned call", "outputs", "be a list of names", wanted->dump(), fix);
    planned.outputs.emplace();
    for (const auto& output : *wanted) {
      const Operation& op = *KernelRegistry::instance().find(planned.call.operation)->declaration;
      if (!output.is_string() || find_output(op, output.get<std::string>()) < 0)
        throw_invalid("planned call", "outputs", fmt::format("be names of {}'s", op.name), output.dump(), fix);
      planned.outputs->push_back(output.get<std::string>());
    }
  }
  return planned;
}

Plan plan_of(const PlannedCall& planned) {
  PlanOptions options = planned.call.options;
  options.config = planned.config;
  return Plan::make(planned.call.operation, planned.call.inputs, planned.call.params, options);
}

}  // namespace ejk
