// What candidates must show, in host memory and in that of a GPU that is played.
#include "ejkernel/runtime/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/toy_tunable.h"

namespace ejk::testing {
namespace {

/// Of a played GPU the memory is the host's, so that one test looks at both.
void expect_guards(Device device) {
  const GuardedMemory memory(100, device);
  ASSERT_EQ(memory.size(), 100u);
  for (size_t n = 0; n < memory.size(); ++n) EXPECT_EQ(memory.data()[n], std::byte{0xff});
  std::memset(memory.data(), 0, memory.size());
  EXPECT_TRUE(memory.is_intact()) << "what is inside may change";
  for (const ptrdiff_t outside : {-1, 100}) {
    memory.data()[outside] = std::byte{0};
    EXPECT_FALSE(memory.is_intact()) << outside;
    memory.poison();
    EXPECT_TRUE(memory.is_intact());
    EXPECT_EQ(memory.data()[0], std::byte{0xff});
  }
}

TEST(Admission, bands_tell_of_a_write_before_and_behind_host_memory) { expect_guards({}); }

TEST(Admission, bands_tell_of_a_write_before_and_behind_a_gpus_memory) {
  const FakeCuda cuda;
  expect_guards({DeviceKind::cuda, 0});
}

struct OnGpu : ToyTunable {
  static constexpr std::string_view kName = "on_gpu";
  static constexpr Platform kPlatform = Platform::cuda;
};

TEST(Admission, of_a_gpu_results_are_compared_where_the_host_can_read_them) {
  const FakeCuda cuda;
  const KernelRegistry::Batch batch((register_toys(), KernelRegistry::instance()));
  KernelRegistry::instance().add("toy", make_kernel<Toy, OnGpu>(), 10000);
  ToyTunable::by_default = {};
  const Device gpu{DeviceKind::cuda, 0};
  const Array x = Array::zeros(DType::f32, {8, 4}, gpu);
  const Toy::Inputs inputs{.x = x};
  const Plan ones = plan<Toy>(inputs, {.scale = 2, .shift = 1}, {.kernel = "on_gpu"});
  const Plan twos = plan<Toy>(inputs, {.scale = 2, .shift = 2}, {.kernel = "on_gpu"});

  const auto tensors = to_array(inputs);
  Proving proving(ones, tensors);
  EXPECT_EQ(proving.run(ones), "");
  const std::vector<Array> expected = proving.results();
  EXPECT_EQ(expected[0].view().device.kind, DeviceKind::cpu);
  EXPECT_EQ(get(expected[0], 5), 1);
  EXPECT_EQ(proving.run(twos), "");
  EXPECT_EQ(proving.differs_from(expected), "it is wrong: element 0 of output 0 is 2, not 1");
  EXPECT_FALSE(proving.equals(expected));
  EXPECT_EQ(proving.run(ones), "");
  EXPECT_TRUE(proving.equals(expected));
}

TEST(Admission, subnormal_numbers_need_not_agree_in_digits_that_they_have_not) {
  const KernelRegistry::Batch batch((register_toys(), KernelRegistry::instance()));
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
  ToyTunable::by_default = {};
  Array x = Array::zeros(DType::f32, {2, 4});
  for (int64_t n = 0; n < x.num_elements(); ++n) set(x, n, 0x1p-120);
  const auto tensors = to_array(Toy::Inputs{.x = x});
  const auto plan_with = [&](double scale) {
    return plan<Toy>({.x = x}, {.scale = scale, .shift = 0}, {.kernel = "tunable"});
  };
  const Plan seventeen = plan_with(17 * 0x1p-29), sixteen = plan_with(16 * 0x1p-29), larger = plan_with(0x1p-10);
  Proving proving(seventeen, tensors);
  EXPECT_EQ(proving.run(seventeen), "");
  const std::vector<Array> expected = proving.results();
  EXPECT_EQ(proving.run(sixteen), "");
  EXPECT_EQ(proving.differs_from(expected), "");
  EXPECT_EQ(proving.run(larger), "");
  EXPECT_NE(proving.differs_from(expected), "");
}

TEST(Admission, nothing_is_near_an_infinity_but_itself) {
  const KernelRegistry::Batch batch((register_toys(), KernelRegistry::instance()));
  KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
  ToyTunable::by_default = {};
  Array x = Array::zeros(DType::f32, {2, 4});
  set(x, 3, std::numeric_limits<double>::infinity());
  const Toy::Inputs inputs{.x = x};
  const Plan up = plan<Toy>(inputs, {.scale = 2, .shift = 1}, {.kernel = "tunable"});
  const Plan down = plan<Toy>(inputs, {.scale = -2, .shift = 1}, {.kernel = "tunable"});
  const auto tensors = to_array(inputs);
  Proving proving(up, tensors);
  EXPECT_EQ(proving.run(up), "");
  const std::vector<Array> expected = proving.results();
  EXPECT_EQ(proving.differs_from(expected), "");
  EXPECT_EQ(proving.run(down), "");
  EXPECT_EQ(proving.differs_from(expected), "it is wrong: element 3 of output 0 is -inf, not inf");
}

}  // namespace
}  // namespace ejk::testing
