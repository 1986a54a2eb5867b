#include "ejkernel/runtime/autotune.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/runtime/registry.h"

namespace ejk {
namespace {

/// A plan that waits for no tuning.
Plan plan_untuned(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                  PlanOptions options) {
  options.policy = Policy{.autotune = false, .heuristics = true};
  return Plan::make(operation, inputs, params, options);
}

void require_memory_for(const Invocation& call) {
  const double bytes = synthetic_bytes(call.inputs);
  if (bytes > most_copied_bytes())
    throw Unsupported(
        fmt::format("{}: the inputs of a recorded call take {:.0f} MiB, more than a quarter of the memory "
                    "that is free; tune a smaller one of its problem",
                    call.operation, bytes / (1 << 20)));
}

void fill_from_sample(const Invocation& call, const Tensor& t, const std::vector<int64_t>& sample) {
  if (sample.empty()) return;
  if ((t.dtype != DType::i32 && t.dtype != DType::i64) || static_cast<int64_t>(sample.size()) != t.num_elements())
    throw_invalid(call.operation, "a recorded sample", "hold every number of an index tensor",
                  fmt::format("{} for {}", sample.size(), to_string(t)), "leave out what was not recorded");
  for (int64_t n = 0; n < static_cast<int64_t>(sample.size()); ++n) {
    const int64_t at = element_offset(t, n), value = sample[static_cast<size_t>(n)];
    if (t.dtype == DType::i32)
      t.as<int32_t>()[at] = static_cast<int32_t>(value);
    else
      t.as<int64_t>()[at] = value;
  }
}

/// Whatever goes wrong with one call is its own.
RecordedProblem problem_of(const Invocation& call, size_t place) {
  RecordedProblem problem{.calls = {place}, .count = call.count, .seconds = call.seconds};
  try {
    problem.plan = plan_untuned(call.operation, call.inputs, call.params, call.options);
  } catch (const std::exception& error) {
    problem.why_not = error.what();
  }
  return problem;
}

/// What its config is found by; for one without a plan something of its own.
std::string key_of(const RecordedProblem& problem) {
  if (!problem.plan) return fmt::format("no plan {}", problem.calls.front());
  const Plan& plan = *problem.plan;
  return problem_key(plan.operation(), plan.inputs(), plan.params(), *plan.request().checked,
                     device_fingerprint(plan.device())) +
         plan.kernel().name;
}

void tune_into(RecordedTuning& tuned, const Invocation& call, const TuneOptions& options) try {
  if (!tuned.problem.plan) return;
  const Plan& plan = *tuned.problem.plan;
  SyntheticInputs made;  // without samples to put in, the tuner makes its own, of a smaller batch where it has to
  if (call.has_samples()) made = inputs_of(call, options.seed);
  tuned.report = tune(plan, options, made.tensors);
} catch (const std::exception& error) {
  tuned.problem.why_not = error.what();
}

}  // namespace

TuneReport autotune(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                    const TuneOptions& options, const PlanOptions& plan) {
  return tune(plan_untuned(operation, inputs, params, plan), options,
              have_data(inputs) ? inputs : std::span<const Tensor>());
}

std::vector<RecordedProblem> recorded_problems(std::span<const Invocation> invocations) {
  const bool by_time =
      std::all_of(invocations.begin(), invocations.end(), [](const Invocation& call) { return call.seconds > 0; });
  const auto is_heavier = [by_time](const auto& a, const auto& b) {
    return by_time ? a.seconds > b.seconds : a.count > b.count;
  };
  std::vector<RecordedProblem> each;
  for (size_t i = 0; i < invocations.size(); ++i) each.push_back(problem_of(invocations[i], i));
  std::stable_sort(each.begin(), each.end(), is_heavier);

  std::vector<RecordedProblem> problems;
  std::map<std::string, size_t> places;
  for (RecordedProblem& one : each) {
    const auto [known, is_new] = places.emplace(key_of(one), problems.size());
    if (is_new) {
      problems.push_back(std::move(one));
      continue;
    }
    RecordedProblem& same = problems[known->second];
    same.calls.push_back(one.calls.front());
    same.count += one.count;
    same.seconds += one.seconds;
  }
  std::stable_sort(problems.begin(), problems.end(), is_heavier);
  return problems;
}

SyntheticInputs inputs_of(const Invocation& call, uint64_t seed) {
  require_memory_for(call);
  const auto registered = KernelRegistry::instance().find(call.operation);
  SyntheticInputs made = make_synthetic_inputs(*registered->declaration, call.inputs, call.params, seed);
  for (size_t i = 0; i < std::min(call.samples.size(), made.tensors.size()); ++i)
    fill_from_sample(call, made.tensors[i], call.samples[i]);
  if (!call.samples.empty()) fill_kept_gates(*registered->declaration, made.tensors, call.params);
  return made;
}

std::vector<RecordedTuning> autotune_recorded(std::span<const Invocation> invocations, const TuneOptions& options,
                                              const RecordedProgress& progress) {
  std::vector<RecordedTuning> all;
  for (RecordedProblem& problem : recorded_problems(invocations)) all.push_back({.problem = std::move(problem)});
  for (size_t n = 0; n < all.size(); ++n) {
    tune_into(all[n], invocations[all[n].problem.calls.front()], options);
    if (progress) progress(all[n], n + 1, all.size());
  }
  return all;
}

}  // namespace ejk
