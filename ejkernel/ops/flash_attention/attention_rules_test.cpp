// The rules of docs/semantics.md, one test each, on every kernel of flash_attention that supports the case. Expected
// values are worked out here, by dense matrices in double, independently of the formula that the kernels share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/core/philox.h"
#include "ejkernel/ejkernel.h"
#include "ejkernel/runtime/explain.h"

namespace ejk {
namespace {

using Inputs = FlashAttention::Inputs;
using Params = FlashAttention::Params;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Array filled(const Shape& shape, double phase, DType dtype = DType::f32) {
  Array array(dtype, shape);
  for (int64_t n = 0; n < array.num_elements(); ++n) set(array, n, std::sin(phase + 0.7 * static_cast<double>(n)));
  return array;
}

Array of_values(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Array array(dtype, shape);
  for (size_t n = 0; n < values.size(); ++n) set(array, static_cast<int64_t>(n), values[n]);
  return array;
}

/// Logits to probabilities of one row: what is visible, sinks in the denominator.
std::vector<double> softmax_row(const std::vector<double>& logits, const std::vector<bool>& visible,
                                const std::vector<double>& sinks, double* lse) {
  double sum = 0;
  for (size_t j = 0; j < logits.size(); ++j) sum += visible[j] ? std::exp(logits[j]) : 0;
  for (double sink : sinks) sum += std::exp(sink);
  *lse = std::log(sum);
  std::vector<double> p(logits.size(), 0);
  for (size_t j = 0; j < logits.size(); ++j)
    if (visible[j] && sum > 0) p[j] = std::exp(logits[j]) / sum;
  return p;
}

/// What a rule changes in the plain formula; everything else stays softmax(q k^T / sqrt(D)) v.
struct Rule {
  double scale = 0;  ///< 0: 1/sqrt(D)
  std::function<double(int64_t h, int64_t i, int64_t j, double logit)> logit = nullptr;
  std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)> visible = nullptr;
  std::function<std::vector<double>(int64_t h)> sinks = nullptr;
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)> factor = nullptr;
};

struct Dense {
  std::vector<double> out, lse;
  std::vector<double> largest;  ///< visible logit of each row, laid out like lse
};

Dense dense(const Tensor& q, const Tensor& k, const Tensor& v, const Rule& rule) {
  const int64_t B = q.shape[0], Sq = q.shape[1], Hq = q.shape[2], D = q.shape[3], Sk = k.shape[1], Hkv = k.shape[2],
                Dv = v.shape[3];
  auto at = [](const Tensor& t, int64_t b, int64_t s, int64_t h, int64_t d) {
    return get(t, ((b * t.shape[1] + s) * t.shape[2] + h) * t.shape[3] + d);
  };
  Dense result;
  result.out.assign(static_cast<size_t>(B * Sq * Hq * Dv), 0);
  result.lse.assign(static_cast<size_t>(B * Hq * Sq), 0);
  const double scale = rule.scale != 0 ? rule.scale : 1 / std::sqrt(static_cast<double>(D));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < Hq; ++h)
      for (int64_t i = 0; i < Sq; ++i) {
        std::vector<double> logits;
        std::vector<bool> visible;
        const int64_t g = h / (Hq / Hkv);
        for (int64_t j = 0; j < Sk; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < D; ++d) dot += at(q, b, i, h, d) * at(k, b, j, g, d);
          logits.push_back(rule.logit ? rule.logit(h, i, j, scale * dot) : scale * dot);
          visible.push_back(!rule.visible || rule.visible(b, h, i, j));
        }
        const auto p = softmax_row(logits, visible, rule.sinks ? rule.sinks(h) : std::vector<double>{},
                                   &result.lse[static_cast<size_t>((b * Hq + h) * Sq + i)]);
        double& largest = result.largest.emplace_back(-kInf);
        for (size_t j = 0; j < logits.size(); ++j)
          if (visible[j]) largest = std::max(largest, logits[j]);
        for (int64_t d = 0; d < Dv; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < Sk; ++j)
            if (p[static_cast<size_t>(j)] > 0)
              sum += p[static_cast<size_t>(j)] * (rule.factor ? rule.factor(b, h, i, j) : 1) * at(v, b, j, g, d);
          result.out[static_cast<size_t>(((b * Sq + i) * Hq + h) * Dv + d)] = sum;
        }
      }
  return result;
}

void expect_near(const Tensor& actual, const std::vector<double>& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.num_elements(), static_cast<int64_t>(expected.size())) << what;
  for (int64_t n = 0; n < actual.num_elements(); ++n) {
    const double x = get(actual, n), y = expected[static_cast<size_t>(n)];
    if (std::isnan(y))
      EXPECT_TRUE(std::isnan(x)) << what << " element " << n;
    else if (std::isinf(y))
      EXPECT_EQ(x, y) << what << " element " << n;
    else
      EXPECT_NEAR(x, y, tolerance) << what << " element " << n;
  }
}

/// Runs the body once per host kernel of the operation, asked for by name.
class AttentionRules : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() const { return {.plan = {.kernel = GetParam()}}; }
  bool supports(const Inputs& in, const Params& params = {}) const {
    return explain("flash_attention", to_array(in), ParamsBlock::of(params), options().plan).error.empty();
  }
  FlashAttention::Results run(const Inputs& in, const Params& params = {}) const {
    return flash_attention(in, params, options());
  }
  void expect(const Inputs& in, const Params& params, const Rule& rule, double tolerance = 2e-6) const {
    const auto actual = run(in, params);
    const Dense expected = dense(in.query, in.key, in.value, rule);
    expect_near(actual.out, expected.out, tolerance, "out");
    expect_near(actual.lse, expected.lse, tolerance, "lse");
  }

  Array q = filled({2, 3, 4, 8}, 0.1), k = filled({2, 5, 2, 8}, 1.3), v = filled({2, 5, 2, 8}, 2.2);
};

std::vector<std::string> kernel_names(const char* operation) {
  std::vector<std::string> names;
  for (const auto& kernel : KernelRegistry::instance().find(operation)->kernels)
    if (kernel->backend != Backend::gpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionRules, ::testing::ValuesIn(kernel_names("flash_attention")),
                         [](const auto& info) { return info.param; });

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_P(AttentionRules, rule_1_any_strides_with_a_contiguous_last_axis) {
  // The same queries stored head-major, seen through strides.
  Array head_major(DType::f32, {2, 4, 3, 8});
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t s = 0; s < 3; ++s)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t d = 0; d < 8; ++d)
          set(head_major, ((b * 4 + h) * 3 + s) * 8 + d, get(q, ((b * 3 + s) * 4 + h) * 8 + d));
  const Tensor view(head_major.data(), DType::f32, {2, 3, 4, 8}, Shape{96, 8, 24, 1});
  const auto a = run({.query = q, .key = k, .value = v}), b = run({.query = view, .key = k, .value = v});
  for (int64_t n = 0; n < a.out.num_elements(); ++n) EXPECT_EQ(get(a.out, n), get(b.out, n));

  const Tensor strided(q.data(), DType::f32, {2, 3, 4, 4}, Shape{96, 32, 8, 2});
  EXPECT_THAT(error_of([&] { run({.query = strided, .key = strided, .value = strided}); }),
              testing::HasSubstr("query must have a contiguous last axis"));
}

TEST_P(AttentionRules, rule_1_outputs_may_not_overlap_themselves) {
  const auto p = plan<FlashAttention>({.query = q, .key = k, .value = v}, {}, options().plan);
  const Array workspace(DType::u8, {static_cast<int64_t>(p.workspace_bytes())});
  Array out(DType::f32, {2, 3, 4, 8});
  const Tensor overlapping(out.data(), DType::f32, {2, 3, 4, 8}, Shape{0, 32, 8, 1});
  EXPECT_THAT(error_of([&] {
                p.run({.query = q, .key = k, .value = v}, {.out = overlapping},
                      {.workspace = {workspace.as<std::byte>(), p.workspace_bytes()}});
              }),
              testing::HasSubstr("out must have strides that do not overlap"));
}

TEST_P(AttentionRules, rule_2_logits_are_scaled_products_plus_bias) {
  const Array bias = filled({1, 4, 3, 5}, 4.0);
  expect({.query = q, .key = k, .value = v}, {}, {});
  expect({.query = q, .key = k, .value = v, .bias = bias}, {.softmax_scale = 0.3},
         {.scale = 0.3, .logit = [&](int64_t h, int64_t i, int64_t j, double logit) {
            return logit + get(bias, (h * 3 + i) * 5 + j);
          }});
}

TEST_P(AttentionRules, rule_3_soft_cap_after_scale_and_bias_before_masks) {
  const Array bias = filled({2, 1, 1, 5}, 4.0);
  Array per_batch(DType::f32, {1, 1, 1, 5});
  for (int64_t j = 0; j < 5; ++j) set(per_batch, j, get(bias, j));
  const Rule rule{.logit = [&](int64_t, int64_t, int64_t j,
                               double logit) { return 0.5 * std::tanh((logit + get(per_batch, j)) / 0.5); },
                  .visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i + 2; }};
  expect({.query = q, .key = k, .value = v, .bias = per_batch}, {.causal = true, .logits_soft_cap = 0.5}, rule);
}

TEST_P(AttentionRules, rule_4_all_masks_must_allow_a_key) {
  Array mask(DType::boolean, {2, 1, 3, 5});
  for (int64_t n = 0; n < 30; ++n) set(mask, n, n % 3 != 0);
  const Array used = of_values(DType::i32, {2}, {4, 5});
  expect({.query = q, .key = k, .value = v, .attention_mask = mask, .seqused_k = used}, {.causal = true},
         {.visible = [&](int64_t b, int64_t, int64_t i, int64_t j) {
           const int64_t length = b == 0 ? 4 : 5;
           return get(mask, (b * 3 + i) * 5 + j) != 0 && j < length && j <= i + length - 3;
         }});
}

TEST_P(AttentionRules, rule_4_minus_infinite_bias_excludes_before_the_cap) {
  const Array bias = of_values(DType::f32, {1, 1, 1, 5}, {0, -kInf, 0, 0, -kInf});
  expect({.query = q, .key = k, .value = v, .bias = bias}, {.logits_soft_cap = 2.0},
         {.logit = [](int64_t, int64_t, int64_t, double logit) { return 2 * std::tanh(logit / 2); },
          .visible = [](int64_t, int64_t, int64_t, int64_t j) { return j != 1 && j != 4; }});
}

TEST_P(AttentionRules, rule_4_nothing_at_an_unseen_position_reaches_a_result) {
  const auto clean = run({.query = q, .key = k, .value = v}, {.sliding_window = {1, 1}});
  // Sq 3, Sk 5, bottom_right: positions 2, 3, 4 see keys 1 to 4, so key 0 is never seen.
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t n = 0; n < 2 * 8; ++n) {
      set(k, b * 80 + n, n % 2 == 0 ? kNaN : kInf);
      set(v, b * 80 + n, kNaN);
    }
  const auto poisoned = run({.query = q, .key = k, .value = v}, {.sliding_window = {1, 1}});
  for (int64_t n = 0; n < clean.out.num_elements(); ++n) EXPECT_EQ(get(clean.out, n), get(poisoned.out, n));
}

TEST_P(AttentionRules, rule_4_a_nan_logit_at_a_visible_key_makes_its_row_nan) {
  set(q, 0, kNaN);  // batch 0, row 0, head 0
  const auto result = run({.query = q, .key = k, .value = v});
  EXPECT_TRUE(std::isnan(get(result.out, 0)));
  EXPECT_TRUE(std::isnan(get(result.lse, 0)));
  EXPECT_FALSE(std::isnan(get(result.lse, 1)));
}

TEST_P(AttentionRules, rule_5_causal_alignment) {
  expect({.query = q, .key = k, .value = v}, {.causal = true},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i + 2; }});
  expect({.query = q, .key = k, .value = v}, {.causal = true, .causal_align = CausalAlign::top_left},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; }});
}

TEST_P(AttentionRules, rule_5_lengths_in_use_decide_the_alignment) {
  const Array used = of_values(DType::i32, {2}, {3, 3});
  expect({.query = q, .key = k, .value = v, .seqused_k = used}, {.causal = true},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j < 3 && j <= i; }});
}

TEST_P(AttentionRules, rule_6_windows_are_inclusive_on_the_aligned_position) {
  expect({.query = q, .key = k, .value = v}, {.sliding_window = {1, 0}},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j >= i + 1 && j <= i + 2; }});
  expect({.query = q, .key = k, .value = v}, {.causal_align = CausalAlign::top_left, .sliding_window = {0, 2}},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j >= i && j <= i + 2; }});
  expect({.query = q, .key = k, .value = v}, {.sliding_window = {0, 0}},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j == i + 2; }});
  expect({.query = q, .key = k, .value = v}, {.sliding_window = {-1, -1}}, {});
}

TEST_P(AttentionRules, rule_6_a_plain_window_is_one_sided_only_when_causal) {
  expect({.query = q, .key = k, .value = v}, {.causal = true, .sliding_window = 1},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j >= i + 1 && j <= i + 2; }});
  expect({.query = q, .key = k, .value = v}, {.sliding_window = 1},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j >= i + 1 && j <= i + 3; }});
}

TEST_P(AttentionRules, rule_6_sink_tokens_are_exempt_from_the_window_alone) {
  expect({.query = q, .key = k, .value = v}, {.causal = true, .sliding_window = 0, .attention_sink_size = 1},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j == 0 || j == i + 2; }});
  expect({.query = q, .key = k, .value = v},
         {.causal = true, .causal_align = CausalAlign::top_left, .sliding_window = 0, .attention_sink_size = 2},
         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i && (j < 2 || j == i); }});
}

TEST_P(AttentionRules, rule_7_equal_segments_attend_and_negative_ones_do_not) {
  const Array of_queries = of_values(DType::i32, {2, 3}, {0, 1, -1, 2, 2, 7});
  const Array of_keys = of_values(DType::i32, {2, 5}, {0, 0, 1, -1, 1, 2, 3, 2, -1, 2});
  expect({.query = q, .key = k, .value = v, .q_segment_ids = of_queries, .kv_segment_ids = of_keys}, {},
         {.visible = [&](int64_t b, int64_t, int64_t i, int64_t j) {
           const double id = get(of_queries, b * 3 + i);
           return id >= 0 && id == get(of_keys, b * 5 + j);
         }});
  EXPECT_THAT(error_of([&] { run({.query = q, .key = k, .value = v, .q_segment_ids = of_queries}); }),
              testing::HasSubstr("kv_segment_ids must be given when q_len and kv_len differ"));
}

TEST_P(AttentionRules, rule_8_sinks_join_the_denominator_once) {
  const Array shared = of_values(DType::f32, {2}, {0.5, -1});
  expect({.query = q, .key = k, .value = v, .softmax_aux = shared}, {.softmax_scale = 0.2, .logits_soft_cap = 1.0},
         {.scale = 0.2,
          .logit = [](int64_t, int64_t, int64_t, double logit) { return std::tanh(logit); },
          .sinks =
              [](int64_t) {
                return std::vector<double>{0.5, -1};
              }});
  const Array per_head = of_values(DType::f32, {4, 2}, {0.5, -1, 2, 0, -3, 1.5, 0.25, 0.75});
  expect({.query = q, .key = k, .value = v, .softmax_aux = per_head}, {}, {.sinks = [&](int64_t h) {
           return std::vector<double>{get(per_head, 2 * h), get(per_head, 2 * h + 1)};
         }});
}

TEST_P(AttentionRules, rule_9_a_row_without_visible_key_is_zero) {
  Array mask = Array::zeros(DType::boolean, {1, 1, 3, 5});
  for (int64_t j = 0; j < 5; ++j) set(mask, 5 + j, 1);  // only row 1 sees anything
  const auto result = run({.query = q, .key = k, .value = v, .attention_mask = mask});
  for (int64_t n = 0; n < 4 * 8; ++n) EXPECT_EQ(get(result.out, n), 0);
  EXPECT_EQ(get(result.lse, 0), -kInf);
  EXPECT_TRUE(std::isfinite(get(result.lse, 1)));

  const Array sinks = of_values(DType::f32, {2}, {0, 0});
  const auto with_sinks = run({.query = q, .key = k, .value = v, .attention_mask = mask, .softmax_aux = sinks});
  EXPECT_EQ(get(with_sinks.out, 0), 0);
  EXPECT_NEAR(get(with_sinks.lse, 0), std::log(2.0), 1e-6);
  for (const double sink : {kNaN, kInf}) {
    const Array odd = of_values(DType::f32, {2}, {sink, 0});
    const auto beside = run({.query = q, .key = k, .value = v, .attention_mask = mask, .softmax_aux = odd});
    EXPECT_EQ(get(beside.out, 0), 0) << sink;
    EXPECT_FALSE(std::isfinite(get(beside.lse, 0)));
  }
}

TEST_P(AttentionRules, rule_9_a_row_without_visible_key_has_no_gradient_but_its_sinks) {
  Array mask = Array::zeros(DType::boolean, {1, 1, 3, 5});
  for (int64_t j = 0; j < 5; ++j) set(mask, 5 + j, 1);  // only row 1 sees anything
  const Array sinks = of_values(DType::f32, {2}, {0, 0});
  const Inputs in{.query = q, .key = k, .value = v, .attention_mask = mask, .softmax_aux = sinks};
  const auto results = run(in);
  Array d_out = filled({2, 3, 4, 8}, 3.1), d_lse = Array::zeros(DType::f32, {2, 4, 3});
  const auto gradients = [&] {
    FlashAttentionBackward::Inputs of;
    static_cast<Inputs&>(of) = in;
    of.out = results.out, of.lse = results.lse, of.d_out = d_out, of.d_lse = d_lse;
    return execute<FlashAttentionBackward>(of, {}, options());
  };
  const auto clean = gradients();
  double of_blind_rows = 0;
  for (int64_t n = 0; n < d_lse.num_elements(); ++n)
    if (n % 3 != 1) {
      set(d_lse, n, 1 + static_cast<double>(n));
      of_blind_rows += get(d_lse, n);
    }
  for (int64_t n = 0; n < d_out.num_elements(); ++n)
    if (n / 32 % 3 != 1) set(d_out, n, kNaN);
  const auto poisoned = gradients();
  for (int64_t n = 0; n < q.num_elements(); ++n)
    EXPECT_EQ(get(poisoned.query, n), n / 32 % 3 == 1 ? get(clean.query, n) : 0) << n;
  for (int64_t n = 0; n < k.num_elements(); ++n) {
    EXPECT_EQ(get(poisoned.key, n), get(clean.key, n)) << n;
    EXPECT_EQ(get(poisoned.value, n), get(clean.value, n)) << n;
  }
  // e^(sink - lse) of such a row is one half here.
  for (int64_t n = 0; n < 2; ++n)
    EXPECT_NEAR(get(poisoned.softmax_aux, n), get(clean.softmax_aux, n) + of_blind_rows / 2, 1e-4);
}

TEST_P(AttentionRules, rule_10_lse_is_natural_and_has_its_own_shape) {
  const auto result = run({.query = q, .key = k, .value = v});
  EXPECT_EQ(result.lse.shape(), (Shape{2, 4, 3}));
  EXPECT_EQ(result.lse.dtype(), DType::f32);
  const Array packed = filled({6, 4, 8}, 0), packed_kv = filled({7, 2, 8}, 1);
  const Array cu_q = of_values(DType::i32, {3}, {0, 2, 5}), cu_k = of_values(DType::i32, {3}, {0, 3, 7});
  const auto of_packed =
      run({.query = packed, .key = packed_kv, .value = packed_kv, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k});
  EXPECT_EQ(of_packed.lse.shape(), (Shape{4, 6}));
  EXPECT_EQ(get(of_packed.lse, 5), -kInf);  // row 5 belongs to no sequence
  EXPECT_EQ(get(of_packed.out, 5 * 32), 0);
}

TEST_P(AttentionRules, rule_11_dropout_follows_philox_by_position) {
  const Array seed = of_values(DType::u32, {2}, {17, 4});
  const uint32_t t = dropout_threshold(0.3);
  expect({.query = q, .key = k, .value = v, .dropout_seed = seed}, {.dropout_prob = 0.3},
         {.factor = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
           auto u = [](int64_t x) { return static_cast<uint32_t>(x); };
           return dropout_keep(17, 4, u(b), u(h), u(i), u(j), t) ? 65536.0 / (65536 - t) : 0;
         }});
}

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t n = 0; n < a.num_elements(); ++n) sum += get(a, n) * get(b, n);
  return sum;
}

TEST_P(AttentionRules, rule_11_the_backward_drops_what_the_forward_dropped) {
  const Array seed = of_values(DType::u32, {2}, {17, 4});
  const Params params{.dropout_prob = 0.3};
  const Inputs in{.query = q, .key = k, .value = v, .dropout_seed = seed};
  const auto results = run(in, params);
  const Array d_out = filled({2, 3, 4, 8}, 3.1);
  FlashAttentionBackward::Inputs of;
  static_cast<Inputs&>(of) = in;
  of.out = results.out, of.lse = results.lse, of.d_out = d_out;
  const auto gradients = execute<FlashAttentionBackward>(of, params, options());
  // Results are linear in the values; in queries and keys a step shows the slope.
  const Array values = filled({2, 5, 2, 8}, 5.5);
  Inputs other = in;
  other.value = values;
  EXPECT_NEAR(dot(gradients.value, values), dot(d_out, run(other, params).out), 1e-5);
  const Array d_q = filled({2, 3, 4, 8}, 6.1), d_k = filled({2, 5, 2, 8}, 7.3);
  const auto after_a_step = [&](double step) {
    Array moved_q(DType::f32, q.shape()), moved_k(DType::f32, k.shape());
    for (int64_t n = 0; n < q.num_elements(); ++n) set(moved_q, n, get(q, n) + step * get(d_q, n));
    for (int64_t n = 0; n < k.num_elements(); ++n) set(moved_k, n, get(k, n) + step * get(d_k, n));
    return dot(d_out, run({.query = moved_q, .key = moved_k, .value = v, .dropout_seed = seed}, params).out);
  };
  const double slope = (after_a_step(0.01) - after_a_step(-0.01)) / 0.02;
  EXPECT_GT(std::abs(slope), 0.1);
  EXPECT_NEAR(dot(gradients.query, d_q) + dot(gradients.key, d_k), slope, 5e-3 * std::abs(slope));
}

TEST_P(AttentionRules, rule_12_dtypes_of_results) {
  for (DType dtype : {DType::f16, DType::bf16, DType::f64, DType::e4m3, DType::i8}) {
    const Array a = filled({1, 2, 1, 8}, 0.3, dtype);
    const Inputs in{.query = a, .key = a, .value = a};
    if (!supports(in)) continue;
    const auto result = run(in);
    EXPECT_EQ(result.out.dtype(), bits(dtype) == 8 ? DType::bf16 : dtype) << name(dtype);
    EXPECT_EQ(result.lse.dtype(), dtype == DType::f64 ? DType::f64 : DType::f32) << name(dtype);
  }
  EXPECT_EQ(run({.query = q, .key = k, .value = v}, {.out_dtype = DType::bf16}).out.dtype(), DType::bf16);
}

TEST_P(AttentionRules, rule_13_head_groups_and_head_sizes) {
  for (int64_t head_dim : {1, 3, 17, 96, 200, 512})
    for (int64_t value_dim : {1, 40, 512}) {
      const Array a = filled({1, 2, 6, head_dim}, 0.4), b = filled({1, 3, 3, head_dim}, 0.9);
      const Array c = filled({1, 3, 3, value_dim}, 1.7);
      expect({.query = a, .key = b, .value = c}, {}, {}, 1e-5);
    }
  const Array three_heads = filled({2, 5, 3, 8}, 0);
  EXPECT_THAT(error_of([&] { run({.query = q, .key = three_heads, .value = three_heads}); }),
              testing::HasSubstr("query num_q_heads must be a multiple of key num_kv_heads 3, got 4"));
}

TEST_P(AttentionRules, rule_14_extents_may_be_zero) {
  const Array none(DType::f32, {2, 0, 2, 8}), no_batch(DType::f32, {0, 3, 4, 8}), no_batch_kv(DType::f32, {0, 5, 2, 8});
  const auto no_keys = run({.query = q, .key = none, .value = none});
  for (int64_t n = 0; n < no_keys.out.num_elements(); ++n) EXPECT_EQ(get(no_keys.out, n), 0);
  for (int64_t n = 0; n < no_keys.lse.num_elements(); ++n) EXPECT_EQ(get(no_keys.lse, n), -kInf);
  EXPECT_EQ(run({.query = no_batch, .key = no_batch_kv, .value = no_batch_kv}).out.num_elements(), 0);
}

TEST_P(AttentionRules, rule_15_lengths_and_offsets_are_not_trusted) {
  uint32_t status = 0;
  CallOptions with_status = options();
  with_status.status = &status;
  const Array used = of_values(DType::i32, {2}, {-7, 2e9});
  const auto clamped = flash_attention({.query = q, .key = k, .value = v, .seqused_k = used}, {}, with_status);
  EXPECT_EQ(status, status::kLength);
  const auto whole = run({.query = q, .key = k, .value = v});
  for (int64_t n = 0; n < 96; ++n) {
    EXPECT_EQ(get(clamped.out, n), 0) << n;
    EXPECT_EQ(get(clamped.out, 96 + n), get(whole.out, 96 + n)) << n;
  }

  status = 0;
  const Array packed = filled({6, 4, 8}, 0), packed_kv = filled({7, 2, 8}, 1);
  const Array cu_q = of_values(DType::i32, {4}, {-3, 2, 1, 2e9}), cu_k = of_values(DType::i32, {4}, {0, 3, 3, 7});
  const auto fallen = flash_attention(
      {.query = packed, .key = packed_kv, .value = packed_kv, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k}, {},
      with_status);
  EXPECT_EQ(status, status::kOffsets);
  // Queries 0 and 1 of keys 0 to 2, none, and 1 to 5 of keys 3 to 6; query 1 has the result of either.
  const Tensor first_kv(packed_kv.data(), DType::f32, {1, 3, 2, 8}),
      last_kv(packed_kv.as<float>() + 3 * 16, DType::f32, {1, 4, 2, 8}),
      query_0(packed.data(), DType::f32, {1, 1, 4, 8}), others(packed.as<float>() + 2 * 32, DType::f32, {1, 4, 4, 8});
  expect_near(Tensor(fallen.out.data(), DType::f32, {1, 32}), dense(query_0, first_kv, first_kv, {}).out, 2e-6, "0");
  expect_near(Tensor(fallen.out.as<float>() + 2 * 32, DType::f32, {4, 32}), dense(others, last_kv, last_kv, {}).out,
              2e-6, "2 to 5");

  status = 0;
  const Array good = of_values(DType::i32, {2}, {0, 6}), good_k = of_values(DType::i32, {2}, {0, 7});
  flash_attention({.query = packed, .key = packed_kv, .value = packed_kv, .cu_seqlens_q = good, .cu_seqlens_k = good_k},
                  {.max_seqlen_q = 4}, with_status);
  EXPECT_EQ(status, status::kLength);
}

TEST_P(AttentionRules, rule_15_a_sequence_past_max_seqlen_is_cut_to_it) {
  const Array packed = filled({6, 4, 8}, 0), packed_kv = filled({7, 2, 8}, 1);
  const Array cu_q = of_values(DType::i32, {2}, {0, 6}), cu_k = of_values(DType::i32, {2}, {0, 7});
  const Inputs in{.query = packed, .key = packed_kv, .value = packed_kv, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k};
  const auto cut = run(in, {.max_seqlen_q = 4, .max_seqlen_k = 5});
  const Array cut_q = of_values(DType::i32, {2}, {0, 4}), cut_k = of_values(DType::i32, {2}, {0, 5});
  const auto expected =
      run({.query = packed, .key = packed_kv, .value = packed_kv, .cu_seqlens_q = cut_q, .cu_seqlens_k = cut_k});
  for (int64_t n = 0; n < cut.out.num_elements(); ++n) EXPECT_EQ(get(cut.out, n), get(expected.out, n));
}

TEST_P(AttentionRules, rule_17_values_outside_a_domain_are_refused) {
  const Inputs in{.query = q, .key = k, .value = v};
  EXPECT_THAT(error_of([&] { run(in, {.logits_soft_cap = 0}); }),
              testing::HasSubstr("logits_soft_cap must be > 0, got 0"));
  EXPECT_THAT(error_of([&] { run(in, {.sliding_window = {-2, 0}}); }), testing::HasSubstr("sides >= -1"));
  EXPECT_THAT(error_of([&] { run(in, {.dropout_prob = 1}); }), testing::HasSubstr("dropout_prob must be >= 0 and < 1"));
  EXPECT_THAT(error_of([&] { run(in, {.softmax_scale = kInf}); }), testing::HasSubstr("softmax_scale must be finite"));
  EXPECT_THAT(error_of([&] { run(in, {.attention_sink_size = -1}); }),
              testing::HasSubstr("attention_sink_size must be >= 0"));
}

TEST_P(AttentionRules, unnormalised_output_refers_to_the_largest_visible_logit) {
  const Array sinks = of_values(DType::f32, {1}, {3});
  const auto sums = run({.query = q, .key = k, .value = v, .softmax_aux = sinks},
                        {.causal = true, .causal_align = CausalAlign::top_left, .normalize_output = false});
  Dense expected = dense(q, k, v,
                         {.visible = [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; },
                          .sinks = [](int64_t) { return std::vector<double>{3}; }});
  for (size_t n = 0; n < expected.out.size(); ++n) {
    const size_t b = n / 96, i = n / 32 % 3, h = n / 8 % 4, row = (b * 4 + h) * 3 + i;
    expected.out[n] *= std::exp(expected.lse[row] - expected.largest[row]);
  }
  expect_near(sums.out, expected.out, 5e-6, "out");
  expect_near(sums.lse, expected.lse, 2e-6, "lse");
}

TEST_P(AttentionRules, packed_sequences_do_not_see_each_other) {
  const Array packed = filled({5, 4, 8}, 0.1), keys = filled({7, 2, 8}, 1.3), values = filled({7, 2, 8}, 2.2);
  const Array cu_q = of_values(DType::i32, {4}, {0, 2, 2, 5}), cu_k = of_values(DType::i32, {4}, {0, 3, 4, 7});
  const auto all = run({.query = packed, .key = keys, .value = values, .cu_seqlens_q = cu_q, .cu_seqlens_k = cu_k},
                       {.causal = true});
  auto rows = [](const Array& a, int64_t begin, int64_t count) {
    return Tensor(a.as<float>() + begin * a.shape()[1] * a.shape()[2], DType::f32,
                  {1, count, a.shape()[1], a.shape()[2]});
  };
  const auto first =
      run({.query = rows(packed, 0, 2), .key = rows(keys, 0, 3), .value = rows(values, 0, 3)}, {.causal = true});
  const auto last =
      run({.query = rows(packed, 2, 3), .key = rows(keys, 4, 3), .value = rows(values, 4, 3)}, {.causal = true});
  for (int64_t n = 0; n < 2 * 32; ++n) EXPECT_EQ(get(all.out, n), get(first.out, n));
  for (int64_t n = 0; n < 3 * 32; ++n) EXPECT_EQ(get(all.out, 2 * 32 + n), get(last.out, n));
}

TEST_P(AttentionRules, quantised_operands_are_scale_times_code) {
  Array codes_q(DType::i8, {1, 3, 2, 8}), codes_k(DType::i8, {1, 5, 1, 8});
  for (int64_t n = 0; n < codes_q.num_elements(); ++n) set(codes_q, n, static_cast<double>(n * 7 % 51 - 25));
  for (int64_t n = 0; n < codes_k.num_elements(); ++n) set(codes_k, n, static_cast<double>(n * 5 % 41 - 20));
  const Array q_scale = of_values(DType::f32, {2}, {0.02, 0.05}), kv_scale = of_values(DType::f32, {1, 1, 1}, {0.03});
  const Inputs in{
      .query = codes_q, .key = codes_k, .value = codes_k, .q_scale = q_scale, .k_scale = kv_scale, .v_scale = kv_scale};
  if (!supports(in)) GTEST_SKIP() << "declined, with a reason";
  Array real_q = convert(codes_q, DType::f32), real_k = convert(codes_k, DType::f32);
  for (int64_t n = 0; n < real_q.num_elements(); ++n) set(real_q, n, get(real_q, n) * (n / 8 % 2 == 0 ? 0.02f : 0.05f));
  for (int64_t n = 0; n < real_k.num_elements(); ++n) set(real_k, n, get(real_k, n) * 0.03f);
  const auto expected = run({.query = real_q, .key = real_k, .value = real_k}, {.out_dtype = DType::f32});
  const auto actual = run(in, {.out_dtype = DType::f32});
  for (int64_t n = 0; n < actual.out.num_elements(); ++n) EXPECT_NEAR(get(actual.out, n), get(expected.out, n), 1e-6);
}

}  // namespace
}  // namespace ejk
