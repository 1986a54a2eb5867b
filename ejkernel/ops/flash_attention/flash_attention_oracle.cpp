// flash_attention and its gradient, as the harness sees them.
#include <cmath>
#include <limits>

#include "ejkernel/ops/flash_attention/attention_oracle.h"
#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const FlashAttention::Params params_of(const Problem& problem) { return problem.params.as<FlashAttention::Params>(); }

FlashAttention::Inputs forward_inputs(const Problem& problem) {
  const std::vector<Tensor> views = problem.views();
  return to_struct<FlashAttention::Inputs>(std::span(views).first(kNumTensors<FlashAttention::Inputs>));
}

/// A row claimed by two sequences holds one of two results: nothing can be said about the outputs then.
bool is_defined(const Problem& problem, Answer& answer) {
  const attn::Rules rules(forward_inputs(problem), params_of(problem));
  answer.status = rules.status();
  answer.outputs.resize(problem.operation->outputs.size());
  answer.complete = !rules.parts_share_rows();
  return answer.complete;
}

Answer forward_answer(const Problem& problem, double budget) {
  Answer answer;
  if (!is_defined(problem, answer)) return answer;
  const auto inputs = forward_inputs(problem);
  const auto params = params_of(problem);
  const AttentionOracle oracle(inputs, params, budget, problem.seed);
  AttentionOracle::Forward forward = oracle.forward();
  const DType out = params.out_dtype.value_or(bits(inputs.query.dtype) <= 8 ? DType::bf16 : inputs.query.dtype);
  const DType lse = inputs.query.dtype == DType::f64 ? DType::f64 : DType::f32;
  answer.complete = forward.complete;
  answer.outputs = {forward.out.expected(out, oracle.tolerance(out), std::move(forward.out_at)),
                    forward.lse.expected(lse, oracle.lse_tolerance(), std::move(forward.lse_at))};
  return answer;
}

Answer backward_answer(const Problem& problem, double budget) {
  Answer answer;
  if (!is_defined(problem, answer)) return answer;
  const auto inputs = to_struct<FlashAttentionBackward::Inputs>(problem.views());
  const AttentionOracle oracle(inputs, params_of(problem), budget, problem.seed);
  AttentionOracle::Backward b =
      oracle.backward({.out = inputs.out, .lse = inputs.lse, .d_out = inputs.d_out, .d_lse = inputs.d_lse});
  const DType dtype = inputs.query.dtype;
  answer.complete = b.complete;
  answer.outputs = {b.query.expected(dtype, oracle.tolerance(dtype), std::move(b.query_at)),
                    b.key.expected(dtype, oracle.tolerance(dtype), std::move(b.key_at)),
                    b.value.expected(dtype, oracle.tolerance(dtype), std::move(b.value_at))};
  for (const auto& [input, sum] : {std::pair{inputs.bias, &b.bias}, std::pair{inputs.softmax_aux, &b.sinks}})
    answer.outputs.push_back(input.present() && b.complete ? sum->expected(input.dtype, oracle.tolerance(input.dtype))
                                                           : Expected{});
  return answer;
}

/// Cotangents of rows that see no key may hold anything (rule 9), those of their lse too while no sink depends on it.
void poison_cotangents(Problem& problem) {
  const auto inputs = to_struct<FlashAttentionBackward::Inputs>(problem.views());
  const attn::Rules rules(inputs, params_of(problem));
  const auto used = rules.used();
  const int64_t row = inputs.d_out.shape[-2] * inputs.d_out.shape[-1];
  for (size_t r = 0; r < used.query.size(); ++r)
    for (int64_t n = 0; n < row && !used.query[r]; ++n)
      set(inputs.d_out, static_cast<int64_t>(r) * row + n, std::numeric_limits<double>::quiet_NaN());
  for (int64_t n = 0; n < inputs.d_lse.num_elements(); ++n)
    if (get(inputs.lse, n) == -kInfinity) set(inputs.d_lse, n, std::numeric_limits<double>::quiet_NaN());
}

Problem make_backward_problem(const AttentionCase& c) {
  Problem problem = gradient_problem(make_attention_problem(c), c.seed, c.random_layouts);
  if (c.poison) poison_cotangents(problem);
  return problem;
}

bool has_gradient(const AttentionCase& c) { return bits(c.dtype) > 8 && c.params.normalize_output; }

std::vector<Case> cases_of(Problem (*make)(const AttentionCase&), bool gradient) {
  std::vector<Case> cases;
  for (const auto& list : {attention_cases(), attention_lattice()})
    for (const AttentionCase& c : list)
      if (!gradient || has_gradient(c))
        cases.push_back({.name = c.name, .tags = c.tags, .make = [=] { return make(c); }});
  return cases;
}

}  // namespace

const TestOperation& flash_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<FlashAttention>()};
    t.cases = cases_of(make_attention_problem, false);
    t.random = [](const RandomRequest& request) {
      Problem problem = make_attention_problem(random_attention_case(request, {.gradient = request.differentiable}));
      problem.replay = replay_of(request);
      return problem;
    };
    t.oracle = forward_answer;
    t.exact = exact_attention;
    t.relations = flash_attention_relations();
    return t;
  }();
  return tests;
}

const TestOperation& flash_attention_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<FlashAttentionBackward>()};
    t.cases = cases_of(make_backward_problem, true);
    t.random = [](const RandomRequest& request) {
      Problem problem = make_backward_problem(random_attention_case(request, {.gradient = true}));
      problem.replay = replay_of(request);
      return problem;
    };
    t.oracle = backward_answer;
    t.exact = exact_attention_backward;
    t.relations = flash_attention_backward_relations();
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
