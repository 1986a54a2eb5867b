// What must hold between two calls of recurrent_attention, whatever the answer is.
#include <algorithm>
#include <limits>
#include <map>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"

namespace ejk::testing {
namespace {

/// Sums of the same terms in other orders, and gates of another chunk: some steps of the coarser dtype.
double few_steps(DType query, const Tensor& t) {
  const double roundoff = std::max(unit_roundoff(query), unit_roundoff(t.dtype));
  return (roundoff > 0x1p-20 ? 4 : 100) * roundoff;
}

/// A call's tensors by name, which a relation changes at will.
struct Parts {
  std::map<std::string_view, Array> tensors = {};
  RecurrentAttention::Params params = {};
  uint64_t seed = 0;

  explicit Parts(const RecurrenceCase& c) : params(c.params), seed(c.seed) {
    const Problem problem = make_recurrence_problem(c);
    for (const TensorField& field : problem.operation->inputs)
      if (const Tensor t = problem.view(field.name); t.present()) tensors[field.name] = contiguous(t);
  }
  bool has(std::string_view name) const { return tensors.contains(name); }
  DType dtype() const { return tensors.at("query").dtype(); }

  std::vector<Array> run(const KernelRunner& runner) const {
    Problem problem = Problem::of(declaration<RecurrentAttention>());
    problem.seed = seed;
    problem.params = ParamsBlock::of(params);
    for (const auto& [name, from] : tensors)
      fill(problem.add(name, from.dtype(), from.shape()), [&, &from = from](int64_t n) { return get(from, n); });
    return runner(problem);
  }
};

constexpr std::string_view kOfTokens[] = {"query", "key", "value", "g", "gk", "gv"};

RecurrenceCase draw(uint64_t seed, Size size) {
  RecurrenceCase c = random_recurrence_case({.seed = seed, .size = size});
  c.decays = Decays::model;
  c.params.state_dtype = c.initial_dtype = {};
  c.random_layouts = false;
  return c;
}
RecurrenceCase batched(uint64_t seed, Size size) {
  RecurrenceCase c = draw(seed, size);
  if (c.packed) c.seq_len = c.lengths.empty() ? 7 : c.lengths[0];
  c.packed = false, c.lengths.clear(), c.unowned_rows = 0;
  c.batch = std::max<int64_t>(c.batch, 1), c.seq_len = std::max<int64_t>(c.seq_len, 2);
  return c;
}

/// Elements [begin, begin + count) along an axis.
Array slice(const Tensor& t, int axis, int64_t begin, int64_t count) {
  Tensor part = t;
  part.shape[axis] = count;
  if (count > 0) part.data = t.as<std::byte>() + begin * t.strides[axis] * bits(t.dtype) / 8;
  return contiguous(part);
}

Parts tokens(const Parts& whole, int64_t begin, int64_t count) {
  Parts part = whole;
  for (const std::string_view name : kOfTokens)
    if (whole.has(name)) part.tensors[name] = slice(whole.tensors.at(name), 1, begin, count);
  return part;
}

std::string compare_both(DType query, const std::vector<Array>& a, const std::vector<Array>& b) {
  const std::string wrong = compare(a[0], b[0], few_steps(query, a[0]));
  return wrong.empty() ? compare(a[1], b[1], few_steps(query, a[1])) : wrong;
}

std::string segments_carry_the_state(uint64_t seed, Size size, const KernelRunner& run) {
  const Parts whole(batched(seed, size));
  const std::vector<Array> expected = whole.run(run);
  const int64_t length = whole.tensors.at("query").shape()[1], cut = static_cast<int64_t>(seed) % (length + 1);
  const Parts early = tokens(whole, 0, cut);
  Parts late = tokens(whole, cut, length - cut);
  const bool reverse = whole.params.reverse;
  Parts first = reverse ? late : early, second = reverse ? early : late;
  const std::vector<Array> of_first = first.run(run);
  second.tensors["initial_state"] = of_first[1];
  const std::vector<Array> of_second = second.run(run);
  const double few = few_steps(whole.dtype(), expected[0]);
  const Array &of_early = (reverse ? of_second : of_first)[0], &of_late = (reverse ? of_first : of_second)[0];
  // Each part's error is measured against the whole's largest number.
  const Array joined = expected[0].clone();
  const int64_t per_row = joined.num_elements() / std::max<int64_t>(joined.shape()[0] * length, 1);
  fill(joined, [&](int64_t n) {
    const int64_t b = n / (length * per_row), row = n / per_row % length, rest = n % per_row;
    const bool is_early = row < cut;
    return get(is_early ? of_early : of_late,
               (is_early ? b * cut + row : b * (length - cut) + row - cut) * per_row + rest);
  });
  const std::string wrong = compare(joined, expected[0], few);
  return wrong.empty() ? compare(of_second[1], expected[1], few_steps(whole.dtype(), expected[1])) : wrong;
}

std::string packed_sequences_alone(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = draw(seed, size);
  if (!c.packed) c.lengths = {c.seq_len, c.seq_len / 3, 0, 1};
  c.packed = true;
  const Parts together(c);
  const std::vector<Array> all = together.run(run);
  int64_t begin = c.unowned_rows;
  for (size_t n = 0; n < c.lengths.size(); ++n) {
    Parts alone = together;
    alone.tensors.erase("cu_seqlens");
    for (const std::string_view name : kOfTokens) {
      if (!together.has(name)) continue;
      const Array rows = slice(together.tensors.at(name), 0, begin, c.lengths[n]);
      Shape shape = {1};
      for (const int64_t extent : rows.shape()) shape.push_back(extent);
      alone.tensors[name] = contiguous(Tensor(rows.data(), rows.dtype(), shape));
    }
    const auto sequence = static_cast<int64_t>(n);
    if (together.has("initial_state"))
      alone.tensors["initial_state"] = slice(together.tensors.at("initial_state"), 0, sequence, 1);
    const std::vector<Array> one = alone.run(run);
    const Array out = slice(all[0], 0, begin, c.lengths[n]);
    std::string wrong = compare(out, Tensor(one[0].data(), out.dtype(), out.shape()), few_steps(c.dtype, out));
    if (wrong.empty()) wrong = compare(slice(all[1], 0, sequence, 1), one[1], few_steps(c.dtype, one[1]));
    if (!wrong.empty()) return wrong;
    begin += c.lengths[n];
  }
  return {};
}

/// Along axis 1.
Array flipped(const Tensor& t) {
  Tensor view = t;
  if (t.num_elements() > 0) view.data = t.as<std::byte>() + (t.shape[1] - 1) * t.strides[1] * bits(t.dtype) / 8;
  view.strides[1] = -t.strides[1];
  return contiguous(view);
}

std::string reverse_flips_time(uint64_t seed, Size size, const KernelRunner& run) {
  const Parts there(batched(seed, size));
  Parts back = there;
  back.params.reverse = !there.params.reverse;
  for (const std::string_view name : kOfTokens)
    if (there.has(name)) back.tensors[name] = flipped(there.tensors.at(name));
  const std::vector<Array> expected = there.run(run), got = back.run(run);
  return compare_both(there.dtype(), {flipped(got[0]), got[1]}, expected);
}

std::string a_closed_gate_restarts(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = batched(seed, size);
  c.g = true, c.params.reverse = false;
  Parts whole(c);
  const int64_t at = static_cast<int64_t>(seed) % c.seq_len;
  const Array& g = whole.tensors.at("g");
  const double closed = seed % 2 == 0 ? -1e4 : -std::numeric_limits<double>::infinity();
  fill(g, [&, g = g.clone()](int64_t n) { return n / c.num_q_heads % c.seq_len == at ? closed : get(g, n); });
  Parts rest = tokens(whole, at, c.seq_len - at);
  rest.tensors.erase("initial_state");
  const std::vector<Array> expected = rest.run(run), got = whole.run(run);
  return compare_both(c.dtype, {slice(got[0], 1, at, c.seq_len - at), got[1]}, expected);
}

std::string linear_in_value_and_state(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = batched(seed, size);
  c.dtype = DType::f32, c.gate_dtype = {}, c.initial_state = true;
  const Parts one(c);
  Parts other = one, sum = one;
  Random random(seed);
  for (const char* name : {"value", "initial_state"}) {
    other.tensors[name] = one.tensors.at(name).clone(), sum.tensors[name] = one.tensors.at(name).clone();
    fill_normal(other.tensors[name], random);
    fill(sum.tensors[name],
         [&](int64_t n) { return get(one.tensors.at(name), n) + 2 * get(other.tensors.at(name), n); });
  }
  const std::vector<Array> a = one.run(run), b = other.run(run), together = sum.run(run);
  for (size_t o = 0; o < 2; ++o) {
    const Array expected = a[o].clone();
    fill(expected, [&](int64_t n) { return get(a[o], n) + 2 * get(b[o], n); });
    if (std::string wrong = compare(together[o], expected, few_steps(c.dtype, expected)); !wrong.empty()) return wrong;
  }
  return {};
}

std::string gates_of_zero_are_none(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = draw(seed, size);
  c.decays = Decays::zeros, c.gk = true, c.gv = seed % 2 == 0;
  const Parts zeros(c);
  Parts none = zeros;
  for (const char* name : {"g", "g_gamma", "gk", "gv"}) none.tensors.erase(name);
  return compare_both(c.dtype, zeros.run(run), none.run(run));
}

std::string a_scalar_gate_is_a_broadcast_one(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = draw(seed, size);
  c.g = true, c.gk = c.gv = false;
  const Parts scalar(c);
  const std::vector<Array> expected = scalar.run(run);
  for (const auto& [name, dim] : {std::pair{"gk", c.key_dim}, {"gv", c.value_dim}}) {
    Parts vector = scalar;
    const Array g = scalar.tensors.at("g");
    vector.tensors.erase("g");
    Shape shape = g.shape();
    shape.push_back(dim);
    vector.tensors[name] = Array(g.dtype(), shape);
    fill(vector.tensors[name], [&, dim = dim](int64_t n) { return get(g, n / dim); });
    if (std::string wrong = compare_both(c.dtype, vector.run(run), expected); !wrong.empty()) return wrong;
  }
  return {};
}

std::string batch_entries_alone(uint64_t seed, Size size, const KernelRunner& run) {
  const RecurrenceCase c = batched(seed, size);
  const Parts together(c);
  const std::vector<Array> all = together.run(run);
  for (int64_t b = 0; b < c.batch; ++b) {
    Parts alone = together;
    for (auto& [name, t] : alone.tensors)
      if (name != "g_gamma") t = slice(t, 0, b, 1);
    const std::vector<Array> expected = alone.run(run);
    const std::string wrong = compare_both(c.dtype, {slice(all[0], 0, b, 1), slice(all[1], 0, b, 1)}, expected);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string shared_kv_heads_are_repeated_ones(uint64_t seed, Size size, const KernelRunner& run) {
  RecurrenceCase c = draw(seed, size);
  c.num_q_heads = 3 * c.num_kv_heads;
  const Parts shared(c);
  Parts repeated = shared;
  for (const char* name : {"key", "value"}) {
    const Array t = shared.tensors.at(name);
    Shape shape = t.shape();
    shape[-2] = c.num_q_heads;
    const int64_t dim = shape[-1];
    repeated.tensors[name] = Array(t.dtype(), shape);
    fill(repeated.tensors[name], [&](int64_t n) {
      const int64_t h = n / dim % c.num_q_heads, row = n / dim / c.num_q_heads;
      return get(t, (row * c.num_kv_heads + h / 3) * dim + n % dim);
    });
  }
  return compare_both(c.dtype, shared.run(run), repeated.run(run));
}

}  // namespace

std::vector<Relation> recurrence_relations() {
  return {{"segments_that_carry_the_state_are_the_whole", segments_carry_the_state},
          {"packed_is_each_sequence_alone", packed_sequences_alone},
          {"reverse_is_a_flip_of_time", reverse_flips_time},
          {"a_closed_gate_is_a_restart", a_closed_gate_restarts},
          {"linear_in_value_and_initial_state", linear_in_value_and_state},
          {"gates_of_zero_are_no_gates", gates_of_zero_are_none},
          {"a_scalar_gate_is_a_broadcast_one", a_scalar_gate_is_a_broadcast_one},
          {"batch_entries_do_not_meet", batch_entries_alone},
          {"shared_kv_heads_are_repeated_ones", shared_kv_heads_are_repeated_ones}};
}

}  // namespace ejk::testing
