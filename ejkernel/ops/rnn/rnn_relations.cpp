// What must hold between two calls of rnn, whatever the answer is. In float32: states that one call hands to another
// are rounded to the input's dtype on the way.
#include <algorithm>

#include "ejkernel/ops/rnn/rnn_cases.h"

namespace ejk::testing {
namespace {

constexpr double kClose = 256 * 0x1p-24;  // sums in other orders, over the steps of a sequence

RnnCase draw(uint64_t seed, Size size) {
  RnnCase c = random_rnn_case({.seed = seed, .size = size, .dtype = DType::f32});
  c.batch = std::max<int64_t>(c.batch, 1);
  c.seq_len = std::max<int64_t>(c.seq_len, 1);
  c.flat_states = false;
  if (static_cast<int64_t>(c.lengths.size()) != c.batch) c.has_lengths = false, c.lengths.clear();
  for (int64_t& length : c.lengths) length = std::min(length, c.seq_len);
  return c;
}
RnnCase without_lengths(RnnCase c) {
  c.has_lengths = false, c.lengths.clear();
  return c;
}

Rnn::Params params_of(const Problem& problem) { return problem.params.as<Rnn::Params>(); }

/// [begin, begin + count) along an axis.
Tensor slice(const Tensor& t, int axis, int64_t begin, int64_t count) {
  Tensor part = t;
  if (!t.present()) return part;
  part.shape[axis] = count;
  if (count > 0) part.data = t.as<std::byte>() + begin * t.strides[axis] * bits(t.dtype) / 8;
  return part;
}

/// The same call with some inputs replaced by copies of views; an absent one is left out.
Problem with(const Problem& problem, const std::vector<std::pair<std::string_view, Tensor>>& replaced,
             const Rnn::Params& params) {
  Problem other = Problem::of(*problem.operation);
  other.seed = problem.seed, other.params = ParamsBlock::of(params);
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    const std::string_view name = problem.operation->inputs[i].name;
    Tensor from = problem.inputs[i].view;
    for (const auto& [which, tensor] : replaced)
      if (which == name) from = tensor;
    if (from.present()) fill(other.add(name, from.dtype, from.shape), [&](int64_t n) { return get(from, n); });
  }
  return other;
}
Problem with(const Problem& problem, const std::vector<std::pair<std::string_view, Tensor>>& replaced) {
  return with(problem, replaced, params_of(problem));
}

/// The first of several comparisons that fails.
std::string first_of(std::initializer_list<std::string> wrongs) {
  for (const std::string& wrong : wrongs)
    if (!wrong.empty()) return wrong;
  return {};
}
std::string compare_if_present(const Tensor& a, const Tensor& b) {
  return a.present() || b.present() ? compare(a, b, kClose, 1e-3) : std::string();
}

std::string halves_with_carried_state(uint64_t seed, Size size, const KernelRunner& run) {
  RnnCase c = without_lengths(draw(seed, size));
  c.bidirectional = false;
  const Problem whole = make_rnn_problem(c);
  const int64_t cut = static_cast<int64_t>(seed % static_cast<uint64_t>(c.seq_len + 1));
  const Tensor input = whole.view("input");
  const std::vector<Array> all = run(whole), first = run(with(whole, {{"input", slice(input, 1, 0, cut)}}));
  const Tensor cell = first[2].present() ? Tensor(first[2]) : Tensor();
  const std::vector<Array> second =
      run(with(whole, {{"input", slice(input, 1, cut, c.seq_len - cut)}, {"hidden", first[1]}, {"cell", cell}}));
  return first_of({compare(first[0], slice(all[0], 1, 0, cut), kClose, 1e-3),
                   compare(second[0], slice(all[0], 1, cut, c.seq_len - cut), kClose, 1e-3),
                   compare_if_present(second[1], all[1]), compare_if_present(second[2], all[2])});
}

std::string rows_alone(uint64_t seed, Size size, const KernelRunner& run) {
  const RnnCase c = draw(seed, size);
  const Problem together = make_rnn_problem(c);
  const std::vector<Array> all = run(together);
  for (int64_t b = 0; b < std::min<int64_t>(c.batch, 3); ++b) {
    const std::vector<Array> one = run(with(together, {{"input", slice(together.view("input"), 0, b, 1)},
                                                       {"hidden", slice(together.view("hidden"), 1, b, 1)},
                                                       {"cell", slice(together.view("cell"), 1, b, 1)},
                                                       {"lengths", slice(together.view("lengths"), 0, b, 1)}}));
    const std::string wrong = first_of({compare(slice(all[0], 0, b, 1), one[0], kClose, 1e-3),
                                        compare_if_present(slice(all[1], 1, b, 1), one[1]),
                                        compare_if_present(slice(all[2], 1, b, 1), one[2])});
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string truncated_call(uint64_t seed, Size size, const KernelRunner& run) {
  RnnCase c = draw(seed, size);
  const int64_t length = static_cast<int64_t>(seed % static_cast<uint64_t>(c.seq_len + 1));
  c.has_lengths = true, c.lengths.assign(static_cast<size_t>(c.batch), length);
  const Problem padded = make_rnn_problem(c);
  const std::vector<Array> all = run(padded);
  const std::vector<Array> cut =
      run(with(padded, {{"input", slice(padded.view("input"), 1, 0, length)}, {"lengths", Tensor()}}));
  return first_of({compare(slice(all[0], 1, 0, length), cut[0], kClose, 1e-3), compare_if_present(all[1], cut[1]),
                   compare_if_present(all[2], cut[2])});
}

/// t with one axis reversed.
Tensor reversed(const Tensor& t, int axis) {
  Tensor back = slice(t, axis, t.shape[axis] - 1, t.shape[axis]);
  back.strides[axis] = -t.strides[axis];
  return back;
}

std::string backwards_is_forwards_reversed(uint64_t seed, Size size, const KernelRunner& run) {
  RnnCase c = without_lengths(draw(seed, size));
  c.bidirectional = true, c.num_layers = 1;
  const Problem both = make_rnn_problem(c);
  const std::vector<Array> all = run(both);
  Rnn::Params params = params_of(both);
  params.bidirectional = false;
  for (const int64_t d : {0, 1}) {
    std::vector<std::pair<std::string_view, Tensor>> replaced;
    for (const std::string_view name : {"hidden", "cell", "weight_ih", "weight_hh", "bias_ih", "bias_hh"})
      replaced.emplace_back(name, slice(both.view(name), 0, d, 1));
    if (d == 1) replaced.emplace_back("input", reversed(both.view("input"), 1));
    const std::vector<Array> one = run(with(both, replaced, params));
    const Tensor out = d == 1 ? reversed(one[0], 1) : Tensor(one[0]);
    const std::string wrong = first_of({compare(slice(all[0], 2, d * c.hidden_size, c.hidden_size), out, kClose, 1e-3),
                                        compare_if_present(slice(all[1], 0, d, 1), one[1]),
                                        compare_if_present(slice(all[2], 0, d, 1), one[2])});
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string layers_one_by_one(uint64_t seed, Size size, const KernelRunner& run) {
  RnnCase c = draw(seed, size);
  c.num_layers = 2;
  const Problem stack = make_rnn_problem(c);
  const std::vector<Array> all = run(stack);
  Rnn::Params params = params_of(stack);
  params.num_layers = 1;
  const int64_t directions = c.bidirectional ? 2 : 1;
  Array below;
  for (const int64_t layer : {0, 1}) {
    std::vector<std::pair<std::string_view, Tensor>> replaced = {{"weight_ih_upper", Tensor()}};
    for (const std::string_view name : {"hidden", "cell", "weight_hh", "bias_ih", "bias_hh"})
      replaced.emplace_back(name, slice(stack.view(name), 0, layer * directions, directions));
    if (layer == 1) {
      replaced.emplace_back("input", below);
      replaced.emplace_back("weight_ih", stack.view("weight_ih_upper"));
    }
    const std::vector<Array> one = run(with(stack, replaced, params));
    const std::string wrong = first_of({layer == 1 ? compare(all[0], one[0], kClose, 1e-3) : std::string(),
                                        compare_if_present(slice(all[1], 0, layer * directions, directions), one[1]),
                                        compare_if_present(slice(all[2], 0, layer * directions, directions), one[2])});
    if (!wrong.empty()) return wrong;
    below = one[0];
  }
  return {};
}

}  // namespace

std::vector<Relation> rnn_relations() {
  return {{"halves_with_carried_state_are_the_whole", halves_with_carried_state},
          {"batch_rows_do_not_meet", rows_alone},
          {"a_length_is_a_shorter_call", truncated_call},
          {"backwards_is_forwards_reversed", backwards_is_forwards_reversed},
          {"two_layers_are_two_calls", layers_one_by_one}};
}

}  // namespace ejk::testing
