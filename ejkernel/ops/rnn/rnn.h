// rnn and its gradient: recurrent networks of vanilla, GRU and LSTM cells, with PyTorch's equations, gate order and
// weights.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

enum class CellType : uint8_t { lstm, gru, rnn };
constexpr std::array<std::string_view, 3> enum_names(CellType) { return {"lstm", "gru", "rnn"}; }

/// What a vanilla cell (`rnn`) makes of its sums.
enum class CellActivation : uint8_t { tanh, relu, sigmoid, identity };
constexpr std::array<std::string_view, 4> enum_names(CellActivation) { return {"tanh", "relu", "sigmoid", "identity"}; }

/// Gates of hidden_size rows each that the weights of a cell are made of.
constexpr int64_t num_gates(CellType cell) { return cell == CellType::lstm ? 4 : cell == CellType::gru ? 3 : 1; }

struct RnnBackward;

/// For each sequence, layer and direction, from the sequence's first step on (backwards: from its last), with
/// x = W_ih·input + b_ih and s = W_hh·h + b_hh of the state h before the step:
///   rnn   h = activation(x + s)
///   gru   r, z = sigmoid(x + s) of their rows, n = tanh(x_n + r * s_n), h = (1 - z) * n + z * h
///   lstm  i, f, o = sigmoid(x + s), g = tanh(x + s) of theirs, c = f * c + i * g, h = o * tanh(c)
/// A layer's output is h of both directions side by side, and the next layer's input. States are kept in float32
/// (float64 for float64 inputs).
struct Rnn {
  static constexpr std::string_view kName = "rnn";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Recurrent networks of LSTM, GRU or vanilla cells: layers, two directions, sequences of their own lengths.";
  static constexpr std::string_view kSource =
      "Hochreiter and Schmidhuber, Long Short-Term Memory (1997); Cho et al., Learning Phrase Representations "
      "(arXiv:1406.1078), section 2.3, as PyTorch's nn.LSTM, nn.GRU and nn.RNN";
  static constexpr std::string_view kGradient = "rnn_backward";
  using Gradient = RnnBackward;

  /// Only an LSTM has a second state; gates are there to be kept or not.
  enum Form { kLstm, kOneState, kLstmKept, kOneStateKept };
  static constexpr std::array<std::string_view, 4> kForms = {"lstm", "gru or rnn", "lstm keeping gates",
                                                             "gru or rnn keeping gates"};

  struct Inputs {
    Tensor input = {}, hidden = {}, cell = {};
    Tensor weight_ih = {}, weight_ih_upper = {}, weight_hh = {}, bias_ih = {}, bias_hh = {};
    Tensor lengths = {};
  };

  struct Params {
    CellType cell_type = CellType::lstm;
    CellActivation activation = CellActivation::tanh;
    bool bidirectional = false;
    int64_t num_layers = 1;
    bool keep_gates = false;
  };

  template <class T>
  struct Out {
    T out = {}, final_hidden = {}, final_cell = {}, gates = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"input", "float[batch, seq_len, input_size]", "the sequences"},
        TensorField{"hidden", "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size]",
                    "h before the first step, of every layer (outer) and direction, forward first; without the first "
                    "axis where there is one; absent: 0"},
        TensorField{"cell",
                    "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - ; "
                    "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; -",
                    "lstm: c before the first step, likewise"},
        TensorField{"weight_ih", "@input[num_directions, gate_rows, input_size]",
                    "W_ih of the first layer; rows of the gates i f g o (lstm) or r z n (gru), hidden_size each"},
        TensorField{"weight_ih_upper", "@input?[num_upper, gate_rows, layer_size]",
                    "W_ih of the other layers and their directions, in the order of the states"},
        TensorField{"weight_hh", "@input[num_states, gate_rows, hidden_size]", "W_hh, in the order of the states"},
        TensorField{"bias_ih", "@input?[num_states, gate_rows]", "b_ih, likewise; absent: 0"},
        TensorField{"bias_hh", "@input?[num_states, gate_rows]", "b_hh, likewise; absent: 0"},
        TensorField{
            "lengths", "int32?[batch]",
            "steps that each sequence has, clamped to [0, seq_len]; absent: all. Steps past them are not read"}};
  }

  static constexpr auto params() {
    return std::array{
        param<&Params::cell_type>("cell_type", Key::value, "which cell"),
        param<&Params::activation>("activation", Key::value, "of the vanilla cell (rnn); the others have their own"),
        param<&Params::bidirectional>("bidirectional", Key::value, "each layer also runs backwards"),
        param<&Params::num_layers>("num_layers", Key::value, "layers, each on the output of the one below",
                                   at_least(1)),
        param<&Params::keep_gates>("keep_gates", Key::value,
                                   "also give the gates, which the gradient then does not compute anew")};
  }

  static constexpr auto outputs() {
    return std::array{
        TensorField{"out", "@input[batch, seq_len, layer_size]",
                    "h of the last layer at every step, the directions side by side; 0 past a sequence's length"},
        TensorField{"final_hidden", "@input[num_states, batch, hidden_size]",
                    "h after each sequence's own last step (backwards: after its first); hidden for an empty one"},
        TensorField{"final_cell",
                    "@input[num_states, batch, hidden_size] ; - ; @input[num_states, batch, hidden_size] ; -",
                    "lstm: c, likewise"},
        TensorField{"gates",
                    "- ; - ; stats@input[num_states, batch, seq_len, kept_size] ; "
                    "stats@input[num_states, batch, seq_len, kept_size]",
                    "with keep_gates: after their functions i f g o (lstm), r z n and W_hn·h + b_hn (gru) or h (rnn), "
                    "hidden_size numbers each; 0 past a sequence's length"}};
  }

  static int form(const Inputs&, const Params& params) {
    return (params.cell_type == CellType::lstm ? kLstm : kOneState) + (params.keep_gates ? 2 : 0);
  }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<Rnn>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of rnn by backpropagation through time. Of the forward its gates are used where it kept them; a kernel may
/// also compute them anew.
struct RnnBackward {
  static constexpr std::string_view kName = "rnn_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of rnn for input, states, weights and biases.";
  static constexpr std::string_view kSource = Rnn::kSource;
  static constexpr auto kForms = Rnn::kForms;

  struct Inputs : Rnn::Inputs {
    Tensor gates = {}, d_out = {}, d_final_hidden = {}, d_final_cell = {};
  };
  using Params = Rnn::Params;

  template <class T>
  struct Out {
    T input = {}, hidden = {}, cell = {};
    T weight_ih = {}, weight_ih_upper = {}, weight_hh = {}, bias_ih = {}, bias_hh = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return concatenate(
        Rnn::inputs(),
        std::array{
            TensorField{"gates",
                        "- ; - ; stats@input?[num_states, batch, seq_len, kept_size] ; "
                        "stats@input?[num_states, batch, seq_len, kept_size]",
                        "the forward's, not read past a sequence's length; absent: computed anew"},
            TensorField{"d_out", "@input?[batch, seq_len, layer_size]",
                        "cotangent of out, not read past a sequence's length; absent: zero"},
            TensorField{"d_final_hidden", "@input?[num_states, batch, hidden_size]",
                        "cotangent of final_hidden; absent: zero"},
            TensorField{"d_final_cell",
                        "@input?[num_states, batch, hidden_size] ; - ; @input?[num_states, batch, hidden_size] ; -",
                        "cotangent of final_cell; absent: zero"}});
  }
  static constexpr auto params() { return Rnn::params(); }
  static constexpr auto outputs() {
    return std::array{
        TensorField{"input", "@input[batch, seq_len, input_size]", "gradient of input; 0 past a sequence's length"},
        TensorField{"hidden", "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size]",
                    "gradient of hidden"},
        TensorField{"cell",
                    "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; - ; "
                    "@input?[num_states, batch, hidden_size] | @input?[batch, hidden_size] ; -",
                    "gradient of cell"},
        TensorField{"weight_ih", "@input[num_directions, gate_rows, input_size]",
                    "gradient of weight_ih, summed over the steps of all sequences, as the next ones are"},
        TensorField{"weight_ih_upper", "@input?[num_upper, gate_rows, layer_size]", "gradient of weight_ih_upper"},
        TensorField{"weight_hh", "@input[num_states, gate_rows, hidden_size]", "gradient of weight_hh"},
        TensorField{"bias_ih", "@input?[num_states, gate_rows]", "gradient of bias_ih"},
        TensorField{"bias_hh", "@input?[num_states, gate_rows]", "gradient of bias_hh"}};
  }

  static int form(const Inputs& in, const Params& params) { return Rnn::form(in, params); }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<RnnBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out, final_hidden, final_cell, gates = rnn(inputs, params); final_cell only of an LSTM, gates with keep_gates
inline Rnn::Results rnn(const Rnn::Inputs& inputs, const Rnn::Params& params = {}, const CallOptions& options = {}) {
  return execute<Rnn>(inputs, params, options);
}

/// The kernels of this folder, for the lists in rnn.cpp.
namespace rnn_kernels {
const KernelInfo& cpu();
const KernelInfo& cuda_reference();
const KernelInfo& reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_cuda_reference();
const KernelInfo& backward_reference();
}  // namespace rnn_kernels

}  // namespace ejk
