#include "ejkernel/testing/rows.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <thread>
#include <vector>

#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk::testing {
namespace {

constexpr size_t kMostNotes = 20;

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(std::floor(q * static_cast<double>(sorted.size() - 1)))];
}

}  // namespace

void Tally::add(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  ++result_.n;
  if (failure.empty()) return;
  ++result_.failures;
  if (result_.notes.size() < kMostNotes) result_.notes.push_back(failure);
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
  std::vector<double> sorted = ratios_;
  std::sort(sorted.begin(), sorted.end());
  result.figures["r_p50"] = quantile(sorted, 0.5);
  result.figures["r_p99"] = quantile(sorted, 0.99);
  result.figures["r_max"] = sorted.back();
  return result;
}

void for_each_trial(int64_t n, Tally& tally, const std::function<void(int64_t)>& trial) {
  std::atomic<int64_t> next{0};
  auto work = [&] {
    const cpu::ScopedNumThreads one(1);  // the trials are what is spread
    for (int64_t i; (i = next.fetch_add(1)) < n;) {
      try {
        trial(i);
      } catch (const std::exception& error) {
        tally.add(std::string("trial ") + std::to_string(i) + ": " + error.what());
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < cpu::default_num_threads(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

std::span<const Row> table_rows() {
  // What every row about kernels rests on: a change there makes its record stale.
  static const std::vector<std::string_view> kernels = {"ejkernel/core", "ejkernel/platform/cpu", "ejkernel/runtime",
                                                        "ejkernel/ops", "ejkernel/testing"};
  static const std::array rows = {
      Row{"T-02", "Forward accuracy", "random problems, every kernel against float64: failures, quantiles of r", 10000,
          kernels, forward_accuracy},
      Row{"T-03", "Backward accuracy", "random problems, every gradient against float64: failures, quantiles of r",
          5000, kernels, backward_accuracy},
      Row{"T-04", "Exact integer mode", "problems whose answer is exact, bit for bit", 2000, kernels, exact_mode},
      Row{"T-05", "Edge shapes", "enumerated edge cases", 600, kernels, edge_shapes},
      Row{"T-07", "Metamorphic", "relations x configurations", 2400, kernels, metamorphic_relations},
      Row{"T-14", "Guard bands", "runs inside guard bands", 15000, kernels, guard_bands},
      Row{"T-15", "Poisoned allocator", "runs in poisoned memory, in random order", 2000, kernels, poisoned_allocator},
      Row{"T-16", "64-bit indexing", "strided calls just below and past 2^31 elements, against contiguous copies", 12,
          kernels, indexing_past_32_bits},
      Row{"T-17", "Layout and alignment", "layouts that are right or refused with a typed error", 1000, kernels,
          layouts_and_alignment},
      Row{"T-19", "Allocation failure", "calls with the k-th allocation failing, k = 1, 2, …", 200, kernels,
          allocation_failures},
      Row{"T-20", "Bit-equal reruns", "configurations of 1,000 reruns on 1 to 7 threads, other work beside", 100,
          kernels, bit_equal_reruns},
      Row{"T-21", "Cross-process equality", "processes, each with an order of its own", 50, kernels,
          equal_across_processes},
      Row{"T-24", "Spread without determinism", "configurations, largest difference over reruns in ulp", 300, kernels,
          spread_over_reruns},
      Row{"T-45", "Wrong calls", "invalid calls: a typed error, or right after all", 20000, kernels, wrong_calls},
      Row{"T-46", "Hostile index tensors", "lengths, offsets and ids of any value", 5000, kernels, hostile_indices},
      Row{"T-48", "Injection", "texts x places that take a string, none executed", 300, kernels, injected_texts},
      Row{"T-49", "Error quality", "typed errors that say argument, expected, got and what to do", 5000, kernels,
          error_quality},
  };
  return rows;
}

}  // namespace ejk::testing
