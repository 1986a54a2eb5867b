// The CPU kernels with their products on a matrix unit, for which an emulation stands in: the harness judges them as it
// judges every config, and what is special to the unit is tested by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ejkernel/ejkernel.h"
#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/emulated_tiles.h"
#include "ejkernel/testing/emulated_tiles_harness.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

const PlanOptions kCpu{.kernel = "cpu"};

PlanOptions cpu_with(ConfigValues config) { return {.kernel = "cpu", .config = std::move(config)}; }

/// The config that a plan for these shapes has, as text.
std::string planned(DType dtype, const Shape& query, const Shape& key, const PlanOptions& options = kCpu) {
  const Tensor q(nullptr, dtype, query), k(nullptr, dtype, key);
  const Plan plan = ejk::plan<FlashAttention>({.query = q, .key = k, .value = k}, {}, options);
  return to_string(plan.kernel(), plan.choice().config);
}

// ---- every product, judged by the harness ----

/// A forward or a backward, with every tile size in turn.
class AttentionHarnessOnMatrixUnit : public HarnessOnMatrixUnit {
 protected:
  ConfigValues config_of(size_t n) const override {
    ConfigValues config = {{"block_q", nth_of({16, 32, 64, 128, 256, 512}, n)},
                           {"block_k", nth_of({32, 64, 128, 256}, n)},
                           {"bf16_dot", 2}};
    if (GetParam().ends_with("_backward")) config.emplace_back("key_parts", nth_of({1, 1, 2}, n));
    return config;
  }
};
constexpr std::string_view kOperations[] = {
    "flash_attention",    "flash_attention_backward",     "attention",
    "attention_backward", "scaled_dot_product_attention", "scaled_dot_product_attention_backward"};
INSTANTIATE_TEST_SUITE_P(Operations, AttentionHarnessOnMatrixUnit, ::testing::ValuesIn(kOperations), name_of_operation);

TEST_P(AttentionHarnessOnMatrixUnit, meets_the_error_rule_at_random) { check_random(1, 16); }

TEST_P(AttentionHarnessOnMatrixUnit, meets_the_error_rule_on_dense_problems) {
  check_random(1, 10, {.size = Size::tiny, .dense = true});
  check_random(11, 12, {.size = Size::small, .dense = true});
}

TEST_P(AttentionHarnessOnMatrixUnit, is_right_beside_vectors_of_every_width) { check_random_on_every_target(1, 3); }

TEST_P(AttentionHarnessOnMatrixUnit, survives_hostile_indices) {
  check_random(1, 20, {.size = Size::small, .hostile = true});
}

TEST_P(AttentionHarnessOnMatrixUnit, is_exact_where_every_arithmetic_is) {
  if (tests.exact == nullptr) GTEST_SKIP() << tests.name() << " has no exact mode";
  check_exact("query", 12);
}

/// The unit is emulated, element by element, and slow: most problems are in the long tier.
class AttentionHarnessOnMatrixUnitLong : public AttentionHarnessOnMatrixUnit {};
INSTANTIATE_TEST_SUITE_P(Operations, AttentionHarnessOnMatrixUnitLong, ::testing::ValuesIn(kOperations),
                         name_of_operation);

TEST_P(AttentionHarnessOnMatrixUnitLong, meets_the_error_rule_at_random) { check_random(101, 200); }
TEST_P(AttentionHarnessOnMatrixUnitLong, meets_the_error_rule_on_dense_problems) {
  check_random(101, 115, {.size = Size::tiny, .dense = true});
  check_random(116, 118, {.size = Size::small, .dense = true});
}
TEST_P(AttentionHarnessOnMatrixUnitLong, is_right_beside_vectors_of_every_width) {
  check_random_on_every_target(101, 110);
}

// ---- what is chosen where ----

TEST(AttentionOnMatrixUnit, is_the_heuristics_choice_for_bf16) {
  const ScopedEmulatedMatrixUnit unit;
  const Shape shape{1, 64, 4, 64}, long_one{1, 1024, 4, 64}, wide{1, 1024, 4, 512};
  EXPECT_THAT(planned(DType::bf16, shape, shape), AllOf(HasSubstr("block_q=64"), HasSubstr("bf16_dot=2")));
  EXPECT_THAT(planned(DType::bf16, long_one, long_one), HasSubstr("bf16_dot=2"));
  EXPECT_THAT(planned(DType::bf16, wide, wide), AllOf(HasSubstr("block_q=64"), HasSubstr("bf16_dot=2")));
  for (const DType dtype : {DType::f16, DType::f32})
    EXPECT_THAT(planned(dtype, long_one, long_one), AllOf(HasSubstr("block_q=128"), HasSubstr("bf16_dot=0")));
}

TEST(AttentionOnMatrixUnit, takes_the_largest_tiles_that_leave_each_thread_four) {
  const ScopedEmulatedMatrixUnit unit;
  const Tensor t(nullptr, DType::bf16, {1, 1024, 4, 64});
  const attn::Problem problem = attn::make_problem({.query = t, .key = t, .value = t}, {});
  const auto block_q = [&](int threads) {
    return attn::cpu_heuristic<attn::CpuConfig>(problem, {.num_units = threads}).block_q;
  };
  EXPECT_EQ(block_q(1), 512);
  EXPECT_EQ(block_q(2), 512);
  EXPECT_EQ(block_q(3), 256);
  EXPECT_EQ(block_q(4), 256);
  EXPECT_EQ(block_q(5), 128);
  EXPECT_EQ(block_q(64), 128);
}

TEST(AttentionOnMatrixUnit, long_blocks_of_its_gradient_have_half_the_rows) {
  const Tensor t(nullptr, DType::bf16, {1, 512, 16, 64});
  const attn::Problem problem = attn::make_problem({.query = t, .key = t, .value = t}, {});
  const auto tile = [&] {
    const auto config = attn::cpu_heuristic<attn::CpuBackwardConfig>(problem, {.num_units = 2});
    return std::pair(config.block_q, config.block_k);
  };
  {
    const ScopedEmulatedMatrixUnit unit;
    EXPECT_EQ(tile(), std::pair(64, 256));
  }
  const cpu::ScopedMatrixUnit none(nullptr);
  EXPECT_EQ(tile(), std::pair(128, 256));
}

TEST(AttentionOnMatrixUnit, is_refused_and_not_offered_where_there_is_none) {
  const cpu::ScopedMatrixUnit none(nullptr);
  const Shape shape{1, 64, 4, 64};
  EXPECT_THAT(planned(DType::bf16, shape, shape), Not(HasSubstr("bf16_dot=2")));
  EXPECT_THAT(
      [&] {
        planned(DType::bf16, shape, shape, cpu_with({{"bf16_dot", 2}}));
      },
      ThrowsMessage<Unsupported>(HasSubstr("bf16_dot=2: bf16_dot=2 needs AMX, which")));
  attn::Problem bf16;
  bf16.query.dtype = DType::bf16;
  const auto is_offered = [&] {
    const auto offered = attn::cpu_candidates<attn::CpuConfig>(bf16);
    return std::any_of(offered.begin(), offered.end(), [](const auto& config) { return config.bf16_dot == 2; });
  };
  EXPECT_FALSE(is_offered());
  const ScopedEmulatedMatrixUnit unit;
  EXPECT_TRUE(is_offered());
}

// ---- what is special to it ----

/// Self-attention on bf16 tensors, and its gradient.
struct Call {
  Array rows;
  FlashAttention::Params params = {.causal = true};

  Call(const Shape& shape, double magnitude) : rows(DType::bf16, shape) {
    Random random(7);
    fill_normal(rows, random, magnitude);
  }
  FlashAttention::Inputs inputs() const { return {.query = rows, .key = rows, .value = rows}; }
  FlashAttention::Results forward(const PlanOptions& options) const {
    return flash_attention(inputs(), params, {.plan = options});
  }
  FlashAttentionBackward::Inputs backward_inputs(const FlashAttention::Results& results) const {
    FlashAttentionBackward::Inputs in;
    static_cast<FlashAttention::Inputs&>(in) = inputs();
    in.out = results.out, in.lse = results.lse, in.d_out = rows;
    return in;
  }
  FlashAttentionBackward::Results backward(const FlashAttention::Results& results, const PlanOptions& options) const {
    return execute<FlashAttentionBackward>(backward_inputs(results), params, {.plan = options});
  }
};

bool same_bits(const Array& a, const Array& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(num_bytes(a.dtype(), a.shape()))) == 0;
}

TEST(AttentionOnMatrixUnit, tiny_tensors_are_widened) {
  const ScopedEmulatedMatrixUnit unit;
  const Call call({1, 40, 2, 32}, 1e-39);
  const PlanOptions on_unit = cpu_with({{"bf16_dot", 2}}), wide = cpu_with({{"bf16_dot", 0}});
  const auto results = call.forward(on_unit);
  EXPECT_TRUE(same_bits(results.out, call.forward(wide).out));
  EXPECT_TRUE(same_bits(call.backward(results, on_unit).value, call.backward(results, wide).value));
  EXPECT_EQ(unit.num_products(), 0);
}

/// Later panels of a tile see none of a block's first keys: their weights meet the values from there on.
TEST(AttentionOnMatrixUnit, values_begin_where_a_panels_keys_do) {
  const ScopedEmulatedMatrixUnit unit;
  const TestOperation& tests = find_test_operation("flash_attention");
  const Problem problem = make_attention_problem(
      {.q_len = 128, .kv_len = 128, .head_dim = 16, .params = {.sliding_window = {8, 0}}, .seed = 1});
  const ConfigValues config = {{"block_q", 128}, {"block_k", 128}, {"bf16_dot", 2}};
  for (const Kernel& kernel : kernels_of(*tests.declaration)) {
    if (kernel->name != "cpu") continue;
    const Verdict verdict = check_kernel(problem, tests.oracle(problem, 1e6), kernel, {.seed = 1, .config = config});
    EXPECT_TRUE(verdict.supported) << verdict.declined;
    EXPECT_EQ(report(problem, kernel, verdict), "");
  }
  EXPECT_GT(unit.num_products(), 0);
}

TEST(AttentionOnMatrixUnit, results_do_not_depend_on_the_number_of_threads) {
  const ScopedEmulatedMatrixUnit unit;
  const Call call({2, 70, 4, 48}, 1);
  const PlanOptions on_unit = cpu_with({{"block_q", 32}, {"bf16_dot", 2}});
  FlashAttention::Results first;
  FlashAttentionBackward::Results first_gradients;
  for (const int threads : {1, 2, 5}) {
    const cpu::ScopedNumThreads scoped(threads);
    const auto results = call.forward(on_unit);
    const auto gradients = call.backward(results, on_unit);
    if (threads == 1) first = results, first_gradients = gradients;
    EXPECT_TRUE(same_bits(results.out, first.out) && same_bits(results.lse, first.lse));
    EXPECT_TRUE(same_bits(gradients.query, first_gradients.query));
    EXPECT_TRUE(same_bits(gradients.key, first_gradients.key));
    EXPECT_TRUE(same_bits(gradients.value, first_gradients.value));
    EXPECT_EQ(unit.num_configured(), 0);
  }
}

TEST(AttentionOnMatrixUnit, run_does_not_allocate) {
  const ScopedEmulatedMatrixUnit unit;
  const Call call({1, 70, 2, 48}, 1);
  const PlanOptions on_unit = cpu_with({{"bf16_dot", 2}});
  const auto results = call.forward(on_unit);
  const auto in = call.backward_inputs(results);
  const auto forward = ejk::plan<FlashAttention>(call.inputs(), call.params, on_unit);
  const auto backward = ejk::plan<FlashAttentionBackward>(in, call.params, on_unit);
  const auto gradients = backward.allocate_outputs();
  const Array workspace(DType::u8,
                        {static_cast<int64_t>(std::max(forward.workspace_bytes(), backward.workspace_bytes()))});
  const RunOptions options{.workspace = {workspace.as<std::byte>(), static_cast<size_t>(workspace.num_elements())}};
  const auto run = [&] {
    forward.run(call.inputs(), {.out = results.out, .lse = results.lse}, options);
    backward.run(in, {.query = gradients.query, .key = gradients.key, .value = gradients.value}, options);
  };
  run();  // starts the pool's threads
  const int64_t before = num_news();
  run();
  EXPECT_EQ(num_news(), before);
}

}  // namespace
}  // namespace ejk::testing
