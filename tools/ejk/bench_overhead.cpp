// ejk bench --overhead: what a call costs the host before a kernel has anything to do, on problems without elements.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ejkernel/c_api.h"
#include "ejkernel/core/dlpack.h"
#include "ejkernel/core/error.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/print.h"
#include "tools/ejk/workload.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRunTarget = 0.5e-6, kCRunTarget = 1e-6, kExecuteTarget = 3e-6;

/// The operation's default call with nothing in it: the first dimension of its first input is 0.
ToolCall empty_call(const std::string& operation) {
  CallFlags flags;
  flags.operation = operation;
  const Operation& op = *KernelRegistry::instance().find(operation)->declaration;
  flags.dims[std::string(op.inputs[0].contract.begin()->dims[0].name)] = 0;
  return make_call_with_data(flags);
}

/// Tensors as the C interface takes them, by name.
class CTensors {
 public:
  CTensors(std::span<const TensorField> fields, std::span<const Tensor> tensors)
      : shapes_(tensors.size()), strides_(tensors.size()) {
    tensors_.reserve(tensors.size());
    names_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].present()) continue;
      tensors_.push_back(to_dlpack_view(tensors[i], shapes_[i].data(), strides_[i].data()));
      names_.emplace_back(fields[i].name);
      list_.push_back({names_.back().c_str(), &tensors_.back()});
    }
  }
  const std::vector<ejk_tensor>& list() const { return list_; }

 private:
  std::vector<std::array<int64_t, kMaxRank>> shapes_, strides_;
  std::vector<DLTensor> tensors_;
  std::vector<std::string> names_;
  std::vector<ejk_tensor> list_;
};

void require(ejk_status status) {
  if (status == EJK_OK) return;
  const char* text = "";
  ejk_last_error(&text);
  throw Internal(
      fmt::format("ejk: bench --overhead: the C interface must run what C++ runs, got '{}'; please report it", text));
}

Summary time_of(const std::function<void(int64_t)>& run, double seconds) {
  return measure(make_sampler(run), {.max_seconds = seconds, .spread = 0.005, .min_samples = 25});
}

Json figure(std::string_view operation, std::string_view what, const Summary& time, double target) {
  return {{"operation", operation}, {"what", what},     {"seconds", time.median},      {"low", time.low},
          {"high", time.high},      {"target", target}, {"met", time.median <= target}};
}

void measure_operation(const std::string& operation, double seconds, Json& figures) {
  const ToolCall call = empty_call(operation);
  const Workload workload(call, CallFlags{}, 0);
  const Plan& plan = workload.plan();
  figures.push_back(figure(operation, "plan.run", time_of([&](int64_t i) { workload.run(i); }, seconds), kRunTarget));

  const std::vector<Tensor> outputs(workload.outputs().begin(), workload.outputs().end());
  const CTensors c_inputs(plan.operation().inputs, call.inputs), c_outputs(plan.operation().outputs, outputs);
  ejk_plan_t* c_plan = nullptr;
  require(ejk_plan(operation.c_str(), c_inputs.list().data(), c_inputs.list().size(), nullptr, nullptr, &c_plan));
  Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  ejk_run_options options = {};
  options.size = sizeof options;
  options.workspace = workspace.data();
  options.workspace_bytes = plan.workspace_bytes();
  const auto run_c = [&](int64_t) {
    require(ejk_plan_run(c_plan, c_inputs.list().data(), c_inputs.list().size(), c_outputs.list().data(),
                         c_outputs.list().size(), &options));
  };
  figures.push_back(figure(operation, "ejk_plan_run", time_of(run_c, seconds), kCRunTarget));
  ejk_free(c_plan);

  const auto run_whole = [&](int64_t) { execute(operation, call.inputs, call.params); };
  figures.push_back(figure(operation, "execute", time_of(run_whole, seconds), kExecuteTarget));
}

}  // namespace

int bench_overhead(const BenchFlags& flags) {
  Json figures = Json::array();
  const double seconds = std::min(flags.seconds, 0.3);
  for (const std::string& operation : KernelRegistry::instance().names()) {
    if (!flags.call.operation.empty() && operation != flags.call.operation) continue;
    if (!forward_of(operation).empty()) continue;
    measure_operation(operation, seconds, figures);
  }
  bool met = true;
  Table table("llrrrl", " | ");
  table.add({"operation", "call of no elements", "ns", "±", "target ns", ""});
  for (const Json& f : figures) {
    met = met && f["met"].get<bool>();
    const double spread = (f["high"].get<double>() - f["low"].get<double>()) / 2 / f["seconds"].get<double>();
    table.add({f["operation"], f["what"], fmt::format("{:.0f}", 1e9 * f["seconds"].get<double>()),
               fmt::format("{:.1f} %", 100 * spread), fmt::format("{:.0f}", 1e9 * f["target"].get<double>()),
               f["met"].get<bool>() ? "met" : "missed"});
  }
  if (flags.json)
    fmt::print("{}\n", Json{{"overhead", figures}}.dump(2));
  else
    fmt::print("{}", table.text());
  return met ? kOk : kFailed;
}

}  // namespace ejk::tool
