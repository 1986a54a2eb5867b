// What can be known of these without a GPU.
#include "ejkernel/testing/device_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

TEST(DenseProblems, are_what_matrix_units_take_and_the_cpu_computes_them_right) {
  const TestOperation& tests = flash_attention_tests();
  const Kernel cpu = kernels_of(*tests.declaration).front();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RandomRequest request{.seed = seed, .size = Size::small, .dense = true};
    const Problem problem = tests.random(request);
    const Tensor query = problem.view("query"), bias = problem.view("bias");
    EXPECT_TRUE(query.dtype == DType::bf16 || query.dtype == DType::f16) << problem.label;
    EXPECT_EQ(query.rank(), 4) << problem.label;
    EXPECT_EQ(query.shape[3] % 64, 0) << problem.label;
    EXPECT_FALSE(bias.present()) << problem.label;
    EXPECT_THAT(problem.replay, HasSubstr("--dense"));
    const Verdict verdict = check_kernel(problem, tests.oracle(problem, 1e6), cpu, {.seed = seed});
    EXPECT_EQ(report(problem, cpu, verdict), "");
  }
}

TEST(Configurations, are_supported_problems_with_configs_that_replay) {
  const TestOperation& tests = flash_attention_tests();
  const Kernel cpu = kernels_of(*tests.declaration).front();
  const std::vector<Configuration> some = configurations(tests, cpu, {}, 8, 1);
  ASSERT_EQ(some.size(), 8u);
  for (const Configuration& one : some) {
    EXPECT_TRUE(supports(one.problem, one.kernel).ok) << one.text();
    EXPECT_TRUE(one.config.has_value()) << one.text();
    EXPECT_THAT(one.text(), HasSubstr("ejk check flash_attention --kernel=cpu "));
  }
}

}  // namespace
}  // namespace ejk::testing
