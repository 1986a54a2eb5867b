#include "ejkernel/runtime/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/core/error.h"
#include "ejkernel/core/out_of_memory.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/problem.h"

namespace ejk {

Explanation explain(std::string_view name, std::span<const Tensor> inputs, const ParamsBlock& params,
                    const PlanOptions& options) try {
  const auto operation = KernelRegistry::instance().find(name);
  const Operation& declaration = *operation->declaration;
  const CheckedCall checked = check_call(declaration, inputs, params);
  Device device;
  for (const Tensor& input : inputs)
    if (input.present()) device = input.device;

  Explanation result;
  result.problem = problem_text(declaration, inputs, params, checked);
  result.digest = to_string(digest_of(problem_key(declaration, inputs, params, checked, device_fingerprint(device))));
  try {
    const auto choice = choose({.operation = operation,
                                .inputs = inputs,
                                .params = &params,
                                .checked = &checked,
                                .options = &options,
                                .device = device},
                               &result.trail);
    result.kernel = choice->kernel->name;
    result.platform = choice->kernel->platform;
    result.config = to_string(*choice->kernel, choice->config);
    result.tier = choice->tier;
  } catch (const Unsupported& error) {
    result.error = error.what();
  }
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string to_text(const Explanation& e) {
  std::string text = fmt::format("problem  {}\ndigest   {}\n", e.problem, e.digest);
  size_t width = 0;
  for (const KernelAnswer& answer : e.trail.kernels) width = std::max(width, answer.kernel.size());
  for (const KernelAnswer& answer : e.trail.kernels) {
    const bool chosen = answer.kernel == e.kernel;
    text += fmt::format("kernel   {:<{}}  {}\n", answer.kernel, width,
                        chosen            ? "chosen"
                        : answer.accepted ? "would serve as well"
                                          : "declines: " + answer.reason);
  }
  for (const TierAnswer& answer : e.trail.tiers)
    text +=
        fmt::format("tier {}   {:<{}}  {}\n", static_cast<int>(answer.tier), name(answer.tier), width, answer.answer);
  text += e.error.empty() ? fmt::format("result   {} ({}), config {}, from tier {} ({})\n", e.kernel, name(e.platform),
                                        e.config, static_cast<int>(e.tier), name(e.tier))
                          : fmt::format("result   {}\n", e.error);
  return text;
}

}  // namespace ejk
