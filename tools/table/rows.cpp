#include "tools/table/rows.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <map>
#include <thread>
#include <vector>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/random.h"
#include "ejkernel/testing/statistics.h"
#include "tools/table/helper_count.h"

namespace ejk::testing {
namespace {

constexpr size_t kMostNotes = 20;

int threads_of_trial(int64_t i) {
  Random random(static_cast<uint64_t>(i));
  return random.chance(0.25) ? static_cast<int>(random.between(2, 7)) : 1;
}

void run_trials(int64_t begin, int64_t end, Tally& tally, const std::function<void(int64_t)>& trial) {
  std::atomic<int64_t> next{begin};
  auto work = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < end;) {
      const cpu::ScopedNumThreads threads(threads_of_trial(i));
      const HelperCount helpers;
      try {
        trial(i);
      } catch (const std::exception& error) {
        tally.add(fmt::format("trial {}: {}", i, error.what()));
      }
      if (helpers.tasks() > 0) tally.count("trials_with_helpers");
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < cpu::default_num_threads(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void Tally::add(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  ++result_.n;
  if (failure.empty()) return;
  ++result_.failures;
  if (result_.notes.size() >= kMostNotes) return;
  std::string note = failure;
  if (const int threads = cpu::num_threads(); threads != cpu::default_num_threads())
    note += fmt::format("{}  EJKERNEL_NUM_THREADS={}", note.back() == '\n' ? "" : "\n", threads);
  result_.notes.push_back(note);
}

void Tally::add(const Problem& problem, const Kernel& kernel, const Verdict& verdict) {
  const std::string failures = report(problem, kernel, verdict);
  if (failures.empty() && verdict.vacuous) return count("vacuous");
  add(failures);
  ratio(verdict.ratio());
}

void Tally::count(const std::string& figure) {
  const std::lock_guard lock(mutex_);
  ++result_.figures[figure];
}

void Tally::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  result_.notes.push_back(text);
}

void Tally::ratio(double r) {
  const std::lock_guard lock(mutex_);
  ratios_.push_back(r);
}

RowResult Tally::result() const {
  const std::lock_guard lock(mutex_);
  RowResult result = result_;
  if (ratios_.empty()) return result;
  result.figures["r_p50"] = quantile(ratios_, 0.5);
  result.figures["r_p99"] = quantile(ratios_, 0.99);
  result.figures["r_max"] = quantile(ratios_, 1);
  return result;
}

uint64_t digest_of_outputs(const std::vector<Array>& outputs) {
  std::string bytes;
  for (const Array& output : outputs) {
    if (!output.present()) continue;
    const Array dense = is_contiguous(output) ? output : contiguous(output);
    bytes.append(dense.as<char>(), static_cast<size_t>(num_bytes(dense.dtype(), dense.shape())));
  }
  return digest_of(bytes).low;
}

bool is_gradient(const TestOperation& tests) {
  for (const TestOperation* other : test_operations())
    if (other->declaration->gradient == tests.name()) return true;
  return false;
}

void for_each_trial(int64_t n, Tally& tally, const std::function<void(int64_t)>& trial) {
  run_trials(0, n, tally, trial);
}

void count_trials(int64_t n, Tally& tally, const std::function<void(int64_t)>& trial) {
  constexpr int64_t kMostAttempts = 16;
  for (int64_t begin = 0, missing = n; missing > 0 && begin < kMostAttempts * n; missing = n - tally.result().n) {
    run_trials(begin, begin + missing, tally, trial);
    begin += missing;
  }
}

RowFunction row_function(std::string_view id) {
  static const std::map<std::string_view, RowFunction> functions = {
      {"T-06", seeded_mutants},
      {"T-18", host_sanitizers},
      {"T-01", reference_trust},
      {"T-02", forward_accuracy},
      {"T-02-cuda", forward_accuracy_on_gpu},
      {"T-03-cuda", backward_accuracy_on_gpu},
      {"T-11", memcheck},
      {"T-12", initcheck_and_synccheck},
      {"T-13", racecheck},
      {"T-16-cuda", far_tensors_on_gpu},
      {"T-20-cuda", bit_equal_reruns_on_gpu},
      {"T-25", hang_watchdog},
      {"T-27", graph_replays},
      {"T-03", backward_accuracy},
      {"T-04", exact_mode},
      {"T-05", edge_shapes},
      {"T-07", metamorphic_relations},
      {"T-14", guard_bands},
      {"T-15", poisoned_allocator},
      {"T-16", indexing_past_32_bits},
      {"T-17", layouts_and_alignment},
      {"T-19", allocation_failures},
      {"T-20", bit_equal_reruns},
      {"T-21", equal_across_processes},
      {"T-22", batch_invariance},
      {"T-23", frozen_configs},
      {"T-24", spread_over_reruns},
      {"T-30", killed_writers},
      {"T-31", crash_points},
      {"T-32", io_faults},
      {"T-33", corrupt_records},
      {"T-34", one_tuning_at_a_time},
      {"T-35", sixteen_processes},
      {"T-36", threads_on_caches},
      {"T-37", changed_environments},
      {"T-38", key_soundness},
      {"T-39", broken_candidates},
      {"T-40", never_worse_than_default},
      {"T-41", tuning_repeatability},
      {"T-43", tier_combinations},
      {"T-44", hostile_bytes},
      {"T-45", wrong_calls},
      {"T-46", hostile_indices},
      {"T-47", cache_trust},
      {"T-48", injected_texts},
      {"T-49", error_quality},
      {"T-50", supply_chain},
  };
  const auto found = functions.find(id);
  if (found == functions.end())
    throw_invalid("table", "the row", "be one that this program produces", id,
                  "see ./dev table --help for how to get the others");
  return found->second;
}

}  // namespace ejk::testing
