// rnn and its gradient, as the harness sees them: answers from the words of operations §12, not from kernels.
//
// S of a state is what the rounding of its own step may amount to: of each gate the square root of the sum of its
// squared terms times the slope with which the gate reaches the state. S of a gradient is the square root of the sum of
// its squared terms.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "ejkernel/ops/rnn/rnn_cases.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

/// A call as numbers, row-major; what is absent is zeros.
struct Numbers {
  Rnn::Params params;
  int64_t batch, seq_len, input_size, hidden_size, directions, gates;
  std::vector<double> input, hidden, cell, weight_ih, weight_ih_upper, weight_hh, bias_ih, bias_hh;
  std::vector<double> d_out, d_final_hidden, d_final_cell;
  RnnLengths lengths;

  explicit Numbers(const Problem& problem) : params(problem.params.as<Rnn::Params>()) {
    const Tensor x = problem.view("input"), w = problem.view("weight_hh");
    batch = x.shape[0], seq_len = x.shape[1], input_size = x.shape[2], hidden_size = w.shape[2];
    directions = params.bidirectional ? 2 : 1, gates = num_gates(params.cell_type);
    const int64_t states = num_states() * batch * hidden_size, biases = num_states() * gates * hidden_size;
    input = numbers(problem, "input", 0), weight_ih = numbers(problem, "weight_ih", 0);
    weight_ih_upper = numbers(problem, "weight_ih_upper", 0), weight_hh = numbers(problem, "weight_hh", 0);
    hidden = numbers(problem, "hidden", states), cell = numbers(problem, "cell", states);
    bias_ih = numbers(problem, "bias_ih", biases), bias_hh = numbers(problem, "bias_hh", biases);
    d_out = numbers(problem, "d_out", batch * seq_len * directions * hidden_size);
    d_final_hidden = numbers(problem, "d_final_hidden", states);
    d_final_cell = numbers(problem, "d_final_cell", states);
    lengths = rnn_lengths_of(problem.view("lengths"), batch, seq_len);
  }

  /// Numbers that keep_gates keeps per unit and step.
  int64_t slots() const { return params.cell_type == CellType::gru ? 4 : gates; }
  int64_t num_states() const { return params.num_layers * directions; }
  int64_t inputs_of(int64_t layer) const { return layer == 0 ? input_size : directions * hidden_size; }
  /// Row `row` of a state's W_ih.
  const double* input_weights(int64_t state, int64_t row) const {
    if (state < directions) return weight_ih.data() + (state * gates * hidden_size + row) * input_size;
    return weight_ih_upper.data() + ((state - directions) * gates * hidden_size + row) * directions * hidden_size;
  }
  const double* state_weights(int64_t state, int64_t row) const {
    return weight_hh.data() + (state * gates * hidden_size + row) * hidden_size;
  }

 private:
  static std::vector<double> numbers(const Problem& problem, std::string_view name, int64_t otherwise) {
    for (size_t i = 0; i < problem.operation->inputs.size(); ++i) {
      if (problem.operation->inputs[i].name != name || !problem.inputs[i].view.present()) continue;
      std::vector<double> values;
      for (int64_t n = 0; n < problem.inputs[i].view.num_elements(); ++n)
        values.push_back(get(problem.inputs[i].view, n));
      return values;
    }
    return std::vector<double>(static_cast<size_t>(otherwise));
  }
};

/// The order in which a run visits the terms of a sum: forward, reversed, shuffled.
class Order {
 public:
  Order(int which, uint64_t seed) : which_(which), random_(seed ^ 0x4F52444Eu) {}
  const std::vector<size_t>& of(size_t count) {
    std::vector<size_t>& order = orders_[count];
    if (order.size() == count) return order;
    for (size_t n = 0; n < count; ++n) order.push_back(which_ == 1 ? count - 1 - n : n);
    if (which_ == 2) random_.shuffle(order);
    return order;
  }

 private:
  int which_;
  Random random_;
  std::map<size_t, std::vector<size_t>> orders_;
};

/// Values and their S.
template <class Real>
struct Field {
  std::vector<Real> value;
  std::vector<double> squares;
  explicit Field(size_t count = 0) : value(count), squares(count) {}
  void add(size_t at, Real term) {
    value[at] += term;
    squares[at] += static_cast<double>(term) * static_cast<double>(term);
  }
  void set(size_t at, Real x, double spread) { value[at] = x, squares[at] = spread * spread; }
};

template <class Real>
struct Sum {
  Real value = 0;
  double squares = 0;
  void add(Real term) { value += term, squares += static_cast<double>(term) * static_cast<double>(term); }
};

/// One step of one sequence in one state.
template <class Real>
struct Step {
  int64_t b = 0, t = 0;
  std::vector<Real> x, h, c;              // before it
  std::array<std::vector<Real>, 4> gate;  // i f g o; r z n s_n; h
};

/// The network in one arithmetic and one order of its sums.
template <class Real>
class Network {
 public:
  Network(const Numbers& n, int order)
      : n_(n),
        order_(order, 7),
        out(count(n.d_out)),
        final_hidden(count(n.hidden)),
        final_cell(count(n.cell)),
        gates(size(n.params.keep_gates ? n.num_states() * n.batch * n.seq_len * n.slots() * n.hidden_size : 0)),
        d_input(count(n.input)),
        d_hidden(count(n.hidden)),
        d_cell(count(n.cell)),
        d_weight_ih(count(n.weight_ih)),
        d_weight_ih_upper(count(n.weight_ih_upper)),
        d_weight_hh(count(n.weight_hh)),
        d_bias_ih(count(n.bias_ih)),
        d_bias_hh(count(n.bias_hh)) {
    steps_.resize(static_cast<size_t>(n.num_states()));
  }

  void forward() {
    Field<Real> below(n_.input.size());
    for (size_t i = 0; i < n_.input.size(); ++i) below.value[i] = static_cast<Real>(n_.input[i]);
    for (int64_t layer = 0; layer < n_.params.num_layers; ++layer) {
      Field<Real> above(out.value.size());
      for (int64_t d = 0; d < n_.directions; ++d)
        for (int64_t b = 0; b < n_.batch; ++b) run_state(layer * n_.directions + d, b, below, above);
      below = std::move(above);
    }
    out = std::move(below);
  }

  void backward() {
    Field<Real> above(n_.d_out.size());
    for (size_t i = 0; i < n_.d_out.size(); ++i) above.value[i] = static_cast<Real>(n_.d_out[i]);
    for (int64_t layer = n_.params.num_layers - 1; layer >= 0; --layer) {
      Field<Real> below(size(n_.batch * n_.seq_len * n_.inputs_of(layer)));
      for (int64_t d = 0; d < n_.directions; ++d) pull_back(layer * n_.directions + d, above, below);
      above = std::move(below);
    }
    d_input = std::move(above);
  }

  double distance_to_kink() const { return distance_; }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  static size_t count(const std::vector<double>& numbers) { return numbers.size(); }
  static Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

  Sum<Real> dot(Real bias, const double* weights, const std::vector<Real>& x) {
    Sum<Real> sum;
    sum.add(bias);
    for (size_t k : order_.of(x.size())) sum.add(static_cast<Real>(weights[k]) * x[k]);
    return sum;
  }

  void run_state(int64_t state, int64_t b, const Field<Real>& below, Field<Real>& above) {
    const int64_t hidden = n_.hidden_size, layer = state / n_.directions, inputs = n_.inputs_of(layer);
    const size_t at = size((state * n_.batch + b) * hidden);
    std::vector<Real> h(size(hidden)), c(size(hidden));
    for (size_t j = 0; j < h.size(); ++j) {
      h[j] = static_cast<Real>(n_.hidden[at + j]), c[j] = static_cast<Real>(n_.cell[at + j]);
      final_hidden.set(at + j, h[j], 0), final_cell.set(at + j, c[j], 0);
    }
    const int64_t length = n_.lengths.steps[size(b)];
    for (int64_t s = 0; s < length; ++s) {
      Step<Real> step = {
          .b = b, .t = state % n_.directions == 0 ? s : length - 1 - s, .x = {}, .h = h, .c = c, .gate = {}};
      const auto x = below.value.begin() + (b * n_.seq_len + step.t) * inputs;
      step.x.assign(x, x + inputs);
      for (auto& gate : step.gate) gate.resize(size(hidden));
      const size_t row = size(((b * n_.seq_len + step.t) * n_.directions + state % n_.directions) * hidden);
      for (size_t j = 0; j < h.size(); ++j) {
        const Unit unit = run_unit(state, j, step);
        keep_gates(state, j, step, unit);
        h[j] = unit.h, c[j] = unit.c;
        above.set(row + j, unit.h, unit.h_spread);
        final_hidden.set(at + j, unit.h, unit.h_spread), final_cell.set(at + j, unit.c, unit.c_spread);
      }
      steps_[size(state)].push_back(std::move(step));
    }
  }

  struct Unit {
    Real h = 0, c = 0;
    double h_spread = 0, c_spread = 0;
    std::array<double, 4> gate_spread = {};
  };

  void keep_gates(int64_t state, size_t j, const Step<Real>& step, const Unit& unit) {
    const size_t hidden = size(n_.hidden_size), slots = size(n_.slots());
    const size_t at = size((state * n_.batch + step.b) * n_.seq_len + step.t) * slots * hidden + j;
    for (size_t g = 0; g < slots && n_.params.keep_gates; ++g)
      gates.set(at + g * hidden, step.gate[g][j], unit.gate_spread[g]);
  }

  Unit run_unit(int64_t state, size_t j, Step<Real>& step) {
    std::array<Sum<Real>, 4> x, s;
    std::array<double, 4> spread = {};
    for (int64_t g = 0; g < n_.gates; ++g) {
      const int64_t row = g * n_.hidden_size + static_cast<int64_t>(j);
      const size_t bias = size(state * n_.gates * n_.hidden_size + row);
      x[size(g)] = dot(static_cast<Real>(n_.bias_ih[bias]), n_.input_weights(state, row), step.x);
      s[size(g)] = dot(static_cast<Real>(n_.bias_hh[bias]), n_.state_weights(state, row), step.h);
      spread[size(g)] = std::sqrt(x[size(g)].squares + s[size(g)].squares);
    }
    const auto gate = [&](size_t g) -> Real& { return step.gate[g][j]; };
    const auto slope_of_sigmoid = [](Real y) { return static_cast<double>(y * (1 - y)); };
    const auto slope_of_tanh = [](Real y) { return static_cast<double>(1 - y * y); };
    if (n_.params.cell_type == CellType::rnn) return run_vanilla(x[0].value + s[0].value, spread[0], gate(0));
    if (n_.params.cell_type == CellType::gru) {
      const Real r = gate(0) = sigmoid(x[0].value + s[0].value), z = gate(1) = sigmoid(x[1].value + s[1].value);
      gate(3) = s[2].value;
      const Real n = gate(2) = std::tanh(x[2].value + r * s[2].value), h = step.h[j];
      const double n_spread =
          slope_of_tanh(n) * std::sqrt(square(spread[2]) + square(slope_of_sigmoid(r) * s[2].value * spread[0]));
      const double z_spread = std::abs(static_cast<double>(h - n)) * slope_of_sigmoid(z) * spread[1];
      const double squares =
          square((1 - z) * n) + square(z * h) + square(z_spread) + square(static_cast<double>(1 - z) * n_spread);
      return {(1 - z) * n + z * h,
              0,
              std::sqrt(squares),
              0,
              {slope_of_sigmoid(r) * spread[0], slope_of_sigmoid(z) * spread[1], n_spread, std::sqrt(s[2].squares)}};
    }
    const Real i = gate(0) = sigmoid(x[0].value + s[0].value), f = gate(1) = sigmoid(x[1].value + s[1].value);
    const Real g = gate(2) = std::tanh(x[2].value + s[2].value), o = gate(3) = sigmoid(x[3].value + s[3].value);
    const Real c = f * step.c[j] + i * g, tangent = std::tanh(c);
    const double c_spread =
        std::sqrt(square(f * step.c[j]) + square(i * g) + square(slope_of_sigmoid(i) * g * spread[0]) +
                  square(slope_of_sigmoid(f) * step.c[j] * spread[1]) + square(slope_of_tanh(g) * i * spread[2]));
    return {o * tangent,
            c,
            std::sqrt(square(static_cast<double>(o) * slope_of_tanh(tangent) * c_spread) +
                      square(static_cast<double>(tangent) * slope_of_sigmoid(o) * spread[3])),
            c_spread,
            {slope_of_sigmoid(i) * spread[0], slope_of_sigmoid(f) * spread[1], slope_of_tanh(g) * spread[2],
             slope_of_sigmoid(o) * spread[3]}};
  }

  template <class Number>
  static double square(Number x) {
    return static_cast<double>(x * x);
  }

  Unit run_vanilla(Real sum, double spread, Real& gate) {
    double slope_there = 1;
    switch (n_.params.activation) {
      case CellActivation::tanh:
        gate = std::tanh(sum);
        slope_there = static_cast<double>(1 - gate * gate);
        break;
      case CellActivation::relu:
        gate = std::max(sum, Real{0});
        if (spread > 0) distance_ = std::min(distance_, std::abs(static_cast<double>(sum)) / spread);
        break;
      case CellActivation::sigmoid:
        gate = sigmoid(sum);
        slope_there = static_cast<double>(gate * (1 - gate));
        break;
      default:
        gate = sum;
    }
    return {gate, 0, slope_there * spread, 0, {slope_there * spread}};
  }

  Real slope(Real y) const {
    switch (n_.params.activation) {
      case CellActivation::tanh:
        return 1 - y * y;
      case CellActivation::relu:
        return y > 0 ? 1 : 0;
      case CellActivation::sigmoid:
        return y * (1 - y);
      default:
        return 1;
    }
  }

  // ---- backward ----

  /// The cotangents of a step's sums.
  struct Gates {
    std::vector<Real> x, s;
  };

  void pull_back(int64_t state, const Field<Real>& above, Field<Real>& below) {
    const size_t hidden = size(n_.hidden_size);
    const std::vector<Step<Real>>& steps = steps_[size(state)];
    std::vector<Gates> gates(steps.size());
    size_t past = 0;
    for (int64_t b = 0; b < n_.batch; ++b) {
      const size_t at = size(state * n_.batch + b) * hidden, begin = past;
      Field<Real> d_h(hidden);
      std::vector<Real> d_c(hidden);
      for (size_t j = 0; j < hidden; ++j) {
        d_h.set(j, static_cast<Real>(n_.d_final_hidden[at + j]), n_.d_final_hidden[at + j]);
        d_c[j] = static_cast<Real>(n_.d_final_cell[at + j]);
      }
      past += size(n_.lengths.steps[size(b)]);
      for (size_t k = past; k-- > begin;) {
        const size_t row = size((b * n_.seq_len + steps[k].t) * n_.directions + state % n_.directions) * hidden;
        for (size_t j = 0; j < hidden; ++j) d_h.add(j, above.value[row + j]);
        gates[k] = pull_back_step(state, steps[k], d_h, d_c, below);
      }
      for (size_t j = 0; j < hidden; ++j) {
        d_hidden.set(at + j, d_h.value[j], std::sqrt(d_h.squares[j]));
        d_cell.set(at + j, d_c[j], std::abs(static_cast<double>(d_c[j])));
      }
    }
    for (size_t k : order_.of(steps.size())) add_weights(state, steps[k], gates[k]);
  }

  Gates pull_back_step(int64_t state, const Step<Real>& step, Field<Real>& d_h, std::vector<Real>& d_c,
                       Field<Real>& below) {
    const size_t hidden = size(n_.hidden_size), rows = size(n_.gates) * hidden;
    const int64_t inputs = n_.inputs_of(state / n_.directions);
    Gates d = {std::vector<Real>(rows), std::vector<Real>(rows)};
    Field<Real> before(hidden);
    for (size_t j = 0; j < hidden; ++j) {
      const auto set = [&](size_t g, Real value, Real of_state) {
        d.x[g * hidden + j] = value, d.s[g * hidden + j] = of_state;
      };
      const auto gate = [&](size_t g) { return step.gate[g][j]; };
      const Real dh = d_h.value[j];
      if (n_.params.cell_type == CellType::rnn) {
        set(0, dh * slope(gate(0)), dh * slope(gate(0)));
      } else if (n_.params.cell_type == CellType::gru) {
        const Real r = gate(0), z = gate(1), n = gate(2);
        const Real dn = dh * (1 - z) * (1 - n * n), dz = dh * (step.h[j] - n) * z * (1 - z);
        const Real dr = dn * gate(3) * r * (1 - r);
        set(0, dr, dr), set(1, dz, dz), set(2, dn, dn * r);
        before.add(j, dh * z);
      } else {
        const Real i = gate(0), f = gate(1), g = gate(2), o = gate(3);
        const Real tangent = std::tanh(f * step.c[j] + i * g), dc = d_c[j] + dh * o * (1 - tangent * tangent);
        const std::array<Real, 4> all = {dc * g * i * (1 - i), dc * step.c[j] * f * (1 - f), dc * i * (1 - g * g),
                                         dh * tangent * o * (1 - o)};
        for (size_t k = 0; k < 4; ++k) set(k, all[k], all[k]);
        d_c[j] = dc * f;
      }
    }
    const size_t row_of_x = size((step.b * n_.seq_len + step.t) * inputs);
    for (size_t row : order_.of(rows)) {
      const double *w = n_.input_weights(state, static_cast<int64_t>(row)),
                   *u = n_.state_weights(state, static_cast<int64_t>(row));
      for (size_t i = 0; i < size(inputs); ++i) below.add(row_of_x + i, d.x[row] * static_cast<Real>(w[i]));
      for (size_t k = 0; k < hidden; ++k) before.add(k, d.s[row] * static_cast<Real>(u[k]));
    }
    d_h = std::move(before);
    return d;
  }

  void add_weights(int64_t state, const Step<Real>& step, const Gates& d) {
    const size_t hidden = size(n_.hidden_size), rows = d.x.size(), inputs = step.x.size();
    Field<Real>& d_w = state < n_.directions ? d_weight_ih : d_weight_ih_upper;
    const size_t first = size(state < n_.directions ? state : state - n_.directions) * rows;
    for (size_t row = 0; row < rows; ++row) {
      const size_t of_state = size(state) * rows + row;
      d_bias_ih.add(of_state, d.x[row]), d_bias_hh.add(of_state, d.s[row]);
      for (size_t i = 0; i < inputs; ++i) d_w.add((first + row) * inputs + i, d.x[row] * step.x[i]);
      for (size_t k = 0; k < hidden; ++k) d_weight_hh.add(of_state * hidden + k, d.s[row] * step.h[k]);
    }
  }

  const Numbers& n_;
  Order order_;
  std::vector<std::vector<Step<Real>>> steps_;  // per state: all steps of a sequence, then of the next
  double distance_ = std::numeric_limits<double>::infinity();

 public:
  Field<Real> out, final_hidden, final_cell, gates;
  Field<Real> d_input, d_hidden, d_cell, d_weight_ih, d_weight_ih_upper, d_weight_hh, d_bias_ih, d_bias_hh;

  std::vector<const Field<Real>*> results(bool backward) const {
    if (!backward) return {&out, &final_hidden, &final_cell, &gates};
    return {&d_input, &d_hidden, &d_cell, &d_weight_ih, &d_weight_ih_upper, &d_weight_hh, &d_bias_ih, &d_bias_hh};
  }
};

template <class Real>
std::vector<std::vector<double>> values_of_run(const Numbers& numbers, int order, bool backward) {
  Network<Real> network(numbers, order);
  network.forward();
  if (backward) network.backward();
  std::vector<std::vector<double>> values;
  for (const Field<Real>* field : network.results(backward))
    values.emplace_back(field->value.begin(), field->value.end());
  return values;
}

/// Per output whether a call has it.
std::vector<bool> outputs_of(const Problem& problem, bool backward) {
  const bool is_lstm = problem.params.as<Rnn::Params>().cell_type == CellType::lstm;
  if (!backward) return {true, true, is_lstm, problem.params.as<Rnn::Params>().keep_gates};
  std::vector<bool> present;
  for (const TensorField& field : problem.operation->outputs) present.push_back(problem.view(field.name).present());
  return present;
}

/// The exact answer in the arithmetic `Exact`; what honest rounding costs by runs in `Real`, which has fewer digits.
template <class Exact, class Real>
Answer answer_in(const Problem& problem, bool backward) {
  const Numbers numbers(problem);
  const DType dtype = problem.view("input").dtype;
  Network<Exact> exact(numbers, 0);
  exact.forward();
  if (backward) exact.backward();
  std::vector<std::vector<std::vector<double>>> runs;
  for (const int order : {0, 1, 2}) runs.push_back(values_of_run<Real>(numbers, order, backward));

  Answer answer = {.status = numbers.lengths.status};
  const std::vector<bool> present = outputs_of(problem, backward);
  const auto results = exact.results(backward);
  for (size_t o = 0; o < results.size(); ++o) {
    Expected expected;
    if (present[o]) {
      // Kept gates are float32 at least, and so is all that they are made of.
      const DType rounded = results[o] == &exact.gates && dtype != DType::f64 ? DType::f32 : dtype;
      expected = {.present = true, .tolerance = tolerance_of(rounded)};
      expected.ref.assign(results[o]->value.begin(), results[o]->value.end());
      for (const double squares : results[o]->squares) expected.spread.push_back(std::sqrt(squares));
      for (const auto& run : runs) add_baseline(expected, run[o], rounded);
    }
    answer.outputs.push_back(std::move(expected));
  }
  return answer;
}

/// Of float64 the errors are judged too, and a chain of steps makes some that no order of its sums shows: so the exact
/// answer has more digits than float64 there.
Answer answer_of(const Problem& problem, bool backward) {
  if (problem.view("input").dtype == DType::f64) return answer_in<long double, double>(problem, backward);
  return answer_in<double, float>(problem, backward);
}

Answer forward_answer(const Problem& problem, double) { return answer_of(problem, false); }
Answer backward_answer(const Problem& problem, double) { return answer_of(problem, true); }

/// Cotangents and gates past a length may hold anything.
Problem make_backward_problem(const RnnCase& c) {
  Problem problem = gradient_problem(make_rnn_problem(c), c.seed, c.random_layouts);
  if (c.integers)
    for (const std::string_view name : {"d_out", "d_final_hidden"})
      if (problem.view(name).present())
        fill(problem.view(name), [random = Random(c.seed)](int64_t) mutable { return random.between(-2, 2); });
  const RnnLengths lengths = rnn_lengths_of(problem.view("lengths"), c.batch, c.seq_len);
  for (const std::string_view name : {"d_out", "gates"}) {
    const Tensor t = problem.view(name);
    if (!c.poison || !t.present()) continue;
    const int64_t width = t.shape[-1], rows = t.num_elements() / std::max<int64_t>(width * c.seq_len, 1);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t n = lengths.steps[static_cast<size_t>(row % c.batch)] * width; n < c.seq_len * width; ++n)
        set(t, row * c.seq_len * width + n, std::numeric_limits<double>::quiet_NaN());
  }
  return problem;
}

// ---- exact mode ----

/// Identity cells of small integers over a few steps: every sum is exact in float32.
RnnCase exact_case(uint64_t seed) {
  Random random(seed);
  RnnCase c = {.dtype = DType::f32,
               .cell_type = CellType::rnn,
               .activation = CellActivation::identity,
               .bidirectional = random.chance(0.5),
               .num_layers = random.between(1, 2),
               .batch = random.between(1, 20),
               .seq_len = random.between(1, 3),
               .input_size = random.between(1, 12),
               .hidden_size = random.between(1, 40),
               .has_lengths = random.chance(0.5),
               .integers = true,
               .random_layouts = random.chance(0.4),
               .seed = seed};
  for (int64_t b = 0; b < c.batch && c.has_lengths; ++b) c.lengths.push_back(random.between(0, c.seq_len));
  return c;
}

ExactProblem exact(Problem problem, Answer answer) {
  for (Expected& output : answer.outputs) output.exact = output.present;
  problem.replay = "--exact --seed=" + std::to_string(problem.seed);
  return {std::move(problem), std::move(answer)};
}

// ---- what the harness gets ----

std::vector<Case> cases_of(Problem (*make)(const RnnCase&)) {
  std::vector<Case> cases;
  for (const RnnCase& c : rnn_cases())
    cases.push_back({.name = c.name, .tags = c.tags, .make = [=] {
                       Problem problem = make(c);
                       problem.replay = "--case=" + c.name;
                       return problem;
                     }});
  return cases;
}

template <Problem (*kMake)(const RnnCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_rnn_case(request));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

double distance_to_kink(const Problem& forward) {
  const auto params = forward.params.as<Rnn::Params>();
  if (params.cell_type != CellType::rnn || params.activation != CellActivation::relu)
    return std::numeric_limits<double>::infinity();
  const Numbers numbers(forward);
  Network<double> network(numbers, 0);
  network.forward();
  return network.distance_to_kink();
}

const TestOperation& rnn_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<Rnn>()};
    t.cases = cases_of(make_rnn_problem);
    t.random = random_problem<make_rnn_problem>;
    t.oracle = forward_answer;
    t.exact = [](uint64_t seed) {
      Problem problem = make_rnn_problem(exact_case(seed));
      Answer answer = answer_of(problem, false);
      return exact(std::move(problem), std::move(answer));
    };
    t.relations = rnn_relations();
    return t;
  }();
  return tests;
}

const TestOperation& rnn_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<RnnBackward>()};
    t.cases = cases_of(make_backward_problem);
    t.random = random_problem<make_backward_problem>;
    t.oracle = backward_answer;
    t.exact = [](uint64_t seed) {
      Problem problem = make_backward_problem(exact_case(seed));
      Answer answer = answer_of(problem, true);
      return exact(std::move(problem), std::move(answer));
    };
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
