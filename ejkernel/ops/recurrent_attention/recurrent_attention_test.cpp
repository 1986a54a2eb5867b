// The rules of operations §11, one test each, on every kernel of the host, with values worked out by hand.
#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::counting;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using ::testing::Pointwise;
using testing::refusal_of;
using testing::values_of;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class RecurrentAttentionRules : public ::testing::TestWithParam<std::string> {
 protected:
  CallOptions options() { return {.plan = {.kernel = GetParam()}, .status = &status}; }
  RecurrentAttention::Results attend(const RecurrentAttention::Inputs& in,
                                     const RecurrentAttention::Params& params = {.softmax_scale = 1}) {
    return recurrent_attention(in, params, options());
  }
  RecurrentAttentionBackward::Results gradients(const RecurrentAttention::Inputs& in, const Tensor& d_out,
                                                const Tensor& d_final_state,
                                                const RecurrentAttention::Params& params = {.softmax_scale = 1}) {
    return execute<RecurrentAttentionBackward>({in, d_out, d_final_state}, params, options());
  }
  static void expect_near(const Tensor& got, const std::vector<double>& expected) {
    EXPECT_THAT(values_of(got), Pointwise(::testing::DoubleNear(1e-5), expected));
  }

  // Two tokens of one number each: the state goes from 4 through 0.5 * 4 + 3 to 0.5 * 5 + 5.
  const double half = std::log(0.5);
  const Array query = f32({1, 2, 1, 1}, {1, 2}), key = f32({1, 2, 1, 1}, {1, 1}), value = f32({1, 2, 1, 1}, {3, 5});
  const Array gates = f32({1, 2, 1}, {half, half}), four = f32({1, 1, 1, 1}, {4});
  uint32_t status = 0;
};

TEST_P(RecurrentAttentionRules, decays_then_adds_then_reads) {
  const auto results = attend({.query = query, .key = key, .value = value, .g = gates, .initial_state = four});
  expect_near(results.out, {5, 15});
  expect_near(results.final_state, {7.5});
}

TEST_P(RecurrentAttentionRules, gradients_of_two_tokens_by_hand) {
  const Array d_out = f32({1, 2, 1, 1}, {1, 1}), g_gamma = f32({1}, {0});
  const auto d = gradients(
      {.query = query, .key = key, .value = value, .g = gates, .g_gamma = g_gamma, .initial_state = four}, d_out, {});
  expect_near(d.query, {5, 7.5});
  expect_near(d.key, {6, 10});
  expect_near(d.value, {2, 2});
  expect_near(d.g, {4, 5});
  expect_near(d.g_gamma, {9});
  expect_near(d.initial_state, {1});
  EXPECT_FALSE(d.gk.present());
  EXPECT_FALSE(d.gv.present());
}

TEST_P(RecurrentAttentionRules, gates_of_rows_and_columns_multiply) {
  const auto results = attend({.query = f32({1, 1, 1, 2}, {1, 1}),
                               .key = f32({1, 1, 1, 2}, {1, 2}),
                               .value = f32({1, 1, 1, 2}, {10, 20}),
                               .gk = f32({1, 1, 1, 2}, {half, 0}),
                               .gv = f32({1, 1, 1, 2}, {0, 2 * half}),
                               .initial_state = f32({1, 1, 2, 2}, {1, 2, 3, 4})});
  expect_near(results.final_state, {10.5, 20.25, 23, 41});
  expect_near(results.out, {33.5, 61.25});
}

TEST_P(RecurrentAttentionRules, the_scale_is_one_over_the_root_of_key_dim_unless_given) {
  const Array ones = f32({1, 1, 1, 4}, {1, 1, 1, 1});
  const RecurrentAttention::Inputs in = {.query = ones, .key = ones, .value = ones};
  expect_near(attend(in, {}).out, {2, 2, 2, 2});
  expect_near(attend(in, {.softmax_scale = -3}).out, {-12, -12, -12, -12});
}

TEST_P(RecurrentAttentionRules, query_heads_share_keys_and_have_states_and_gates_of_their_own) {
  const Array q = f32({1, 2, 4, 1}, {1, 1, 1, 1, 1, 1, 1, 1}), k = f32({1, 2, 2, 1}, {1, 10, 1, 10});
  const Array v = f32({1, 2, 2, 1}, {1, 1, 1, 1}), g_gamma = f32({4}, {0, half, 0, -kInfinity});
  const auto results = attend({.query = q, .key = k, .value = v, .g_gamma = g_gamma});
  expect_near(results.final_state, {2, 1.5, 20, 10});
  const Array d_out = f32({1, 2, 4, 1}, {0, 0, 0, 0, 1, 1, 1, 1});
  expect_near(gradients({.query = q, .key = k, .value = v, .g_gamma = g_gamma}, d_out, {}).key, {1.5, 1, 2, 2});
}

TEST_P(RecurrentAttentionRules, a_closed_gate_forgets_exactly_whatever_was_there) {
  for (const double closed : {-1e4, -200.0, -kInfinity}) {
    const Array large = f32({1, 1, 2, 2}, {1e38, -1e38, 3e38, 1e-30}), gk = f32({1, 1, 1, 2}, {closed, closed});
    const Array q = f32({1, 1, 1, 2}, {1, 1}), k = f32({1, 1, 1, 2}, {2, 3}), v = f32({1, 1, 1, 2}, {5, 7});
    const RecurrentAttention::Inputs in = {.query = q, .key = k, .value = v, .gk = gk, .initial_state = large};
    const auto results = attend(in);
    EXPECT_THAT(values_of(results.final_state), ElementsAre(10, 14, 15, 21)) << closed;
    EXPECT_THAT(values_of(results.out), ElementsAre(25, 35)) << closed;
    const auto d = gradients(in, f32({1, 1, 1, 2}, {1, 1}), {});
    EXPECT_THAT(values_of(d.gk), ElementsAre(0, 0)) << closed;
    EXPECT_THAT(values_of(d.initial_state), ElementsAre(0, 0, 0, 0)) << closed;
  }
}

TEST_P(RecurrentAttentionRules, a_gate_above_zero_grows) {
  const auto results = attend({.query = query,
                               .key = key,
                               .value = value,
                               .g = f32({1, 2, 1}, {std::log(3.0), std::log(2.0)}),
                               .initial_state = four});
  expect_near(results.out, {15, 70});
}

TEST_P(RecurrentAttentionRules, reverse_begins_with_the_last_token) {
  const RecurrentAttention::Inputs in = {.query = query, .key = key, .value = value, .g = gates, .initial_state = four};
  const auto results = attend(in, {.softmax_scale = 1, .reverse = true});
  expect_near(results.out, {6.5, 14});  // 0.5 * 4 + 5 = 7, then 0.5 * 7 + 3
  expect_near(results.final_state, {6.5});
}

TEST_P(RecurrentAttentionRules, an_empty_sequence_hands_its_state_on) {
  const Array none = f32({1, 0, 1, 2}, {}), state = counting({1, 1, 2, 2});
  const RecurrentAttention::Inputs in = {.query = none, .key = none, .value = none, .initial_state = state};
  EXPECT_THAT(values_of(attend(in).final_state), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of(gradients(in, {}, counting({1, 1, 2, 2}, 5)).initial_state), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(values_of(attend({.query = none, .key = none, .value = none}).final_state), ElementsAre(0, 0, 0, 0));
}

TEST_P(RecurrentAttentionRules, packed_sequences_start_anew_and_rows_of_none_are_zero) {
  const Array ones = f32({6, 1, 1}, {kNaN, 1, 1, 1, 1, kNaN});
  const Array cu_seqlens = i32({1, 3, 3, 5});
  const RecurrentAttention::Inputs in = {.query = ones, .key = ones, .value = ones, .cu_seqlens = cu_seqlens};
  const auto results = attend(in);
  EXPECT_THAT(values_of(results.out), ElementsAre(0, 1, 2, 1, 2, 0));
  EXPECT_THAT(values_of(results.final_state), ElementsAre(2, 0, 2));
  const auto d = gradients(in, ones, {});
  EXPECT_THAT(values_of(d.query), ElementsAre(0, 1, 2, 1, 2, 0));
  EXPECT_THAT(values_of(d.key), ElementsAre(0, 2, 1, 2, 1, 0));
  EXPECT_EQ(status, 0u);
}

TEST_P(RecurrentAttentionRules, offsets_that_lead_nowhere_are_clamped_and_told) {
  const Array ones = f32({3, 1, 1}, {1, 1, 1});
  const auto results = attend({.query = ones, .key = ones, .value = ones, .cu_seqlens = i32({-7, 2, 1, 1000})});
  EXPECT_EQ(status, status::kOffsets);
  EXPECT_THAT(values_of(results.final_state), ElementsAre(2, 0, 2));
}

TEST_P(RecurrentAttentionRules, states_are_stored_in_the_dtype_that_is_asked_for) {
  const Array state = convert(f32({1, 1, 1, 1}, {1 + 0x1p-7}), DType::bf16);
  const Array q = convert(f32({1, 1, 1, 1}, {1}), DType::bf16), v = convert(f32({1, 1, 1, 1}, {0x1p-9}), DType::bf16);
  const RecurrentAttention::Inputs in = {.query = q, .key = q, .value = v, .initial_state = state};
  const auto wide = attend(in);
  EXPECT_EQ(wide.final_state.dtype(), DType::f32);
  EXPECT_THAT(values_of(wide.final_state), ElementsAre(1 + 0x1p-7 + 0x1p-9)) << "the recurrence itself is in float32";
  const auto narrow = attend(in, {.softmax_scale = 1, .state_dtype = DType::bf16});
  EXPECT_EQ(narrow.final_state.dtype(), DType::bf16);
  EXPECT_THAT(values_of(narrow.final_state), ElementsAre(1 + 0x1p-7));
  EXPECT_EQ(narrow.out.dtype(), DType::bf16);
}

std::vector<std::string> kernels_of_the_host() {
  std::vector<std::string> names;
  for (const testing::Kernel& kernel : testing::kernels_of(testing::declaration<RecurrentAttention>()))
    names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, RecurrentAttentionRules, ::testing::ValuesIn(kernels_of_the_host()),
                         [](const auto& info) { return info.param; });

// ---- what validation says ----

class RecurrentAttentionCalls : public ::testing::Test {
 protected:
  const Array q = f32({1, 2, 3, 1}, {1, 2, 3, 4, 5, 6});
  RecurrentAttention::Inputs in = {.query = q, .key = q, .value = q};
};

TEST_F(RecurrentAttentionCalls, state_dtype_is_a_float_dtype) {
  EXPECT_EQ(refusal_of([&] { recurrent_attention(in, {.state_dtype = DType::i8}); }),
            "recurrent_attention: state_dtype must be f64, f32, f16 or bf16, got i8; convert the state yourself");
  EXPECT_THAT(refusal_of([&] {
                execute<RecurrentAttentionBackward>({in, q, {}}, {.state_dtype = DType::e4m3});
              }),
              HasSubstr("recurrent_attention_backward: state_dtype must be f64, f32, f16 or bf16, got e4m3"));
}

TEST_F(RecurrentAttentionCalls, query_heads_are_a_multiple_of_kv_heads) {
  const Array two = counting({1, 2, 2, 1});
  in.key = in.value = two;
  EXPECT_EQ(refusal_of([&] { recurrent_attention(in); }),
            "recurrent_attention: query num_q_heads must be a multiple of key num_kv_heads 2, got 3; every kv head "
            "serves the same number of query heads");
}

TEST_F(RecurrentAttentionCalls, heads_and_columns_are_at_least_one) {
  const Array no_column = f32({1, 2, 3, 0}, {}), no_head = f32({1, 2, 0, 1}, {});
  EXPECT_THAT(refusal_of([&] { recurrent_attention({.query = no_column, .key = no_column, .value = q}); }),
              HasSubstr("key_dim must be at least 1, got 0"));
  EXPECT_THAT(refusal_of([&] { recurrent_attention({.query = q, .key = q, .value = no_column}); }),
              HasSubstr("value_dim must be at least 1, got 0"));
  EXPECT_THAT(refusal_of([&] { recurrent_attention({.query = q, .key = no_head, .value = no_head}); }),
              HasSubstr("key num_kv_heads must be at least 1, got 0"));
}

TEST_F(RecurrentAttentionCalls, states_fit_into_memory) {
  const Tensor wide(nullptr, DType::f32, {1, 1, 1, int64_t{1} << 20}), none(nullptr, DType::f32, {1, 0, 1, 1});
  EXPECT_EQ(refusal_of([&] { plan<RecurrentAttention>({.query = wide, .key = wide, .value = wide}); }),
            "recurrent_attention: the states must have at most 2^38 elements, got [1, 1, 1048576, 1048576]; split the "
            "batch or the heads");
  EXPECT_NO_THROW(plan<RecurrentAttention>({.query = none, .key = none, .value = none}));
}

TEST_F(RecurrentAttentionCalls, a_states_cotangent_has_the_states_dtype) {
  const Array d_state = counting({1, 3, 1, 1});
  EXPECT_EQ(refusal_of([&] {
              execute<RecurrentAttentionBackward>({in, {}, d_state}, {.state_dtype = DType::bf16});
            }),
            "recurrent_attention_backward: d_final_state dtype must be bf16, got f32; convert it first");
  EXPECT_NO_THROW(execute<RecurrentAttentionBackward>({in, {}, d_state}));
}

TEST_F(RecurrentAttentionCalls, gates_belong_to_query_heads) {
  const Array one = counting({1, 2, 1, 1});
  in.key = in.value = in.gk = one;
  EXPECT_THAT(refusal_of([&] { recurrent_attention(in); }), HasSubstr("gk num_q_heads must equal query num_q_heads 3"));
}

// ---- the error rule ----

struct LeavesOutAToken {
  static constexpr std::string_view kName = "leaves_out_a_token";
  static constexpr Platform kPlatform = Platform::cpu;

  static void run(const Call<RecurrentAttention>& call, const RunContext&) {
    auto in = call.inputs;
    const Array value = contiguous(in.value);
    const int64_t length = value.shape()[1], per_token = value.num_elements() / (value.shape()[0] * length);
    for (int64_t n = 0; n < per_token; ++n) set(value, length / 2 * per_token + n, 0);
    in.value = value;
    const auto results = recurrent_attention(in, call.params, {.plan = {.kernel = "reference"}});
    for (const auto& [to, from] :
         {std::pair{call.outputs.out, results.out}, {call.outputs.final_state, results.final_state}})
      for (int64_t n = 0; n < to.num_elements(); ++n) set(to, n, get(from, n));
  }
};

TEST(RecurrentAttention, a_term_that_passes_several_gates_is_one_term_of_g_gammas_error) {
  const std::vector<double> q = {1, 2, 3, 1}, k = {2, 1, 1, 3}, v = {1, 3, 2, 1}, d_out = {1, 1, 2, 3};
  const double decay = 0.5;
  double gradient = 0, squares = 0;
  for (size_t i = 0; i < q.size(); ++i)
    for (size_t s = 0; s < i; ++s) {
      const double gates = static_cast<double>(i - s),
                   term = gates * q[i] * d_out[i] * std::pow(decay, gates) * k[s] * v[s];
      gradient += term, squares += term * term;
    }
  const auto row = [](const std::vector<double>& x) { return f32({1, static_cast<int64_t>(x.size()), 1, 1}, x); };
  const Array query = row(q), key = row(k), value = row(v), cotangent = row(d_out), gamma = f32({1}, {std::log(decay)});
  const testing::Answer answer = testing::recurrence_backward_answer(
      {{.query = query, .key = key, .value = value, .g_gamma = gamma}, cotangent, {}}, {.softmax_scale = 1}, 1e6, 1);
  constexpr size_t kGamma = 4;
  EXPECT_THAT(answer.outputs[kGamma].ref, Pointwise(::testing::DoubleNear(1e-5), {gradient}));
  EXPECT_THAT(answer.outputs[kGamma].spread, Pointwise(::testing::DoubleNear(1e-5), {std::sqrt(squares)}));
}

TEST(RecurrentAttention, the_error_rule_catches_a_kernel_that_leaves_out_a_token) {
  const auto kernel = std::make_shared<const KernelInfo>(make_kernel<RecurrentAttention, LeavesOutAToken>());
  const testing::TestOperation& tests = testing::recurrent_attention_tests();
  int met = 0, caught = 0;
  for (uint64_t seed = 1; met < 80; ++seed) {
    testing::RecurrenceCase c = testing::random_recurrence_case({.seed = seed, .size = testing::Size::small});
    if (c.packed || c.batch == 0 || c.seq_len == 0) continue;
    ++met;
    const testing::Problem problem = testing::make_recurrence_problem(c);
    const testing::Verdict verdict = check_kernel(problem, tests.oracle(problem, testing::kTestBudget), kernel);
    caught += verdict.failures.empty() ? 0 : 1;
  }
  EXPECT_GE(caught, met * 9 / 10);
}

}  // namespace
}  // namespace ejk
