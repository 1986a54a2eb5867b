// The formula in double, one sequence after the other, step by step. Any dtype, any strides; the fallback that never
// refuses.
#include <algorithm>
#include <cmath>

#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/rnn/rnn_internal.h"
#include "ejkernel/platform/cpu/layout.h"

namespace ejk {
namespace {

using rnns::Gradients;
using rnns::Problem;
using rnns::View;
using rnns::Weights;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double activate(CellActivation activation, double x) {
  switch (activation) {
    case CellActivation::tanh:
      return std::tanh(x);
    case CellActivation::relu:
      return x < 0 ? 0 : x;  // NaN stays
    case CellActivation::sigmoid:
      return sigmoid(x);
    default:
      return x;
  }
}

/// The slope where the activation has this value.
double slope(CellActivation activation, double value) {
  switch (activation) {
    case CellActivation::tanh:
      return 1 - value * value;
    case CellActivation::relu:
      return value > 0 ? 1 : 0;
    case CellActivation::sigmoid:
      return value * (1 - value);
    default:
      return 1;
  }
}

/// One sequence of a call and everything that its forward computes.
class Row {
 public:
  Row(const Problem& p, cpu::Carver& carver) : p_(p) {
    width_ = std::max(p.input_size, p.layer_size());
    sequences_ = carver.take<double>((p.num_layers + 1) * p.seq_len * width_);
    gates_ = carver.take<double>(p.num_states() * p.seq_len * kSlots * p.hidden_size);
    before_ = carver.take<double>(p.num_states() * 2 * p.seq_len * p.hidden_size);
    last_ = carver.take<double>(p.num_states() * 2 * p.hidden_size);
  }

  void run(int64_t b, int64_t length) {
    b_ = b, length_ = length;
    for (int64_t t = 0; t < length; ++t)
      for (int64_t i = 0; i < p_.input_size; ++i) sequence(0, t)[i] = p_.input.at(b, t, i);
    for (int64_t state = 0; state < p_.num_states(); ++state) {
      for (int64_t j = 0; j < p_.hidden_size; ++j) {
        last(state, 0)[j] = p_.hidden.at(state, b, j);
        last(state, 1)[j] = p_.cell.at(state, b, j);
      }
      for (int64_t s = 0; s < length; ++s) step(state, time(state, s));
    }
  }

  int64_t length() const { return length_; }
  /// Where in the sequence a state's s-th step is.
  int64_t time(int64_t state, int64_t s) const { return state % p_.num_directions == 0 ? s : length_ - 1 - s; }
  /// What a layer reads at a step; of `num_layers` what the last one gives.
  double* sequence(int64_t layer, int64_t t) const { return sequences_ + (layer * p_.seq_len + t) * width_; }
  /// lstm: i, f, g, o; gru: r, z, n, and W_hn·h + b_hn; rnn: h. hidden_size numbers each.
  double* gate(int64_t state, int64_t t, int64_t g) const {
    return gates_ + ((state * p_.seq_len + t) * kSlots + g) * p_.hidden_size;
  }
  /// h (0) or c (1) before a step.
  double* before(int64_t state, int64_t which, int64_t t) const {
    return before_ + ((state * 2 + which) * p_.seq_len + t) * p_.hidden_size;
  }
  /// h (0) or c (1) after the last step.
  double* last(int64_t state, int64_t which) const { return last_ + (state * 2 + which) * p_.hidden_size; }

 private:
  static constexpr int64_t kSlots = 4;

  void step(int64_t state, int64_t t) const {
    const int64_t layer = state / p_.num_directions, hidden_size = p_.hidden_size;
    for (const int64_t which : {0, 1}) std::copy_n(last(state, which), hidden_size, before(state, which, t));
    const double *x = sequence(layer, t), *h = before(state, 0, t), *c = before(state, 1, t);
    const View w_ih = p_.weights.input_weights(state);
    double* out = sequence(layer + 1, t) + state % p_.num_directions * hidden_size;
    for (int64_t j = 0; j < hidden_size; ++j) {
      double from_input[kSlots] = {}, from_state[kSlots] = {};
      for (int64_t g = 0; g < p_.gates(); ++g) {
        const int64_t row = g * hidden_size + j;
        from_input[g] = p_.weights.bias_ih.at(0, state, row), from_state[g] = p_.weights.bias_hh.at(0, state, row);
        for (int64_t i = 0; i < p_.input_of(layer); ++i) from_input[g] += w_ih.at(0, row, i) * x[i];
        for (int64_t k = 0; k < hidden_size; ++k) from_state[g] += p_.weights.hh.at(state, row, k) * h[k];
      }
      const auto [h_after, c_after] = cell(state, t, j, from_input, from_state, h[j], c[j]);
      last(state, 0)[j] = out[j] = h_after;
      last(state, 1)[j] = c_after;
    }
  }

  struct States {
    double h, c;
  };
  States cell(int64_t state, int64_t t, int64_t j, const double* x, const double* s, double h, double c) const {
    const auto keep = [&](int64_t g, double value) { return gate(state, t, g)[j] = value; };
    if (p_.cell_type == CellType::rnn) return {keep(0, activate(p_.activation, x[0] + s[0])), 0};
    if (p_.cell_type == CellType::gru) {
      const double r = keep(0, sigmoid(x[0] + s[0])), z = keep(1, sigmoid(x[1] + s[1]));
      const double n = keep(2, std::tanh(x[2] + r * keep(3, s[2])));
      return {(1 - z) * n + z * h, 0};
    }
    const double i = keep(0, sigmoid(x[0] + s[0])), f = keep(1, sigmoid(x[1] + s[1]));
    const double g = keep(2, std::tanh(x[2] + s[2])), o = keep(3, sigmoid(x[3] + s[3]));
    const double c_after = f * c + i * g;
    return {o * std::tanh(c_after), c_after};
  }

  const Problem& p_;
  int64_t b_ = 0, length_ = 0, width_ = 0;
  double *sequences_, *gates_, *before_, *last_;
};

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<Rnn>& call, const NoConfig&, const DeviceProperties&) {
    const Problem p = rnns::make_problem(call.inputs, call.params);
    cpu::Carver carver;
    const Row row(p, carver);
    return carver.used();
  }

  static void run(const Call<Rnn>& call, const RunContext& context) {
    const Problem p = rnns::make_problem(call.inputs, call.params);
    const View out = rnns::view_of(call.outputs.out);
    const View finals[] = {rnns::view_of(call.outputs.final_hidden), rnns::view_of(call.outputs.final_cell)};
    cpu::Carver carver(context.workspace.data());
    Row row(p, carver);
    for (int64_t b = 0; b < p.batch; ++b) {
      row.run(b, p.length(b, context.status));
      for (int64_t t = 0; t < p.seq_len; ++t)
        for (int64_t j = 0; j < p.layer_size(); ++j)
          out.set(b, t, j, t < row.length() ? row.sequence(p.num_layers, t)[j] : 0);
      for (int64_t state = 0; state < p.num_states(); ++state)
        for (const int which : {0, 1})
          for (int64_t j = 0; j < p.hidden_size; ++j) finals[which].set(state, b, j, row.last(state, which)[j]);
      store_gates(p, row, b, call.outputs.gates);
    }
  }

  static void store_gates(const Problem& p, const Row& row, int64_t b, const Tensor& gates) {
    for (int64_t state = 0; state < p.num_states(); ++state) {
      const View of_state = rnns::gates_of(gates, state);
      for (int64_t t = 0; t < p.seq_len; ++t)
        for (int64_t n = 0; n < p.kept_size(); ++n)
          of_state.set(b, t, n, t < row.length() ? row.gate(state, t, 0)[n] : 0);
    }
  }
};

/// Sums of the weights' gradients over all steps, in double.
struct WeightSums {
  double *ih, *ih_upper, *hh, *bias_ih, *bias_hh;

  WeightSums(const Problem& p, cpu::Carver& carver) : first_(nullptr) {
    const int64_t upper = p.num_states() - p.num_directions, rows = p.gate_rows();
    const size_t before = carver.used();
    ih = carver.take<double>(p.num_directions * rows * p.input_size);
    ih_upper = carver.take<double>(upper * rows * p.layer_size());
    hh = carver.take<double>(p.num_states() * rows * p.hidden_size);
    bias_ih = carver.take<double>(p.num_states() * rows);
    bias_hh = carver.take<double>(p.num_states() * rows);
    first_ = ih, count_ = static_cast<int64_t>((carver.used() - before) / sizeof(double));
  }
  void clear() const { std::fill_n(first_, count_, 0.0); }

  double* input_weights(const Problem& p, int64_t state) const {
    const int64_t rows = p.gate_rows(), directions = p.num_directions;
    return state < directions ? ih + state * rows * p.input_size
                              : ih_upper + (state - directions) * rows * p.layer_size();
  }

  void store(const Problem& p, const Weights& to) const {
    const int64_t rows = p.gate_rows();
    const auto store_all = [&](const View& view, const double* from, int64_t states, int64_t columns) {
      for (int64_t n = 0; n < states * rows * columns; ++n)
        view.set(n / columns / rows, n / columns % rows, n % columns, from[n]);
    };
    store_all(to.ih, ih, p.num_directions, p.input_size);
    store_all(to.ih_upper, ih_upper, p.num_states() - p.num_directions, p.layer_size());
    store_all(to.hh, hh, p.num_states(), p.hidden_size);
    for (int64_t n = 0; n < p.num_states() * rows; ++n) {
      to.bias_ih.set(0, n / rows, n % rows, bias_ih[n]);
      to.bias_hh.set(0, n / rows, n % rows, bias_hh[n]);
    }
  }

 private:
  double* first_;
  int64_t count_ = 0;
};

/// Backpropagation through time of one sequence after the other.
class BackwardRun {
 public:
  BackwardRun(const Call<RnnBackward>& call, const Problem& p, cpu::Carver& carver)
      : p_(p),
        d_out_(rnns::view_of(call.inputs.d_out)),
        d_final_{rnns::view_of(call.inputs.d_final_hidden), rnns::view_of(call.inputs.d_final_cell)},
        gradients_(rnns::make_gradients(call.outputs, call.params)),
        row_(p, carver),
        sums_(p, carver) {
    width_ = std::max(p.input_size, p.layer_size());
    d_above_ = carver.take<double>(p.seq_len * width_);
    d_below_ = carver.take<double>(p.seq_len * width_);
    d_h_ = carver.take<double>(p.hidden_size);
    d_c_ = carver.take<double>(p.hidden_size);
    d_h_before_ = carver.take<double>(p.hidden_size);
    from_input_ = carver.take<double>(p.gate_rows());
    from_state_ = carver.take<double>(p.gate_rows());
  }

  void run(uint32_t* status) {
    sums_.clear();
    for (int64_t b = 0; b < p_.batch; ++b) {
      row_.run(b, p_.length(b, status));
      for (int64_t t = 0; t < row_.length(); ++t)
        for (int64_t j = 0; j < p_.layer_size(); ++j) d_above_[t * width_ + j] = d_out_.at(b, t, j);
      for (int64_t layer = p_.num_layers - 1; layer >= 0; --layer) {
        std::fill_n(d_below_, p_.seq_len * width_, 0.0);
        for (int64_t d = 0; d < p_.num_directions; ++d) run_state(b, layer * p_.num_directions + d);
        std::swap(d_above_, d_below_);
      }
      for (int64_t t = 0; t < p_.seq_len; ++t)
        for (int64_t i = 0; i < p_.input_size; ++i)
          gradients_.input.set(b, t, i, t < row_.length() ? d_above_[t * width_ + i] : 0);
    }
    sums_.store(p_, gradients_.weights);
  }

 private:
  void run_state(int64_t b, int64_t state) {
    const int64_t hidden_size = p_.hidden_size;
    for (int64_t j = 0; j < hidden_size; ++j)
      d_h_[j] = d_final_[0].at(state, b, j), d_c_[j] = d_final_[1].at(state, b, j);
    for (int64_t s = row_.length() - 1; s >= 0; --s) {
      const int64_t t = row_.time(state, s);
      const double* d_out = d_above_ + t * width_ + state % p_.num_directions * hidden_size;
      for (int64_t j = 0; j < hidden_size; ++j) differentiate_cell(state, t, j, d_h_[j] + d_out[j]);
      spread(state, t);
    }
    for (int64_t j = 0; j < hidden_size; ++j) {
      gradients_.hidden.set(state, b, j, d_h_[j]);
      gradients_.cell.set(state, b, j, d_c_[j]);
    }
  }

  /// The gates' gradients from that of h, and what reaches the states before the step past the gates.
  void differentiate_cell(int64_t state, int64_t t, int64_t j, double d_h) {
    const int64_t hidden_size = p_.hidden_size;
    const auto gate = [&](int64_t g) { return row_.gate(state, t, g)[j]; };
    const auto set = [&](int64_t g, double input, double from_state) {
      from_input_[g * hidden_size + j] = input, from_state_[g * hidden_size + j] = from_state;
    };
    d_h_before_[j] = 0;
    if (p_.cell_type == CellType::rnn) {
      const double d = d_h * slope(p_.activation, gate(0));
      return set(0, d, d);
    }
    if (p_.cell_type == CellType::gru) {
      const double r = gate(0), z = gate(1), n = gate(2), h = row_.before(state, 0, t)[j];
      const double d_n = d_h * (1 - z) * (1 - n * n), d_r = d_n * gate(3) * r * (1 - r);
      const double d_z = d_h * (h - n) * z * (1 - z);
      set(0, d_r, d_r), set(1, d_z, d_z), set(2, d_n, d_n * r);
      d_h_before_[j] = d_h * z;
      return;
    }
    const double i = gate(0), f = gate(1), g = gate(2), o = gate(3), c = row_.before(state, 1, t)[j];
    const double tangent = std::tanh(f * c + i * g);
    const double d_c = d_c_[j] + d_h * o * (1 - tangent * tangent);
    const double d_gates[] = {d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g),
                              d_h * tangent * o * (1 - o)};
    for (int64_t n = 0; n < 4; ++n) set(n, d_gates[n], d_gates[n]);
    d_c_[j] = d_c * f;
  }

  /// From the gates to what they are made of.
  void spread(int64_t state, int64_t t) {
    const int64_t layer = state / p_.num_directions, hidden_size = p_.hidden_size, inputs = p_.input_of(layer);
    const View w_ih = p_.weights.input_weights(state);
    const double *x = row_.sequence(layer, t), *h = row_.before(state, 0, t);
    double* d_w_ih = sums_.input_weights(p_, state);
    for (int64_t row = 0; row < p_.gate_rows(); ++row) {
      const double d_x = from_input_[row], d_s = from_state_[row];
      const int64_t of_state = state * p_.gate_rows() + row;
      sums_.bias_ih[of_state] += d_x, sums_.bias_hh[of_state] += d_s;
      for (int64_t i = 0; i < inputs; ++i) {
        d_w_ih[row * inputs + i] += d_x * x[i];
        d_below_[t * width_ + i] += d_x * w_ih.at(0, row, i);
      }
      for (int64_t k = 0; k < hidden_size; ++k) {
        sums_.hh[of_state * hidden_size + k] += d_s * h[k];
        d_h_before_[k] += d_s * p_.weights.hh.at(state, row, k);
      }
    }
    std::swap(d_h_, d_h_before_);
  }

  const Problem& p_;
  const View d_out_, d_final_[2];
  const Gradients gradients_;
  Row row_;
  const WeightSums sums_;
  int64_t width_ = 0;
  double *d_above_, *d_below_, *d_h_, *d_c_, *d_h_before_, *from_input_, *from_state_;
};

struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<RnnBackward>& call, const NoConfig&, const DeviceProperties&) {
    const Problem p = rnns::make_problem(call.inputs, call.params);
    cpu::Carver carver;
    const BackwardRun run(call, p, carver);
    return carver.used();
  }

  static void run(const Call<RnnBackward>& call, const RunContext& context) {
    const Problem p = rnns::make_problem(call.inputs, call.params);
    cpu::Carver carver(context.workspace.data());
    BackwardRun(call, p, carver).run(context.status);
  }
};

}  // namespace

const KernelInfo& rnn_kernels::reference() {
  static const KernelInfo kernel = make_kernel<Rnn, Reference>();
  return kernel;
}

const KernelInfo& rnn_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<RnnBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
