// lightning_attention and its gradient, as the harness sees them: recurrent_attention's problems, and its answers with
// the decays of the layer. Lengths and head sizes around the ends of chunks are its own to meet.
#include "ejkernel/ops/lightning_attention/lightning_attention_cases.h"

namespace ejk::testing {
namespace {

std::vector<LightningCase> lightning_cases() {
  const RecurrenceCase minimax = {
      .tags = kPrimary, .num_q_heads = 64, .num_kv_heads = 64, .key_dim = 128, .value_dim = 128};
  std::vector<LightningCase> cases = {{minimax, 3, 80}, {minimax, 78, 80}};
  cases[0].base.name = "minimax_01_decode", cases[0].base.initial_state = true;
  cases[1].base.name = "minimax_01_prefill", cases[1].base.seq_len = 64;

  const RecurrenceCase edge = {.tags = kEdge,
                               .dtype = DType::f32,
                               .seq_len = 90,
                               .num_q_heads = 6,
                               .num_kv_heads = 2,
                               .key_dim = 24,
                               .value_dim = 40};
  const auto add = [&](const char* name, int64_t layer_idx, int64_t num_layers, auto change) {
    cases.push_back({edge, layer_idx, num_layers});
    cases.back().base.name = name;
    change(cases.back().base);
  };
  add("first_layer", 0, 12, [](RecurrenceCase&) {});
  add("last_layer", 11, 12, [](RecurrenceCase& c) { c.initial_state = true; });
  add("one_layer_of_one", 0, 1, [](RecurrenceCase& c) { c.params.reverse = true; });
  add("last_of_many_layers", 999'999, 1'000'000, [](RecurrenceCase& c) { c.random_layouts = true; });
  add("one_head", 2, 4, [](RecurrenceCase& c) { c.num_q_heads = c.num_kv_heads = 1; });
  add("no_tokens", 2, 4, [](RecurrenceCase& c) { c.seq_len = 0, c.initial_state = true; });
  add("packed_with_rows_of_nobody", 1, 4, [](RecurrenceCase& c) {
    c.packed = true, c.lengths = {7, 0, 33}, c.unowned_rows = 2, c.params.state_dtype = DType::bf16;
  });
  for (size_t n = 0; n < cases.size(); ++n) cases[n].base.seed = n + 1;
  return cases;
}

Problem make_lightning_backward_problem(const LightningCase& c) {
  return narrowed(make_recurrence_backward_problem(c.base), declaration<LightningAttentionBackward>(),
                  ParamsBlock::of(c.params()));
}

RecurrentAttention::Params recurrent_params_of(const LightningAttention::Params& params) {
  return {.softmax_scale = params.softmax_scale, .reverse = params.reverse, .state_dtype = params.state_dtype};
}

RecurrentAttention::Inputs recurrent_inputs_of(const LightningAttention::Inputs& in, const Array& g_gamma) {
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .g_gamma = g_gamma,
          .initial_state = in.initial_state,
          .cu_seqlens = in.cu_seqlens};
}

Array decays_of(const Tensor& query, const LightningAttention::Params& params) {
  return lightning_decays(query.dtype, query.shape[-2], params);
}

Answer forward_answer(const Problem& problem, double budget) {
  const auto in = to_struct<LightningAttention::Inputs>(problem.views());
  const auto params = problem.params.as<LightningAttention::Params>();
  const Array g_gamma = decays_of(in.query, params);
  return recurrence_answer(recurrent_inputs_of(in, g_gamma), recurrent_params_of(params), budget, problem.seed);
}

Answer backward_answer(const Problem& problem, double budget) {
  const auto in = to_struct<LightningAttentionBackward::Inputs>(problem.views());
  const auto params = problem.params.as<LightningAttention::Params>();
  const Array g_gamma = decays_of(in.query, params);
  return narrowed(recurrence_backward_answer({recurrent_inputs_of(in, g_gamma), in.d_out, in.d_final_state},
                                             recurrent_params_of(params), budget, problem.seed),
                  declaration<LightningAttentionBackward>());
}

template <Problem (*kMake)(const LightningCase&)>
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const LightningCase& c : lightning_cases())
    cases.push_back({.name = c.base.name, .tags = c.base.tags, .make = [=] { return kMake(c); }});
  return cases;
}

template <Problem (*kMake)(const LightningCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_lightning_case(request));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

LightningAttention::Params LightningCase::params() const {
  return {.layer_idx = layer_idx,
          .num_layers = num_layers,
          .softmax_scale = base.params.softmax_scale,
          .reverse = base.params.reverse,
          .state_dtype = base.params.state_dtype};
}

Problem make_lightning_problem(const LightningCase& c) {
  return narrowed(make_recurrence_problem(c.base), declaration<LightningAttention>(), ParamsBlock::of(c.params()));
}

/// Small ones where recurrent_attention's are as large as they get.
LightningCase random_lightning_case(const RandomRequest& request) {
  RandomRequest smaller = request;
  if (request.size == Size::normal) smaller.size = Size::small;
  LightningCase c = {.base = random_recurrence_case(smaller)};
  c.base.g = c.base.g_gamma = c.base.gk = c.base.gv = false;
  Random random(request.seed ^ 0x4C594552u);
  c.num_layers = random.between(1, 100);
  c.layer_idx = random.between(0, c.num_layers - 1);
  return c;
}

Array lightning_decays(DType query, int64_t num_q_heads, const LightningAttention::Params& params) {
  const Array decays(query == DType::f64 ? DType::f64 : DType::f32, {num_q_heads});
  const double layers = static_cast<double>(*params.num_layers), layer = static_cast<double>(*params.layer_idx);
  fill(decays, [&](int64_t h) {
    return -(8 / static_cast<double>(num_q_heads)) * (1 - layer / layers) * static_cast<double>(h);
  });
  return decays;
}

const TestOperation& lightning_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<LightningAttention>()};
    t.cases = cases<make_lightning_problem>();
    t.random = random_problem<make_lightning_problem>;
    t.oracle = forward_answer;
    t.relations = lightning_relations();
    return t;
  }();
  return tests;
}

const TestOperation& lightning_attention_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<LightningAttentionBackward>()};
    t.cases = cases<make_lightning_backward_problem>();
    t.random = random_problem<make_lightning_backward_problem>;
    t.oracle = backward_answer;
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
