// What must hold between the two results of attention, and between two of its calls.
#include <algorithm>
#include <cmath>

#include "ejkernel/ops/attention/attention_cases.h"

namespace ejk::testing {
namespace {

AttentionCase draw(uint64_t seed, Size size) {
  AttentionCase c = random_weights_case({.seed = seed, .size = size});
  c.data = Data::normal, c.poison = false, c.params.out_dtype.reset();
  return c;
}

/// Rounding of float32 sums and of what is stored.
double allowed(const Tensor& t) { return 4 * unit_roundoff(t.dtype) + 1e-5; }

std::string out_is_weights_times_values(uint64_t seed, Size size, const KernelRunner& run) {
  const AttentionCase c = draw(seed, size);
  const Problem problem = make_weights_problem(c);
  const std::vector<Array> results = run(problem);
  const Tensor value = problem.view("value");
  const Array product(DType::f64, results[0].shape());
  const int64_t dims = value.shape[3], group = c.num_q_heads / c.num_kv_heads;
  double largest = 0;
  for (int64_t n = 0; n < product.num_elements(); ++n) {
    const int64_t d = n % dims, h = n / dims % c.num_q_heads, i = n / dims / c.num_q_heads % c.q_len;
    const int64_t b = n / dims / c.num_q_heads / c.q_len, row = (b * c.num_q_heads + h) * c.q_len + i;
    double sum = 0, size_of_terms = 0;
    for (int64_t j = 0; j < c.kv_len; ++j) {
      const double weight = get(results[1], row * c.kv_len + j);
      const double term = weight * get(value, ((b * c.kv_len + j) * c.num_kv_heads + h / group) * dims + d);
      sum += term, size_of_terms += std::abs(term);
    }
    set(product, n, sum);
    largest = std::max(largest, size_of_terms);
  }
  return compare(results[0], product, allowed(results[0]), largest);
}

std::string rows_sum_to_one(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.num_sinks = 0, c.params.dropout_prob = 0;
  const Array weights = run(make_weights_problem(c))[1];
  for (int64_t row = 0; row < weights.num_elements() / std::max<int64_t>(c.kv_len, 1); ++row) {
    double sum = 0;
    for (int64_t j = 0; j < c.kv_len; ++j) sum += get(weights, row * c.kv_len + j);
    if (sum != 0 && std::abs(sum - 1) > allowed(weights))
      return "row " + std::to_string(row) + ": " + std::to_string(sum);
  }
  return {};
}

std::string causal_is_an_explicit_mask(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.params.causal = true, c.params.sliding_window = {}, c.params.attention_sink_size = 0;
  c.params.causal_align = CausalAlign::bottom_right;
  c.seqused_k = false, c.mask = {}, c.random_layouts = false;
  const std::vector<Array> causal = run(make_weights_problem(c));
  c.params.causal = false;
  Problem masked = make_weights_problem(c);
  fill(masked.add("attention_mask", DType::boolean, {1, 1, c.q_len, c.kv_len}),
       [&](int64_t n) { return n % c.kv_len <= n / c.kv_len + c.kv_len - c.q_len; });
  const std::vector<Array> explicitly = run(masked);
  for (size_t o = 0; o < causal.size(); ++o)
    if (std::string wrong = compare(causal[o], explicitly[o], allowed(causal[o])); !wrong.empty()) return wrong;
  return {};
}

}  // namespace

std::vector<Relation> weights_relations() {
  return {{"out_is_weights_times_values", out_is_weights_times_values},
          {"weights_sum_to_one", rows_sum_to_one},
          {"causal_is_an_explicit_mask", causal_is_an_explicit_mask}};
}

}  // namespace ejk::testing
