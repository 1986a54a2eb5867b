// The tuner on a GPU: candidates are tried by the program `ejk`, beside this one.
#include "ejkernel/runtime/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "ejkernel/core/store.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cuda/stream.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk::testing {
namespace {

const Device kGpu{DeviceKind::cuda, 0};

class TunerOnGpu : public ::testing::Test {
 protected:
  TunerOnGpu() { use_store(folder_.path().string()); }
  ~TunerOnGpu() override {
    clear_memory_configs();
    use_store("");
  }
  static Plan forward(bool autotune = false) {
    const Tensor spec(nullptr, DType::bf16, {1, 512, 4, 64}, kGpu);
    return plan<FlashAttention>({.query = spec, .key = spec, .value = spec}, {.causal = true},
                                {.policy = Policy{.autotune = autotune}});
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(TunerOnGpu, every_candidate_of_the_forward_is_compiled_checked_and_timed) {
  if (device_properties(kGpu).compute_capability != 90) GTEST_SKIP() << "not a Hopper GPU";
  const TuneReport report = tune(forward(), {.budget_seconds = 60});
  EXPECT_EQ(report.kernel->name, "cuda_sm90");
  EXPECT_GT(report.candidates.size(), 3u);
  for (const CandidateReport& candidate : report.candidates) {
    EXPECT_EQ(candidate.rejected, "");
    EXPECT_GT(candidate.num_samples, 0);
  }
  EXPECT_TRUE(report.complete);
  EXPECT_TRUE(report.published);
}

TEST_F(TunerOnGpu, gradients_are_tuned_with_the_callers_own_data) {
  if (device_properties(kGpu).compute_capability != 90) GTEST_SKIP() << "not a Hopper GPU";
  const Array q = Array::zeros(DType::bf16, {1, 256, 8, 128}, kGpu),
              kv = Array::zeros(DType::bf16, {1, 256, 1, 128}, kGpu);
  const auto outputs = execute<FlashAttention>({.query = q, .key = kv, .value = kv}, {.causal = true});
  const FlashAttentionBackward::Inputs inputs{{.query = q, .key = kv, .value = kv}, outputs.out, outputs.lse, q};
  const Plan made = plan<FlashAttentionBackward>(inputs, {.causal = true}, {.policy = Policy{.autotune = false}});
  const TuneReport report = tune(made, {.budget_seconds = 60}, to_array(inputs));
  EXPECT_EQ(report.kernel->name, "cuda_sm90");
  EXPECT_GT(report.candidates[0].num_samples, 0);
  for (const CandidateReport& candidate : report.candidates)
    EXPECT_TRUE(candidate.rejected.empty() || candidate.rejected.starts_with("not tried: ")) << candidate.rejected;
}

TEST_F(TunerOnGpu, the_first_call_is_tuned_where_the_policy_allows_it_and_the_next_process_knows) {
  if (device_properties(kGpu).compute_capability != 90) GTEST_SKIP() << "not a Hopper GPU";
  const Tier first = forward(true).choice().tier;
  EXPECT_TRUE(first == Tier::autotune || first == Tier::heuristics);
  EXPECT_GT(seconds_spent_tuning(), 0);
  const double spent = seconds_spent_tuning();
  clear_memory_configs();
  const Tier next = forward(true).choice().tier;
  EXPECT_EQ(next, first == Tier::autotune ? Tier::store : Tier::heuristics);
  EXPECT_EQ(seconds_spent_tuning(), spent);
}

TEST_F(TunerOnGpu, a_call_in_a_capture_is_run_as_it_is_and_tuned_on_its_own_data_behind_it) {
  if (device_properties(kGpu).compute_capability != 90) GTEST_SKIP() << "not a Hopper GPU";
  const Array q = Array::zeros(DType::bf16, {1, 512, 4, 64}, kGpu);
  synchronize(kGpu);
  const FlashAttention::Inputs inputs = {.query = q, .key = q, .value = q};
  const cuda::Stream stream(kGpu);
  const CallOptions options = {.plan = {.policy = Policy{}}, .stream = stream};
  const double before = seconds_spent_tuning();
  std::vector<FlashAttention::Results> kept;
  const cuda::Graph graph(stream, [&] { kept.push_back(execute<FlashAttention>(inputs, {.causal = true}, options)); });
  EXPECT_EQ(seconds_spent_tuning(), before);
  execute<FlashAttention>(inputs, {.causal = true}, options);
  EXPECT_GT(seconds_spent_tuning(), before);
  stream.synchronize();
}

}  // namespace
}  // namespace ejk::testing
