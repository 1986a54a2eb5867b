#include "ejkernel/runtime/planned_call.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

constexpr int kVersion = 1;
constexpr std::string_view kFix = "lower the program again with this version of the library";

// What is read may come from anywhere; a call as we write it takes some thousand bytes and nests six deep.
constexpr size_t kMostBytes = 1 << 20;
constexpr int kMostDepth = 16;
constexpr size_t kMostLetters = 200;

using Json = nlohmann::json;

/// Whether brackets nest deeper than in any call: writing such a thing down would take the stack.
bool is_too_deep(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char letter = json[i];
    if (in_text && letter == '\\') ++i;
    if (letter == '"') in_text = !in_text;
    if (in_text) continue;
    if (letter == '{' || letter == '[') deepest = std::max(deepest, ++depth);
    if (letter == '}' || letter == ']') --depth;
  }
  return deepest > kMostDepth;
}

std::string shown(const Json& got) {
  const std::string all = got.dump();
  return all.size() > kMostLetters ? all.substr(0, kMostLetters) + "..." : all;
}

/// Label and problem, as members of an object with a comma behind each.
std::string stamp_of(const Plan& plan) {
  const environment::OpsStamp stamp = environment::ops_stamp();
  std::string text;
  if (stamp == environment::OpsStamp::none) return text;
  text = fmt::format(R"("label":"{}",)", label_of(plan));
  if (stamp == environment::OpsStamp::json) {
    const CheckedCall checked = check_call(plan.operation(), plan.inputs(), plan.params());
    const std::string problem = problem_text(plan.operation(), plan.inputs(), plan.params(), checked);
    text += fmt::format(R"("problem":{},)",
                        Json(problem).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace));
  }
  return text;
}

/// The wanted outputs, by name.
std::vector<std::string> outputs_from_json(const Operation& op, const Json& wanted) {
  if (!wanted.is_array()) throw_invalid("planned call", "outputs", "be a list of names", shown(wanted), kFix);
  std::vector<std::string> names;
  for (const Json& output : wanted) {
    if (!output.is_string() || find_output(op, output.get<std::string>()) < 0)
      throw_invalid("planned call", "outputs", fmt::format("be names of {}'s", op.name), shown(output), kFix);
    names.push_back(output.get<std::string>());
  }
  return names;
}

}  // namespace

std::string label_of(const Plan& plan) {
  const Operation& op = plan.operation();
  const CheckedCall checked = check_call(op, plan.inputs(), plan.params());
  const std::string key = problem_key(op, plan.inputs(), plan.params(), checked, device_fingerprint(plan.device()));
  return fmt::format("{}{}@{}:{}", environment::ops_prefix(), op.name, op.revision, to_string(digest_of(key)));
}

std::string planned_call_json(const Plan& plan) {
  Invocation call{.operation = std::string(plan.operation().name),
                  .inputs = {plan.inputs().begin(), plan.inputs().end()},
                  .params = plan.params(),
                  .options = {.kernel = plan.kernel().name}};
  return fmt::format(R"({{"version":{},{}"config":{},"call":{}}})", kVersion, stamp_of(plan),
                     config_json(plan.kernel(), plan.choice().config), to_json(call));
}

PlannedCall planned_call_from_json(std::string_view text) {
  if (text.size() > kMostBytes || is_too_deep(text))
    throw_invalid("planned call", "it", "be as small and flat as the library writes it",
                  fmt::format("{} bytes", text.size()), kFix);
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("version") || json["version"] != kVersion)
    throw_invalid("planned call", "its version", fmt::format("be {}", kVersion),
                  json.is_object() && json.contains("version") ? shown(json["version"]) : "none", kFix);
  PlannedCall planned;
  for (const char* field : {"config", "call"})
    if (!json.contains(field)) throw_invalid("planned call", field, "be there", "nothing", kFix);
  if (const auto label = json.find("label"); label != json.end()) {
    if (!label->is_string()) throw_invalid("planned call", "label", "be a text", shown(*label), kFix);
    planned.label = label->get<std::string>();
  }
  planned.call = invocation_from_json(json["call"].dump());
  planned.config = config_values_from_json(planned.call.operation, json["config"].dump());
  if (const auto wanted = json.find("outputs"); wanted != json.end()) {
    const auto registered = KernelRegistry::instance().find(planned.call.operation);
    planned.outputs = outputs_from_json(*registered->declaration, *wanted);
  }
  if (const auto status = json.find("status"); status != json.end()) {
    if (!status->is_boolean()) throw_invalid("planned call", "status", "be true or false", shown(*status), kFix);
    planned.status = status->get<bool>();
  }
  return planned;
}

Plan plan_of(const PlannedCall& planned) {
  PlanOptions options = planned.call.options;
  options.config = planned.config;
  // The kernel was chosen: a platform that the environment asks for is for calls which name none.
  const auto registered = KernelRegistry::instance().find(planned.call.operation);
  const KernelInfo* kernel = find_kernel(*registered, options.kernel);
  if (kernel != nullptr && !options.platform) options.platform = kernel->platform;
  return Plan::make(planned.call.operation, planned.call.inputs, planned.call.params, options);
}

}  // namespace ejk
