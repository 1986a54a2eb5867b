// The harness on a matrix unit: an operation's CPU kernels judged while the emulation stands in for the machine's unit.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/emulated_tiles.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {

/// The parameter is the operation's name. Every problem meets the next config, and at the end the unit must have
/// multiplied and hold no tile state.
class HarnessOnMatrixUnit : public ::testing::TestWithParam<std::string_view> {
 protected:
  /// What problem number n = 0, 1, 2 … is run with.
  virtual ConfigValues config_of(size_t n) const = 0;

  void check(const Problem& problem, const Answer& answer) {
    const ConfigValues next = config_of(num_problems_++);
    for (const Kernel& kernel : kernels_of(*tests.declaration)) {
      if (kernel->name != "cpu") continue;
      const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed, .config = next});
      EXPECT_TRUE(verdict.supported) << verdict.declined;
      EXPECT_EQ(report(problem, kernel, verdict), "");
    }
  }

  /// Random problems in bfloat16 with the seeds from `first` to `last`, otherwise as `request` says.
  void check_random(uint64_t first, uint64_t last, RandomRequest request = {.size = Size::small}) {
    request.dtype = DType::bf16;
    for (request.seed = first; request.seed <= last && !HasFailure(); ++request.seed) {
      const Problem problem = tests.random(request);
      check(problem, tests.oracle(problem, 1e6));
    }
  }
  /// The same with the machine's vectors of every width.
  void check_random_on_every_target(uint64_t first, uint64_t last) {
    for (const std::string_view target : cpu::simd_targets()) {
      const cpu::ScopedSimdTarget scoped(target);
      check_random(first, last);
    }
  }
  /// Problems whose results are exact in every arithmetic, those in bfloat16 by the dtype of this input.
  void check_exact(std::string_view input, int count) {
    for (uint64_t seed = 1; count > 0 && !HasFailure(); ++seed) {
      const ExactProblem exact = tests.exact(seed);
      if (exact.problem.view(input).dtype != DType::bf16) continue;
      check(exact.problem, exact.answer);
      --count;
    }
  }

  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_GE(unit.num_products(), static_cast<int64_t>(num_problems_)) << "the unit was hardly used";
    EXPECT_EQ(unit.num_configured(), 0) << "tile state was left behind";
  }

  const TestOperation& tests = find_test_operation(GetParam());
  const ScopedEmulatedMatrixUnit unit;

 private:
  size_t num_problems_ = 0;
};

/// Number n of these values, over and over.
inline int64_t nth_of(std::initializer_list<int64_t> values, size_t n) { return values.begin()[n % values.size()]; }

inline std::string name_of_operation(const ::testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}

}  // namespace ejk::testing
