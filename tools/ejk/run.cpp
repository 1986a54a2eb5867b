// ejk run: one call on random data; what came out of it, how long it took, and what did it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/json.h"
#include "ejkernel/runtime/timer.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"
#include "tools/ejk/workload.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  CallFlags call;
  bool json = false;
};

struct Statistics {
  double least = INFINITY, most = -INFINITY, mean = 0;
  int64_t num_nan = 0, num_infinite = 0;
};

/// Over the finite elements.
Statistics statistics_of(const Tensor& t) {
  Statistics s;
  double sum = 0;
  int64_t finite = 0;
  for (int64_t n = 0; n < t.num_elements(); ++n) {
    const double x = get(t, n);
    s.num_nan += std::isnan(x);
    s.num_infinite += std::isinf(x);
    if (!std::isfinite(x)) continue;
    ++finite;
    sum += x;
    s.least = std::min(s.least, x);
    s.most = std::max(s.most, x);
  }
  s.mean = finite > 0 ? sum / static_cast<double>(finite) : NAN;
  return s;
}

Json output_json(std::string_view name, const Tensor& t) {
  const Statistics s = statistics_of(t);
  Json json = {
      {"name", name}, {"dtype", ejk::name(t.dtype)}, {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())}};
  json["min"] = std::isfinite(s.least) ? Json(s.least) : Json();
  json["max"] = std::isfinite(s.most) ? Json(s.most) : Json();
  json["mean"] = std::isfinite(s.mean) ? Json(s.mean) : Json();
  json["nan"] = s.num_nan;
  json["infinite"] = s.num_infinite;
  return json;
}

Json result_json(const TimedWorkload& workload, const Summary& time) {
  const Plan& plan = workload.plan();
  Json json = {{"operation", plan.operation().name}, {"outputs", Json::array()}};
  for (size_t i = 0; i < workload.outputs().size(); ++i) {
    const Array& output = workload.outputs()[i];
    if (!output.present()) continue;
    const Array on_host = plan.device().kind == DeviceKind::cpu ? output : to_host(output);
    json["outputs"].push_back(output_json(plan.operation().outputs[i].name, on_host));
  }
  json["kernel"] = plan.kernel().name;
  json["platform"] = name(plan.kernel().platform);
  json["config"] = Json::parse(config_json(plan.kernel(), plan.choice().config));
  json["tier"] = name(plan.choice().tier);
  json["device"] = to_string(plan.device());
  json["seconds"] = time.median;
  json["spread"] = time.spread();
  json["workspace_bytes"] = plan.workspace_bytes();
  return json;
}

std::string number(const Json& value) { return value.is_null() ? "-" : fmt::format("{:.6g}", value.get<double>()); }

void print_text(const Json& json) {
  Table table("llrrrrr");
  table.add({"output", "", "min", "max", "mean", "NaN", "inf"});
  for (const Json& output : json["outputs"])
    table.add({output["name"],
               fmt::format("{}[{}]", output["dtype"].get<std::string>(),
                           fmt::join(output["shape"].get<std::vector<int64_t>>(), ", ")),
               number(output["min"]), number(output["max"]), number(output["mean"]), output["nan"].dump(),
               output["infinite"].dump()});
  fmt::print("{}", table.text());
  std::string config;
  for (const auto& [field, value] : json["config"].items()) config += fmt::format("{}={} ", field, value.dump());
  fmt::print("\n{} by kernel {}, config {}(tier {}): {} ± {:.1f} %, workspace {}\n",
             json["operation"].get<std::string>(), json["kernel"].get<std::string>(), config.empty() ? "- " : config,
             json["tier"].get<std::string>(), duration(json["seconds"].get<double>()),
             100 * json["spread"].get<double>(), bytes_text(json["workspace_bytes"].get<double>()));
}

}  // namespace

Action declare_run(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.flag("json", flags->json, "print JSON");
  declare_operations(options, flags->call);
  return [flags]() -> int {
    require_operation("run", flags->call);
    plan_options(flags->call);  // what is wrong with them is said before data are made
    const TimedWorkload workload(flags->call, /*warm=*/true);
    const Summary time = measure(workload.sampler(), {.max_seconds = 0.2, .min_samples = 3});
    const Json json = result_json(workload, time);
    flags->json ? fmt::print("{}\n", json.dump(2)) : print_text(json);
    return kOk;
  };
}

}  // namespace ejk::tool
