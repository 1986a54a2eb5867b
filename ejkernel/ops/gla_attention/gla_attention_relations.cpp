// What must hold between calls of gla_attention and of recurrent_attention.
#include "ejkernel/ops/gla_attention/gla_attention_cases.h"

namespace ejk::testing {
namespace {

std::string is_recurrent_attention(uint64_t seed, Size size, const KernelRunner& run) {
  const RecurrenceCase c = random_gla_case({.seed = seed, .size = size});
  const std::vector<Array> got = run(make_gla_problem(c));
  const std::vector<Array> expected = runner_of_recurrence(run)(make_recurrence_problem(c));
  const std::string wrong = compare_bits(got[0], expected[0]);
  return wrong.empty() ? compare_bits(got[1], expected[1]) : wrong;
}

std::string g_gamma_is_the_same_gk_everywhere(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = random_gla_case({.seed = seed, .size = size});
  c.dtype = DType::f32, c.gate_dtype = c.initial_dtype = c.params.state_dtype = {};
  c.g_gamma = true, c.gk = false, c.decays = Decays::model;
  const Problem by_head = make_gla_problem(c);
  c.g_gamma = false, c.gk = true, c.random_layouts = false;
  Problem by_key = make_gla_problem(c);
  for (size_t i = 0; i < by_head.inputs.size(); ++i)
    if (const std::string_view name = by_head.operation->inputs[i].name; name != "gk" && name != "g_gamma")
      by_key.inputs[i] = by_head.inputs[i];
  const Tensor g_gamma = by_head.view("g_gamma");
  fill(by_key.view("gk"), [&](int64_t n) { return get(g_gamma, n / c.key_dim % c.num_q_heads); });
  const std::vector<Array> expected = run(by_head), got = run(by_key);
  constexpr double kFewSteps = 100 * 0x1p-24;
  const std::string wrong = compare(got[0], expected[0], kFewSteps);
  return wrong.empty() ? compare(got[1], expected[1], kFewSteps) : wrong;
}

}  // namespace

std::vector<Relation> gla_relations() {
  return {{"recurrent_attention_with_its_gates_is_the_same", is_recurrent_attention},
          {"g_gamma_is_the_same_gk_everywhere", g_gamma_is_the_same_gk_everywhere}};
}

}  // namespace ejk::testing
