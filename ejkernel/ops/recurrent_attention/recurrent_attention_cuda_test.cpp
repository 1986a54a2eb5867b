// The device code of `cuda_reference` as host C++, with blocks of one thread and of three: on the problems that every
// kernel of the host meets, by the same rule. And what is launched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cuda_internal.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/host_block.h"

namespace ejk {
namespace {

using ::testing::ElementsAre;
using testing::HostBlock;

struct ForwardOnHost {
  using Op = RecurrentAttention;
  static constexpr std::string_view kName = "reference_on_host";
  static constexpr Platform kPlatform = Platform::cpu;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return recurrence::cuda_memory_bytes(call);
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const cuda::RecurrenceProblem p = recurrence::cuda_problem(call, context.workspace.data(), context.status);
    for (int first = 0; first < 2 && p.packed(); ++first) clear_rows(p, false, first, 2);
    for (int first = 0; first < 2; ++first) recur(p, first, 2);
  }
};

template <int kThreads>
struct BackwardOnHost {
  using Op = RecurrentAttentionBackward;
  static constexpr std::string_view kName = "reference_on_host";
  static constexpr Platform kPlatform = Platform::cpu;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return recurrence::cuda_memory_bytes(call);
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const cuda::RecurrenceProblem p = recurrence::cuda_problem(call, context.workspace.data(), context.status);
    for (int first = 0; first < 2 && p.packed(); ++first) clear_rows(p, true, first, 2);
    std::vector<double> sums(kThreads);
    for (int64_t block = 0; block < p.num_blocks; ++block)
      testing::run_block(kThreads, [&](HostBlock threads) {
        cuda::RecurrenceBackward<HostBlock> backward(p, block, threads, sums.data());
        for (int64_t n = block; n < p.num_sequences * p.num_kv_heads; n += p.num_blocks) backward.run(n);
      });
    if (p.d_g_gamma.present()) sum_g_gamma(p, 0, 1);
  }
};

template <class K, int kMostFlops>
struct Tested {
  using Type = K;
  static constexpr double kLargest = kMostFlops;
};

template <class Kernel>
class RecurrenceOnHost : public ::testing::Test {
 protected:
  using Op = typename Kernel::Type::Op;
  const testing::TestOperation& tests = std::is_same_v<Op, RecurrentAttention>
                                            ? testing::recurrent_attention_tests()
                                            : testing::recurrent_attention_backward_tests();
  const testing::Kernel kernel = std::make_shared<const KernelInfo>(make_kernel<Op, typename Kernel::Type>());

  void meet(const testing::Problem& problem) {
    if (testing::flops_of(problem) > Kernel::kLargest) return;
    const testing::Answer answer = tests.oracle(problem, testing::kTestBudget);
    const testing::Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    EXPECT_EQ(report(problem, kernel, verdict), "");
    met += verdict.supported ? 1 : 0;
  }

  int met = 0;
};

using Kernels = ::testing::Types<Tested<ForwardOnHost, 400'000>, Tested<BackwardOnHost<1>, 400'000>,
                                 Tested<BackwardOnHost<3>, 10'000>>;
TYPED_TEST_SUITE(RecurrenceOnHost, Kernels);

TYPED_TEST(RecurrenceOnHost, meets_the_named_cases) {
  for (const testing::Case& one : this->tests.cases)
    if ((one.tags & testing::kPrimary) == 0) this->meet(one.make());  // the others are large
  EXPECT_GE(this->met, 15);
}

TYPED_TEST(RecurrenceOnHost, meets_random_problems) {
  for (uint64_t seed = 1; seed <= 120 && !this->HasFailure(); ++seed)
    this->meet(this->tests.random(
        {.seed = seed, .size = seed % 3 == 0 ? testing::Size::small : testing::Size::tiny, .hostile = seed % 2 == 0}));
  EXPECT_GE(this->met, 80);
}

// ---- what is launched ----

constexpr Device kGpu = {DeviceKind::cuda, 0};

class RecurrenceLaunches : public ::testing::Test {
 protected:
  static Array on_gpu(DType dtype, const Shape& shape) { return Array::zeros(dtype, shape, kGpu); }

  std::vector<std::string> launched() const {
    std::vector<std::string> names;
    for (const testing::FakeCuda::Launch& launch : fake.launches())
      names.emplace_back(launch.instance.substr(std::string_view("ejk::cuda::recurrent_attention_").size()));
    return names;
  }

  testing::FakeCuda fake;
};

TEST_F(RecurrenceLaunches, a_thread_takes_a_column_of_a_state) {
  const Array q = on_gpu(DType::bf16, {2, 9, 4, 32}), v = on_gpu(DType::bf16, {2, 9, 4, 48});
  recurrent_attention({.query = q, .key = q, .value = v});
  EXPECT_THAT(launched(), ElementsAre("reference<false>"));
  EXPECT_EQ(fake.launches()[0].grid[0], 2u * 4 * 48 / cuda::kRecurrenceThreads);
}

TEST_F(RecurrenceLaunches, rows_of_packed_sequences_are_cleared_and_gammas_summed) {
  const Array q = on_gpu(DType::f32, {9, 4, 32}), cu_seqlens = on_gpu(DType::i32, {4});
  const Array g_gamma = on_gpu(DType::f32, {4});
  recurrent_attention({.query = q, .key = q, .value = q, .cu_seqlens = cu_seqlens});
  EXPECT_THAT(launched(), ElementsAre("clear<false>", "reference<false>"));
  RecurrentAttentionBackward::Inputs in;
  in.query = in.key = in.value = q;
  in.g_gamma = g_gamma, in.cu_seqlens = cu_seqlens, in.d_out = q;
  execute<RecurrentAttentionBackward>(in);
  const std::vector<std::string> all = launched();
  EXPECT_THAT(std::vector(all.begin() + 2, all.end()), ElementsAre("clear<true>", "reference<true>", "sum_g_gamma"));
  EXPECT_EQ(fake.launches()[3].grid[0], 3u * 4) << "a block for each kv head of a sequence";
}

TEST_F(RecurrenceLaunches, without_sequences_only_sums_are_written) {
  const Array q = on_gpu(DType::f32, {0, 9, 2, 8}), g_gamma = on_gpu(DType::f32, {2});
  RecurrentAttentionBackward::Inputs in;
  in.query = in.key = in.value = in.d_out = q;
  in.g_gamma = g_gamma;
  execute<RecurrentAttentionBackward>(in);
  EXPECT_THAT(launched(), ElementsAre("sum_g_gamma"));
}

}  // namespace
}  // namespace ejk
