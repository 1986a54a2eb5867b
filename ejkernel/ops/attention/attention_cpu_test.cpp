// What is special to the CPU kernels of attention: every instruction set, any number of threads, no allocation in run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"

namespace ejk {
namespace {

/// One call of the gradient, which holds one of the forward, and what owns its tensors.
class Drawn {
 public:
  AttentionBackward::Inputs in;
  Attention::Params params;

  Drawn(uint32_t seed, DType dtype) : random_(seed) {
    const int64_t batch = pick({1, 2}), q_len = pick({1, 7, 40, 65}), kv_len = pick({1, 9, 33, 150});
    const int64_t kv_heads = pick({1, 2}), heads = kv_heads * pick({1, 3}), dim = pick({4, 17}),
                  value_dim = pick({3, 16});
    in.query = normal(dtype, {batch, q_len, heads, dim});
    in.key = normal(dtype, {batch, kv_len, kv_heads, dim});
    in.value = normal(dtype, {batch, kv_len, kv_heads, value_dim});
    if (chance(30)) in.bias = normal(DType::f32, {1, heads, pick({1, q_len}), kv_len});
    if (chance(30)) in.attention_mask = filled(DType::boolean, {batch, 1, q_len, kv_len}, [&] { return chance(70); });
    if (chance(30)) in.softmax_aux = normal(DType::f32, {heads, 2});
    if (chance(30))
      in.seqused_k = filled(DType::i32, {batch}, [&] { return static_cast<double>(pick({0, 5, kv_len})); });
    params.causal = chance(40);
    if (chance(30)) params.sliding_window = Window(pick({-1, 3, 40}), pick({-1, 0, 20}));
    if (chance(30)) params.logits_soft_cap = 2.5;
    if (chance(40)) params.dropout_prob = 0.3;
    if (chance(70)) in.d_out = normal(dtype, {batch, q_len, heads, value_dim});
    if (chance(70)) in.d_weights = normal(dtype, {batch, heads, q_len, kv_len});
  }

  Attention::Inputs forward() const { return in; }

 private:
  int64_t pick(std::initializer_list<int64_t> from) { return from.begin()[random_() % from.size()]; }
  bool chance(unsigned percent) { return random_() % 100 < percent; }
  template <class Value>
  Tensor filled(DType dtype, const Shape& shape, Value value) {
    owners_.emplace_back(dtype, shape);
    for (int64_t n = 0; n < owners_.back().num_elements(); ++n) set(owners_.back(), n, value());
    return owners_.back();
  }
  Tensor normal(DType dtype, const Shape& shape) {
    std::normal_distribution<double> distribution;
    return filled(dtype, shape, [&] { return distribution(random_); });
  }

  std::mt19937 random_;
  std::vector<Array> owners_;
};

std::vector<Array> run(const Drawn& drawn, const std::string& kernel) {
  const CallOptions options = {.plan = {.kernel = kernel}};
  auto [out, weights] = execute<Attention>(drawn.forward(), drawn.params, options);
  auto [query, key, value, bias, sinks] = execute<AttentionBackward>(drawn.in, drawn.params, options);
  return {out, weights, query, key, value, bias, sinks};
}

constexpr const char* kNames[] = {"out", "weights", "query", "key", "value", "bias", "softmax_aux"};

TEST(AttentionCpu, agrees_with_the_reference_on_every_instruction_set) {
  for (const std::string_view target : cpu::simd_targets()) {
    const cpu::ScopedSimdTarget scoped(target);
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const DType dtype = seed % 3 == 0 ? DType::bf16 : seed % 3 == 1 ? DType::f16 : DType::f32;
      const Drawn drawn(seed, dtype);
      const std::vector<Array> actual = run(drawn, "cpu"), expected = run(drawn, "reference");
      for (size_t n = 0; n < actual.size(); ++n) {
        ASSERT_EQ(actual[n].present(), expected[n].present());
        double largest = 1;
        for (int64_t i = 0; i < expected[n].num_elements(); ++i)
          largest = std::max(largest, std::abs(get(expected[n], i)));
        const double roundings = 16 * std::max(unit_roundoff(actual[n].dtype()), 0x1p-22);
        // Weights are products, each exact to some roundings of its own; the others are sums, of terms near 1.
        const bool are_products = std::string_view(kNames[n]) == "weights";
        for (int64_t i = 0; i < actual[n].num_elements(); ++i)
          ASSERT_NEAR(get(actual[n], i), get(expected[n], i),
                      are_products ? roundings * std::abs(get(expected[n], i)) + 0x1p-24 : roundings * largest)
              << target << " " << name(dtype) << " seed " << seed << " " << kNames[n] << " " << i;
      }
    }
  }
}

TEST(AttentionCpu, results_do_not_depend_on_the_number_of_threads) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const Drawn drawn(seed, DType::f32);
    std::vector<Array> first;
    for (const int threads : {1, 2, 5}) {
      const cpu::ScopedNumThreads scoped(threads);
      const std::vector<Array> results = run(drawn, "cpu");
      if (first.empty()) first = results;
      for (size_t n = 0; n < results.size(); ++n) {
        const auto bytes = static_cast<size_t>(num_bytes(results[n].dtype(), results[n].shape()));
        const bool same = !results[n].present() || std::memcmp(results[n].data(), first[n].data(), bytes) == 0;
        EXPECT_TRUE(same) << seed << " " << kNames[n];
      }
    }
  }
}

TEST(AttentionCpu, run_does_not_allocate) {
  const Drawn drawn(5, DType::bf16);
  const auto plan = ejk::plan<Attention>(drawn.forward(), drawn.params, {.kernel = "cpu"});
  const auto d_plan = ejk::plan<AttentionBackward>(drawn.in, drawn.params, {.kernel = "cpu"});
  const Attention::Results to = plan.allocate_outputs();
  const AttentionBackward::Results d_to = d_plan.allocate_outputs();
  const Array workspace(DType::u8, {static_cast<int64_t>(std::max(plan.workspace_bytes(), d_plan.workspace_bytes()))});
  const RunOptions options = {.workspace = {workspace.as<std::byte>(), static_cast<size_t>(workspace.num_elements())}};
  const auto both = [&] {
    plan.run(drawn.forward(), {.out = to.out, .weights = to.weights}, options);
    d_plan.run(drawn.in, {d_to.query, d_to.key, d_to.value, d_to.bias, d_to.softmax_aux}, options);
  };
  both();  // the pool's threads start
  const int64_t before = testing::num_news();
  both();
  EXPECT_EQ(testing::num_news(), before);
}

}  // namespace
}  // namespace ejk
