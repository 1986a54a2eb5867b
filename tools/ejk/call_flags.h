// One call of an operation as a command line says it: dimensions by name, dtype, parameters, kernel and config. The
// flags are derived from the declaration; nothing here knows an operation by name.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  std::vector<std::string> shapes;  ///< more of them: "q_len=64,head_dim=128"; `dims` has them once all is parsed
  std::vector<std::string> inputs;  ///< optional inputs: "bias", or "bias=f32[1, 1, 8, 8]"
  std::vector<std::pair<std::string, std::string>> params;
  std::string case_name;  ///< a named problem in place of all the above; parameters may be changed
  uint64_t seed = 0;      ///< of random data
  Device device = {};
  std::string platform, kernel, policy;
  std::vector<std::string> config;  ///< "block_q=64"
};

/// The operation whose gradient this is, or "".
std::string forward_of(std::string_view operation);

/// Declares a command for each operation, with its flags. A gradient that has a forward operation takes the forward's
/// flags: the call is made from one of the forward.
/// `cases`, when given, takes any number of --case; otherwise `flags` takes one.
void declare_operations(Options& verb, CallFlags& flags, std::vector<std::string>* cases = nullptr);
/// Adds "q_len=64,head_dim=128" to `flags.dims`. InvalidArgument for anything else, and for what is there already.
void set_shape(const Operation& op, std::string_view text, CallFlags& flags);
/// "cpu", "cuda" or "cuda:1"; InvalidArgument for anything else.
Device parse_device(const std::string& text);
/// Declares --device.
void declare_device(Options& options, Device& device);
/// Only --device, --platform, --kernel, --config and --policy.
void declare_choice(Options& options, CallFlags& flags);

/// Values of a config, "block_q=64" each; InvalidArgument for anything else.
ConfigValues parse_config(const std::vector<std::string>& texts);
/// The parsed choice flags.
PlanOptions plan_options(const CallFlags& flags);

/// A call as the runtime takes it. `owners` keep the buffers that the inputs view; specs have none.
struct ToolCall {
  std::string operation;
  std::vector<Tensor> inputs = {};
  ParamsBlock params = {};
  std::vector<std::shared_ptr<const void>> owners = {};
};
/// The forward call on the host, as specs. InvalidArgument names what is missing or wrong.
ToolCall make_call(const CallFlags& flags);
/// The call that is asked for on its device, as specs: the forward's, or the gradient's made from it.
ToolCall make_specs(const CallFlags& flags);
/// InvalidArgument unless the command line names an operation.
void require_operation(std::string_view verb, const CallFlags& flags);
/// The gradient's call for a forward call and its outputs, all specs or all with data; only the first output has a
/// cotangent.
ToolCall gradient_of(const ToolCall& forward, std::span<const Tensor> outputs, const Tensor& cotangent);
/// Names of the dimensions of an operation's inputs, in the order of the declaration: of one form, or of all.
std::vector<std::string> dim_names(const Operation& op, std::optional<int> form);
/// Whether any flag but a parameter describes the problem.
bool names_a_shape(const CallFlags& flags);
/// Whether any flag describes the problem itself.
bool names_a_problem(const CallFlags& flags);

}  // namespace ejk::tool
