// attention and its gradient, as the harness sees them: flash_attention's problems and oracle, with the weights.
#include <limits>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/attention/attention_cases.h"
#include "ejkernel/ops/attention/attention_internal.h"
#include "ejkernel/ops/flash_attention/attention_oracle.h"
#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kEverything = std::numeric_limits<double>::infinity();
constexpr double kMostWeights = 1e6;

double num_weights(const AttentionCase& c) {
  return static_cast<double>(c.batch * c.num_q_heads) * static_cast<double>(c.q_len) * static_cast<double>(c.kv_len);
}

Attention::Params weights_params_of(const FlashAttention::Params& params) {
  return {.softmax_scale = params.softmax_scale,
          .causal = params.causal,
          .causal_align = params.causal_align,
          .sliding_window = params.sliding_window,
          .attention_sink_size = params.attention_sink_size,
          .logits_soft_cap = params.logits_soft_cap,
          .dropout_prob = params.dropout_prob,
          .deterministic = params.deterministic,
          .out_dtype = params.out_dtype};
}

FlashAttention::Inputs flash_inputs_of(const Problem& problem) {
  const std::vector<Tensor> views = problem.views();
  return attn::flash_inputs(to_struct<Attention::Inputs>(std::span(views).first(kNumTensors<Attention::Inputs>)));
}
FlashAttention::Params flash_params_of(const Problem& problem) {
  return attn::flash_params(problem.params.as<Attention::Params>());
}

Answer forward_answer(const Problem& problem, double budget) {
  const auto in = flash_inputs_of(problem);
  const auto params = flash_params_of(problem);
  const AttentionOracle oracle(in, params, budget, problem.seed);
  AttentionOracle::Forward forward = oracle.forward(true);
  Judged weights_at;
  if (forward.lse_at) {
    weights_at.emplace();
    for (int64_t row : *forward.lse_at)
      for (int64_t j = 0; j < in.key.shape[1]; ++j) weights_at->push_back(row * in.key.shape[1] + j);
  }
  const DType dtype = in.query.dtype, out = params.out_dtype.value_or(dtype);
  return {.outputs = {forward.out.expected(out, oracle.tolerance(out), std::move(forward.out_at)),
                      forward.weights.expected(dtype, oracle.tolerance(dtype), std::move(weights_at))},
          .status = attn::Rules(in, params).status(),
          .complete = forward.complete};
}

Answer backward_answer(const Problem& problem, double) {
  const auto in = to_struct<AttentionBackward::Inputs>(problem.views());
  const auto flash = flash_inputs_of(problem);
  const auto params = flash_params_of(problem);
  const AttentionOracle oracle(flash, params, kEverything, problem.seed);
  const AttentionOracle::Backward b = oracle.backward({.d_out = in.d_out, .d_weights = in.d_weights});
  const DType dtype = flash.query.dtype;
  Answer answer = {
      .outputs = {b.query.expected(dtype, oracle.tolerance(dtype)), b.key.expected(dtype, oracle.tolerance(dtype)),
                  b.value.expected(dtype, oracle.tolerance(dtype))},
      .status = attn::Rules(flash, params).status()};
  for (const auto& [input, sum] : {std::pair{in.bias, &b.bias}, std::pair{in.softmax_aux, &b.sinks}})
    answer.outputs.push_back(input.present() ? sum->expected(input.dtype, oracle.tolerance(input.dtype)) : Expected{});
  return answer;
}

/// Cotangents of rows that see no key may hold anything (rule 9), and those of weights wherever a key is not visible.
void poison_cotangents(Problem& problem) {
  const auto in = to_struct<AttentionBackward::Inputs>(problem.views());
  const attn::Rules rules(flash_inputs_of(problem), flash_params_of(problem));
  const auto used = rules.used();
  const int64_t row = in.value.shape[3] * rules.q_heads();
  for (size_t r = 0; r < used.query.size() && in.d_out.present(); ++r)
    for (int64_t n = 0; n < row && !used.query[r]; ++n) set(in.d_out, static_cast<int64_t>(r) * row + n, kNaN);
  if (!in.d_weights.present()) return;
  int64_t at = 0;
  for (const auto& part : rules.parts())
    for (int64_t h = 0; h < rules.q_heads(); ++h)
      for (int64_t i = 0; i < rules.q_rows(); ++i)
        for (int64_t j = 0; j < rules.k_rows(); ++j, ++at)
          if (!rules.sees(part, h, i, j)) set(in.d_weights, at, kNaN);
}

Problem make_backward_problem(const AttentionCase& c) {
  Problem problem = gradient_problem(make_weights_problem(c), c.seed, c.random_layouts);
  if (c.poison) poison_cotangents(problem);
  return problem;
}

/// flash_attention's named cases; of its lattice every seventh point, which visits all lengths and head sizes.
std::vector<Case> cases_of(Problem (*make)(const AttentionCase&)) {
  std::vector<Case> cases;
  auto add = [&](const AttentionCase& c) {
    if (is_weights_case(c)) cases.push_back({.name = c.name, .tags = c.tags, .make = [=] { return make(c); }});
  };
  for (const AttentionCase& c : attention_cases()) add(c);
  const std::vector<AttentionCase> lattice = attention_lattice();
  for (size_t n = 0; n < lattice.size(); n += 7) add(lattice[n]);
  return cases;
}

template <Problem (*kMake)(const AttentionCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_weights_case(request));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

bool is_weights_case(const AttentionCase& c) {
  return c.q_lens.empty() && c.scales == CodeScale::none && bits(c.dtype) > 8 && c.params.normalize_output &&
         num_weights(c) <= kMostWeights;
}

Problem make_weights_problem(const AttentionCase& description) {
  const Problem flash = make_attention_problem(description);
  Problem problem = Problem::of(declaration<Attention>());
  for (size_t i = 0; i < problem.inputs.size(); ++i)
    problem.inputs[i] =
        flash.inputs[static_cast<size_t>(find_input(*flash.operation, problem.operation->inputs[i].name))];
  problem.params = ParamsBlock::of(weights_params_of(description.params));
  problem.label = flash.label, problem.replay = flash.replay, problem.seed = flash.seed;
  return problem;
}

AttentionCase random_weights_case(const RandomRequest& request) {
  const AttentionScope scope = {.packed = false, .gradient = true};
  // Mostly small ones: the tiles are flash_attention's, whose own problems are as large as they get.
  RandomRequest smaller = request;
  if (request.size == Size::normal) smaller.size = Size::small;
  const AttentionCase c = random_attention_case(request, scope);
  const bool takes_it = is_weights_case(c) && (request.size != Size::normal || request.seed % 4 == 0);
  return takes_it ? c : random_attention_case(smaller, scope);
}

const TestOperation& attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<Attention>()};
    t.cases = cases_of(make_weights_problem);
    t.random = random_problem<make_weights_problem>;
    t.oracle = forward_answer;
    t.relations = weights_relations();
    return t;
  }();
  return tests;
}

const TestOperation& attention_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<AttentionBackward>()};
    t.cases = cases_of(make_backward_problem);
    t.random = random_problem<make_backward_problem>;
    t.oracle = backward_answer;
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
