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

/// Runs of the toy on an input of eight numbers.
class AdmissionOfToys : public ::testing::Test {
 protected:
  AdmissionOfToys() {
    KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
    ToyTunable::by_default = {};
  }
  Plan plan_with(double scale, double shift) const {
    return plan<Toy>({.x = x_}, {.scale = scale, .shift = shift}, {.kernel = "tunable"});
  }
  /// What is said of the second plan's results beside the first one's.
  std::string difference(const Plan& first, const Plan& second) const {
    const auto tensors = to_array(Toy::Inputs{.x = x_});
    Proving proving(first, tensors);
    EXPECT_EQ(proving.run(first), "");
    const std::vector<Array> expected = proving.results();
    EXPECT_EQ(proving.run(second), "");
    return proving.differs_from(expected);
  }

  Array x_ = Array::zeros(DType::f32, {2, 4});

 private:
  const KernelRegistry::Batch batch_{(register_toys(), KernelRegistry::instance())};
};

TEST_F(AdmissionOfToys, subnormal_numbers_need_not_agree_in_digits_that_they_have_not) {
  for (int64_t n = 0; n < 8; ++n) set(x_, n, 0x1p-120);
  const Plan seventeen = plan_with(17 * 0x1p-29, 0);
  EXPECT_EQ(difference(seventeen, plan_with(16 * 0x1p-29, 0)), "");
  EXPECT_NE(difference(seventeen, plan_with(0x1p-10, 0)), "");
}

TEST_F(AdmissionOfToys, nothing_is_near_an_infinity_but_itself) {
  set(x_, 3, std::numeric_limits<double>::infinity());
  const Plan up = plan_with(2, 1);
  EXPECT_EQ(difference(up, up), "");
  EXPECT_EQ(difference(up, plan_with(-2, 1)), "it is wrong: element 3 of output 0 is -inf, not inf");
}

}  // namespace
}  // namespace ejk::testing
