// Every kernel for a GPU meets every named case and many random problems on the device. Nothing here knows an operation
// or a kernel by name. Problems are made and judged on all of the host's threads, which also has kernels run beside
// others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/device_runs.h"

namespace ejk::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr double kBudget = 2e6;  // multiply-adds of one answer
constexpr int kMostFailures = 5;

/// Counts failures, so that a fault of the device does not fill the log, and what each kernel was judged on.
class Tally {
 public:
  bool is_over() const { return failures_ >= kMostFailures; }
  /// Counts a run of the kernel; an empty text is no failure.
  void add(const Kernel& kernel, const std::string& failure) {
    const std::lock_guard lock(mutex_);
    ++judged_[kernel->name];
    if (!failure.empty()) fail(failure);
  }
  void fail(const std::string& text) {
    ++failures_;
    ADD_FAILURE() << text;
  }
  int64_t judged(const Kernel& kernel) const {
    const auto found = judged_.find(kernel->name);
    return found == judged_.end() ? 0 : found->second;
  }
  int64_t judged() const {
    int64_t sum = 0;
    for (const auto& [kernel, count] : judged_) sum += count;
    return sum;
  }

 private:
  std::atomic<int> failures_ = 0;
  std::mutex mutex_;
  std::map<std::string, int64_t> judged_;
};

/// trial(i) for i in [0, n) in threads, until there are failures enough.
void try_all(int64_t n, Tally& tally, const std::function<void(int64_t)>& trial) {
  in_threads(n, [&](int64_t i) {
    if (tally.is_over()) return;
    try {
      trial(i);
    } catch (const std::exception& error) {
      tally.fail(fmt::format("trial {}: {}", i, error.what()));
    }
  });
}

void check(const TestOperation& tests, const Problem& problem, const Answer& answer, Tally& tally) {
  for (const Kernel& kernel : kernels_of(*tests.declaration, kGpu)) {
    if (is_too_slow(problem, kernel)) continue;
    const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed, .device = kGpu});
    if (verdict.supported) tally.add(kernel, report(problem, kernel, verdict));
  }
}

std::string name_of(const ::testing::TestParamInfo<const TestOperation*>& info) {
  return std::string(info.param->name());
}

class KernelsOnDevice : public ::testing::TestWithParam<const TestOperation*> {};
INSTANTIATE_TEST_SUITE_P(Operations, KernelsOnDevice, ::testing::ValuesIn(operations_on(kGpu)), name_of);

TEST_P(KernelsOnDevice, meet_every_case) {
  const TestOperation& tests = *GetParam();
  Tally tally;
  try_all(static_cast<int64_t>(tests.cases.size()), tally, [&](int64_t i) {
    const Problem problem = tests.cases[static_cast<size_t>(i)].make();
    check(tests, problem, tests.oracle(problem, kBudget), tally);
  });
  EXPECT_GT(tally.judged(), 0);
}

TEST_P(KernelsOnDevice, meet_the_error_rule_at_random) {
  const TestOperation& tests = *GetParam();
  Tally tally;
  try_all(600, tally, [&](int64_t i) {
    const Problem problem =
        tests.random({.seed = static_cast<uint64_t>(i) + 1, .size = i % 3 == 0 ? Size::normal : Size::small});
    check(tests, problem, tests.oracle(problem, kBudget), tally);
  });
  EXPECT_GT(tally.judged(), 0);
}

/// What the fast kernels are made for: 2,000 problems, and no kernel passes by never running.
TEST_P(KernelsOnDevice, meet_the_error_rule_on_dense_problems) {
  const TestOperation& tests = *GetParam();
  Tally tally;
  try_all(2000, tally, [&](int64_t i) {
    const Problem problem = tests.random(
        {.seed = static_cast<uint64_t>(i) + 1, .size = i % 4 == 0 ? Size::normal : Size::small, .dense = true});
    check(tests, problem, tests.oracle(problem, kBudget), tally);
  });
  for (const Kernel& kernel : kernels_of(*tests.declaration, kGpu))
    EXPECT_GE(tally.judged(kernel), 100) << kernel->name << " was hardly judged";
}

TEST_P(KernelsOnDevice, survive_hostile_indices) {
  const TestOperation& tests = *GetParam();
  Tally tally;
  try_all(200, tally, [&](int64_t i) {
    const Problem problem = tests.random({.seed = static_cast<uint64_t>(i) + 1, .size = Size::small, .hostile = true});
    check(tests, problem, tests.oracle(problem, kBudget), tally);
  });
  EXPECT_GT(tally.judged(), 0);
}

TEST_P(KernelsOnDevice, are_exact_where_every_arithmetic_is) {
  const TestOperation& tests = *GetParam();
  if (tests.exact == nullptr) GTEST_SKIP() << tests.name() << " has no exact mode";
  Tally tally;
  try_all(200, tally, [&](int64_t i) {
    const ExactProblem exact = tests.exact(static_cast<uint64_t>(i) + 1);
    check(tests, exact.problem, exact.answer, tally);
  });
  EXPECT_GT(tally.judged(), 0);
}

TEST_P(KernelsOnDevice, keep_the_relations) {
  const TestOperation& tests = *GetParam();
  if (tests.relations.empty()) GTEST_SKIP() << tests.name() << " has none";
  const std::vector<Kernel> kernels = kernels_of(*tests.declaration, kGpu);
  Tally tally;
  try_all(20 * static_cast<int64_t>(tests.relations.size()), tally, [&](int64_t i) {
    const Relation& relation = tests.relations[static_cast<size_t>(i) % tests.relations.size()];
    for (const Kernel& kernel : kernels) {
      std::string wrong;
      try {
        wrong = relation.check(static_cast<uint64_t>(i) + 1, Size::small, KernelRunner(kernel, kGpu));
      } catch (const RelationSkipped&) {
        continue;
      } catch (const RelationBroken& broken) {
        wrong = broken.what;
      }
      tally.add(kernel, wrong.empty() ? ""
                                      : fmt::format("{} {}: {}, seed {}: {}", tests.name(), kernel->name, relation.name,
                                                    i + 1, wrong));
    }
  });
  EXPECT_GT(tally.judged(), 0);
}

}  // namespace
}  // namespace ejk::testing
