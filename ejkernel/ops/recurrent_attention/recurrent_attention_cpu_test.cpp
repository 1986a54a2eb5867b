// What is special to the CPU kernels of recurrent_attention: every instruction set, every config, every number of
// threads, no allocation, little memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::i32;
using Backward = RecurrentAttentionBackward;

CallOptions by(const std::string& kernel) { return {.plan = {.kernel = kernel}}; }
CallOptions by_cpu(const ConfigValues& config) { return {.plan = {.kernel = "cpu", .config = config}}; }

/// Which gates a problem has: bits of g, g_gamma, gk, gv.
enum Gates { kG = 1, kGamma = 2, kGk = 4, kGv = 8 };

struct Shapes {
  int64_t batch = 1, tokens = 40, q_heads = 2, kv_heads = 1, keys = 20, values = 24;
  int gates = kG | kGk;
  bool packed = false, reverse = false, states = true;
};

/// Inputs of a call and of its gradient, and what owns them.
class Drawn {
 public:
  Drawn(const Shapes& s, uint32_t seed, DType dtype = DType::f32) : random_(seed) {
    const int64_t sequences = s.packed ? 4 : s.batch;
    in.query = normal(dtype, rows(s, {s.q_heads, s.keys}));
    in.key = normal(dtype, rows(s, {s.kv_heads, s.keys}));
    in.value = normal(dtype, rows(s, {s.kv_heads, s.values}));
    if (s.gates & kG) in.g = gates(rows(s, {s.q_heads}));
    if (s.gates & kGamma) in.g_gamma = gates({s.q_heads});
    if (s.gates & kGk) in.gk = gates(rows(s, {s.q_heads, s.keys}));
    if (s.gates & kGv) in.gv = gates(rows(s, {s.q_heads, s.values}));
    const Shape states = {sequences, s.q_heads, s.keys, s.values};
    if (s.states) in.initial_state = normal(DType::f32, states);
    if (s.packed) {
      const auto t = static_cast<double>(s.tokens);
      owners_.push_back(i32({1, std::floor(t / 2), std::floor(t / 2), t - 3, t}));
      in.cu_seqlens = owners_.back();
    }
    in.d_out = normal(dtype, rows(s, {s.q_heads, s.values}));
    if (s.states) in.d_final_state = normal(DType::f32, states);
    params.reverse = s.reverse;
  }

  Backward::Inputs in;
  RecurrentAttention::Params params;

 private:
  static Shape rows(const Shapes& s, std::initializer_list<int64_t> rest) {
    Shape shape;
    if (!s.packed) shape.push_back(s.batch);
    shape.push_back(s.tokens);
    for (const int64_t extent : rest) shape.push_back(extent);
    return shape;
  }
  Tensor normal(DType dtype, const Shape& shape) {
    std::normal_distribution<double> normal;
    owners_.emplace_back(dtype, shape);
    for (int64_t n = 0; n < owners_.back().num_elements(); ++n) set(owners_.back(), n, normal(random_));
    return owners_.back();
  }
  /// Decays of all strengths, some of them complete.
  Tensor gates(const Shape& shape) {
    owners_.emplace_back(DType::f32, shape);
    std::uniform_real_distribution<double> uniform;
    for (int64_t n = 0; n < owners_.back().num_elements(); ++n) {
      const uint32_t kind = random_() % 64;
      double gate = -std::exp(-6 * uniform(random_));
      if (kind == 0) gate = -1e4;
      if (kind == 1) gate = -std::numeric_limits<double>::infinity();
      if (kind == 2) gate = -40;
      if (kind == 3) gate = 0.1;
      set(owners_.back(), n, gate);
    }
    return owners_.back();
  }

  std::mt19937 random_;
  std::vector<Array> owners_;
};

bool same_bits(const Array& a, const Array& b) {
  if (!a.present() || !b.present()) return a.present() == b.present();
  if (!(a.shape() == b.shape())) return false;
  const auto bytes = static_cast<size_t>(num_bytes(a.dtype(), a.shape()));
  return bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0;
}

template <class Results>
std::vector<Array> all_of(const Results& results) {
  if constexpr (requires { results.final_state; })
    return {results.out, results.final_state};
  else
    return {results.query,   results.key, results.value, results.g,
            results.g_gamma, results.gk,  results.gv,    results.initial_state};
}

/// The largest difference, relative to the largest number.
void expect_close(const std::vector<Array>& actual, const std::vector<Array>& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t a = 0; a < actual.size(); ++a) {
    double largest = 0, error = 0;
    for (int64_t n = 0; n < expected[a].num_elements(); ++n) {
      largest = std::max(largest, std::abs(get(expected[a], n)));
      const double difference = std::abs(get(actual[a], n) - get(expected[a], n));
      error = difference <= error ? error : difference;  // NaN stays
    }
    EXPECT_LE(error, tolerance * std::max(largest, 1e-6)) << what << ": output " << a;
  }
}

std::vector<Shapes> every_kind() {
  std::vector<Shapes> all;
  for (int gates = 0; gates < 16; ++gates)
    all.push_back({.batch = 1 + gates % 2,
                   .tokens = 33 + gates,
                   .q_heads = 2,
                   .kv_heads = 1 + gates / 2 % 2,
                   .keys = 5 + 9 * (gates % 4),
                   .values = 40 - 7 * (gates % 5),
                   .gates = gates,
                   .packed = gates % 3 == 0,
                   .reverse = gates % 4 >= 2,
                   .states = gates % 8 != 5});
  return all;
}

std::string name_of(const Shapes& s) { return "gates " + std::to_string(s.gates); }

TEST(RecurrentAttentionCpu, both_forms_agree_with_the_reference_on_every_instruction_set) {
  for (const Shapes& s : every_kind()) {
    const Drawn drawn(s, 1);
    const auto expected = recurrent_attention(drawn.in, drawn.params, by("reference"));
    for (const std::string_view target : cpu::simd_targets()) {
      const cpu::ScopedSimdTarget scoped(target);
      for (const int chunk : {1, 16})
        expect_close(all_of(recurrent_attention(drawn.in, drawn.params, by_cpu({{"chunk", chunk}, {"block_v", 32}}))),
                     all_of(expected), 2e-6,
                     std::string(target) + " chunk " + std::to_string(chunk) + " " + name_of(s));
    }
  }
}

TEST(RecurrentAttentionCpu, gradients_agree_with_the_reference_on_every_instruction_set) {
  for (const Shapes& s : every_kind()) {
    const Drawn drawn(s, 3);
    const auto expected = execute<Backward>(drawn.in, drawn.params, by("reference"));
    for (const std::string_view target : cpu::simd_targets()) {
      const cpu::ScopedSimdTarget scoped(target);
      expect_close(all_of(execute<Backward>(drawn.in, drawn.params, by("cpu"))), all_of(expected), 4e-6,
                   std::string(target) + " " + name_of(s));
    }
  }
}

TEST(RecurrentAttentionCpu, results_depend_neither_on_cuts_nor_on_the_number_of_threads) {
  for (const Shapes& s : every_kind()) {
    Shapes longer = s;
    longer.tokens += 200;
    const Drawn drawn(longer, 2);
    std::vector<Array> first;
    for (const auto& [threads, block_v, block_h, segment] : {std::array{1, 512, 1, 4}, {2, 16, 2, 64}, {5, 32, 8, 8}}) {
      const cpu::ScopedNumThreads scoped(threads);
      std::vector<Array> results = all_of(recurrent_attention(
          drawn.in, drawn.params, by_cpu({{"chunk", 16}, {"block_v", block_v}, {"block_h", block_h}})));
      for (const Array& a : all_of(execute<Backward>(drawn.in, drawn.params, by_cpu({{"segment", segment}}))))
        results.push_back(a);
      if (first.empty()) first = results;
      for (size_t n = 0; n < results.size(); ++n)
        EXPECT_TRUE(same_bits(results[n], first[n])) << name_of(s) << " threads " << threads << " output " << n;
    }
  }
}

TEST(RecurrentAttentionCpu, heads_are_taken_together_as_long_as_every_thread_has_a_task) {
  const auto heads_of = [](int64_t sequences, int64_t tokens, int64_t heads, int threads) {
    const Tensor rows(nullptr, DType::f32, {sequences, tokens, heads, 64});
    const Call<RecurrentAttention> call{
        .inputs = {.query = rows, .key = rows, .value = rows}, .params = {}, .outputs = {}};
    return recurrence::cpu_heuristic(call, {.num_units = threads}).block_h;
  };
  EXPECT_EQ(heads_of(1, 4096, 8, 2), 4);
  EXPECT_EQ(heads_of(1, 4096, 8, 1), 8);
  EXPECT_EQ(heads_of(1, 4096, 8, 16), 1);
  EXPECT_EQ(heads_of(1, 4096, 6, 2), 2) << "four would leave one thread two heads of six";
  EXPECT_EQ(heads_of(4, 4096, 8, 2), 4) << "sequences may differ in length: several tasks for each thread";
  EXPECT_EQ(heads_of(64, 1, 8, 2), 1) << "single tokens stream through their states";
}

TEST(RecurrentAttentionCpu, a_single_token_goes_from_state_to_state_in_any_dtype) {
  for (const auto& [from, to] : {std::pair{DType::f32, DType::f32},
                                 {DType::bf16, DType::bf16},
                                 {DType::bf16, DType::f32},
                                 {DType::f16, DType::f16}})
    for (const int64_t values : {64, 24})
      for (const int gates : {0, kG | kGk, kG | kGv}) {
        Drawn drawn({.batch = 3, .tokens = 1, .values = values, .gates = gates}, 4, DType::bf16);
        const Array state = convert(drawn.in.initial_state, from);
        drawn.in.initial_state = state;
        drawn.params.state_dtype = to;
        const auto actual = recurrent_attention(drawn.in, drawn.params, by("cpu")),
                   expected = recurrent_attention(drawn.in, drawn.params, by("reference"));
        EXPECT_EQ(actual.final_state.dtype(), to);
        expect_close(all_of(actual), all_of(expected), 2 * unit_roundoff(DType::bf16), std::to_string(values));
      }
}

/// Large states go past the caches; each of them alone does not.
TEST(RecurrentAttentionCpu, many_states_step_as_each_alone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t batch = 80, side = dtype == DType::f32 ? 256 : 384;
    Drawn drawn(
        {.batch = batch, .tokens = 1, .q_heads = 1, .keys = side, .values = side, .gates = kGk, .states = false}, 9);
    const Array state = Array::zeros(dtype, {batch, 1, side, side});
    for (int64_t n = 0; n < state.num_elements(); n += 7) set(state, n, static_cast<double>(n % 19) - 9);
    drawn.in.initial_state = state;
    drawn.params.state_dtype = dtype;
    const auto all = recurrent_attention(drawn.in, drawn.params, by("cpu"));
    ASSERT_GT(num_bytes(dtype, all.final_state.shape()), 16'000'000);
    const auto entry = [](const Tensor& t, int64_t b) {
      Tensor one = t;
      one.shape[0] = 1;
      one.data = t.as<std::byte>() + b * t.strides[0] * bits(t.dtype) / 8;
      return one;
    };
    for (const int64_t b : {int64_t{0}, batch / 2, batch - 1}) {
      RecurrentAttention::Inputs one = drawn.in;
      for (Tensor* t : {&one.query, &one.key, &one.value, &one.gk, &one.initial_state}) *t = entry(*t, b);
      const auto alone = recurrent_attention(one, drawn.params, by("cpu"));
      EXPECT_TRUE(same_bits(alone.out, contiguous(entry(all.out, b)))) << name(dtype) << " " << b;
      EXPECT_TRUE(same_bits(alone.final_state, contiguous(entry(all.final_state, b)))) << name(dtype) << " " << b;
    }
  }
}

/// The reference takes damaged offsets in order as well: where sequences overlap, the last one's result stays.
TEST(RecurrentAttentionCpu, damaged_offsets_are_held_to_the_tokens_and_overlaps_taken_in_order) {
  Drawn drawn({.tokens = 50, .gates = kGk, .packed = true}, 5);
  drawn.in.d_final_state = {};
  const Array offsets = i32({-4, 30, 10, 45, 99});
  drawn.in.cu_seqlens = offsets;
  const Array status = i32({0});
  const auto plan = ejk::plan<RecurrentAttention>(drawn.in, drawn.params, {.kernel = "cpu"});
  const auto to = plan.allocate_outputs();
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  plan.run(drawn.in, {.out = to.out, .final_state = to.final_state},
           {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}, .status = status.as<uint32_t>()});
  EXPECT_EQ(get(status, 0), status::kOffsets);
  expect_close(all_of(to), all_of(recurrent_attention(drawn.in, drawn.params, by("reference"))), 2e-6, "forward");
  const auto actual = execute<Backward>(drawn.in, drawn.params, by("cpu")),
             expected = execute<Backward>(drawn.in, drawn.params, by("reference"));
  expect_close({actual.query, actual.initial_state}, {expected.query, expected.initial_state}, 4e-6, "backward");
}

TEST(RecurrentAttentionCpu, a_gate_that_forgets_everything_has_the_gradient_zero) {
  for (const double gate : {-1e4, -std::numeric_limits<double>::infinity()})
    for (const int gates : {kG | kGamma, kGk | kGv}) {
      Drawn drawn({.tokens = 37, .gates = gates}, 6);
      for (const Tensor& t : {drawn.in.g, drawn.in.g_gamma, drawn.in.gk, drawn.in.gv})
        for (int64_t n = 0; n < t.num_elements(); ++n) set(t, n, gate);
      const auto gradients = execute<Backward>(drawn.in, drawn.params, by("cpu"));
      for (const Array& a : {gradients.g, gradients.g_gamma, gradients.gk, gradients.gv, gradients.initial_state})
        for (int64_t n = 0; n < a.num_elements(); ++n) ASSERT_EQ(get(a, n), 0);
    }
}

TEST(RecurrentAttentionCpu, the_gradient_of_a_long_sequence_takes_little_memory) {
  // Tensors without data: plans do not look at it.
  const auto tensor = [](const Shape& shape) { return Tensor(nullptr, DType::bf16, shape); };
  const Shape rows = {1, 65536, 8, 64};
  const Call<Backward> call{
      .inputs = {{.query = tensor(rows), .key = tensor(rows), .value = tensor(rows), .g = tensor({1, 65536, 8})},
                 tensor(rows),
                 {}},
      .params = {},
      .outputs = {.query = tensor(rows), .key = tensor(rows), .value = tensor(rows), .g = tensor({1, 65536, 8})}};
  const DeviceProperties device{.num_units = 2};
  const cpu::ScopedNumThreads two(2);
  const auto workspace =
      static_cast<double>(recurrence::backward_cpu_workspace(call, recurrence::cpu_heuristic(call, device), device));
  EXPECT_LT(workspace, 0.05 * (bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))));
}

TEST(RecurrentAttentionCpu, run_does_not_allocate) {
  const Drawn drawn({.tokens = 70, .gates = kG | kGk | kGv, .packed = true}, 7);
  const auto plan = ejk::plan<RecurrentAttention>(drawn.in, drawn.params, {.kernel = "cpu"});
  const auto d_plan = ejk::plan<Backward>(drawn.in, drawn.params, {.kernel = "cpu"});
  const auto to = plan.allocate_outputs();
  const auto d_to = d_plan.allocate_outputs();
  const size_t bytes = std::max(plan.workspace_bytes(), d_plan.workspace_bytes());
  const Array workspace(DType::u8, {static_cast<int64_t>(bytes)});
  const RunOptions run = {.workspace = {workspace.as<std::byte>(), bytes}};
  const auto both = [&] {
    plan.run(drawn.in, {.out = to.out, .final_state = to.final_state}, run);
    d_plan.run(drawn.in,
               {.query = d_to.query,
                .key = d_to.key,
                .value = d_to.value,
                .g = d_to.g,
                .gk = d_to.gk,
                .gv = d_to.gv,
                .initial_state = d_to.initial_state},
               run);
  };
  both();  // the pool's threads start
  const int64_t before = testing::num_news();
  both();
  EXPECT_EQ(testing::num_news(), before);
}

TEST(RecurrentAttentionCpu, declines_float64_with_its_reason) {
  const Drawn drawn({.gates = 0, .states = false}, 8, DType::f64);
  try {
    recurrent_attention(drawn.in, drawn.params, by("cpu"));
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("query dtype must be f32, f16 or bf16, got f64"), std::string::npos);
  }
}

}  // namespace
}  // namespace ejk
