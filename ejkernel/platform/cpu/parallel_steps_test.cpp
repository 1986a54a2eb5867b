#include "ejkernel/platform/cpu/parallel_steps.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

namespace ejk::cpu {
namespace {

TEST(ParallelSteps, a_step_sees_all_of_the_one_before) {
  constexpr int64_t kSteps = 200, kTasks = 7;
  for (const int threads : {1, 2, 5}) {
    const ScopedNumThreads scope(threads);
    // Each task of a step adds up what all tasks of the step before left: no lock, so ThreadSanitizer sees the order.
    std::array<std::vector<int64_t>, 2> numbers;
    for (auto& of_chain : numbers) of_chain.assign(static_cast<size_t>((kSteps + 1) * kTasks), 1);
    parallel_steps(
        {.num_chains = 2, .num_steps = kSteps, .num_tasks = kTasks},
        [&](int64_t chain, int64_t step, int64_t task, int) {
          int64_t* before = numbers[static_cast<size_t>(chain)].data() + step * kTasks;
          int64_t sum = 0;
          for (int64_t n = 0; n < kTasks; ++n) sum += before[n];
          before[kTasks + task] = sum % 1000 + chain;
        },
        threads);
    for (const int64_t chain : {0, 1}) {
      int64_t expected = 1;
      for (int64_t step = 0; step < kSteps; ++step) expected = expected * kTasks % 1000 + chain;
      EXPECT_EQ(numbers[static_cast<size_t>(chain)].back(), expected) << threads << " threads, chain " << chain;
    }
  }
}

TEST(ParallelSteps, workers_of_tasks_that_run_together_differ_and_stay_below_the_limit) {
  const ScopedNumThreads scope(5);
  std::array<std::atomic<int>, 3> busy = {};
  parallel_steps(
      {.num_chains = 1, .num_steps = 50, .num_tasks = 6},
      [&](int64_t, int64_t, int64_t, int worker) {
        ASSERT_LT(worker, 3);
        EXPECT_EQ(busy[static_cast<size_t>(worker)].fetch_add(1), 0);
        busy[static_cast<size_t>(worker)].fetch_sub(1);
      },
      3);
}

TEST(ParallelSteps, an_exception_ends_it_and_nobody_waits_for_ever) {
  const ScopedNumThreads scope(4);
  const auto run = [] {
    parallel_steps(
        {.num_chains = 1, .num_steps = 100, .num_tasks = 4},
        [](int64_t, int64_t step, int64_t, int) {
          if (step == 3) throw std::runtime_error("step 3");
        },
        4);
  };
  EXPECT_THROW(run(), std::runtime_error);
}

TEST(ParallelSteps, nothing_to_do_is_done) {
  parallel_steps(
      {.num_chains = 2, .num_steps = 0, .num_tasks = 4},
      [](int64_t, int64_t, int64_t, int) { FAIL() << "there is no step"; }, 2);
}

}  // namespace
}  // namespace ejk::cpu
