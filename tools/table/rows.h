// The families of rows; their functions are in rows_*.cpp.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operation.h"
#include "ejkernel/testing/table.h"

namespace ejk::testing {

/// The function that produces a row. InvalidArgument for a row that another program produces.
RowFunction row_function(std::string_view id);

// Correctness.
RowResult forward_accuracy(const RowRequest& request);
RowResult backward_accuracy(const RowRequest& request);
RowResult exact_mode(const RowRequest& request);
RowResult edge_shapes(const RowRequest& request);
RowResult metamorphic_relations(const RowRequest& request);
RowResult batch_invariance(const RowRequest& request);

// Memory.
RowResult guard_bands(const RowRequest& request);
RowResult poisoned_allocator(const RowRequest& request);
RowResult indexing_past_32_bits(const RowRequest& request);
RowResult layouts_and_alignment(const RowRequest& request);
RowResult allocation_failures(const RowRequest& request);

// Determinism.
RowResult bit_equal_reruns(const RowRequest& request);
RowResult equal_across_processes(const RowRequest& request);
/// What one process of it prints: a digest per problem. The problems depend on `seed`, the order they run in on
/// `order_seed`.
std::string digests_in_order(uint64_t seed, uint64_t order_seed);
RowResult spread_over_reruns(const RowRequest& request);
RowResult frozen_configs(const RowRequest& request);
/// What another process of it prints: for each problem the tier, the kernel, the config and a digest.
std::string replay_frozen(uint64_t seed, int64_t n, int threads);

// Input.
RowResult hostile_bytes(const RowRequest& request);
RowResult wrong_calls(const RowRequest& request);
RowResult hostile_indices(const RowRequest& request);
RowResult injected_texts(const RowRequest& request);
RowResult error_quality(const RowRequest& request);

// The tuner and the tiers.
RowResult one_tuning_at_a_time(const RowRequest& request);
RowResult key_soundness(const RowRequest& request);
RowResult broken_candidates(const RowRequest& request);
RowResult never_worse_than_default(const RowRequest& request);
RowResult tuning_repeatability(const RowRequest& request);
RowResult tier_combinations(const RowRequest& request);
RowResult threads_on_caches(const RowRequest& request);
/// How often ThreadSanitizer reports a race that is there.
int64_t reports_of_a_race();

// The store.
RowResult killed_writers(const RowRequest& request);
RowResult crash_points(const RowRequest& request);
RowResult io_faults(const RowRequest& request);
RowResult corrupt_records(const RowRequest& request);
RowResult sixteen_processes(const RowRequest& request);
RowResult changed_environments(const RowRequest& request);
RowResult cache_trust(const RowRequest& request);

// On a GPU.
RowResult reference_trust(const RowRequest& request);
RowResult forward_accuracy_on_gpu(const RowRequest& request);
RowResult backward_accuracy_on_gpu(const RowRequest& request);
RowResult memcheck(const RowRequest& request);
RowResult initcheck_and_synccheck(const RowRequest& request);
RowResult racecheck(const RowRequest& request);
/// What one process under a sanitizer does and prints: how many runs each kernel had.
std::string runs_under_sanitizer(uint64_t seed, int64_t n);
RowResult far_tensors_on_gpu(const RowRequest& request);
RowResult bit_equal_reruns_on_gpu(const RowRequest& request);
RowResult hang_watchdog(const RowRequest& request);
RowResult graph_replays(const RowRequest& request);

// Other programs of the tree.
RowResult seeded_mutants(const RowRequest& request);
RowResult host_sanitizers(const RowRequest& request);
RowResult supply_chain(const RowRequest& request);

/// Counts from several threads; keeps the first failures' texts.
class Tally {
 public:
  /// One trial; an empty text is none that failed.
  void add(const std::string& failure);
  /// One trial, unless it is right and nearly every element is 0: those are the figure `vacuous`.
  void add(const Problem& problem, const Kernel& kernel, const Verdict& verdict);
  /// Something else than a trial, as a figure.
  void count(const std::string& figure);
  void note(const std::string& text);
  /// Ratios of the error rule, for their quantiles.
  void ratio(double r);
  RowResult result() const;

 private:
  mutable std::mutex mutex_;
  RowResult result_;
  std::vector<double> ratios_;
};

/// One number for all bits of all outputs.
uint64_t digest_of_outputs(const std::vector<Array>& outputs);

/// Whether the operation is another one's gradient.
bool is_gradient(const TestOperation& tests);

/// Calls trial(i) for i in [0, n) on as many threads as the machine has; an exception is a failure of the trial. One
/// trial of four runs its kernels on two to seven threads, the others on one; those of which other threads did tasks
/// are the figure `trials_with_helpers`.
void for_each_trial(int64_t n, Tally& tally, const std::function<void(int64_t)>& trial);
/// The same for i = 0, 1, … until n trials have counted: what a trial looks at may turn out to prove nothing.
void count_trials(int64_t n, Tally& tally, const std::function<void(int64_t)>& trial);

}  // namespace ejk::testing
