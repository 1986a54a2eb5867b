// EJKERNEL_TRITON_SMEM_LIMIT, on a GPU that is not there.
#include <gmock/gmock.h>

#include <cstdlib>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cuda/program.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/testing/fake_cuda.h"

namespace ejk::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

constexpr Device kGpu{DeviceKind::cuda, 0};

/// The device is described when it is found: the variable must be there first.
class SharedMemoryLimit : public ::testing::Test {
 protected:
  SharedMemoryLimit() {
    ::setenv("EJKERNEL_TRITON_SMEM_LIMIT", "131072", 1);
    environment::reload();
  }
  ~SharedMemoryLimit() override {
    ::unsetenv("EJKERNEL_TRITON_SMEM_LIMIT");
    environment::reload();
  }
};

/// Of the Hopper kernel, whose heuristic takes four stages here.
PlanFor<FlashAttentionBackward> gradient(const PlanOptions& options = {}) {
  const Tensor row(nullptr, DType::bf16, {1, 256, 2, 64}, kGpu), lse(nullptr, DType::f32, {1, 2, 256}, kGpu);
  FlashAttentionBackward::Inputs specs;
  specs.query = specs.key = specs.value = specs.out = specs.d_out = row;
  specs.lse = lse;
  return plan<FlashAttentionBackward>(specs, {}, options);
}

TEST_F(SharedMemoryLimit, is_what_a_device_has) {
  const FakeCuda fake;
  EXPECT_EQ(device_properties(kGpu).shared_bytes_per_block, 131072);
  EXPECT_THAT(device_fingerprint(kGpu), HasSubstr("|shared 131072")) << "what is tuned under a limit is kept apart";
  EXPECT_EQ(cuda::made_up_device("sm_90a").shared_bytes_per_block, 131072);
}

TEST_F(SharedMemoryLimit, configs_that_need_more_give_way_to_one_that_fits) {
  const FakeCuda fake;
  const auto plan = gradient();
  EXPECT_EQ(plan.kernel().name, "cuda_sm90");
  EXPECT_THAT(config_values(plan.kernel(), plan.choice().config), Contains(Pair("stages", 2)));
  EXPECT_THAT(
      [] {
        gradient({.config = ConfigValues{{"stages", 4}}});
      },
      ThrowsMessage<Unsupported>(HasSubstr("131072 for a block under EJKERNEL_TRITON_SMEM_LIMIT")));
}

TEST_F(SharedMemoryLimit, is_of_this_run_alone) {
  { const FakeCuda fake; }
  ::unsetenv("EJKERNEL_TRITON_SMEM_LIMIT");
  environment::reload();
  const FakeCuda fake;
  const auto plan = gradient();
  EXPECT_THAT(config_values(plan.kernel(), plan.choice().config), Contains(Pair("stages", 4)));
}

}  // namespace
}  // namespace ejk::testing
