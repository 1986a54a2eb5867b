// An rnn call as device code gets it, by value; host code fills it in from rnns::Problem, whose rules these are.
#pragma once

#include "ejkernel/platform/cuda/device/number.cuh"
#include "ejkernel/platform/cuda/device/untrusted.cuh"

namespace ejk::cuda {

inline constexpr int kRnnThreads = 256;

enum class RnnCell : int { lstm, gru, rnn };
enum class RnnActivation : int { tanh, relu, sigmoid, identity };

/// rnns::View.
struct RnnView {
  void* data = nullptr;  ///< null: absent, and reads as 0
  Number number = Number::f32;
  int64 outer = 0, inner = 0;
  EJK_DEVICE double at(int64 i, int64 j, int64 k) const {
    return data == nullptr ? 0 : load(data, number, i * outer + j * inner + k);
  }
  EJK_DEVICE void set(int64 i, int64 j, int64 k, double value) const {
    if (data != nullptr) store(data, number, i * outer + j * inner + k, value);
  }
};

/// W_ih of the first layer and of those above, W_hh, and both biases; or their gradients.
struct RnnWeights {
  RnnView ih, ih_upper, hh, bias_ih, bias_hh;
};

struct RnnProblem {
  RnnCell cell = RnnCell::lstm;
  RnnActivation activation = RnnActivation::tanh;
  int64 batch = 0, seq_len = 0, input_size = 0, hidden_size = 0, num_layers = 1, num_directions = 1;
  RnnView input, hidden, initial_cell;
  RnnWeights weights;
  const int* lengths = nullptr;
  uint32* status = nullptr;

  RnnView out, final_hidden, final_cell;  ///< of the forward
  RnnView kept;                           ///< [batch, seq_len, state, kept_size]: its gates
  int64 kept_state = 0;                   ///< stride of the states there

  RnnView d_out, d_final_hidden, d_final_cell;  ///< of the backward
  RnnView d_input, d_hidden, d_cell;
  RnnWeights d_weights;

  // In the workspace, in double. A step of a state is a layer's direction at a place of a sequence.
  double* sequences = nullptr;  ///< [layer][batch][seq_len][width]: what each layer reads, and what the last one gives
  double* gates = nullptr;      ///< [step][4][hidden_size]: i f g o; r z n and W_hn·h + b_hn; h
  double* states = nullptr;     ///< [step][2][hidden_size]: h and c before it
  double* lasts = nullptr;      ///< [state][batch][2][hidden_size]: after the last one
  double* d_gates = nullptr;    ///< [step][2][gate_rows]: gradients of the sums over the input and over h
  double* d_above = nullptr;    ///< [batch][seq_len][width], of a layer's output, and of its input
  double* d_below = nullptr;
  double* d_states = nullptr;  ///< [batch][3][hidden_size]: of h, of c, and of the h before past the gates

  EJK_DEVICE int64 num_gates() const { return cell == RnnCell::lstm ? 4 : cell == RnnCell::gru ? 3 : 1; }
  EJK_DEVICE int64 kept_size() const { return (cell == RnnCell::rnn ? 1 : 4) * hidden_size; }
  EJK_DEVICE int64 gate_rows() const { return num_gates() * hidden_size; }
  EJK_DEVICE int64 num_states() const { return num_layers * num_directions; }
  EJK_DEVICE int64 layer_size() const { return num_directions * hidden_size; }
  EJK_DEVICE int64 width() const { return max(input_size, layer_size()); }
  EJK_DEVICE int64 input_of(int64 layer) const { return layer == 0 ? input_size : layer_size(); }
  EJK_DEVICE int64 length(int64 b, uint32& faults) const {
    return lengths == nullptr ? seq_len : clamp_length(lengths[b], seq_len, faults);
  }
  /// Element (row, column) of a state's W_ih is that of (index, row, column) here.
  EJK_DEVICE const RnnView& input_weights(const RnnWeights& w, int64& index) const {
    if (index < num_directions) return w.ih;
    index -= num_directions;
    return w.ih_upper;
  }

  EJK_DEVICE double* sequence(int64 layer, int64 b, int64 t) const {
    return sequences + ((layer * batch + b) * seq_len + t) * width();
  }
  EJK_DEVICE int64 step(int64 state, int64 b, int64 t) const { return (state * batch + b) * seq_len + t; }
  EJK_DEVICE double* gate(int64 step, int64 g) const { return gates + (step * 4 + g) * hidden_size; }
  EJK_DEVICE double* before(int64 step, int64 which) const { return states + (step * 2 + which) * hidden_size; }
  EJK_DEVICE double* last(int64 state, int64 b, int64 which) const {
    return lasts + ((state * batch + b) * 2 + which) * hidden_size;
  }
  EJK_DEVICE double* d_gate(int64 step, int64 of_state) const { return d_gates + (step * 2 + of_state) * gate_rows(); }
  EJK_DEVICE double* d_state(int64 b, int64 which) const { return d_states + (b * 3 + which) * hidden_size; }
};

}  // namespace ejk::cuda
