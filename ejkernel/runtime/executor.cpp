#include "ejkernel/runtime/executor.h"

#include <array>
#include <optional>

#include "ejkernel/core/out_of_memory.h"

namespace ejk {
namespace {

/// The plans of this thread's last calls: a model makes the same few over and over, layer after layer, and comparing a
/// call with them takes a tenth of what planning it takes.
class RecentPlans {
 public:
  ~RecentPlans() { are_gone = true; }

  std::optional<Plan> find(const RegisteredOperation& operation, std::span<const Tensor> inputs,
                           const ParamsBlock& params, const PlanOptions& options) const {
    for (const std::optional<Plan>& plan : plans_)
      if (plan && plan->serves(operation, inputs, params, options)) return plan;
    return std::nullopt;
  }
  void add(Plan plan) {
    plans_[next_] = std::move(plan);
    next_ = (next_ + 1) % plans_.size();
  }

  /// True when the thread ends: static destructors may still call.
  static inline thread_local bool are_gone = false;

 private:
  std::array<std::optional<Plan>, 8> plans_;
  size_t next_ = 0;
};
thread_local RecentPlans recent_plans;

}  // namespace

static Plan plan_now(const std::shared_ptr<const RegisteredOperation>& operation, std::span<const Tensor> inputs,
                     const ParamsBlock& params, const CallOptions& options) {
  const CallAtHand call(inputs, options.stream);
  return Plan::make(operation, inputs, params, options.plan);
}

Executor create_default_executor() { return Executor(); }

std::vector<Array> Executor::operator()(std::string_view operation, std::span<const Tensor> inputs,
                                        const ParamsBlock& params) const try {
  return execute(operation, inputs, params, {.plan = defaults_});
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

Plan Executor::plan(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params) const {
  return Plan::make(operation, inputs, params, defaults_);
}

Array allocate_workspace(const Plan& plan, void* stream) try {
  if (plan.workspace_bytes() == 0) return {};
  return Array(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())}, plan.device(), stream);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void run_with_workspace(const Plan& plan, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                        const CallOptions& options) {
  const Array workspace = allocate_workspace(plan, options.stream);
  plan.run(inputs, outputs,
           {.stream = options.stream,
            .workspace = {workspace.as<std::byte>(), plan.workspace_bytes()},
            .status = options.status});
}

std::vector<Array> execute(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                           const CallOptions& options) try {
  const auto registered = KernelRegistry::instance().find(operation);
  std::optional<Plan> recent;
  if (!RecentPlans::are_gone) recent = recent_plans.find(*registered, inputs, params, options.plan);
  const Plan plan = recent ? *recent : plan_now(registered, inputs, params, options);
  std::vector<Array> outputs = plan.allocate_outputs(options.stream);
  const std::vector<Tensor> views(outputs.begin(), outputs.end());
  run_with_workspace(plan, inputs, views, options);
  if (!recent && !RecentPlans::are_gone) recent_plans.add(plan);
  view_aliased(plan.outputs(), inputs, outputs);
  return outputs;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace ejk
