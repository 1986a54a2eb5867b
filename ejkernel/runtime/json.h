// The declarations and decisions as JSON: what the C ABI hands out and every derived interface is made from.
#pragma once

#include <string>
#include <string_view>

#include "ejkernel/core/export.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/tuner.h"

namespace ejk {

/// {"version", "operations": [{"name", "revision", "summary", "source", "forms", "gradient",
///   "inputs": [{"name", "contract", "optional", "forms": [[{"dtypes", "rule", "dims"} …] …], "doc", "python_name"}],
///   "params": [{"name", "type", "default", "range", "choices", "key", "doc"}], "outputs": […],
///   "kernels": [{"name", "platform", "backend", "revision", "config": [{"name", "legal", "doc"}]}]}]}
EJK_API std::string operations_json(int indent = -1);

/// {"problem", "digest", "kernels", "tiers", "kernel", "platform", "config", "tier", "error"}
EJK_API std::string to_json(const Explanation& explanation, int indent = -1);

/// {"operation", "label", "outputs": [{"name", "dtype", "shape"} or null], "dims": {"batch": 2, …},
///  "batch": null, or where the entries lie that are calls of their own: {"dim", "size", "inputs": {"query": axis, …},
///  "outputs": {…}}, "workspace_bytes", "kernel", "platform", "config": {…}, "tier", "flops", "bytes", "explain": {…},
///  "text": the same for people, "call": the text of planned_call.h}
EJK_API std::string plan_json(const Plan& plan, int indent = -1);

/// {"block_q": 64, …} to config values. InvalidArgument for anything but an object of integers.
EJK_API ConfigValues config_values_from_json(std::string_view operation, std::string_view json);
EJK_API std::string config_json(const KernelInfo& kernel, const ConfigBlock& config);

/// {"operation", "kernel", "platform", "tier", "config": {…}}
EJK_API std::string choice_json(const Choice& choice);

/// {"kernel", "faster", "config": {…}, "heuristic": {…}, "complete", "published", "seconds", "transferred_from", the
///  best one's time over the heuristic's as "ratio", "ratio_low" and "ratio_high", "candidates": [{"config",
///  "rejected", "seconds", "samples"} …]}; what does not apply is left out
EJK_API std::string to_json(const TuneReport& report);

}  // namespace ejk
