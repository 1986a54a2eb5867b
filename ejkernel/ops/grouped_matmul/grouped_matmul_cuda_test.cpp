// The device code of `cuda_reference` as host C++, on the problems that every kernel of the host meets, by the same
// rule; and what it launches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_cuda_internal.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_formula.cuh"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/host_block.h"

namespace ejk {
namespace {

using gmm::Product;
using ::testing::ElementsAre;
using testing::HostBlock;

/// One product by blocks of so many threads, two of them.
void run_on_host(const Product& p, const RunContext& context, int threads) {
  const cuda::MatmulProblem problem = gmm::cuda_problem(p, context.workspace.data(), context.status);
  if (p.ragged != gmm::Ragged::none) {
    std::vector<cuda::int64> memory(static_cast<size_t>(threads));
    testing::run_block(threads, [&](HostBlock block) { find_groups(problem, block, memory.data()); });
  }
  if (!p.is_wanted) return;
  for (int first = 0; first < 2; ++first) multiply(problem, first, 2);
}

template <class Operation, int kThreads>
struct OnHost {
  using Op = Operation;
  static constexpr std::string_view kName = "reference_on_host";
  static constexpr Platform kPlatform = Platform::cpu;
  static constexpr bool kBackward = std::is_same_v<Op, GroupedMatmulBackward>;

  static std::vector<Product> products_of(const Call<Op>& call) {
    if constexpr (kBackward)
      return {gmm::lhs_product(call), gmm::rhs_product(call), gmm::existing_out_product(call)};
    else
      return {gmm::out_product(call)};
  }
  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return gmm::offset_bytes(products_of(call).front());
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    for (const Product& p : products_of(call)) run_on_host(p, context, kThreads);
  }
};

const testing::TestOperation& tests_of(std::string_view operation) {
  for (const testing::TestOperation* tests :
       {&testing::grouped_matmul_tests(), &testing::grouped_matmul_backward_tests()})
    if (tests->name() == operation) return *tests;
  return testing::transposed_grouped_matmul_tests();
}

template <class K>
class MatmulOnHost : public ::testing::Test {
 protected:
  const testing::TestOperation& tests = tests_of(K::Op::kName);
  const testing::Kernel kernel = std::make_shared<const KernelInfo>(make_kernel<typename K::Op, K>());

  void meet(const testing::Problem& problem) {
    if (testing::flops_of(problem) > 1e7) return;
    const testing::Answer answer = tests.oracle(problem, testing::kTestBudget);
    const testing::Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    EXPECT_EQ(report(problem, kernel, verdict), "");
    met += verdict.supported ? 1 : 0;
  }

  int met = 0;
};

using Kernels = ::testing::Types<OnHost<GroupedMatmul, 1>, OnHost<GroupedMatmul, 6>, OnHost<GroupedMatmulBackward, 1>,
                                 OnHost<GroupedMatmulBackward, 6>, OnHost<TransposedGroupedMatmul, 6>>;
TYPED_TEST_SUITE(MatmulOnHost, Kernels);

TYPED_TEST(MatmulOnHost, meets_the_edges) {
  for (const testing::Case& one : this->tests.cases)
    if ((one.tags & testing::kEdge) != 0) this->meet(one.make());
  EXPECT_GE(this->met, 40);
}

TYPED_TEST(MatmulOnHost, meets_random_problems) {
  for (uint64_t seed = 1; seed <= 100 && !this->HasFailure(); ++seed)
    this->meet(this->tests.random({.seed = seed, .size = testing::Size::small, .hostile = seed % 2 == 0}));
  EXPECT_GE(this->met, 90);
}

// ---- what is launched ----

class MatmulLaunches : public ::testing::Test {
 protected:
  static Array on_gpu(DType dtype, const Shape& shape) { return Array::zeros(dtype, shape, {DeviceKind::cuda, 0}); }
  std::vector<std::string> launched() const {
    std::vector<std::string> names;
    for (const testing::FakeCuda::Launch& launch : fake.launches())
      names.emplace_back(launch.instance.substr(std::string_view("ejk::cuda::grouped_matmul_").size()));
    return names;
  }
  testing::FakeCuda fake;
};

TEST_F(MatmulLaunches, ragged_rows_are_surveyed_first) {
  const Array lhs = on_gpu(DType::bf16, {300, 64}), rhs = on_gpu(DType::bf16, {2, 64, 32});
  grouped_matmul({.lhs = lhs, .rhs = rhs, .group_sizes = on_gpu(DType::i32, {2})}, {},
                 {.plan = {.kernel = "cuda_reference"}});
  EXPECT_THAT(launched(), ElementsAre("survey", "reference"));
  EXPECT_EQ(fake.launches()[0].grid[0], 1u);
  EXPECT_EQ(fake.launches()[1].grid[0], 38u) << "9600 elements by blocks of 256 threads";
}

TEST_F(MatmulLaunches, batched_groups_need_no_survey) {
  grouped_matmul({.lhs = on_gpu(DType::f32, {2, 3, 4, 5}), .rhs = on_gpu(DType::f32, {2, 3, 5, 6})}, {},
                 {.plan = {.kernel = "cuda_reference"}});
  EXPECT_THAT(launched(), ElementsAre("reference"));
}

}  // namespace
}  // namespace ejk
