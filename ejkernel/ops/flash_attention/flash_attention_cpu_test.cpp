// What is special to the CPU kernels: any number of threads, any instruction set, any tile sizes, no allocation in run,
// skipped blocks, rows that several sequences claim. Every kernel's results are tested by the harness.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/ejkernel.h"
#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/emulated_tiles.h"

namespace ejk {
namespace {

using Inputs = FlashAttention::Inputs;
using Params = FlashAttention::Params;
using Gradients = FlashAttentionBackward::Results;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const PlanOptions kCpu{.kernel = "cpu"};
const PlanOptions kReference{.kernel = "reference"};

/// A call that owns its tensors. The same seed and shape give the same call.
struct Problem {
  std::vector<Array> arrays = {};
  Inputs in = {};
  Params params = {};
  std::mt19937 random;

  explicit Problem(unsigned seed) : random(seed) {}

  int64_t pick(std::initializer_list<int64_t> from) { return from.begin()[random() % from.size()]; }
  bool chance(unsigned percent) { return random() % 100 < percent; }

  Tensor& tensor(Tensor& place, DType dtype, const Shape& shape, const std::function<double()>& value) {
    arrays.emplace_back(dtype, shape);
    for (int64_t n = 0; n < arrays.back().num_elements(); ++n) set(arrays.back(), n, value());
    return place = arrays.back();
  }
  std::function<double()> normal() {
    return [this] { return std::normal_distribution<double>()(random); };
  }
  /// Row `row` of a [batch, row, ...] or [row, ...] tensor becomes NaN.
  static void poison_row(const Tensor& t, int64_t batch, int64_t row) {
    const int axis = t.rank() == 4 ? 1 : 0;
    const int64_t per_row = t.num_elements() / (axis == 1 ? t.shape[0] * t.shape[1] : t.shape[0]);
    for (int64_t n = 0; n < per_row; ++n) set(t, (batch * t.shape[axis] * axis + row) * per_row + n, kNaN);
  }
};

struct Sizes {
  int64_t batch = 1, q_len = 40, kv_len = 70, kv_heads = 2, group = 2, head_dim = 24, value_dim = 16;
};

void make_tensors(Problem& p, const Sizes& s, DType dtype) {
  p.tensor(p.in.query, dtype, {s.batch, s.q_len, s.kv_heads * s.group, s.head_dim}, p.normal());
  p.tensor(p.in.key, dtype, {s.batch, s.kv_len, s.kv_heads, s.head_dim}, p.normal());
  p.tensor(p.in.value, dtype, {s.batch, s.kv_len, s.kv_heads, s.value_dim}, p.normal());
}

void add_masks(Problem& p, const Sizes& s) {
  const auto broadcast = [&](int64_t extent) { return p.chance(50) ? extent : 1; };
  const Shape shape{broadcast(s.batch), broadcast(s.kv_heads * s.group), broadcast(s.q_len), s.kv_len};
  if (p.chance(35)) {
    const DType dtype = static_cast<DType>(p.pick({0, 1, 2, 3}));  // f64, f32, f16, bf16
    p.tensor(p.in.bias, dtype, shape, [&] { return p.chance(10) ? -INFINITY : p.normal()(); });
  }
  if (p.chance(35)) p.tensor(p.in.attention_mask, DType::boolean, shape, [&] { return p.chance(70); });
  if (p.chance(25)) {
    p.tensor(p.in.q_segment_ids, DType::i32, {s.batch, s.q_len}, [&] {
      return static_cast<double>(p.pick({-1, 0, 1, 1, 2}));
    });
    p.tensor(p.in.kv_segment_ids, DType::i32, {s.batch, s.kv_len}, [&] {
      return static_cast<double>(p.pick({-1, 0, 1, 1, 2}));
    });
    // A negative id is padding: nothing may be read from it.
    for (const auto& [ids, rows] : {std::pair{p.in.q_segment_ids, p.in.query},
                                    {p.in.kv_segment_ids, p.in.key},
                                    {p.in.kv_segment_ids, p.in.value}})
      for (int64_t n = 0; n < ids.num_elements(); ++n)
        if (get(ids, n) < 0) Problem::poison_row(rows, n / ids.shape[1], n % ids.shape[1]);
  }
}

/// Cuts `total` rows into `count` sequences, some empty, with rows of no sequence at both ends.
std::vector<double> offsets(Problem& p, int64_t count, int64_t total) {
  std::vector<double> result = {std::min<double>(2, static_cast<double>(total))};
  for (int64_t n = 0; n < count; ++n)
    result.push_back(
        std::min(result.back() + static_cast<double>(p.pick({0, 1, 7, 33, 40})), static_cast<double>(total)));
  return result;
}

void pack(Problem& p, Sizes& s) {
  const int64_t count = p.pick({0, 1, 3});
  for (auto& [place, total] : {std::pair{&p.in.cu_seqlens_q, s.q_len}, {&p.in.cu_seqlens_k, s.kv_len}}) {
    const std::vector<double> values = offsets(p, count, total);
    size_t n = 0;
    p.tensor(*place, DType::i32, {count + 1}, [&] { return values[n++]; });
    for (Tensor* t : {&p.in.query, &p.in.key, &p.in.value})
      if (t->rank() == 4 && (t == &p.in.query) == (place == &p.in.cu_seqlens_q))
        *t = Tensor(t->data, t->dtype, {total, t->shape[2], t->shape[3]});
  }
  for (const Tensor* t : {&p.in.query, &p.in.key, &p.in.value})
    for (int64_t row = 0; row < 2; ++row) Problem::poison_row(*t, 0, row);
  if (p.chance(40)) p.params.max_seqlen_q = p.pick({5, 35});
  if (p.chance(40)) p.params.max_seqlen_k = p.pick({5, 35});
  if (p.chance(50))
    p.tensor(p.in.seqused_k, DType::i32, {count}, [&] { return static_cast<double>(p.pick({-1, 0, 5, 20, 99})); });
}

void choose_params(Problem& p) {
  Params& params = p.params;
  params.causal = p.chance(40);
  if (p.chance(30)) params.causal_align = CausalAlign::top_left;
  if (p.chance(30)) params.sliding_window = Window(p.pick({-1, 0, 3, 40}), p.pick({-1, 0, 5, 33}));
  if (p.chance(30)) params.attention_sink_size = p.pick({1, 5, 33});
  if (p.chance(30)) params.logits_soft_cap = 2.5;
  if (p.chance(30)) params.dropout_prob = 0.3;
  if (p.chance(20)) params.softmax_scale = 0.37;
  if (p.chance(20)) params.out_dtype = static_cast<DType>(p.pick({0, 1, 2, 3}));
}

Problem random_problem(unsigned seed) {
  Problem p(seed);
  Sizes s{.batch = p.pick({0, 1, 2}),
          .q_len = p.pick({0, 1, 3, 17, 33, 64, 65}),
          .kv_len = p.pick({0, 1, 5, 31, 32, 33, 100, 150}),
          .kv_heads = p.pick({1, 2}),
          .group = p.pick({1, 1, 2, 5}),
          .head_dim = p.pick({1, 3, 16, 31, 64}),
          .value_dim = p.pick({1, 5, 16, 40})};
  const bool packed = p.chance(30);
  if (packed) s.batch = 1, s.q_len += 60, s.kv_len += 60;
  make_tensors(p, s, static_cast<DType>(p.pick({1, 2, 3})));
  if (packed)
    pack(p, s);
  else
    add_masks(p, s);
  if (!packed && p.chance(20))
    p.tensor(p.in.seqused_k, DType::i32, {s.batch}, [&] { return static_cast<double>(p.pick({-3, 0, 7, 40, 1000})); });
  choose_params(p);
  if (p.chance(30)) {
    const int64_t sinks = p.pick({1, 3}), heads = s.kv_heads * s.group;
    p.tensor(p.in.softmax_aux, DType::f32, p.chance(50) ? Shape{heads, sinks} : Shape{sinks}, p.normal());
  }
  if (p.chance(50)) p.tensor(p.in.dropout_seed, DType::u32, {2}, [&] { return static_cast<double>(p.random()); });
  return p;
}

/// The same call in float64, on the reference.
Problem in_double(const Problem& p) {
  Problem wide(0);
  wide.in = p.in, wide.params = p.params;
  wide.params.out_dtype = {};
  for (Tensor* t : {&wide.in.query, &wide.in.key, &wide.in.value}) {
    wide.arrays.push_back(convert(*t, DType::f64));
    *t = wide.arrays.back();
  }
  return wide;
}

/// Inputs are exact in both calls, so only the result's own rounding depends on its dtype.
double tolerance(DType dtype) { return dtype == DType::bf16 ? 1.6e-2 : dtype == DType::f16 ? 2e-3 : 2e-5; }

/// `arithmetic` is the dtype that the kernel may have rounded weights to.
void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what,
                  DType arithmetic = DType::f32) {
  ASSERT_EQ(actual.present(), expected.present()) << what;
  double largest = 1;
  for (int64_t n = 0; n < expected.num_elements(); ++n) {
    const double x = std::abs(get(expected, n));
    if (std::isfinite(x)) largest = std::max(largest, x);
  }
  const double allowed = std::max(tolerance(actual.dtype), tolerance(arithmetic)) * largest;
  for (int64_t n = 0; n < expected.num_elements(); ++n) {
    const double x = get(actual, n), y = get(expected, n);
    if (std::isnan(y))
      ASSERT_TRUE(std::isnan(x)) << what << " element " << n << " is " << x;
    else if (std::isinf(y))
      ASSERT_EQ(x, y) << what << " element " << n;
    else
      ASSERT_NEAR(x, y, allowed) << what << " element " << n << " of " << to_string(actual);
  }
}

FlashAttentionBackward::Inputs backward_inputs(Problem& p, const FlashAttention::Results& results, bool with_d_lse) {
  FlashAttentionBackward::Inputs in;
  static_cast<Inputs&>(in) = p.in;
  in.out = results.out, in.lse = results.lse;
  p.tensor(in.d_out, results.out.dtype(), results.out.shape(), p.normal());
  if (with_d_lse) p.tensor(in.d_lse, results.lse.dtype(), results.lse.shape(), p.normal());
  return in;
}

void expect_gradients_close(const Gradients& actual, const Gradients& expected, const std::string& what) {
  expect_close(actual.query, expected.query, what + " query");
  expect_close(actual.key, expected.key, what + " key");
  expect_close(actual.value, expected.value, what + " value");
  expect_close(actual.bias, expected.bias, what + " bias");
  expect_close(actual.softmax_aux, expected.softmax_aux, what + " softmax_aux");
}

/// Forward and backward against the reference in double; the backward gets the same out and lse on both sides.
void expect_right(Problem& p, const std::string& what, const PlanOptions& cpu = kCpu,
                  const PlanOptions& cpu_backward = kCpu) {
  Problem wide = in_double(p);
  const auto actual = flash_attention(p.in, p.params, {.plan = cpu});
  const auto expected = flash_attention(wide.in, wide.params, {.plan = kReference});
  expect_close(actual.out, expected.out, what + " out", p.in.query.dtype);
  expect_close(actual.lse, expected.lse, what + " lse");
  if (!p.params.normalize_output || ::testing::Test::HasFatalFailure()) return;

  const bool with_d_lse = p.chance(50);
  const auto in = backward_inputs(p, actual, with_d_lse);
  FlashAttentionBackward::Inputs wide_in;
  static_cast<Inputs&>(wide_in) = wide.in;
  for (auto& [to, from] : {std::pair{&wide_in.out, in.out},
                           {&wide_in.lse, in.lse},
                           {&wide_in.d_out, in.d_out},
                           {&wide_in.d_lse, in.d_lse}}) {
    if (!from.present()) continue;
    wide.arrays.push_back(convert(from, DType::f64));
    *to = wide.arrays.back();
  }
  expect_gradients_close(execute<FlashAttentionBackward>(in, p.params, {.plan = cpu_backward}),
                         execute<FlashAttentionBackward>(wide_in, wide.params, {.plan = kReference}), what);
}

TEST(FlashAttentionCpu, random_calls_equal_the_reference) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Problem p = random_problem(seed);
    expect_right(p, "seed " + std::to_string(seed));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(FlashAttentionCpu, unnormalised_output_equals_the_reference) {
  for (unsigned seed = 1000; seed < 1040; ++seed) {
    Problem p = random_problem(seed);
    p.params.normalize_output = false;
    expect_right(p, "seed " + std::to_string(seed));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(FlashAttentionCpu, every_instruction_set_is_right) {
  for (const std::string_view target : cpu::simd_targets()) {
    const cpu::ScopedSimdTarget scoped(target);
    for (unsigned seed = 0; seed < 40; ++seed) {
      Problem p = random_problem(seed);
      expect_right(p, std::string(target) + " seed " + std::to_string(seed));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(FlashAttentionCpu, every_config_is_right) {
  attn::Problem bf16;
  bf16.query.dtype = DType::bf16;
  unsigned seed = 100;
  for (const auto& config : attn::cpu_candidates<attn::CpuBackwardConfig>(bf16))
    for (const unsigned past = seed + 3; seed < past; ++seed) {
      Problem p = random_problem(seed);
      PlanOptions forward = kCpu, backward = kCpu;
      forward.config =
          ConfigValues{{"block_q", config.block_q}, {"block_k", config.block_k}, {"bf16_dot", config.bf16_dot}};
      backward.config = forward.config;
      backward.config->emplace_back("key_parts", config.key_parts);
      expect_right(p, "seed " + std::to_string(seed), forward, backward);
      if (::testing::Test::HasFatalFailure()) return;
    }
}

TEST(FlashAttentionCpu, window_edges_meet_block_edges) {
  PlanOptions options = kCpu;
  options.config = ConfigValues{{"block_q", 16}, {"block_k", 32}};
  for (const int64_t left : {0, 1, 15, 31, 32, 33, 64})
    for (const int64_t right : {-1, 0, 1, 32})
      for (const int64_t sinks : {0, 1, 32, 40}) {
        Problem p(1);
        make_tensors(p, {.q_len = 50, .kv_len = 130, .kv_heads = 1, .group = 1, .head_dim = 8, .value_dim = 8},
                     DType::f32);
        p.params.sliding_window = Window(left, right);
        p.params.attention_sink_size = sinks;
        expect_right(p,
                     "window " + std::to_string(left) + " " + std::to_string(right) + " sinks " + std::to_string(sinks),
                     options, options);
        if (::testing::Test::HasFatalFailure()) return;
      }
}

TEST(FlashAttentionCpu, largest_heads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Problem p(3);
    make_tensors(p, {.q_len = 33, .kv_len = 70, .head_dim = 512, .value_dim = 512}, dtype);
    p.params.causal = true;
    expect_right(p, std::string(name(dtype)));
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.present() == b.present() &&
         (!a.present() || a.num_elements() == 0 ||
          std::memcmp(a.data, b.data, static_cast<size_t>(num_bytes(a.dtype, a.shape))) == 0);
}

TEST(FlashAttentionCpu, bit_equal_for_any_number_of_threads) {
  for (unsigned seed = 200; seed < 240; ++seed) {
    Problem p = random_problem(seed);
    FlashAttention::Results first;
    Gradients first_gradients;
    FlashAttentionBackward::Inputs in;
    for (const int threads : {1, 2, 3, 8}) {
      const cpu::ScopedNumThreads scoped(threads);
      auto results = flash_attention(p.in, p.params, {.plan = kCpu});
      if (threads == 1) in = backward_inputs(p, first = results, true);
      EXPECT_TRUE(same_bits(results.out, first.out) && same_bits(results.lse, first.lse)) << "seed " << seed;
      auto gradients = execute<FlashAttentionBackward>(in, p.params, {.plan = kCpu});
      if (threads == 1) first_gradients = gradients;
      EXPECT_TRUE(same_bits(gradients.query, first_gradients.query)) << "seed " << seed;
      EXPECT_TRUE(same_bits(gradients.key, first_gradients.key)) << "seed " << seed;
      EXPECT_TRUE(same_bits(gradients.value, first_gradients.value)) << "seed " << seed;
      EXPECT_TRUE(same_bits(gradients.bias, first_gradients.bias)) << "seed " << seed;
      EXPECT_TRUE(same_bits(gradients.softmax_aux, first_gradients.softmax_aux)) << "seed " << seed;
    }
  }
}

TEST(FlashAttentionCpu, a_plan_runs_with_fewer_and_more_threads_than_it_was_made_with) {
  Problem p(5);
  make_tensors(p, {.q_len = 300}, DType::f32);
  const auto plan = ejk::plan<FlashAttention>(p.in, p.params, kCpu);
  const auto expected = flash_attention(p.in, p.params, {.plan = kCpu});
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  for (const int threads : {1, 2, 16}) {
    const cpu::ScopedNumThreads scoped(threads);
    const auto results = plan.allocate_outputs();
    plan.run(p.in, {.out = results.out, .lse = results.lse},
             {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
    EXPECT_TRUE(same_bits(results.out, expected.out)) << threads;
  }
}

/// Legal parameters that float32 has no number for.
TEST(FlashAttentionCpu, scales_and_caps_beyond_float32_are_those_of_the_reference) {
  std::vector<Params> extreme;
  for (const double scale : {1e-300, 1e-46, 1e-42, -1e-46, 0.0}) extreme.push_back({.softmax_scale = scale});
  for (const double cap : {1e300, 1e39, 1e20, 1e-46, 1e-300}) extreme.push_back({.logits_soft_cap = cap});
  for (const DType dtype : {DType::f32, DType::bf16})
    for (Params params : extreme)
      for (const bool causal : {false, true}) {
        params.causal = causal;
        Problem p(7);
        make_tensors(p, {.q_len = 70}, dtype);
        const auto out = flash_attention(p.in, params, {.plan = kCpu});
        const auto expected = flash_attention(p.in, params, {.plan = kReference});
        for (int64_t n = 0; n < out.out.num_elements(); ++n)
          ASSERT_NEAR(get(out.out, n), get(expected.out, n), dtype == DType::f32 ? 1e-5 : 2e-2)
              << params.softmax_scale.value_or(1) << " " << params.logits_soft_cap.value_or(0);
        const auto in = backward_inputs(p, expected, true);
        const auto gradients = execute<FlashAttentionBackward>(in, params, {.plan = kCpu});
        for (int64_t n = 0; n < gradients.query.num_elements(); ++n) ASSERT_FALSE(std::isnan(get(gradients.query, n)));
      }
}

TEST(FlashAttentionCpu, what_a_deterministic_call_runs_with_depends_on_no_threads_and_no_measurement) {
  const DeviceProperties one{.num_units = 1}, many{.num_units = 128, .bf16_speedup = 0.2};
  const auto differs = [&](const KernelInfo& kernel, std::span<const Tensor> inputs, Params params,
                           bool deterministic) {
    params.deterministic = deterministic;
    const ParamsBlock block = ParamsBlock::of(params);
    const std::vector<Tensor> outputs(8);
    const CallView call{.inputs = inputs, .params = &block, .outputs = outputs};
    return config_values(kernel, kernel.heuristic(call, one)) != config_values(kernel, kernel.heuristic(call, many));
  };
  int num_different = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const Problem p = random_problem(seed);
    const auto inputs = to_array(p.in);
    FlashAttentionBackward::Inputs gradient;
    static_cast<Inputs&>(gradient) = p.in;
    const auto gradient_inputs = to_array(gradient);
    const KernelInfo &forward = flash_attention_kernels::cpu(), &backward = flash_attention_kernels::backward_cpu();
    EXPECT_FALSE(differs(forward, inputs, p.params, true)) << seed;
    EXPECT_FALSE(differs(backward, gradient_inputs, p.params, true)) << seed;
    num_different += differs(forward, inputs, p.params, false) + differs(backward, gradient_inputs, p.params, false);
  }
  EXPECT_GT(num_different, 0);
}

TEST(FlashAttentionCpu, run_does_not_allocate) {
  for (unsigned seed = 300; seed < 320; ++seed) {
    Problem p = random_problem(seed);
    const auto results = flash_attention(p.in, p.params, {.plan = kCpu});
    const auto in = backward_inputs(p, results, true);
    const auto forward = ejk::plan<FlashAttention>(p.in, p.params, kCpu);
    const auto backward = ejk::plan<FlashAttentionBackward>(in, p.params, kCpu);
    const auto gradients = backward.allocate_outputs();
    const Array workspace(DType::u8,
                          {static_cast<int64_t>(std::max(forward.workspace_bytes(), backward.workspace_bytes()))});
    const RunOptions options{.workspace = {workspace.as<std::byte>(), static_cast<size_t>(workspace.num_elements())}};
    for (const int threads : {1, 2}) {
      const cpu::ScopedNumThreads scoped(threads);
      const auto run = [&] {
        forward.run(p.in, {.out = results.out, .lse = results.lse}, options);
        backward.run(in, {gradients.query, gradients.key, gradients.value, gradients.bias, gradients.softmax_aux},
                     options);
      };
      run();  // starts the pool's threads
      const int64_t before = testing::num_news();
      run();
      EXPECT_EQ(testing::num_news(), before) << "seed " << seed;
    }
  }
}

size_t workspace_of_a_long_head(DType dtype) {
  const Tensor rows(nullptr, dtype, {1, 65536, 1, 64});
  return ejk::plan<FlashAttention>({.query = rows, .key = rows, .value = rows}, {}, kCpu).workspace_bytes();
}

TEST(FlashAttentionCpu, needs_little_memory_whatever_the_length_and_the_number_of_threads) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int threads : {1, 2, 64, 128}) {
      const cpu::ScopedNumThreads scoped(threads);
      EXPECT_LT(workspace_of_a_long_head(dtype), 8u << 20) << threads << " threads";
      const testing::ScopedEmulatedMatrixUnit unit;
      EXPECT_LT(workspace_of_a_long_head(dtype), 8u << 20) << threads << " threads, matrix unit";
    }
}

TEST(FlashAttentionCpu, many_threads_get_smaller_tiles_and_not_less_to_do) {
  const Tensor rows(nullptr, DType::bf16, {1, 65536, 1, 64});
  const attn::Problem p = attn::make_problem({.query = rows, .key = rows, .value = rows}, {});
  const auto expect_all_work = [&](int threads) {
    const auto config = attn::cpu_heuristic<attn::CpuConfig>(p, {.num_units = threads});
    EXPECT_GE(attn::most_forward_workers(p, config), threads) << config.block_q << " x " << config.block_k;
    EXPECT_LT(attn::forward_cpu_workspace(p, config, {.num_units = threads}), 8u << 20);
  };
  for (const int threads : {2, 16, 64, 128}) {
    expect_all_work(threads);
    const testing::ScopedEmulatedMatrixUnit unit;
    expect_all_work(threads);
  }
  const Tensor heads(nullptr, DType::bf16, {1, 65536, 16, 64});
  const attn::Problem many = attn::make_problem({.query = heads, .key = heads, .value = heads}, {});
  EXPECT_EQ(attn::cpu_heuristic<attn::CpuConfig>(many, {.num_units = 128}).block_k, 128) << "enough for 16 heads";
}

/// With a window: without one it would compute 1.1 TFLOP, minutes in a checked build.
TEST(FlashAttentionCpu, a_long_head_runs_in_that_memory_on_more_threads_than_have_scratch) {
  Array rows = Array::zeros(DType::f32, {1, 65536, 1, 64});
  for (int64_t n = 0; n < rows.num_elements(); ++n) rows.as<float>()[n] = static_cast<float>(n * 7919 % 257 - 128) / 64;
  Params params;
  params.sliding_window = Window(32, 0);
  const Inputs in{.query = rows, .key = rows, .value = rows};
  const auto expected = flash_attention(in, params, {.plan = kCpu});
  const cpu::ScopedNumThreads scoped(64);
  const auto plan = ejk::plan<FlashAttention>(in, params, kCpu);
  ASSERT_LT(plan.workspace_bytes(), 8u << 20);
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  const auto results = plan.allocate_outputs();
  plan.run(in, {.out = results.out, .lse = results.lse},
           {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
  EXPECT_TRUE(same_bits(results.out, expected.out) && same_bits(results.lse, expected.lse));
}

TEST(FlashAttentionCpu, knows_tensors_whose_products_would_vanish) {
  Array rows(DType::bf16, {2, 3, 1, 5});
  const auto fill = [&](double value) {
    for (int64_t n = 0; n < rows.num_elements(); ++n) set(rows, n, value);
  };
  fill(0);
  EXPECT_FALSE(attn::is_tiny(rows)) << "zeros lose nothing";
  fill(1e-39);
  EXPECT_TRUE(attn::is_tiny(rows));
  set(rows, 3, kNaN);
  set(rows, 4, INFINITY);
  EXPECT_TRUE(attn::is_tiny(rows)) << "what is not finite proves nothing";
  set(rows, rows.num_elements() - 1, -1e-10);
  EXPECT_FALSE(attn::is_tiny(rows));
}

TEST(FlashAttentionCpu, absent_outputs_change_nothing) {
  Problem p(7);
  make_tensors(p, {.q_len = 70}, DType::f32);
  p.tensor(p.in.bias, DType::f32, {1, 4, 1, 70}, p.normal());
  p.tensor(p.in.softmax_aux, DType::f32, {4, 2}, p.normal());
  p.params.causal = true;
  const auto results = flash_attention(p.in, p.params, {.plan = kCpu});
  const auto in = backward_inputs(p, results, true);
  const auto all = execute<FlashAttentionBackward>(in, p.params, {.plan = kCpu});
  const auto plan = ejk::plan<FlashAttentionBackward>(in, p.params, kCpu);
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  const Array* const wanted[] = {&all.query, &all.key, &all.value, &all.bias, &all.softmax_aux};
  for (unsigned set = 0; set < 32; ++set) {
    std::vector<Array> outputs;
    for (unsigned n = 0; n < 5; ++n)
      outputs.push_back((set >> n & 1) != 0 ? Array::zeros(wanted[n]->dtype(), wanted[n]->shape()) : Array());
    plan.run(in, {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4]},
             {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
    for (unsigned n = 0; n < 5; ++n)
      EXPECT_TRUE(!outputs[n].present() || same_bits(outputs[n], *wanted[n])) << "set " << set << " output " << n;
  }
}

TEST(FlashAttentionCpu, a_row_that_sees_nothing_ignores_its_cotangents) {
  Problem p(8);
  make_tensors(p, {.q_len = 40, .kv_len = 20}, DType::f32);  // bottom right: the first 20 queries see no key
  p.params.causal = true;
  p.tensor(p.in.softmax_aux, DType::f32, {4, 1}, p.normal());
  p.tensor(p.in.bias, DType::f32, {1, 1, 1, 20}, p.normal());
  const auto results = flash_attention(p.in, p.params, {.plan = kCpu});
  auto in = backward_inputs(p, results, true);
  const auto clean = execute<FlashAttentionBackward>(in, p.params, {.plan = kCpu});
  for (int64_t row = 0; row < 20; ++row) Problem::poison_row(in.d_out, 0, row), Problem::poison_row(p.in.query, 0, row);
  const auto poisoned = execute<FlashAttentionBackward>(in, p.params, {.plan = kCpu});
  expect_gradients_close(poisoned, clean, "poisoned");
  for (int64_t n = 0; n < poisoned.query.num_elements() / 2; ++n) EXPECT_EQ(get(poisoned.query, n), 0);
}

TEST(FlashAttentionCpu, a_row_with_lse_of_minus_infinity_has_no_gradient) {
  Problem p(11);
  make_tensors(p, {}, DType::f32);
  p.tensor(p.in.softmax_aux, DType::f32, {4, 1}, p.normal());
  const auto results = flash_attention(p.in, p.params, {.plan = kCpu});
  for (const int64_t n : {0, 5, 41}) set(results.lse, n, -INFINITY);
  const auto in = backward_inputs(p, results, true);
  expect_gradients_close(execute<FlashAttentionBackward>(in, p.params, {.plan = kCpu}),
                         execute<FlashAttentionBackward>(in, p.params, {.plan = kReference}), "gradients");
}

TEST(FlashAttentionCpu, a_finite_bias_beyond_float32_excludes_nothing) {
  Problem p(12);
  make_tensors(p, {}, DType::f32);
  p.tensor(p.in.bias, DType::f64, {1, 1, 1, 70}, [] { return -1e300; });
  p.params.softmax_scale = 0;  // what is left of the logits beside such a number
  const auto actual = flash_attention(p.in, p.params, {.plan = kCpu});
  const auto uniform = flash_attention(p.in, p.params, {.plan = kReference});
  expect_close(actual.out, uniform.out, "out");
}

TEST(FlashAttentionCpu, overlapping_sequences_hold_the_last_ones_result) {
  Problem p(9);
  make_tensors(p, {.q_len = 90, .kv_len = 90, .kv_heads = 1, .group = 1}, DType::f32);
  for (Tensor* t : {&p.in.query, &p.in.key, &p.in.value})
    *t = Tensor(t->data, t->dtype, {90, t->shape[2], t->shape[3]});
  const double damaged[] = {0, 80, 10, 1000, -5, 60};
  for (Tensor* t : {&p.in.cu_seqlens_q, &p.in.cu_seqlens_k}) {
    size_t n = 0;
    p.tensor(*t, DType::i32, {6}, [&] { return damaged[n++]; });
  }
  const auto expected = flash_attention(p.in, p.params, {.plan = kReference});
  for (const int threads : {1, 4}) {
    const cpu::ScopedNumThreads scoped(threads);
    uint32_t status = 0;
    const auto actual = flash_attention(p.in, p.params, {.plan = kCpu, .status = &status});
    EXPECT_EQ(status, status::kOffsets);
    expect_close(actual.out, expected.out, "out");
    expect_close(actual.lse, expected.lse, "lse");
    execute<FlashAttentionBackward>(backward_inputs(p, actual, true), p.params, {.plan = kCpu});
  }
}

TEST(FlashAttentionCpu, declines_what_it_cannot_do_with_a_reason) {
  Problem p(10);
  make_tensors(p, {}, DType::f64);
  try {
    flash_attention(p.in, p.params, {.plan = kCpu});
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("query dtype must be f32, f16 or bf16, got f64"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ejk
