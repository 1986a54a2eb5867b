// rnn and its gradient in double, every dtype and any strides: a block per sequence, a thread per hidden unit; then a
// thread per element of the weights' gradients. The host compiles the same text with blocks of its own threads, which
// is how tests compare it.
#pragma once

#include "ejkernel/ops/rnn/rnn_cuda_problem.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"
#ifndef __CUDACC_RTC__
#include <cmath>
#endif

namespace ejk::cuda {

#ifndef __CUDACC_RTC__
using std::exp;
using std::tanh;
#endif

EJK_DEVICE double rnn_sigmoid(double x) { return 1 / (1 + exp(-x)); }

EJK_DEVICE double rnn_activate(RnnActivation activation, double x) {
  if (activation == RnnActivation::tanh) return tanh(x);
  if (activation == RnnActivation::relu) return x < 0 ? 0 : x;
  return activation == RnnActivation::sigmoid ? rnn_sigmoid(x) : x;
}

/// The slope where the activation has this value.
EJK_DEVICE double rnn_slope(RnnActivation activation, double y) {
  if (activation == RnnActivation::tanh) return 1 - y * y;
  if (activation == RnnActivation::relu) return y > 0 ? 1 : 0;
  return activation == RnnActivation::sigmoid ? y * (1 - y) : 1;
}

/// One sequence's way through the network, by one block.
template <class Block>
class RnnSequence {
 public:
  EJK_DEVICE RnnSequence(const RnnProblem& p, int64 b, const Block& block) : p_(p), block_(block), b_(b) {
    uint32 faults = 0;
    length_ = p.length(b, faults);
    if (block.thread() == 0) raise(p.status, faults);
  }

  EJK_DEVICE void run_forward() const {
    for_each(length_ * p_.input_size, [&](int64 n) {
      const int64 t = n / p_.input_size, i = n % p_.input_size;
      p_.sequence(0, b_, t)[i] = p_.input.at(b_, t, i);
    });
    for (int64 state = 0; state < p_.num_states(); ++state) {
      for_each(p_.hidden_size, [&](int64 j) {
        after(state, -1, 0)[j] = p_.hidden.at(state, b_, j);
        after(state, -1, 1)[j] = p_.initial_cell.at(state, b_, j);
      });
      for (int64 s = 0; s < length_; ++s) for_each(p_.hidden_size, [&](int64 j) { run_unit(state, s, j); });
    }
  }

  EJK_DEVICE void store_forward() const {
    for_each(p_.seq_len * p_.layer_size(), [&](int64 n) {
      const int64 t = n / p_.layer_size(), j = n % p_.layer_size();
      p_.out.set(b_, t, j, t < length_ ? p_.sequence(p_.num_layers, b_, t)[j] : 0);
    });
    for_each(p_.num_states() * p_.hidden_size, [&](int64 n) {
      const int64 state = n / p_.hidden_size, j = n % p_.hidden_size;
      p_.final_hidden.set(state, b_, j, p_.last(state, b_, 0)[j]);
      p_.final_cell.set(state, b_, j, p_.last(state, b_, 1)[j]);
    });
    const int64 kept_size = p_.kept_size();
    for_each(p_.kept.data == nullptr ? 0 : p_.num_states() * p_.seq_len * kept_size, [&](int64 n) {
      const int64 state = n / kept_size / p_.seq_len, t = n / kept_size % p_.seq_len, k = n % kept_size;
      p_.kept.set(b_, t, state * p_.kept_state + k, t < length_ ? p_.gate(p_.step(state, b_, t), 0)[k] : 0);
    });
  }

  EJK_DEVICE void run_backward() const {
    const int64 width = p_.width();
    double *above = p_.d_above + b_ * p_.seq_len * width, *below = p_.d_below + b_ * p_.seq_len * width;
    for_each(length_ * p_.layer_size(), [&](int64 n) {
      const int64 t = n / p_.layer_size(), j = n % p_.layer_size();
      above[t * width + j] = p_.d_out.at(b_, t, j);
    });
    for (int64 layer = p_.num_layers - 1; layer >= 0; --layer) {
      for_each(length_ * width, [&](int64 n) { below[n] = 0; });
      for (int64 d = 0; d < p_.num_directions; ++d) pull_back(layer * p_.num_directions + d, above, below);
      double* const swapped = above;
      above = below, below = swapped;
    }
    for_each(p_.seq_len * p_.input_size, [&](int64 n) {
      const int64 t = n / p_.input_size, i = n % p_.input_size;
      p_.d_input.set(b_, t, i, t < length_ ? above[t * width + i] : 0);
    });
  }

 private:
  /// What the block's threads share out, and finish before they go on.
  template <class Body>
  EJK_DEVICE void for_each(int64 count, Body body) const {
    for (int64 n = block_.thread(); n < count; n += block_.threads()) body(n);
    block_.sync();
  }
  EJK_DEVICE int64 time(int64 state, int64 s) const { return state % p_.num_directions == 0 ? s : length_ - 1 - s; }
  EJK_DEVICE int64 step(int64 state, int64 s) const { return p_.step(state, b_, time(state, s)); }
  /// h or c after step s, which is where the next step reads it.
  EJK_DEVICE double* after(int64 state, int64 s, int64 which) const {
    return s + 1 < length_ ? p_.before(step(state, s + 1), which) : p_.last(state, b_, which);
  }

  EJK_DEVICE_CALL void run_unit(int64 state, int64 s, int64 j) const {
    const int64 layer = state / p_.num_directions, hidden_size = p_.hidden_size, at = step(state, s);
    const double *x = p_.sequence(layer, b_, time(state, s)), *h = p_.before(at, 0);
    int64 index = state;
    const RnnView& w_ih = p_.input_weights(p_.weights, index);
    double from_input[4] = {}, from_state[4] = {};
    for (int64 g = 0; g < p_.num_gates(); ++g) {
      const int64 row = g * hidden_size + j;
      from_input[g] = p_.weights.bias_ih.at(0, state, row), from_state[g] = p_.weights.bias_hh.at(0, state, row);
      for (int64 i = 0; i < p_.input_of(layer); ++i) from_input[g] += w_ih.at(index, row, i) * x[i];
      for (int64 k = 0; k < hidden_size; ++k) from_state[g] += p_.weights.hh.at(state, row, k) * h[k];
    }
    const auto keep = [&](int64 g, double value) { return p_.gate(at, g)[j] = value; };
    const auto sum = [&](int64 g) { return from_input[g] + from_state[g]; };
    double h_after = 0, c_after = 0;
    if (p_.cell == RnnCell::lstm) {
      const double i = keep(0, rnn_sigmoid(sum(0))), f = keep(1, rnn_sigmoid(sum(1)));
      const double g = keep(2, tanh(sum(2))), o = keep(3, rnn_sigmoid(sum(3)));
      c_after = f * p_.before(at, 1)[j] + i * g;
      h_after = o * tanh(c_after);
    } else if (p_.cell == RnnCell::gru) {
      const double r = keep(0, rnn_sigmoid(sum(0))), z = keep(1, rnn_sigmoid(sum(1)));
      const double n = keep(2, tanh(from_input[2] + r * keep(3, from_state[2])));
      h_after = (1 - z) * n + z * h[j];
    } else {
      h_after = keep(0, rnn_activate(p_.activation, sum(0)));
    }
    after(state, s, 0)[j] = h_after, after(state, s, 1)[j] = c_after;
    p_.sequence(layer + 1, b_, time(state, s))[state % p_.num_directions * hidden_size + j] = h_after;
  }

  // ---- backward ----

  EJK_DEVICE void pull_back(int64 state, const double* above, double* below) const {
    const int64 hidden_size = p_.hidden_size, width = p_.width();
    double *d_h = p_.d_state(b_, 0), *d_c = p_.d_state(b_, 1), *past = p_.d_state(b_, 2);
    for_each(hidden_size,
             [&](int64 j) { d_h[j] = p_.d_final_hidden.at(state, b_, j), d_c[j] = p_.d_final_cell.at(state, b_, j); });
    for (int64 s = length_ - 1; s >= 0; --s) {
      const int64 t = time(state, s), inputs = p_.input_of(state / p_.num_directions);
      const double* d_out = above + t * width + state % p_.num_directions * hidden_size;
      for_each(hidden_size, [&](int64 j) { differentiate(step(state, s), j, d_h[j] + d_out[j], d_c[j], past[j]); });
      const double *d_x = p_.d_gate(step(state, s), 0), *d_s = p_.d_gate(step(state, s), 1);
      int64 index = state;
      const RnnView& w_ih = p_.input_weights(p_.weights, index);
      for_each(hidden_size + inputs, [&](int64 n) {
        double sum = n < hidden_size ? past[n] : below[t * width + n - hidden_size];
        for (int64 row = 0; row < p_.gate_rows(); ++row)
          sum += n < hidden_size ? d_s[row] * p_.weights.hh.at(state, row, n)
                                 : d_x[row] * w_ih.at(index, row, n - hidden_size);
        (n < hidden_size ? d_h[n] : below[t * width + n - hidden_size]) = sum;
      });
    }
    for_each(hidden_size, [&](int64 j) {
      p_.d_hidden.set(state, b_, j, d_h[j]);
      p_.d_cell.set(state, b_, j, d_c[j]);
    });
  }

  /// A unit's gate gradients from that of its h; `past` is what reaches the h before the step past the gates.
  EJK_DEVICE_CALL void differentiate(int64 at, int64 j, double d_h, double& d_c, double& past) const {
    const auto gate = [&](int64 g) { return p_.gate(at, g)[j]; };
    const auto set = [&](int64 g, double of_input, double of_state) {
      p_.d_gate(at, 0)[g * p_.hidden_size + j] = of_input, p_.d_gate(at, 1)[g * p_.hidden_size + j] = of_state;
    };
    past = 0;
    if (p_.cell == RnnCell::lstm) {
      const double i = gate(0), f = gate(1), g = gate(2), o = gate(3), c = p_.before(at, 1)[j];
      const double tangent = tanh(f * c + i * g), d = d_c + d_h * o * (1 - tangent * tangent);
      const double all[4] = {d * g * i * (1 - i), d * c * f * (1 - f), d * i * (1 - g * g),
                             d_h * tangent * o * (1 - o)};
      for (int64 n = 0; n < 4; ++n) set(n, all[n], all[n]);
      d_c = d * f;
    } else if (p_.cell == RnnCell::gru) {
      const double r = gate(0), z = gate(1), n = gate(2), h = p_.before(at, 0)[j];
      const double d_n = d_h * (1 - z) * (1 - n * n), d_r = d_n * gate(3) * r * (1 - r),
                   d_z = d_h * (h - n) * z * (1 - z);
      set(0, d_r, d_r), set(1, d_z, d_z), set(2, d_n, d_n * r);
      past = d_h * z;
    } else {
      const double d = d_h * rnn_slope(p_.activation, gate(0));
      set(0, d, d);
    }
  }

  const RnnProblem& p_;
  const Block& block_;
  const int64 b_;
  int64 length_ = 0;
};

/// Sequences `first`, `first + stride`, ….
template <class Block>
EJK_DEVICE void run_rnn(const RnnProblem& p, bool backward, int64 first, int64 stride, const Block& block) {
  for (int64 b = first; b < p.batch; b += stride) {
    const RnnSequence<Block> sequence(p, b, block);
    sequence.run_forward();
    backward ? sequence.run_backward() : sequence.store_forward();
  }
}

/// Elements `first`, `first + stride`, … of the weights' gradients: of each state's gate rows those of W_ih, of W_hh,
/// and the biases. After run_rnn.
EJK_DEVICE void sum_rnn_weights(const RnnProblem& p, int64 first, int64 stride) {
  const int64 hidden_size = p.hidden_size, per_row = p.width() + hidden_size + 2;
  for (int64 n = first; n < p.num_states() * p.gate_rows() * per_row; n += stride) {
    const int64 column = n % per_row, row = n / per_row % p.gate_rows(), state = n / per_row / p.gate_rows();
    const int64 layer = state / p.num_directions, of_hidden = column - p.width(), of_bias = of_hidden - hidden_size;
    if (of_hidden < 0 && column >= p.input_of(layer)) continue;
    double sum = 0;
    uint32 faults = 0;  // which run_rnn has told
    for (int64 b = 0; b < p.batch; ++b)
      for (int64 t = 0; t < p.length(b, faults); ++t) {
        const int64 at = p.step(state, b, t);
        if (of_hidden < 0)
          sum += p.d_gate(at, 0)[row] * p.sequence(layer, b, t)[column];
        else
          sum += p.d_gate(at, of_bias == 0 ? 0 : 1)[row] * (of_bias < 0 ? p.before(at, 0)[of_hidden] : 1);
      }
    int64 index = state;
    const RnnView& of_input = p.input_weights(p.d_weights, index);
    if (of_hidden < 0)
      of_input.set(index, row, column, sum);
    else if (of_bias < 0)
      p.d_weights.hh.set(state, row, of_hidden, sum);
    else
      (of_bias == 0 ? p.d_weights.bias_ih : p.d_weights.bias_hh).set(0, state, row, sum);
  }
}

}  // namespace ejk::cuda
