// The device code of `cuda_reference` as host C++, on the problems that every kernel of the host meets, by the same
// rule; and what it launches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ejkernel/ops/rnn/rnn_cases.h"
#include "ejkernel/ops/rnn/rnn_cuda_internal.h"
#include "ejkernel/ops/rnn/rnn_formula.cuh"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/host_block.h"

namespace ejk {
namespace {

using ::testing::ElementsAre;
using testing::HostBlock;

/// By blocks of so many threads, two of them.
template <class Operation, int kThreads>
struct OnHost {
  using Op = Operation;
  static constexpr std::string_view kName = "reference_on_host";
  static constexpr Platform kPlatform = Platform::cpu;
  static constexpr bool kBackward = std::is_same_v<Op, RnnBackward>;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return rnns::cuda_workspace(call);
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const cuda::RnnProblem problem = rnns::cuda_problem(call, context.workspace.data(), context.status);
    for (int first = 0; first < 2; ++first)
      testing::run_block(kThreads, [&](HostBlock block) { run_rnn(problem, kBackward, first, 2, block); });
    for (int first = 0; kBackward && first < 2; ++first) sum_rnn_weights(problem, first, 2);
  }
};

template <class K>
class RnnOnHost : public ::testing::Test {
 protected:
  const testing::TestOperation& tests = K::kBackward ? testing::rnn_backward_tests() : testing::rnn_tests();
  const testing::Kernel kernel = std::make_shared<const KernelInfo>(make_kernel<typename K::Op, K>());

  void meet(const testing::Problem& problem) {
    if (testing::flops_of(problem) > 1e6) return;
    const testing::Answer answer = tests.oracle(problem, testing::kTestBudget);
    const testing::Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    EXPECT_EQ(report(problem, kernel, verdict), "");
    met += verdict.supported ? 1 : 0;
  }

  int met = 0;
};

using Kernels = ::testing::Types<OnHost<Rnn, 1>, OnHost<Rnn, 3>, OnHost<RnnBackward, 1>, OnHost<RnnBackward, 3>>;
TYPED_TEST_SUITE(RnnOnHost, Kernels);

TYPED_TEST(RnnOnHost, meets_the_edges) {
  for (const testing::Case& one : this->tests.cases)
    if ((one.tags & testing::kEdge) != 0) this->meet(one.make());
  EXPECT_GE(this->met, 14);
}

TYPED_TEST(RnnOnHost, meets_random_problems) {
  for (uint64_t seed = 1; seed <= 40 && !this->HasFailure(); ++seed)
    this->meet(this->tests.random({.seed = seed, .size = testing::Size::tiny, .hostile = seed % 2 == 0}));
  EXPECT_GE(this->met, 36);
}

// ---- what is launched ----

class RnnLaunches : public ::testing::Test {
 protected:
  static Array on_gpu(const Shape& shape) { return Array::zeros(DType::f32, shape, {DeviceKind::cuda, 0}); }
  std::vector<std::string> launched() const {
    std::vector<std::string> names;
    for (const testing::FakeCuda::Launch& launch : fake.launches())
      names.emplace_back(launch.instance.substr(std::string_view("ejk::cuda::rnn_").size()));
    return names;
  }
  testing::FakeCuda fake;
};

TEST_F(RnnLaunches, a_block_per_sequence) {
  rnn({.input = on_gpu({5, 3, 8}), .weight_ih = on_gpu({1, 16, 8}), .weight_hh = on_gpu({1, 16, 4})}, {},
      {.plan = {.kernel = "cuda_reference"}});
  EXPECT_THAT(launched(), ElementsAre("reference"));
  EXPECT_EQ(fake.launches()[0].grid[0], 5u);
}

TEST_F(RnnLaunches, the_weights_gradients_are_summed_after_the_sequences) {
  RnnBackward::Inputs in;
  const Array input = on_gpu({5, 3, 8}), weight_ih = on_gpu({1, 16, 8}), weight_hh = on_gpu({1, 16, 4});
  in.input = input, in.weight_ih = weight_ih, in.weight_hh = weight_hh;
  execute<RnnBackward>(in, {}, {.plan = {.kernel = "cuda_reference"}});
  EXPECT_THAT(launched(), ElementsAre("backward_reference", "weights_reference"));
  EXPECT_EQ(fake.launches()[1].grid[0], 1u) << "16 rows of 8 + 4 + 2 elements by blocks of 256 threads";
}

}  // namespace
}  // namespace ejk
