// The tuner's host half on a driver that is not there: what it leaves alone in a capture, and for want of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/api.h"
#include "ejkernel/runtime/calibration.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/fake_cuda.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Device kGpu = {DeviceKind::cuda, 0};
constexpr Policy kTuned = {.autotune = true, .heuristics = true};

class TunerOnFakeGpu : public ::testing::Test {
 protected:
  static MeanPooling::Inputs specs(int64_t rows) { return {.x = Tensor(nullptr, DType::f32, {2, rows, 64}, kGpu)}; }
  static std::string tier_5() {
    const Explanation told = explain("mean_pooling", to_array(specs(64)), ParamsBlock::of(MeanPooling::Params{}),
                                     {.kernel = "cuda", .policy = kTuned});
    for (const TierAnswer& tier : told.trail.tiers)
      if (tier.tier == Tier::autotune) return tier.answer;
    return "not asked";
  }

  FakeCuda fake;
};

TEST_F(TunerOnFakeGpu, a_call_that_is_captured_is_not_tuned_and_says_so) {
  EXPECT_THAT(tier_5(), HasSubstr("would tune at the first call"));
  const double before = seconds_spent_tuning();
  const cuda::Stream stream(kGpu);
  const cuda::Graph graph(stream, [&] {
    const CallAtHand call({}, stream);
    EXPECT_EQ(tier_5(), "not while the call's stream is captured");
    const Plan planned = plan<MeanPooling>(specs(64), {}, {.kernel = "cuda", .policy = kTuned});
    EXPECT_EQ(planned.choice().tier, Tier::heuristics);
    EXPECT_TRUE(planned.choice().is_for_now);
  });
  EXPECT_EQ(seconds_spent_tuning(), before);
  EXPECT_THAT(tier_5(), HasSubstr("would tune at the first call")) << "that answer was for then only";
}

TEST_F(TunerOnFakeGpu, a_call_that_its_memory_has_no_room_for_is_refused) {
  const Plan large = plan<MeanPooling>(specs(1 << 16), {}, {.kernel = "cuda", .policy = Policy{.autotune = false}});
  EXPECT_THAT([&] { tune(large); },
              ThrowsMessage<Unsupported>(HasSubstr("MiB of cuda:0, more than the 1 that may be used")));
}

TEST_F(TunerOnFakeGpu, without_room_to_calibrate_it_tunes_all_the_same) {
  forget_peaks();
  const Tensor rows(nullptr, DType::bf16, {1, 1024, 8, 128}, kGpu);
  const Plan attention = plan<FlashAttention>({.query = rows, .key = rows, .value = rows}, {},
                                              {.kernel = "cuda_sm90", .policy = Policy{.autotune = false}});
  ASSERT_NE(attention.kernel().cost, nullptr);
  EXPECT_THAT([] { known_peaks(kGpu); }, ThrowsMessage<Unsupported>(HasSubstr("calibration: ")));
  EXPECT_THAT([&] { tune(attention); }, ThrowsMessage<Unsupported>(HasSubstr("that may be used"))) << "what comes next";
}

}  // namespace
}  // namespace ejk::testing
