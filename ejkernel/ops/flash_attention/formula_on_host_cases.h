// Device code that runs on the host, asked as the harness asks kernels.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {

/// `One` and `Many` are kernels for the operation: device code in blocks of one thread, and of several.
template <class Op, class One, class Many>
class FormulaOnHost : public ::testing::Test {
 protected:
  const TestOperation& tests = find_test_operation(Op::kName);
  const Kernel one_thread = std::make_shared<const KernelInfo>(make_kernel<Op, One>());
  const Kernel many_threads = std::make_shared<const KernelInfo>(make_kernel<Op, Many>());

  /// Whether it was small enough to be met.
  bool meets(const Problem& problem, const Kernel& kernel, double flops) {
    if (flops_of(problem) > flops) return false;
    const Answer answer = tests.oracle(problem, kTestBudget);
    const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    EXPECT_EQ(report(problem, kernel, verdict), "");
    return true;
  }
  int meets_named(const Kernel& kernel, double flops) {
    int met = 0;
    for (const Case& one : tests.cases)
      if ((one.tags & kPrimary) == 0)  // those are large
        met += meets(one.make(), kernel, flops) ? 1 : 0;
    return met;
  }
  /// Some random problems, half of them with hostile indices.
  int meets_some(int wanted, Size size, const Kernel& kernel, double flops) {
    int met = 0;
    for (uint64_t seed = 1; met < wanted && seed < 4000 && !HasFailure(); ++seed)
      met += meets(tests.random({.seed = seed, .size = size, .hostile = seed % 2 == 0}), kernel, flops) ? 1 : 0;
    return met;
  }
};

}  // namespace ejk::testing
