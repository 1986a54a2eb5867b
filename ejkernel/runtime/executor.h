// The untyped front: one call by operation name. The typed one, execute<Op>, is in ejkernel/runtime/api.h.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/tensor.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

struct CallOptions {
  PlanOptions plan = {};
  void* stream = nullptr;
  uint32_t* status = nullptr;
};

/// Validates, finds the choice, binds, allocates outputs and workspace, runs. Holds its default options and nothing
/// else, so one may be shared by threads.
class EJK_API Executor {
 public:
  explicit Executor(PlanOptions defaults = {}) : defaults_(std::move(defaults)) {}

  /// `executor(operation, inputs, params)`; the executor's own options apply.
  std::vector<Array> operator()(std::string_view operation, std::span<const Tensor> inputs,
                                const ParamsBlock& params) const;
  Plan plan(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params) const;

 private:
  PlanOptions defaults_;
};

/// Options from the environment, and nothing overridden.
EJK_API Executor create_default_executor();

/// An output that aliases an input comes back as a view of that input, whose memory stays the caller's and must outlive
/// it.
EJK_API std::vector<Array> execute(std::string_view operation, std::span<const Tensor> inputs,
                                   const ParamsBlock& params, const CallOptions& options = {});

/// What a plan needs to run once, in the order of `stream` on a device; absent when it needs nothing.
EJK_API Array allocate_workspace(const Plan& plan, void* stream = nullptr);

/// Runs a plan into outputs that the caller owns, allocating the workspace it needs.
EJK_API void run_with_workspace(const Plan& plan, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                                const CallOptions& options = {});

}  // namespace ejk
