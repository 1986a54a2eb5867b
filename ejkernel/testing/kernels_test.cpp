// Every registered kernel meets every named case and many random problems, forward and backward: nothing here knows an
// operation or a kernel by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/gradient_check.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

/// How many problems each kernel was judged on: none passes by never running.
using Judged = std::map<std::string, int>;

void check_all_kernels(const TestOperation& tests, const Problem& problem, const Answer& answer, Judged& judged) {
  for (const Kernel& kernel : kernels_of(*tests.declaration)) {
    if (is_too_slow(problem, kernel)) continue;
    const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    judged[kernel->name] += verdict.supported;
    EXPECT_EQ(report(problem, kernel, verdict), "");
  }
}
void check_all_kernels(const TestOperation& tests, const Problem& problem, Judged& judged) {
  check_all_kernels(tests, problem, tests.oracle(problem, kTestBudget), judged);
}

void expect_each_judged(const TestOperation& tests, const Judged& judged, Device device = {}) {
  for (const Kernel& kernel : kernels_of(*tests.declaration, device))
    EXPECT_TRUE(judged.contains(kernel->name) && judged.at(kernel->name) > 0)
        << kernel->name << " took none of the problems";
}

/// "flash_attention/odd_lengths" as a test's name.
std::string test_name(std::string_view operation, std::string_view rest) {
  std::string name = std::string(operation) + "_" + std::string(rest);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

struct NamedCase {
  const TestOperation* tests;
  const Case* one;
};
std::vector<NamedCase> every_case(unsigned tags) {
  std::vector<NamedCase> all;
  for (const TestOperation* tests : test_operations())
    for (const Case& one : tests->cases)
      if ((one.tags & tags) != 0) all.push_back({tests, &one});
  return all;
}
void PrintTo(const NamedCase& c, std::ostream* out) { *out << c.one->name; }
std::string name_of(const ::testing::TestParamInfo<NamedCase>& info) {
  return test_name(info.param.tests->name(), info.param.one->name);
}

class EveryKernel : public ::testing::TestWithParam<NamedCase> {};
TEST_P(EveryKernel, meets_the_case) {
  Judged judged;
  check_all_kernels(*GetParam().tests, GetParam().one->make(), judged);
  EXPECT_TRUE(std::ranges::any_of(judged, [](const auto& one) { return one.second > 0; })) << "no kernel took it";
}
INSTANTIATE_TEST_SUITE_P(Models, EveryKernel, ::testing::ValuesIn(every_case(kPrimary)), name_of);
INSTANTIATE_TEST_SUITE_P(Edges, EveryKernel, ::testing::ValuesIn(every_case(kEdge)), name_of);
INSTANTIATE_TEST_SUITE_P(Lattice, EveryKernel, ::testing::ValuesIn(every_case(kLattice)), name_of);

struct Batch {
  const TestOperation* tests;
  uint64_t first;
  int count;
};
std::vector<Batch> batches(int batches_per_operation, int count) {
  std::vector<Batch> all;
  for (const TestOperation* tests : test_operations())
    for (int b = 0; b < batches_per_operation; ++b)
      if (tests->random != nullptr) all.push_back({tests, static_cast<uint64_t>(b) * 1000 + 1, count});
  return all;
}
void PrintTo(const Batch& b, std::ostream* out) { *out << b.tests->name() << " from seed " << b.first; }
std::string name_of_batch(const ::testing::TestParamInfo<Batch>& info) {
  return test_name(info.param.tests->name(), std::to_string(info.param.first));
}

class EveryKernelAtRandom : public ::testing::TestWithParam<Batch> {};
TEST_P(EveryKernelAtRandom, meets_the_error_rule) {
  const Batch& batch = GetParam();
  Judged judged;
  for (int n = 0; n < batch.count && !HasFailure(); ++n)
    check_all_kernels(*batch.tests, batch.tests->random({.seed = batch.first + static_cast<uint64_t>(n)}), judged);
  expect_each_judged(*batch.tests, judged);
}
TEST_P(EveryKernelAtRandom, survives_hostile_indices) {
  const Batch& batch = GetParam();
  Judged judged;
  for (int n = 0; n < batch.count && !HasFailure(); ++n)
    check_all_kernels(
        *batch.tests,
        batch.tests->random({.seed = batch.first + static_cast<uint64_t>(n), .size = Size::small, .hostile = true}),
        judged);
  expect_each_judged(*batch.tests, judged);
}
INSTANTIATE_TEST_SUITE_P(Seeds, EveryKernelAtRandom, ::testing::ValuesIn(batches(4, 25)), name_of_batch);

TEST_P(EveryKernelAtRandom, is_exact_where_every_arithmetic_is) {
  const Batch& batch = GetParam();
  if (batch.tests->exact == nullptr) GTEST_SKIP() << batch.tests->name() << " has no exact mode";
  Judged judged;
  for (int n = 0; n < batch.count && !HasFailure(); ++n) {
    const ExactProblem exact = batch.tests->exact(batch.first + static_cast<uint64_t>(n));
    check_all_kernels(*batch.tests, exact.problem, exact.answer, judged);
  }
  expect_each_judged(*batch.tests, judged);
}

/// Host halves of kernels for a GPU: a fake one compiles and launches nothing, but refuses launches beyond its limits.
TEST_P(EveryKernelAtRandom, plans_and_launches_on_a_gpu_that_computes_nothing) {
  const Batch& batch = GetParam();
  const Device gpu{DeviceKind::cuda, 0};
  const std::vector<Kernel> kernels = kernels_of(*batch.tests->declaration, gpu);
  if (kernels.empty()) GTEST_SKIP() << batch.tests->name() << " has no kernel for a GPU";
  const FakeCuda fake;
  Judged launched;
  for (int n = 0; n < 2 * batch.count && !HasFailure(); ++n) {
    const Problem problem =
        batch.tests->random({.seed = batch.first + static_cast<uint64_t>(n), .size = Size::small, .dense = n % 2 == 0});
    for (const Kernel& kernel : kernels) {
      const Outcome outcome = run_guarded(problem, kernel, {.seed = problem.seed, .device = gpu});
      launched[kernel->name] += outcome.supported;
      EXPECT_TRUE(outcome.faults.empty()) << kernel->name << ", " << problem.label << ": " << outcome.faults.front();
    }
  }
  expect_each_judged(*batch.tests, launched, gpu);
  EXPECT_EQ(fake.num_blocks(), 0u) << "device memory was not given back";
  EXPECT_EQ(fake.num_contexts(), 0u);
}

/// The reference's gradient against central differences of the reference: what every other gradient is judged by.
TEST_P(EveryKernelAtRandom, reference_gradients_match_finite_differences) {
  const Batch& batch = GetParam();
  const Operation& op = *batch.tests->declaration;
  if (op.gradient.empty()) GTEST_SKIP() << op.name << " has no gradient";
  const TestOperation& gradient = find_test_operation(op.gradient);
  int64_t compared = 0;
  for (int n = 0; n < batch.count && !HasFailure(); ++n) {
    const RandomRequest request{.seed = batch.first + static_cast<uint64_t>(n),
                                .size = Size::tiny,
                                .differentiable = true,
                                .dtype = DType::f64};
    const Problem forward = batch.tests->random(request);
    const GradientCheck check =
        check_gradient(forward, kernels_of(op).back(), kernels_of(*gradient.declaration).back(), request.seed);
    compared += check.elements;
    EXPECT_EQ(check.failure, "") << "reproduce: ejk check " << op.name << " " << forward.replay;
  }
  EXPECT_GE(compared, batch.count) << "elements that were compared, of all problems";
}

}  // namespace
}  // namespace ejk::testing
