// What can be known of these without a GPU: on a fake one, whose memory is the host's, a kernel may compute there.
#include "ejkernel/testing/device_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/operations.h"
#include "ejkernel/testing/toy.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

constexpr Device kGpu{DeviceKind::cuda, 0};

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

enum class Wrong : uint8_t { nothing, now_and_then, takes_rows_for_packed };

/// y = x on the fake GPU.
template <Wrong kWrong>
struct ToyOnGpu {
  // Choices are cached by name.
  static constexpr std::string_view kName = kWrong == Wrong::nothing        ? "right"
                                            : kWrong == Wrong::now_and_then ? "racy"
                                                                            : "packed";
  static constexpr Platform kPlatform = Platform::cuda;
  static void run(const Call<Toy>& call, const RunContext&) {
    Tensor x = call.inputs.x;
    if (kWrong == Wrong::takes_rows_for_packed) x.strides = contiguous_strides(x.shape);
    toy_scale(x, call.outputs.y, 1, 0);
    static int runs = 0;
    if (kWrong == Wrong::now_and_then && ++runs % 9 == 0) set(call.outputs.y, 3, 17);
  }
};

template <Wrong kWrong>
Configuration toy_on_gpu() {
  register_toys();
  Problem problem = Problem::of(declaration<Toy>());
  Random random(1);
  fill_normal(problem.add("x", DType::f32, {5, 8}), random, 1);
  return {std::move(problem), std::make_shared<const KernelInfo>(make_kernel<Toy, ToyOnGpu<kWrong>>())};
}

TEST(DeviceRuns, count_the_reruns_that_differ) {
  const FakeCuda fake;
  EXPECT_EQ(unequal_reruns(toy_on_gpu<Wrong::nothing>(), kGpu, 50), 0);
  EXPECT_EQ(unequal_reruns(toy_on_gpu<Wrong::now_and_then>(), kGpu, 50), 5);
  EXPECT_EQ(fake.num_blocks(), 0u);
}

TEST(DeviceRuns, see_a_kernel_that_ignores_far_strides) {
  const FakeCuda fake;
  EXPECT_EQ(far_call(toy_on_gpu<Wrong::nothing>(), kGpu, 100000), "");
  const std::optional<std::string> wrong = far_call(toy_on_gpu<Wrong::takes_rows_for_packed>(), kGpu, 100000);
  ASSERT_TRUE(wrong.has_value());
  EXPECT_THAT(*wrong, HasSubstr("far at element 100000, y: element 8"));
  EXPECT_EQ(far_call(toy_on_gpu<Wrong::nothing>(), kGpu, int64_t{1} << 40), std::nullopt) << "no GPU has that much";
}

TEST(DeviceRuns, run_calls_beside_each_other_and_other_work) {
  const FakeCuda fake;
  const Configuration one = toy_on_gpu<Wrong::nothing>();
  const OtherWork other(one, kGpu);
  EXPECT_EQ(wrong_beside(one, one, kGpu, 5), 0);
  EXPECT_GT(wrong_beside(one, toy_on_gpu<Wrong::now_and_then>(), kGpu, 20), 0);
}

}  // namespace
}  // namespace ejk::testing
