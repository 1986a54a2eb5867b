// Every kernel for a GPU meets every named case and many random problems on the device. Nothing here knows an operation
// or a kernel by name. Problems are made and judged on all of the host's threads, which also has kernels run beside
// others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/device_runs.h"

namespace ejk::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr double kBudget = 2e6;  // multiply-adds of one answer
constexpr int kMostFailures = 5;

/// Checks problem(i) for i in [0, n) until there are failures enough; counts what each kernel was judged on.
class InThreads {
 public:
  InThreads(const TestOperation& tests, int64_t n, std::function<Problem(int64_t)> problem)
      : tests_(tests), n_(n), problem_(std::move(problem)) {
    std::vector<std::thread> threads;
    for (int i = 1; i < cpu::default_num_threads(); ++i) threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads) thread.join();
  }
  const std::map<std::string, int64_t>& judged() const { return judged_; }

 private:
  void work() {
    const cpu::ScopedNumThreads one(1);  // the problems are what is spread
    for (int64_t i; (i = next_.fetch_add(1)) < n_ && failures_ < kMostFailures;) {
      try {
        check(problem_(i));
      } catch (const std::exception& error) {
        fail(fmt::format("{}, problem {}: {}", tests_.name(), i, error.what()));
      }
    }
  }

  void check(const Problem& problem) {
    const Answer answer = tests_.oracle(problem, kBudget);
    for (const Kernel& kernel : kernels_of(*tests_.declaration, kGpu)) {
      if (is_too_slow(problem, kernel)) continue;
      const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed, .device = kGpu});
      if (!verdict.supported) continue;
      const std::string failure = report(problem, kernel, verdict);
      if (!failure.empty()) fail(failure);
      const std::lock_guard lock(mutex_);
      ++judged_[kernel->name];
    }
  }

  void fail(const std::string& text) {
    ++failures_;
    ADD_FAILURE() << text;
  }

  const TestOperation& tests_;
  int64_t n_;
  std::function<Problem(int64_t)> problem_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int> failures_ = 0;
  std::mutex mutex_;
  std::map<std::string, int64_t> judged_;
};

std::string name_of(const ::testing::TestParamInfo<const TestOperation*>& info) {
  return std::string(info.param->name());
}

class KernelsOnDevice : public ::testing::TestWithParam<const TestOperation*> {};
INSTANTIATE_TEST_SUITE_P(Operations, KernelsOnDevice, ::testing::ValuesIn(operations_on(kGpu)), name_of);

TEST_P(KernelsOnDevice, meet_every_case) {
  const TestOperation& tests = *GetParam();
  const InThreads run(tests, static_cast<int64_t>(tests.cases.size()),
                      [&](int64_t i) { return tests.cases[static_cast<size_t>(i)].make(); });
  EXPECT_FALSE(run.judged().empty());
}

TEST_P(KernelsOnDevice, meet_the_error_rule_at_random) {
  const TestOperation& tests = *GetParam();
  const InThreads run(tests, 600, [&](int64_t i) {
    return tests.random({.seed = static_cast<uint64_t>(i) + 1, .size = i % 3 == 0 ? Size::normal : Size::small});
  });
  EXPECT_FALSE(run.judged().empty());
}

/// What the fast kernels are made for: 2,000 problems, and none of these kernels passes by never running.
TEST_P(KernelsOnDevice, meet_the_error_rule_on_dense_problems) {
  const TestOperation& tests = *GetParam();
  const InThreads run(tests, 2000, [&](int64_t i) {
    return tests.random(
        {.seed = static_cast<uint64_t>(i) + 1, .size = i % 4 == 0 ? Size::normal : Size::small, .dense = true});
  });
  for (const Kernel& kernel : kernels_of(*tests.declaration, kGpu)) {
    const auto judged = run.judged().find(kernel->name);
    EXPECT_GE(judged == run.judged().end() ? 0 : judged->second, 100) << kernel->name << " was hardly judged";
  }
}

TEST_P(KernelsOnDevice, survive_hostile_indices) {
  const TestOperation& tests = *GetParam();
  const InThreads run(tests, 200, [&](int64_t i) {
    return tests.random({.seed = static_cast<uint64_t>(i) + 1, .size = Size::small, .hostile = true});
  });
  EXPECT_FALSE(run.judged().empty());
}

TEST_P(KernelsOnDevice, are_exact_where_every_arithmetic_is) {
  const TestOperation& tests = *GetParam();
  if (tests.exact == nullptr) GTEST_SKIP() << tests.name() << " has no exact mode";
  for (uint64_t seed = 1; seed <= 100 && !HasFailure(); ++seed) {
    const ExactProblem exact = tests.exact(seed);
    for (const Kernel& kernel : kernels_of(*tests.declaration, kGpu)) {
      const Verdict verdict = check_kernel(exact.problem, exact.answer, kernel, {.seed = seed, .device = kGpu});
      EXPECT_EQ(report(exact.problem, kernel, verdict), "");
    }
  }
}

TEST_P(KernelsOnDevice, keep_the_relations) {
  const TestOperation& tests = *GetParam();
  for (const Relation& relation : tests.relations)
    for (const Kernel& kernel : kernels_of(*tests.declaration, kGpu))
      for (uint64_t seed = 1; seed <= 10 && !HasFailure(); ++seed) {
        std::string wrong;
        try {
          wrong = relation.check(seed, Size::small, KernelRunner(kernel, kGpu));
        } catch (const RelationSkipped&) {
        } catch (const RelationBroken& broken) {
          wrong = broken.what;
        }
        EXPECT_EQ(wrong, "") << tests.name() << " " << kernel->name << ": " << relation.name << ", seed " << seed;
      }
}

}  // namespace
}  // namespace ejk::testing
