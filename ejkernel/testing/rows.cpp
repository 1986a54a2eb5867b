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
  static const std::array rows = {
      Row{"T-02",
          "Forward accuracy",
          "random problems over all operations, failures, quantiles of r",
          10000,
          {"ejkernel/core", "ejkernel/ops", "ejkernel/platform/cpu", "ejkernel/testing"},
          forward_accuracy},
      Row{"T-03",
          "Backward accuracy",
          "random problems, all gradients, failures, quantiles of r",
          5000,
          {"ejkernel/core", "ejkernel/ops", "ejkernel/platform/cpu", "ejkernel/testing"},
          backward_accuracy},
      Row{"T-04",
          "Exact integer mode",
          "problems, bit-equal to the exact answer",
          2000,
          {"ejkernel/core", "ejkernel/ops", "ejkernel/platform/cpu", "ejkernel/testing"},
          exact_mode},
      Row{"T-05",
          "Edge shapes",
          "enumerated cases, failures",
          600,
          {"ejkernel/core", "ejkernel/ops", "ejkernel/platform/cpu", "ejkernel/testing"},
          edge_shapes},
      Row{"T-07",
          "Metamorphic",
          "relations x configurations, failures",
          2400,
          {"ejkernel/core", "ejkernel/ops", "ejkernel/platform/cpu", "ejkernel/testing"},
          metamorphic_relations},
  };
  return rows;
}

}  // namespace ejk::testing
