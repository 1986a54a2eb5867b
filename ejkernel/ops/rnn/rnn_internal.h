// An rnn call, forward or backward, with its sizes resolved: what all kernels share.
#pragma once

#include <cstdint>

#include "ejkernel/core/operation.h"
#include "ejkernel/core/untrusted.h"
#include "ejkernel/ops/rnn/rnn.h"

namespace ejk::rnns {

/// A tensor of up to three axes, addressed by three indices: a missing first axis has stride 0. Without data: absent.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t outer = 0, inner = 0;  ///< strides in elements; the last axis is contiguous
  bool present() const { return data != nullptr; }
  int64_t offset(int64_t i, int64_t j, int64_t k) const { return i * outer + j * inner + k; }
  /// Where an element lies. While a call is planned there is no memory, only an address in its place, from which steps
  /// back lead around zero: hence numbers.
  void* address(int64_t offset) const {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) +
                                   static_cast<uintptr_t>(offset * bits(dtype) / 8));
  }
  double at(int64_t i, int64_t j, int64_t k) const {
    return data == nullptr ? 0 : load_as_double(data, dtype, offset(i, j, k));
  }
  void set(int64_t i, int64_t j, int64_t k, double value) const {
    if (data != nullptr) store_from_double(data, dtype, offset(i, j, k), value);
  }
};
View view_of(const Tensor& t);
/// [batch, seq_len, kept_size] of one state.
View gates_of(const Tensor& gates, int64_t state);

/// The weights of every layer and direction, or their gradients. A state is a layer's direction, in the order of the
/// states: layer * num_directions + direction.
struct Weights {
  View ih, ih_upper, hh, bias_ih, bias_hh;
  int64_t num_directions = 1;
  /// W_ih of a state: [gate_rows, input_of(layer)].
  View input_weights(int64_t state) const {
    View w = state < num_directions ? ih : ih_upper;
    if (w.data != nullptr) {
      const int64_t index = state < num_directions ? state : state - num_directions;
      w.data = w.address(index * w.outer);
    }
    w.outer = 0;
    return w;
  }
};

/// Numbers that are kept of a step per unit: of a GRU also the state's share of n.
constexpr int64_t num_slots(CellType cell) { return cell == CellType::gru ? 4 : num_gates(cell); }

struct Problem {
  CellType cell_type = CellType::lstm;
  CellActivation activation = CellActivation::tanh;
  int64_t batch = 0, seq_len = 0, input_size = 0, hidden_size = 0;
  int64_t num_layers = 1, num_directions = 1;
  DType dtype = DType::f32;
  View input, hidden, cell;
  Weights weights;
  Tensor lengths;

  bool is_lstm() const { return cell_type == CellType::lstm; }
  int64_t gates() const { return num_gates(cell_type); }
  int64_t kept_size() const { return num_slots(cell_type) * hidden_size; }
  int64_t gate_rows() const { return gates() * hidden_size; }
  int64_t layer_size() const { return num_directions * hidden_size; }
  int64_t num_states() const { return num_layers * num_directions; }
  int64_t input_of(int64_t layer) const { return layer == 0 ? input_size : layer_size(); }
  /// Steps of a sequence, within what there is; a fault sets its bit.
  int64_t length(int64_t b, uint32_t* status) const {
    if (!lengths.present()) return seq_len;
    return untrusted::clamp_length(untrusted::index_at(lengths, b), seq_len, status);
  }
};
Problem make_problem(const Rnn::Inputs& in, const Rnn::Params& params);

/// The gradients of a call, absent where they are not wanted.
struct Gradients {
  View input, hidden, cell;
  Weights weights;
};
Gradients make_gradients(const RnnBackward::Outputs& out, const RnnBackward::Params& params);

}  // namespace ejk::rnns
