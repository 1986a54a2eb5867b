#include "ejkernel/runtime/executor.h"

namespace ejk {

Executor create_default_executor() { return Executor(); }

std::vector<Array> Executor::operator()(std::string_view operation, std::span<const Tensor> inputs,
                                        const ParamsBlock& params) const {
  return execute(operation, inputs, params, {.plan = defaults_});
}

Plan Executor::plan(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params) const {
  return Plan::make(operation, inputs, params, defaults_);
}

void run_with_workspace(const Plan& plan, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                        const CallOptions& options) {
  RunOptions run{.stream = options.stream, .status = options.status};
  Array workspace;
  if (plan.workspace_bytes() > 0) {
    workspace = Array(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())}, plan.device(), options.stream);
    run.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()};
  }
  plan.run(inputs, outputs, run);
}

std::vector<Array> execute(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                           const CallOptions& options) {
  const Plan plan = Plan::make(operation, inputs, params, options.plan);
  std::vector<Array> outputs = plan.allocate_outputs(options.stream);
  const std::vector<Tensor> views(outputs.begin(), outputs.end());
  run_with_workspace(plan, inputs, views, options);
  return outputs;
}

}  // namespace ejk
