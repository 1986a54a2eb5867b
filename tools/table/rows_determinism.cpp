// T-20, T-21, T-24: the same call again, on other numbers of threads, in other processes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/process.h"
#include "tools/table/helper_count.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

uint64_t run_once(const Problem& problem, int threads) {
  const cpu::ScopedNumThreads scope(threads);
  return digest_of_outputs(execute(problem.operation->name, problem.views(), problem.params));
}

Problem problem_of(const RowRequest& request, int64_t i, Size size) {
  const auto all = test_operations();
  return all[static_cast<size_t>(i) % all.size()]->random(
      {.seed = request.seed * 1000003 + static_cast<uint64_t>(i), .size = size});
}

constexpr int64_t kReruns = 1000;

/// A call has to last for a while, or it ends before a second thread comes.
Size size_of_round(size_t round) {
  constexpr std::array kSizes = {Size::normal, Size::small, Size::normal, Size::small, Size::tiny};
  return kSizes[round % kSizes.size()];
}

}  // namespace

/// n configurations, 1,000 reruns of each on 1 to 7 threads, while another thread works and has the pool now and then.
/// Of every operation other threads must have done tasks: equal bits say nothing of threads that did not come.
RowResult bit_equal_reruns(const RowRequest& request) {
  const auto all = test_operations();
  Tally tally;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (int64_t i = 0; !stop; ++i) run_once(problem_of(request, i + 100000, Size::small), i % 4 == 0 ? 2 : 1);
  });
  std::set<std::string_view> shared;
  for (int64_t i = 0; i < request.n; ++i) {
    const Problem problem = with_equal_bits(problem_of(request, i, size_of_round(static_cast<size_t>(i) / all.size())));
    const uint64_t first = run_once(problem, 1);
    const HelperCount helpers;
    int64_t different = 0;
    for (int64_t rerun = 0; rerun < kReruns; ++rerun)
      different += run_once(problem, static_cast<int>(rerun % 7) + 1) != first;
    if (helpers.tasks() > 0) {
      tally.count("configurations_with_helpers");
      shared.insert(problem.operation->name);
    }
    tally.add(different == 0 ? ""
                             : fmt::format("{}: {} of {} reruns differ; replay: {}", problem.label, different, kReruns,
                                           replay_command(problem, *kernels_of(*problem.operation).front())));
  }
  stop = true;
  other.join();
  RowResult result = tally.result();
  result.figures["reruns_per_configuration"] = kReruns;
  result.figures["operations_with_helpers"] = static_cast<double>(shared.size());
  for (int64_t place = 0; place < std::min<int64_t>(request.n, std::ssize(all)); ++place)
    if (const std::string_view name = all[static_cast<size_t>(place)]->name(); !shared.contains(name)) {
      ++result.failures;
      result.notes.push_back(fmt::format("{}: one thread did all tasks of all its calls", name));
    }
  return result;
}

std::string digests_in_order(uint64_t seed, uint64_t order_seed) {
  constexpr int64_t kProblems = 60;
  std::vector<int64_t> order(kProblems);
  std::iota(order.begin(), order.end(), 0);
  Random(order_seed).shuffle(order);
  std::vector<uint64_t> digests(kProblems);
  for (int64_t i : order)
    digests[static_cast<size_t>(i)] =
        run_once(problem_of({.n = kProblems, .seed = seed}, i, Size::small), static_cast<int>(order_seed % 3) + 1);
  return fmt::format("{:016x}\n", fmt::join(digests, " "));
}

/// This program, started anew n times, runs the same problems in orders of its own; all must find the same bits.
RowResult equal_across_processes(const RowRequest& request) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto in_fresh_process = [&](uint64_t order_seed) {
    return run_process({program, "digests", std::to_string(request.seed), std::to_string(order_seed)});
  };
  Tally tally;
  const ProcessResult first = in_fresh_process(0);
  if (first.exit_code != 0) tally.add("the first process failed: " + first.err);
  for (int64_t process = 0; process < request.n; ++process) {
    const ProcessResult other = in_fresh_process(request.seed + static_cast<uint64_t>(process) + 1);
    tally.add(other.exit_code != 0     ? "a process failed: " + other.err
              : other.out != first.out ? fmt::format("process {} differs", process)
                                       : "");
  }
  return tally.result();
}

/// The CPU kernels are deterministic without asking, so the spread over reruns and threads must be 0.
RowResult spread_over_reruns(const RowRequest& request) {
  Tally tally;
  double largest = 0;
  for (int64_t i = 0; i < request.n; ++i) {
    const Problem problem = problem_of(request, i, Size::small);
    std::vector<Array> first;
    std::string wrong;
    for (int threads = 1; threads <= 4; ++threads) {
      const cpu::ScopedNumThreads scope(threads);
      const std::vector<Array> outputs = execute(problem.operation->name, problem.views(), problem.params);
      if (first.empty()) first = outputs;
      for (size_t o = 0; o < outputs.size(); ++o) {
        if (!outputs[o].present() || !is_float(outputs[o].dtype())) continue;
        for (int64_t n = 0; n < outputs[o].num_elements(); ++n) {
          const double a = get(outputs[o], n), b = get(first[o], n);
          if (a != b && !(std::isnan(a) && std::isnan(b)))
            wrong = fmt::format("{}: output {} differs with {} threads", problem.label, o, threads);
          if (std::isfinite(a) && std::isfinite(b) && a != b)
            largest = std::max(largest, std::abs(a - b) / (2 * unit_roundoff(outputs[o].dtype()) *
                                                           std::max(std::abs(a), std::abs(b))));
        }
      }
    }
    tally.add(wrong);
  }
  RowResult result = tally.result();
  result.figures["largest_spread_ulp"] = largest;
  return result;
}

}  // namespace ejk::testing
