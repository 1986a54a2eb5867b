// What must hold between calls of lightning_attention and of recurrent_attention.
#include <algorithm>

#include "ejkernel/ops/lightning_attention/lightning_attention_cases.h"

namespace ejk::testing {
namespace {

std::string is_recurrent_attention(uint64_t seed, Size size, const KernelRunner& run) {
  const LightningCase c = random_lightning_case({.seed = seed, .size = size});
  const std::vector<Array> got = run(make_lightning_problem(c));
  Problem recurrent = make_recurrence_problem(c.base);
  const Array decays = lightning_decays(c.base.dtype, c.base.num_q_heads, c.params());
  fill(recurrent.add("g_gamma", decays.dtype(), decays.shape()), [&](int64_t h) { return get(decays, h); });
  const std::vector<Array> expected = runner_of_recurrence(run)(recurrent);
  const std::string wrong = compare_bits(got[0], expected[0]);
  return wrong.empty() ? compare_bits(got[1], expected[1]) : wrong;
}

std::string one_head_does_not_decay(uint64_t seed, Size size, const KernelRunner& run) {
  LightningCase c = random_lightning_case({.seed = seed, .size = size});
  c.base.num_q_heads = c.base.num_kv_heads = 1;
  const std::vector<Array> got = run(make_lightning_problem(c));
  const std::vector<Array> expected = runner_of_recurrence(run)(make_recurrence_problem(c.base));
  const auto few_steps = [&](const Tensor& t) {
    const double roundoff = std::max(unit_roundoff(c.base.dtype), unit_roundoff(t.dtype));
    return (roundoff > 0x1p-20 ? 4 : 100) * roundoff;
  };
  const std::string wrong = compare(got[0], expected[0], few_steps(got[0]));
  return wrong.empty() ? compare(got[1], expected[1], few_steps(got[1])) : wrong;
}

std::string the_layer_counts_as_a_share(uint64_t seed, Size size, const KernelRunner& run) {
  LightningCase c = random_lightning_case({.seed = seed, .size = size});
  const std::vector<Array> expected = run(make_lightning_problem(c));
  c.layer_idx *= 4, c.num_layers *= 4;
  const std::vector<Array> got = run(make_lightning_problem(c));
  const std::string wrong = compare_bits(got[0], expected[0]);
  return wrong.empty() ? compare_bits(got[1], expected[1]) : wrong;
}

}  // namespace

std::vector<Relation> lightning_relations() {
  return {{"recurrent_attention_with_its_decays_is_the_same", is_recurrent_attention},
          {"one_head_does_not_decay", one_head_does_not_decay},
          {"the_layer_counts_as_a_share", the_layer_counts_as_a_share}};
}

}  // namespace ejk::testing
