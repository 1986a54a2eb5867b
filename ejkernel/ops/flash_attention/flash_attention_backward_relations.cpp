// What must hold between two calls of flash_attention_backward, whatever the answer is (reliability A6.6, A6.7).
#include <algorithm>
#include <cmath>
#include <tuple>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/flash_attention/move_tensors_relations.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

enum Output : size_t { kQuery, kKey, kValue, kBias, kSinks };

AttentionCase draw(uint64_t seed, Size size) {
  AttentionCase c = draw_batched(seed, size);
  c.random_layouts = false;
  c.params.deterministic = true;  // some relations compare bits
  return c;
}
Problem gradient_of(const AttentionCase& c) { return gradient_problem(make_attention_problem(c), c.seed, false); }

/// Of two ways to the same sums: hundreds of terms' rounding, or the result's own where that is coarser.
double relative_difference(DType dtype) {
  if (dtype == DType::f64) return 1e-4 * 0x1p-29;
  return dtype == DType::f32 ? 1e-4 : 8 * unit_roundoff(dtype);
}

/// The terms that dS is the sum of, times a key or a query: products of d_out and value, and their row's mean.
double size_of_terms(const Problem& p) {
  auto largest = [&](const char* name) {
    double most = 0;
    const Tensor t = p.view(name);
    for (int64_t n = 0; t.present() && n < t.num_elements(); ++n)
      if (const double x = std::abs(get(t, n)); std::isfinite(x)) most = std::max(most, x);
    return most;
  };
  const auto& params = p.params.as<FlashAttention::Params>();
  const Shape q = p.view("query").shape, v = p.view("value").shape;
  const double scale = std::abs(params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(q[3]))));
  const double product = std::sqrt(static_cast<double>(v[3])) * largest("d_out") * largest("value");
  return scale * std::max(largest("query"), largest("key")) * product / (1 - params.dropout_prob);
}

/// Gradients sum over whole rows or columns of the score matrix: their largest element is the scale of the rest. Where
/// their terms cancel (a row of one key has P = 1 and dS = 0) it is not: what remains is the terms' own rounding.
std::string compare_gradients(const Problem& p, const std::vector<Array>& a, const std::vector<Array>& b) {
  const double terms = size_of_terms(p);
  for (size_t o = 0; o < a.size(); ++o) {
    if (!a[o].present() && !b[o].present()) continue;
    // Sinks and a bias may be f64 beside queries that are not: sums are of float32 then (operations §0.12).
    const bool in_double = p.view("query").dtype == DType::f64;
    const double relative = relative_difference(in_double || b[o].dtype() != DType::f64 ? b[o].dtype() : DType::f32);
    const double rounding = 16 * terms * (in_double ? 0x1p-53 : 0x1p-24);
    if (const std::string wrong = compare(a[o], b[o], relative, std::max(0.1, rounding / relative)); !wrong.empty())
      return "gradient " + std::to_string(o) + ": " + wrong;
  }
  return {};
}
std::string compare_gradients_exactly(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t o = 0; o < a.size(); ++o)
    if (const std::string wrong = compare_bits(a[o], b[o]); !wrong.empty())
      return "gradient " + std::to_string(o) + ": " + wrong;
  return {};
}

/// Cotangents in eighths, few enough digits for sums of them to be exact in every dtype.
void fill_eighths(Problem& p, uint64_t seed) {
  Random random(seed);
  for (const char* name : {"d_out", "d_lse"})
    if (const Tensor t = p.view(name); t.present())
      put(p, name, t.dtype, t.shape, [&](const Index&) { return static_cast<double>(random.between(-8, 8)) / 8; });
}

/// vjp(2u - v) = 2 vjp(u) - vjp(v).
std::string linear_in_the_cotangents(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  Problem u = gradient_of(c);
  fill_eighths(u, seed);
  Problem v = u, both = u;
  fill_eighths(v, seed + 1);
  for (const char* name : {"d_out", "d_lse"})
    if (const Tensor t = u.view(name); t.present()) {
      const Tensor other = v.view(name);
      put(both, name, t.dtype, t.shape, [&](const Index& i) { return 2 * at(t, i) - at(other, i); });
    }
  const std::vector<Array> of_u = run(u), of_v = run(v);
  std::vector<Array> sum;
  for (size_t o = 0; o < of_u.size(); ++o) {
    sum.push_back(of_u[o].present() ? of_u[o].clone() : Array());
    if (sum[o].present()) fill(sum[o], [&](int64_t n) { return 2 * get(of_u[o], n) - get(of_v[o], n); });
  }
  return compare_gradients(u, run(both), sum);
}

std::string doubled_cotangents(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  if (c.dtype == DType::f16) c.dtype = DType::bf16;  // the doubles of float16's smallest numbers have more digits
  c.bias_dtype = DType::f32;
  Problem once = gradient_of(c);
  Problem twice = once;
  for (const char* name : {"d_out", "d_lse"})
    if (const Tensor t = once.view(name); t.present())
      put(twice, name, t.dtype, t.shape, [&](const Index& i) { return 2 * at(t, i); });
  std::vector<Array> expected = run(once);
  for (Array& g : expected) {
    const Array from = g;
    if (!from.present()) continue;
    g = from.clone();
    fill(g, [&](int64_t n) { return 2 * get(from, n); });
  }
  return compare_gradients_exactly(run(twice), expected);
}

std::string permuted_batch(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.params.dropout_prob = 0;
  c.bias.batch = true;
  c.num_sinks = 0;  // their sum over the batch may come in another order
  const Problem before = gradient_of(c);
  Problem after = before;
  const std::vector<int64_t> order = permutation(c.batch, seed);
  auto moved = [&](Index i) { return i[0] = order[static_cast<size_t>(i[0])], i; };
  for (const TensorField& field : before.operation->inputs) {
    const Tensor t = before.view(field.name);
    if (t.present() && t.shape[0] == c.batch && field.name != "dropout_seed")
      put(after, field.name, t.dtype, t.shape, [&](const Index& i) { return at(t, moved(i)); });
  }
  std::vector<Array> expected = run(before);
  for (Array& g : expected)
    if (g.present()) g = picked(g, g.shape(), moved);
  return compare_gradients_exactly(run(after), expected);
}

std::string head_major(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem plain = gradient_of(draw(seed, size));
  const Operation& op = *plain.operation;
  const Problem moved = relaid(plain, [&](size_t input) {
    Layout layout;
    const std::string_view name = op.inputs[input].name;
    for (const char* rows : {"query", "key", "value", "out", "d_out"})
      if (name == rows) layout.order = {0, 2, 1, 3};
    return layout;
  });
  return compare_gradients_exactly(run(moved), run(plain));
}

std::string causal_is_a_mask(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.params.causal = true;
  c.params.sliding_window = {};
  c.seqused_k = false;
  const Problem before = gradient_of(c);
  Problem after = before;
  FlashAttention::Params without = c.params;
  without.causal = false;
  after.params = ParamsBlock::of(without);
  const Tensor mask = before.view("attention_mask");
  const int64_t offset = c.params.causal_align == CausalAlign::bottom_right ? c.kv_len - c.q_len : 0;
  put(after, "attention_mask", DType::boolean, {c.batch, c.num_q_heads, c.q_len, c.kv_len},
      [&](const Index& i) { return i[3] <= i[2] + offset && (!mask.present() || at(mask, i) != 0) ? 1.0 : 0.0; });
  return compare_gradients(before, run(after), run(before));
}

std::string wide_window(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.params.sliding_window = {};
  const Problem without = gradient_of(c);
  Problem with = without;
  c.params.sliding_window = Window(c.q_len + c.kv_len, c.q_len + c.kv_len);
  with.params = ParamsBlock::of(c.params);
  return compare_gradients_exactly(run(with), run(without));
}

/// Keys beyond the length in use, full of NaN, change nothing and get nothing.
std::string padded_sequence(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.bias = {}, c.mask = {};
  c.num_segments = 0;
  const Problem before = gradient_of(c);
  const int64_t longer = c.kv_len + 1 + static_cast<int64_t>(seed % 40);
  const Problem after = with_unused_keys(before, longer);
  std::vector<Array> expected = run(before);
  for (size_t o : {kKey, kValue}) {
    const Array short_one = expected[o];
    Shape shape = short_one.shape();
    shape[1] = longer;
    expected[o] = Array(short_one.dtype(), shape);
    const Array& to = expected[o];
    fill(to, [&](int64_t n) {
      const Index i = index_of(to, n);
      return i[1] < c.kv_len ? at(short_one, i) : 0.0;
    });
  }
  return compare_gradients(before, run(after), expected);
}

/// Queries in two parts: their own gradients side by side, those of keys, bias and sinks added.
std::string split_queries(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw(seed, size);
  c.params.dropout_prob = 0;
  c.params.causal = false;
  c.params.sliding_window = {};
  c.num_segments = 0;
  c.bias.rows = false;
  c.q_len = std::max<int64_t>(c.q_len, 2);
  const Problem whole = gradient_of(c);
  const int64_t first = 1 + static_cast<int64_t>(seed % static_cast<uint64_t>(c.q_len - 1));
  std::array<std::vector<Array>, 2> parts;
  for (size_t part = 0; part < 2; ++part) {
    Problem p = whole;
    const int64_t begin = part == 0 ? 0 : first, count = part == 0 ? first : c.q_len - first;
    for (const auto& [name, axis] :
         {std::pair{"query", 1}, {"out", 1}, {"d_out", 1}, {"lse", 2}, {"d_lse", 2}, {"attention_mask", 2}}) {
      const Tensor t = whole.view(name);
      if (!t.present() || t.shape[axis] == 1) continue;
      Shape shape = t.shape;
      shape[axis] = count;
      put(p, name, t.dtype, shape, [&, a = static_cast<size_t>(axis)](Index i) { return i[a] += begin, at(t, i); });
    }
    parts[part] = run(p);
  }
  std::vector<Array> merged;
  for (size_t o = 0; o < parts[0].size(); ++o) {
    merged.push_back(parts[0][o].present() ? parts[0][o].clone() : Array());
    if (!merged[o].present()) continue;
    if (o != kQuery) fill(merged[o], [&](int64_t n) { return get(parts[0][o], n) + get(parts[1][o], n); });
  }
  Array& query = merged[kQuery];
  query = Array(query.dtype(), whole.view("query").shape);
  fill(query, [&](int64_t n) {
    Index i = index_of(query, n);
    if (i[1] < first) return at(parts[0][kQuery], i);
    i[1] -= first;
    return at(parts[1][kQuery], i);
  });
  return compare_gradients(whole, merged, run(whole));
}

/// A kv head's gradients are the sums over the query heads it serves.
std::string repeated_heads(uint64_t seed, Size size, const KernelRunner& run) {
  const AttentionCase c = draw(seed, size);
  const Problem grouped = gradient_of(c);
  Problem repeated = grouped;
  const int64_t group = c.num_q_heads / c.num_kv_heads;
  for (const char* name : {"key", "value"}) {
    const Tensor t = grouped.view(name);
    Shape shape = t.shape;
    shape[2] = c.num_q_heads;
    put(repeated, name, t.dtype, shape, [&](Index i) { return i[2] /= group, at(t, i); });
  }
  std::vector<Array> sums = run(repeated);
  const std::vector<Array> expected = run(grouped);
  for (size_t o : {kKey, kValue}) {
    const Array apart = sums[o];
    sums[o] = Array(apart.dtype(), expected[o].shape());
    const Array& to = sums[o];
    fill(to, [&](int64_t n) {
      Index i = index_of(to, n);
      double sum = 0;
      for (int64_t r = 0; r < group; ++r) sum += at(apart, {i[0], i[1], i[2] * group + r, i[3]});
      return sum;
    });
  }
  return compare_gradients(grouped, sums, expected);
}

}  // namespace

std::vector<Relation> flash_attention_backward_relations() {
  return {
      {"linear in the cotangents", linear_in_the_cotangents},
      {"doubled cotangents double the gradients", doubled_cotangents},
      {"a permuted batch permutes the gradients", permuted_batch},
      {"head-major strides change nothing", head_major},
      {"causal is an explicit mask", causal_is_a_mask},
      {"a window wider than the sequence is none", wide_window},
      {"padding beyond the length in use changes nothing", padded_sequence},
      {"queries in two parts add up", split_queries},
      {"grouped heads add up", repeated_heads},
  };
}

}  // namespace ejk::testing
