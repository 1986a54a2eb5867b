// One call of an operation as a command line says it: dimensions by name, dtype, parameters, kernel and config. The
// flags are derived from the declaration; nothing here knows an operation by name.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/choose.h"
#include "tools/ejk/options.h"

namespace ejk::tool {

/// The flags as given; what is left out follows by `make_call`.
struct CallFlags {
  std::string operation;  ///< the forward operation
  bool backward = false;  ///< its gradient is what is asked for
  std::string form;       ///< "" : the one that the given dimensions belong to
  std::string dtype;      ///< of every input that may have it
  std::map<std::string, int64_t> dims;
  std::vector<std::string> inputs;  ///< optional inputs: "bias", or "bias=f32[1, 1, 8, 8]"
  std::vector<std::pair<std::string, std::string>> params;
  std::string platform, kernel, policy;
  std::vector<std::string> config;  ///< "block_q=64"
};

/// The operation whose gradient this is, or "".
std::string forward_of(std::string_view operation);

/// Declares a command for each operation, with its flags. A gradient that has a forward operation takes the forward's
/// flags: the call is made from one of the forward.
void declare_operations(Options& verb, CallFlags& flags);
/// Only --platform, --kernel, --config and --policy.
void declare_choice(Options& options, CallFlags& flags);

/// The parsed choice flags.
PlanOptions plan_options(const CallFlags& flags);

/// A call as the runtime takes it. `owned` holds the buffers that the inputs view; specs have none.
struct ToolCall {
  std::string operation;
  std::vector<Tensor> inputs = {};
  ParamsBlock params = {};
  std::vector<Array> owned = {};
};
/// The forward call, as specs. InvalidArgument names what is missing or wrong.
ToolCall make_call(const CallFlags& flags);
/// The call that is asked for, as specs: the forward's, or the gradient's made from it.
ToolCall make_specs(const CallFlags& flags);
/// InvalidArgument unless the command line names an operation.
void require_operation(std::string_view verb, const CallFlags& flags);
/// The gradient's call for specs of a forward call; only the first output has a cotangent.
ToolCall gradient_specs(const ToolCall& forward);
/// Whether any flag describes the problem itself.
bool names_a_problem(const CallFlags& flags);

}  // namespace ejk::tool
