// Kernels for a GPU that run often: reruns, graphs, streams, callers' contexts, and tensors of more than 2^31 elements.
#include <gtest/gtest.h>

#include <thread>

#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/device_runs.h"
#include "ejkernel/testing/watchdog.h"

namespace ejk::testing {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr uint64_t kSeed = 1;

struct KernelOf {
  const TestOperation* tests;
  Kernel kernel;
};
void PrintTo(const KernelOf& k, std::ostream* out) { *out << k.tests->name() << " " << k.kernel->name; }

std::vector<KernelOf> every_kernel() {
  std::vector<KernelOf> all;
  for (const TestOperation* tests : operations_on(kGpu))
    for (const Kernel& kernel : kernels_of(*tests->declaration, kGpu)) all.push_back({tests, kernel});
  return all;
}

std::string name_of(const ::testing::TestParamInfo<KernelOf>& info) {
  return std::string(info.param.tests->name()) + "_" + info.param.kernel->name;
}

class RunsOnDevice : public ::testing::TestWithParam<KernelOf> {
 protected:
  std::vector<Configuration> some(size_t count) {
    return configurations(*GetParam().tests, GetParam().kernel, kGpu, count, kSeed);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, RunsOnDevice, ::testing::ValuesIn(every_kernel()), name_of);

/// 20 configurations of 1,000 reruns, and 80 more of 200; a reference's threads share nothing but what they read.
TEST_P(RunsOnDevice, are_bit_equal_beside_other_work) {
  constexpr size_t kOften = 20;
  const bool is_reference = GetParam().kernel->name == kDeviceReference;
  Watchdog watchdog;
  const std::vector<Configuration> all = some(is_reference ? kOften : 100);
  ASSERT_EQ(all.size(), is_reference ? kOften : 100);
  const OtherWork other(all.back(), kGpu);
  for (size_t i = 0; i < all.size(); ++i) {
    const int parts = is_reference ? 1 : i < kOften ? 10 : 2;
    for (int part = 0; part < parts; ++part) {
      watchdog.hear(all[i].text());
      EXPECT_EQ(unequal_reruns(all[i], kGpu, 100), 0) << all[i].text();
    }
  }
}

TEST_P(RunsOnDevice, replay_from_graphs_with_changed_contents) {
  Watchdog watchdog;
  for (const Configuration& one : some(4))
    for (int part = 0; part < 5; ++part) {
      watchdog.hear(one.text());
      EXPECT_EQ(wrong_replays(one, kGpu, 50), 0) << one.text();
    }
}

TEST_P(RunsOnDevice, do_not_disturb_each_other_on_two_streams) {
  Watchdog watchdog;
  const std::vector<Configuration> all = some(6);
  ASSERT_GE(all.size(), 2u);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    watchdog.hear(all[i].text());
    EXPECT_EQ(wrong_beside(all[i], all[i + 1], kGpu, 20), 0) << all[i].text() << "\n" << all[i + 1].text();
  }
}

TEST_P(RunsOnDevice, index_past_2_to_the_31) {
  Watchdog watchdog(60);  // it moves many gigabytes
  int runs = 0;
  for (const Configuration& one : some(12))
    for (const int64_t top : {(int64_t{1} << 31) - 4096, (int64_t{1} << 31) + 4096, (int64_t{1} << 32) + 4096}) {
      watchdog.hear(one.text());
      const std::optional<std::string> wrong = far_call(one, kGpu, top);
      if (!wrong) continue;
      ++runs;
      EXPECT_EQ(*wrong, "");
    }
  EXPECT_GT(runs, 0) << "no call of it was far";
}

cuda::abi::CUcontext current_context() {
  cuda::abi::CUcontext context = nullptr;
  cuda::driver().context_current(&context);
  return context;
}

TEST_P(RunsOnDevice, need_no_current_context_and_leave_none) {
  const std::vector<Configuration> all = some(1);
  ASSERT_EQ(all.size(), 1u);
  const Resident resident(all[0].problem, all[0].kernel, kGpu, all[0].config);
  const Digest expected = resident.result(nullptr);
  std::thread caller([&] {
    EXPECT_EQ(current_context(), nullptr);
    const Resident other(all[0].problem, all[0].kernel, kGpu, all[0].config);
    EXPECT_TRUE(other.result(nullptr) == expected);
    EXPECT_EQ(current_context(), nullptr);
  });
  caller.join();
}

TEST_P(RunsOnDevice, give_back_the_context_of_another_device) {
  if (num_cuda_devices() < 2) GTEST_SKIP() << "there is one GPU here";
  const std::vector<Configuration> all = some(1);
  ASSERT_EQ(all.size(), 1u);
  const Resident resident(all[0].problem, all[0].kernel, kGpu, all[0].config);
  const Digest expected = resident.result(nullptr);
  const cuda::CurrentDevice second(1);
  const auto before = current_context();
  EXPECT_TRUE(resident.result(nullptr) == expected);
  EXPECT_EQ(current_context(), before);
  const Device other{DeviceKind::cuda, 1};
  const Resident beside(all[0].problem, all[0].kernel, other, all[0].config);
  EXPECT_TRUE(beside.result(nullptr) == expected) << "the same call on the second device";
  EXPECT_EQ(current_context(), before);
}

}  // namespace
}  // namespace ejk::testing
