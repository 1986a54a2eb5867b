// ejk explain: which kernel and config a call gets, and why; no data is made and nothing runs.
#include "ejkernel/runtime/explain.h"

#include <fmt/format.h>

#include <memory>

#include "ejkernel/runtime/json.h"
#include "tools/ejk/call_flags.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

struct Flags {
  CallFlags call;
  bool json = false;
};

int explain_call(const Flags& flags) {
  PlanOptions options = plan_options(flags.call);
  if (!options.policy) options.policy = policy_of_environment();  // what an ordinary process would do
  const ToolCall call = make_specs(flags.call);
  const Explanation explanation = explain(call.operation, call.inputs, call.params, options);
  if (flags.json)
    fmt::print("{}\n", to_json(explanation, 2));
  else
    fmt::print("{}", to_text(explanation));
  return explanation.error.empty() ? kOk : kFailed;
}

}  // namespace

Action declare_explain(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.flag("json", flags->json, "print JSON");
  declare_operations(options, flags->call);
  return [flags] {
    require_operation("explain", flags->call);
    return explain_call(*flags);
  };
}

}  // namespace ejk::tool
