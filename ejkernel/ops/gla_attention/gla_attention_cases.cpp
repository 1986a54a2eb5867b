// gla_attention and its gradient, as the harness sees them: recurrent_attention's problems and answers. Lengths and
// head sizes around the ends of chunks are its own to meet.
#include "ejkernel/ops/gla_attention/gla_attention_cases.h"

#include "ejkernel/ops/gla_attention/gla_attention_internal.h"

namespace ejk::testing {
namespace {

std::vector<RecurrenceCase> gla_cases() {
  std::vector<RecurrenceCase> cases = {
      {.name = "gla_1_3b_train",
       .tags = kPrimary,
       .seq_len = 256,
       .num_q_heads = 4,
       .num_kv_heads = 4,
       .key_dim = 256,
       .value_dim = 512,
       .gk = true},
      {.name = "gla_340m_packed",
       .tags = kPrimary,
       .num_q_heads = 4,
       .num_kv_heads = 4,
       .key_dim = 128,
       .value_dim = 256,
       .packed = true,
       .lengths = {200, 0, 33, 130},
       .gk = true},
      {.name = "gla_1_3b_decode",
       .tags = kPrimary,
       .num_q_heads = 4,
       .num_kv_heads = 4,
       .key_dim = 256,
       .value_dim = 512,
       .gk = true,
       .initial_state = true},
      {.name = "no_gates", .tags = kEdge, .dtype = DType::f32, .seq_len = 40, .key_dim = 16, .value_dim = 24},
      {.name = "both_gates_in_reverse",
       .tags = kEdge,
       .dtype = DType::f32,
       .batch = 2,
       .seq_len = 70,
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .key_dim = 24,
       .value_dim = 40,
       .g_gamma = true,
       .gk = true,
       .initial_state = true,
       .params = {.reverse = true},
       .random_layouts = true},
      {.name = "gk_resets",
       .tags = kEdge,
       .seq_len = 100,
       .num_q_heads = 2,
       .key_dim = 32,
       .value_dim = 32,
       .gk = true,
       .decays = Decays::resets,
       .initial_state = true,
       .params = {.state_dtype = DType::bf16}},
      {.name = "no_tokens", .tags = kEdge, .batch = 2, .seq_len = 0, .gk = true, .initial_state = true},
      {.name = "rows_of_nobody", .tags = kEdge, .packed = true, .lengths = {0, 5}, .unowned_rows = 3, .gk = true},
  };
  for (size_t n = 0; n < cases.size(); ++n) cases[n].seed = n + 1;
  return cases;
}

Problem make_gla_backward_problem(const RecurrenceCase& c) {
  return narrowed(make_recurrence_backward_problem(c), declaration<GlaAttentionBackward>(), ParamsBlock::of(c.params));
}

Answer forward_answer(const Problem& problem, double budget) {
  return recurrence_answer(recurrent_inputs(to_struct<GlaAttention::Inputs>(problem.views())),
                           problem.params.as<GlaAttention::Params>(), budget, problem.seed);
}

Answer backward_answer(const Problem& problem, double budget) {
  const auto in = to_struct<GlaAttentionBackward::Inputs>(problem.views());
  return narrowed(recurrence_backward_answer({recurrent_inputs(in), in.d_out, in.d_final_state},
                                             problem.params.as<GlaAttention::Params>(), budget, problem.seed),
                  declaration<GlaAttentionBackward>());
}

template <Problem (*kMake)(const RecurrenceCase&)>
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const RecurrenceCase& c : gla_cases())
    cases.push_back({.name = c.name, .tags = c.tags, .make = [=] { return kMake(c); }});
  return cases;
}

template <Problem (*kMake)(const RecurrenceCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_gla_case(request));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

Problem make_gla_problem(const RecurrenceCase& description) {
  return narrowed(make_recurrence_problem(description), declaration<GlaAttention>(),
                  ParamsBlock::of(description.params));
}

/// Small ones where recurrent_attention's are as large as they get.
RecurrenceCase random_gla_case(const RandomRequest& request) {
  RandomRequest smaller = request;
  if (request.size == Size::normal) smaller.size = Size::small;
  RecurrenceCase c = random_recurrence_case(smaller);
  c.gk = c.gk || c.g, c.g_gamma = c.g_gamma || c.gv;
  c.g = c.gv = false;
  return c;
}

const TestOperation& gla_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<GlaAttention>()};
    t.cases = cases<make_gla_problem>();
    t.random = random_problem<make_gla_problem>;
    t.oracle = forward_answer;
    t.relations = gla_relations();
    return t;
  }();
  return tests;
}

const TestOperation& gla_attention_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<GlaAttentionBackward>()};
    t.cases = cases<make_gla_backward_problem>();
    t.random = random_problem<make_gla_backward_problem>;
    t.oracle = backward_answer;
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
