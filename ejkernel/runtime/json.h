// The declarations and decisions as JSON: what the C ABI hands out and every derived interface is made from.
#pragma once

#include <string>
#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

/// {"version", "operations": [{"name", "revision", "summary", "source", "forms", "gradient",
///   "inputs": [{"name", "contract", "optional", "forms": [[{"dtypes", "rule", "dims"} …] …], "doc", "python_name"}],
///   "params": [{"name", "type", "default", "range", "choices", "key", "doc"}], "outputs": […],
///   "kernels": [{"name", "platform", "backend", "revision", "config": [{"name", "legal", "doc"}]}]}]}
EJK_API std::string operations_json(int indent = -1);

/// {"problem", "digest", "kernels", "tiers", "kernel", "platform", "config", "tier", "error"}
EJK_API std::string to_json(const Explanation& explanation, int indent = -1);

/// {"operation", "outputs": [{"name", "dtype", "shape"} or null], "workspace_bytes", "kernel", "platform", "config":
/// {…},
///  "tier", "flops", "bytes", "explain": {…}}
EJK_API std::string plan_json(const Plan& plan, int indent = -1);

/// {"block_q": 64, …} to config values. InvalidArgument for anything but an object of integers.
EJK_API ConfigValues config_values_from_json(std::string_view operation, std::string_view json);
EJK_API std::string config_json(const KernelInfo& kernel, const ConfigBlock& config);

/// {"operation", "kernel", "platform", "tier", "config": {…}}
EJK_API std::string choice_json(const Choice& choice);

}  // namespace ejk
