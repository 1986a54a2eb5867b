// The autotuner (runtime §5): times a kernel's candidates for a problem on this machine and keeps the one that is
// faster than the heuristic's by more than the noise.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/core/export.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/config_store.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/runtime/timer.h"

namespace ejk {

struct TuneOptions {
  double budget_seconds = 2;     ///< compiling, checking and timing together; a candidate in flight is finished
  double patience_seconds = 10;  ///< how long a worker process may take for one answer
  bool own_process = false;      ///< a process of their own for built-in kernels of the CPU as well
  uint64_t seed = 1;             ///< of the synthetic data and of the order in which candidates are timed
  /// Of inputs that are made up, or copied for a GPU: where they would be larger, a smaller batch is tried in the
  /// call's place, on data that are made up. 0: a quarter of the host's free memory. A GPU's own bounds them besides,
  /// with outputs and workspace.
  double most_input_bytes = 0;
  bool publish = true;       ///< put the result into memory and store
  bool verify_only = false;  ///< admit or reject every candidate, time none, publish nothing
  /// Called after each candidate was admitted or rejected: how many of how many.
  std::function<void(size_t done, size_t all)> progress = {};
};

struct CandidateReport {
  ConfigBlock config;
  std::string rejected;  ///< why it was not timed, or not further; empty: it was
  double seconds = 0;    ///< median of its samples; 0 without any
  int64_t num_samples = 0;
};

struct TuneReport {
  std::shared_ptr<const KernelInfo> kernel;
  std::vector<CandidateReport> candidates;  ///< the heuristic's config first
  ConfigBlock best;                         ///< the heuristic's where nothing is faster beyond the noise
  bool faster = false;                      ///< `best` is another one than the heuristic's
  Comparison comparison;                    ///< the heuristic's config, then the fastest other: over places
  int64_t batch = 0;                        ///< of the smaller call that was tried; 0: it was the plan's own
  std::string transferred_from = {};        ///< the near problem whose config was tried first; empty: none
  bool complete = true;                     ///< false: the budget ended the search
  bool published = false;                   ///< the store answers; memory does where it cannot be written, too
  double seconds = 0;
};

/// Tunes the plan's kernel for the plan's problem, whatever the policy says. `inputs` are the call's own, on any
/// device, and are never written; without them data is made up (runtime/synthetic.h). Every candidate is first run with
/// poisoned outputs and workspace between guard bands and compared with the heuristic's config, which itself is
/// compared with the reference where that takes little time; a `deterministic` call also asks for equal bits of two
/// runs. The winner is checked eight times more after it was timed, for what is wrong now and then.
///
/// A candidate that crashes or hangs costs only itself: kernels from plug-ins run in a fork of the process, those for a
/// GPU in the program `ejk`, which is looked for beside this program and beside the library. There they get a copy of
/// the inputs, are compiled beside each other, and find their data in memory, not in a cache.
///
/// Unsupported for a kernel with one candidate, for a call that writes nothing, for inputs that cannot be made small
/// enough, when the heuristic's config itself fails, and on a GPU without `ejk`.
EJK_API TuneReport tune(const Plan& plan, const TuneOptions& options = {}, std::span<const Tensor> inputs = {});

/// The heuristic's config, then all other candidates of the plan's kernel. `tune` leaves out those that the cost model
/// (runtime/cost_model.h) gives no hope, and says so.
EJK_API std::vector<ConfigBlock> tuning_candidates(const Plan& plan);
/// Whether there is anything to choose for this call.
EJK_API bool is_tunable(const Plan& plan);
/// Whether no output has an element: every config is as right and as fast then, and a reference may walk extents that
/// lie beside a 0 for as long as they are.
bool writes_nothing(std::span<const Tensor> outputs);

}  // namespace ejk
