// scaled_dot_product_attention and its gradient, as the harness sees them: flash_attention's oracle with queries in
// use.
#include <limits>
#include <string>

#include "ejkernel/ops/flash_attention/attention_oracle.h"
#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_cases.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_internal.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The call in flash_attention's words, and the one thing that those lack.
struct FlashCall {
  FlashAttention::Inputs in;
  FlashAttention::Params params;
  Tensor query_lengths;

  explicit FlashCall(const Problem& problem) {
    using Op = ScaledDotProductAttention;
    const std::vector<Tensor> views = problem.views();
    const auto own = to_struct<Op::Inputs>(std::span(views).first(kNumTensors<Op::Inputs>));
    in = attn::flash_inputs(own);
    params = attn::flash_params(problem.params.as<Op::Params>());
    query_lengths = own.query_seq_lengths;
  }
  attn::Rules rules() const { return {in, params, query_lengths}; }
};

Answer forward_answer(const Problem& problem, double budget) {
  const FlashCall call(problem);
  const AttentionOracle oracle(call.in, call.params, budget, problem.seed, call.query_lengths);
  AttentionOracle::Forward forward = oracle.forward();
  const DType dtype = call.in.query.dtype, lse = dtype == DType::f64 ? DType::f64 : DType::f32;
  return {.outputs = {forward.out.expected(dtype, oracle.tolerance(dtype), std::move(forward.out_at)),
                      forward.lse.expected(lse, oracle.lse_tolerance(), std::move(forward.lse_at))},
          .status = call.rules().status(),
          .complete = forward.complete};
}

Answer backward_answer(const Problem& problem, double budget) {
  const FlashCall call(problem);
  const auto in = to_struct<ScaledDotProductAttentionBackward::Inputs>(problem.views());
  const AttentionOracle oracle(call.in, call.params, budget, problem.seed, call.query_lengths);
  AttentionOracle::Backward b = oracle.backward({.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse});
  const DType dtype = call.in.query.dtype;
  Answer answer = {.outputs = {b.query.expected(dtype, oracle.tolerance(dtype), std::move(b.query_at)),
                               b.key.expected(dtype, oracle.tolerance(dtype), std::move(b.key_at)),
                               b.value.expected(dtype, oracle.tolerance(dtype), std::move(b.value_at))},
                   .status = call.rules().status(),
                   .complete = b.complete};
  const Tensor& bias = call.in.bias;
  answer.outputs.push_back(bias.present() && b.complete ? b.bias.expected(bias.dtype, oracle.tolerance(bias.dtype))
                                                        : Expected{});
  return answer;
}

/// Cotangents of rows that see no key, or are not in use, may hold anything (rule 9).
void poison_cotangents(Problem& problem) {
  const auto in = to_struct<ScaledDotProductAttentionBackward::Inputs>(problem.views());
  const auto used = FlashCall(problem).rules().used();
  const int64_t row = in.d_out.shape[2] * in.d_out.shape[3];
  for (size_t r = 0; r < used.query.size(); ++r)
    for (int64_t n = 0; n < row && !used.query[r]; ++n) set(in.d_out, static_cast<int64_t>(r) * row + n, kNaN);
  for (int64_t n = 0; n < in.d_lse.num_elements(); ++n)
    if (get(in.lse, n) == -kInfinity) set(in.d_lse, n, kNaN);
}

Problem make_backward_problem(const SdpaCase& c) {
  Problem problem = gradient_problem(make_sdpa_problem(c), c.base.seed, c.base.random_layouts);
  if (c.base.poison) poison_cotangents(problem);
  return problem;
}

std::vector<Case> cases_of(Problem (*make)(const SdpaCase&)) {
  std::vector<Case> cases;
  for (const SdpaCase& c : sdpa_cases())
    cases.push_back({.name = c.base.name, .tags = c.base.tags, .make = [=] { return make(c); }});
  return cases;
}

template <Problem (*kMake)(const SdpaCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_sdpa_case(request));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& scaled_dot_product_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<ScaledDotProductAttention>()};
    t.cases = cases_of(make_sdpa_problem);
    t.random = random_problem<make_sdpa_problem>;
    t.oracle = forward_answer;
    return t;
  }();
  return tests;
}

const TestOperation& scaled_dot_product_attention_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<ScaledDotProductAttentionBackward>()};
    t.cases = cases_of(make_backward_problem);
    t.random = random_problem<make_backward_problem>;
    t.oracle = backward_answer;
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
