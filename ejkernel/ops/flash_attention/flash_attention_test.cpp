// flash_attention: the reference against the rules read literally, and the error rule against kernels that are right
// and kernels that leave something out.
#include "ejkernel/ops/flash_attention/flash_attention.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ejkernel/core/log.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/ops/flash_attention/attention_problem.h"
#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/testing/check.h"

namespace ejk::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

FlashAttention::Inputs inputs_of(const Problem& problem) { return to_struct<FlashAttention::Inputs>(problem.views()); }

Kernel reference_kernel() { return kernels_of(operation<FlashAttention>()).back(); }

std::string differs(const Tensor& got, const std::vector<double>& expected) {
  for (int64_t n = 0; n < got.num_elements(); ++n) {
    const double x = get(got, n), y = expected[static_cast<size_t>(n)];
    if (std::isinf(y) ? x == y : std::abs(x - y) <= 1e-12 * std::max(1.0, std::abs(y))) continue;
    return "element " + std::to_string(n) + ": " + std::to_string(x) + ", by the rules " + std::to_string(y);
  }
  return {};
}

/// Warnings that the library gives while it lives.
class Warnings {
 public:
  Warnings() { set_log(hear, this); }
  ~Warnings() { set_log(nullptr, nullptr); }
  std::vector<std::string> texts;

 private:
  static void hear(LogLevel level, const char* text, void* self) {
    if (level == LogLevel::warning) static_cast<Warnings*>(self)->texts.emplace_back(text);
  }
};

TEST(FlashAttention, sinks_that_are_shared_though_there_is_one_for_each_head_are_warned_of_once) {
  const auto warnings_of = [](int64_t heads, const Shape& sinks) {
    const Warnings heard;
    const Tensor row(nullptr, DType::f32, {1, 2, heads, 8}), aux(nullptr, DType::f32, sinks);
    check_call(operation<FlashAttention>(),
               to_array(FlashAttention::Inputs{.query = row, .key = row, .value = row, .softmax_aux = aux}),
               ParamsBlock::of(FlashAttention::Params()));
    return heard.texts;
  };
  using ::testing::IsEmpty;
  EXPECT_THAT(warnings_of(4, {4, 1}), IsEmpty()) << "one for each head";
  EXPECT_THAT(warnings_of(4, {3}), IsEmpty()) << "three for all heads";
  EXPECT_THAT(warnings_of(1, {1}), IsEmpty()) << "with one head there is no difference";
  static bool was_warned = false;  // once in a process, also when this test runs again
  const std::vector<std::string> warnings = warnings_of(4, {4});
  EXPECT_EQ(warnings.size(), was_warned ? 0u : 1u);
  EXPECT_THAT(warnings, ::testing::Each(::testing::HasSubstr("one sink per head has shape [num_q_heads, 1]")));
  was_warned = true;
  EXPECT_THAT(warnings_of(4, {4}), IsEmpty()) << "it was said";
}

/// What the masks known from shapes leave, key by key.
double count_visible(int64_t q_len, int64_t k_len, const FlashAttention::Params& params) {
  const Window window = params.sliding_window.resolve(params.causal);
  const int64_t offset = params.causal_align == CausalAlign::bottom_right ? k_len - q_len : 0;
  double pairs = 0;
  for (int64_t p = offset; p < offset + q_len; ++p)
    for (int64_t j = 0; j < k_len; ++j)
      pairs += (!params.causal || j <= p) && (window.right < 0 || j <= p + window.right) &&
               (window.left < 0 || j >= p - window.left || j < params.attention_sink_size);
  return pairs;
}

TEST(FlashAttention, work_counts_the_pairs_that_masks_leave) {
  const auto pairs = [](int64_t q_len, int64_t k_len, const FlashAttention::Params& params) {
    const Tensor q(nullptr, DType::f32, {3, q_len, 2, 8}), k(nullptr, DType::f32, {3, k_len, 1, 8});
    return attn::visible_pairs({.query = q, .key = k, .value = k}, params);
  };
  Random random(1);
  for (int n = 0; n < 3000; ++n) {
    FlashAttention::Params params;
    params.causal = random.below(2) == 1;
    params.causal_align = random.below(2) == 1 ? CausalAlign::bottom_right : CausalAlign::top_left;
    params.sliding_window = {random.between(-1, 12), random.between(-1, 12)};
    params.attention_sink_size = random.below(2) * random.below(13);
    const int64_t q_len = random.below(13), k_len = random.below(13);
    ASSERT_EQ(pairs(q_len, k_len, params), 3 * count_visible(q_len, k_len, params))
        << q_len << " x " << k_len << (params.causal ? " causal" : "") << " window " << params.sliding_window.left
        << ", " << params.sliding_window.right << " sinks " << params.attention_sink_size;
  }
}

TEST(FlashAttention, reference_follows_the_rules_read_literally) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const Problem problem =
        make_attention_problem(random_attention_case({.seed = seed, .size = Size::tiny, .dtype = DType::f64}));
    const Outcome outcome = run_guarded(problem, reference_kernel(), {.plain = true});
    ASSERT_TRUE(outcome.supported && outcome.faults.empty()) << problem.label;
    const auto dense = attn::dense_attention(inputs_of(problem), problem.params.as<FlashAttention::Params>());
    ASSERT_EQ(differs(outcome.outputs[0], dense.out), "") << problem.label;
    ASSERT_EQ(differs(outcome.outputs[1], dense.lse), "") << problem.label;
  }
}

TEST(FlashAttention, nan_at_a_visible_position_makes_its_row_nan_and_no_other) {
  const AttentionCase description{.dtype = DType::f32,
                                  .q_len = 20,
                                  .kv_len = 30,
                                  .num_q_heads = 2,
                                  .head_dim = 8,
                                  .params = {.causal = true},
                                  .seed = 5};
  const Problem clean = make_attention_problem(description), dirty = make_attention_problem(description);
  const int64_t row = 7;
  set(dirty.view("query"), row * 2 * 8 + 3, std::numeric_limits<double>::quiet_NaN());  // head 0
  for (const Kernel& kernel : kernels_of(operation<FlashAttention>())) {
    const Outcome before = run_guarded(clean, kernel), after = run_guarded(dirty, kernel);
    for (int64_t i = 0; i < 20; ++i)
      for (int64_t h = 0; h < 2; ++h) {
        const bool hit = i == row && h == 0;
        EXPECT_EQ(std::isnan(get(after.outputs[1], h * 20 + i)), hit) << kernel->name << " row " << i;
        for (int64_t d = 0; d < 8; ++d) {
          const int64_t at = (i * 2 + h) * 8 + d;
          if (hit)
            EXPECT_TRUE(std::isnan(get(after.outputs[0], at))) << kernel->name;
          else
            EXPECT_EQ(get(after.outputs[0], at), get(before.outputs[0], at)) << kernel->name;
        }
      }
  }
}

// ---- kernels of the usual blocked kind, right and wrong ----

enum class Fault : uint8_t { none, drops_a_key, drops_a_value, drops_a_tile, drops_a_row, sees_one_key_too_many };

/// Online softmax over blocks of keys in float32, P rounded to a narrow input's dtype.
template <Fault kFault>
struct Blocked {
  static constexpr std::array<std::string_view, 6> kNames = {"blocked",
                                                             "blocked_drops_a_key",
                                                             "blocked_drops_a_value",
                                                             "blocked_drops_a_tile",
                                                             "blocked_drops_a_row",
                                                             "blocked_sees_one_key_too_many"};
  static constexpr std::string_view kName = kNames[static_cast<size_t>(kFault)];
  static constexpr Platform kPlatform = Platform::cpu;
  static constexpr int64_t kBlock = 16;

  static Support supports(const Call<FlashAttention>& call, const DeviceProperties&) {
    const bool narrow = bits(call.inputs.query.dtype) <= 8, wide = call.inputs.query.dtype == DType::f64;
    return narrow || wide || !call.params.normalize_output ? Support::no("not written for it") : Support::yes();
  }

  static bool left_out(const attn::Sequence& s, int64_t i, int64_t j) {
    if constexpr (kFault == Fault::drops_a_key) return j == s.k_len / 2;
    if constexpr (kFault == Fault::drops_a_tile) return j / kBlock == s.k_len / kBlock / 2;
    if constexpr (kFault == Fault::drops_a_row) return i == s.q_len / 2;
    return false;
  }
  static bool visible(const attn::Problem& p, const attn::Sequence& s, int64_t h, int64_t i, int64_t j) {
    if constexpr (kFault == Fault::sees_one_key_too_many) {
      const auto range = p.key_range(s, i);
      if (p.causal && j == range.end && p.element_visible(s, h, i, j)) return true;
    }
    return p.visible(s, h, i, j) && !left_out(s, i, j);
  }

  static double narrowed(DType dtype, float x) {
    if (dtype == DType::bf16) return to_float(from_float<bf16_t>(x));
    if (dtype == DType::f16) return to_float(from_float<f16_t>(x));
    return x;
  }

  static void run(const Call<FlashAttention>& call, const RunContext& context) {
    const attn::Problem p = attn::make_problem(call.inputs, call.params);
    const auto& to = call.outputs;
    for (int64_t n = 0; n < to.out.num_elements(); ++n) set(to.out, n, 0);
    const int64_t batches = p.packed ? 1 : p.num_sequences;
    for (int64_t n = 0; n < to.lse.num_elements(); ++n) set(to.lse, n, p.sinks_lse(n / p.q_rows % p.num_q_heads));
    for (int64_t n = 0; n < p.num_sequences && batches > 0; ++n) {
      const attn::Sequence s = p.sequence(n, context.status);
      for (int64_t h = 0; h < p.num_q_heads; ++h)
        for (int64_t i = 0; i < s.q_len; ++i) one_row(p, s, h, i, to);
    }
  }

  static void one_row(const attn::Problem& p, const attn::Sequence& s, int64_t h, int64_t i,
                      const FlashAttention::Outputs& to) {
    const int64_t b = p.batch_of(s), g = p.kv_head(h), r = s.q_begin + i;
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t a = 0; a < p.num_sinks; ++a) max = std::max(max, static_cast<float>(p.sink_at(h, a)));
    for (int64_t a = 0; a < p.num_sinks; ++a) sum += std::exp(static_cast<float>(p.sink_at(h, a)) - max);
    std::vector<float> acc(static_cast<size_t>(p.value_dim));
    auto at = [](const Tensor& t, int64_t offset) {
      return static_cast<float>(load_as_double(t.data, t.dtype, offset));
    };
    for (int64_t first = 0; first < s.k_len; first += kBlock) {
      std::vector<std::pair<int64_t, float>> logits;
      for (int64_t j = first; j < std::min(first + kBlock, s.k_len); ++j) {
        if (!visible(p, s, h, i, j)) continue;
        float dot = 0;
        for (int64_t d = 0; d < p.head_dim; ++d)
          dot += at(p.query, p.q.offset(b, r, h) + d) * at(p.key, p.k.offset(b, s.k_begin + j, g) + d);
        float logit = static_cast<float>(p.scale) * dot;
        if (p.bias.present()) logit += static_cast<float>(p.bias_at(b, h, i, j));
        if (p.soft_cap > 0) logit = static_cast<float>(p.soft_cap) * std::tanh(logit / static_cast<float>(p.soft_cap));
        logits.emplace_back(j, logit);
      }
      if (logits.empty()) continue;
      float next = max;
      for (const auto& [j, logit] : logits) next = std::max(next, logit);
      const float shrink = std::exp(max - next);
      max = next;
      sum *= shrink;
      for (float& x : acc) x *= shrink;
      for (const auto& [j, logit] : logits) {
        const float weight = std::exp(logit - max);
        sum += weight;
        if (kFault == Fault::drops_a_value && j == s.k_len / 2) continue;  // the denominator keeps it
        const auto factor = static_cast<float>(narrowed(p.query.dtype, weight) * p.dropout_factor(s, h, i, j));
        for (int64_t d = 0; d < p.value_dim; ++d)
          acc[static_cast<size_t>(d)] += factor * at(p.value, p.v.offset(b, s.k_begin + j, g) + d);
      }
    }
    if (sum == 0) return;
    if (to.lse.present()) set(to.lse, (b * p.num_q_heads + h) * p.q_rows + r, max + std::log(sum));
    for (int64_t d = 0; d < p.value_dim && to.out.present(); ++d)
      set(to.out, ((b * p.q_rows + r) * p.num_q_heads + h) * p.value_dim + d, acc[static_cast<size_t>(d)] / sum);
  }
};

template <Fault kFault>
Kernel blocked() {
  return std::make_shared<const KernelInfo>(make_kernel<FlashAttention, Blocked<kFault>>());
}

bool same_outputs(const Outcome& a, const Outcome& b) {
  return compare_bits(a.outputs[0], b.outputs[0]).empty() && compare_bits(a.outputs[1], b.outputs[1]).empty();
}

/// Caught, of those where leaving something out changed any bit.
struct Caught {
  int caught = 0, changed = 0;
  double rate() const { return static_cast<double>(caught) / std::max(changed, 1); }
};

class ErrorRule : public ::testing::Test {
 protected:
  static constexpr uint64_t kProblems = 250;

  static void SetUpTestSuite() {
    problems = new std::vector<Problem>;
    answers = new std::vector<Answer>;
    for (uint64_t seed = 1; seed <= kProblems; ++seed) {
      problems->push_back(flash_attention_tests().random({.seed = seed, .size = Size::small}));
      answers->push_back(flash_attention_tests().oracle(problems->back(), kTestBudget));
    }
  }
  static void TearDownTestSuite() { delete problems, delete answers; }

  template <Fault kFault>
  static Caught caught_of() {
    Caught result;
    for (size_t n = 0; n < problems->size(); ++n) {
      const Outcome right = run_guarded((*problems)[n], blocked<Fault::none>(), {.plain = true});
      const Outcome wrong = run_guarded((*problems)[n], blocked<kFault>(), {.plain = true});
      if (!right.supported || same_outputs(right, wrong)) continue;
      ++result.changed;
      result.caught += !check_kernel((*problems)[n], (*answers)[n], blocked<kFault>()).failures.empty();
    }
    ::testing::Test::RecordProperty("changed", result.changed);
    ::testing::Test::RecordProperty("caught", result.caught);
    return result;
  }

  static std::vector<Problem>* problems;
  static std::vector<Answer>* answers;
};
std::vector<Problem>* ErrorRule::problems = nullptr;
std::vector<Answer>* ErrorRule::answers = nullptr;

TEST_F(ErrorRule, passes_right_blocked_kernels) {
  int met = 0;
  for (size_t n = 0; n < problems->size(); ++n) {
    const Verdict verdict = check_kernel((*problems)[n], (*answers)[n], blocked<Fault::none>(), {.seed = n});
    EXPECT_EQ(report((*problems)[n], blocked<Fault::none>(), verdict), "");
    met += verdict.supported;
  }
  EXPECT_GT(met, 200);
}

TEST_F(ErrorRule, catches_a_dropped_key) {
  const Caught c = caught_of<Fault::drops_a_key>();
  EXPECT_GE(c.rate(), 0.9) << c.caught << " of " << c.changed;
  EXPECT_GT(c.changed, 100);
}
TEST_F(ErrorRule, catches_a_dropped_value) {  // lse cannot tell: out has to
  const Caught c = caught_of<Fault::drops_a_value>();
  EXPECT_GE(c.rate(), 0.9) << c.caught << " of " << c.changed;
}
TEST_F(ErrorRule, catches_a_dropped_tile) {
  const Caught c = caught_of<Fault::drops_a_tile>();
  EXPECT_GE(c.rate(), 0.9) << c.caught << " of " << c.changed;
}
TEST_F(ErrorRule, catches_a_dropped_row) {
  const Caught c = caught_of<Fault::drops_a_row>();
  EXPECT_GE(c.rate(), 0.9) << c.caught << " of " << c.changed;
}
TEST_F(ErrorRule, catches_a_diagonal_that_is_off_by_one) {
  const Caught c = caught_of<Fault::sees_one_key_too_many>();
  EXPECT_GE(c.rate(), 0.9) << c.caught << " of " << c.changed;
}

/// Why the norm's bound has a part for the float32 runs: keys' gradients of float16 inputs below its normal range.
/// Errors within a key's row are alike, and where one row is judged the plain formula itself is beyond the cap, in 98
/// of 1,092 samples of this problem.
TEST(NormOfErrors, of_the_plain_formula_itself_can_be_beyond_the_cap) {
  const TestOperation& tests = flash_attention_backward_tests();
  Problem problem = tests.random({.seed = 1004867, .size = Size::small, .dense = true});
  problem.seed = 372;  // of the sample
  const Answer answer = tests.oracle(problem, 1.5e6);
  const Expected& key = answer.outputs[1];
  ASSERT_EQ(key.ref.size(), 64u);
  double squares = 0;
  for (size_t n = 0; n < key.ref.size(); ++n) squares += key.ref[n] * key.ref[n] + key.spread[n] * key.spread[n];
  const double step = 0x1p-24, cap = key.tolerance.norm_cap * std::sqrt(squares) + step * std::sqrt(64.0);
  EXPECT_GT(key.base_norm, 1.2 * cap);
  EXPECT_LT(key.base_norm, 1.3 * cap);
}

}  // namespace
}  // namespace ejk::testing
