// What is special to rnn's CPU kernels: steps are shared among threads that meet after each, and long sequences go
// through in chunks.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "ejkernel/ops/rnn/rnn_cases.h"
#include "ejkernel/ops/rnn/rnn_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk {
namespace {

std::vector<Array> run(const testing::Problem& problem, int threads) {
  const cpu::ScopedNumThreads scope(threads);
  return execute(problem.operation->name, problem.views(), problem.params, {.plan = {.kernel = "cpu"}});
}

testing::RnnCase shared_steps(CellType cell) {
  return {.cell_type = cell,
          .bidirectional = true,
          .batch = 9,
          .seq_len = 20,
          .input_size = 40,
          .hidden_size = 150,
          .has_lengths = true,
          .lengths = {20, 0, 20, 13, 1, 20, 7, 19, 2},
          .seed = 5};
}

void expect_equal(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t o = 0; o < a.size(); ++o) {
    if (!a[o].present()) continue;
    EXPECT_EQ(testing::compare_bits(a[o], b[o]), "") << "output " << o;
  }
}

TEST(RnnCpu, gives_the_same_bits_with_any_number_of_threads) {
  for (const CellType cell : {CellType::lstm, CellType::gru, CellType::rnn}) {
    const testing::Problem forward = make_rnn_problem(shared_steps(cell));
    expect_equal(run(forward, 1), run(forward, 5));
    const testing::Problem backward = testing::gradient_problem(forward, 5, false);
    expect_equal(run(backward, 1), run(backward, 5));
  }
}

TEST(RnnCpu, small_calls_have_one_thread_and_large_ones_all) {
  const auto threads_for = [](double flops) {
    int threads = 0;
    std::thread([&] {  // where nobody asked for threads
      const rnns::CallThreads scoped({.flops = flops});
      threads = cpu::num_threads();
    })
        .join();
    return threads;
  };
  EXPECT_EQ(threads_for(1e6), 1);
  EXPECT_EQ(threads_for(1e8), cpu::default_num_threads());
}

TEST(RnnCpu, chunks_of_steps_follow_each_other) {
  // 200 rows are five steps to a chunk: 12 steps are three, the last of them shorter.
  testing::RnnCase c = {.batch = 200, .seq_len = 12, .input_size = 6, .hidden_size = 5, .has_lengths = true, .seed = 6};
  for (int64_t b = 0; b < c.batch; ++b) c.lengths.push_back(b % 13);
  const testing::Problem problem = make_rnn_problem(c);
  const testing::TestOperation& tests = testing::rnn_tests();
  const testing::Answer answer = tests.oracle(problem, testing::kTestBudget);
  for (const testing::Kernel& kernel : testing::kernels_of(*problem.operation)) {
    if (kernel->name != "cpu") continue;
    const testing::Verdict verdict = check_kernel(problem, answer, kernel, {.seed = 1});
    EXPECT_EQ(report(problem, kernel, verdict), "");
  }
}

}  // namespace
}  // namespace ejk
