// Tuning by call: one call by its operation, or all that were recorded. Over the tuner (tuner.h), which tunes plans.
//
//   autotune<FlashAttention>({.query = q, .key = k, .value = v}, {.causal = true});      // the call's own data
//   for (const RecordedTuning& tuned : autotune_recorded(load_invocations("calls.jsonl"))) …
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/recorded.h"
#include "ejkernel/runtime/synthetic.h"
#include "ejkernel/runtime/tuner.h"

namespace ejk {

/// Tunes the kernel that would serve the call, for the call's problem. With data for all inputs those are used, else
/// data is made up. Throws as `tune` and `Plan::make` do.
EJK_API TuneReport autotune(std::string_view operation, std::span<const Tensor> inputs, const ParamsBlock& params,
                            const TuneOptions& options = {}, const PlanOptions& plan = {});
template <class Op>
TuneReport autotune(const typename Op::Inputs& inputs, const typename Op::Params& params = {},
                    const TuneOptions& options = {}, const PlanOptions& plan = {}) {
  return autotune(Op::kName, to_array(inputs), ParamsBlock::of(params), options, plan);
}

/// Recorded calls that one config serves: of one problem, by one kernel.
struct RecordedProblem {
  std::vector<size_t> calls = {};  ///< places among the invocations, the heaviest first: that is the one to tune with
  int64_t count = 0;               ///< of all of them
  double seconds = 0;              ///< of all of them; 0: not known
  std::optional<Plan> plan = {};   ///< of the heaviest; none where it cannot be made here
  std::string why_not = {};        ///< and then why; empty otherwise
};

/// Each problem once, the heaviest first: by time where the times of all calls are known, else by count. Nothing is
/// measured for it.
EJK_API std::vector<RecordedProblem> recorded_problems(std::span<const Invocation> invocations);

/// Inputs for a recorded call in host memory: its samples, and made-up data for everything else. Unsupported for what
/// takes more than a quarter of the memory that is free.
EJK_API SyntheticInputs inputs_of(const Invocation& invocation, uint64_t seed);

struct RecordedTuning {
  RecordedProblem problem = {};           ///< `why_not` says also why it was not tuned
  std::optional<TuneReport> report = {};  ///< none: it was not
};
/// Called after each problem.
using RecordedProgress = std::function<void(const RecordedTuning& tuned, size_t done, size_t all)>;

/// Tunes what was recorded, problem by problem, the heaviest first; `options` hold for each of them. What cannot be
/// tuned has a reason in place of a report, and stops nothing.
EJK_API std::vector<RecordedTuning> autotune_recorded(std::span<const Invocation> invocations,
                                                      const TuneOptions& options = {},
                                                      const RecordedProgress& progress = {});

}  // namespace ejk
