// Problems of rnn: a compact description, the named ones, and random ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

struct RnnCase {
  std::string name = {};
  unsigned tags = 0;
  DType dtype = DType::f32;
  CellType cell_type = CellType::lstm;
  CellActivation activation = CellActivation::tanh;
  bool bidirectional = false;
  int64_t num_layers = 1;
  int64_t batch = 1, seq_len = 1, input_size = 8, hidden_size = 8;
  bool states = true;        ///< hidden, and an LSTM's cell, are given
  bool flat_states = false;  ///< without the axis of states: one state only
  bool bias_ih = true, bias_hh = true;
  bool keep_gates = false;
  bool has_lengths = false;
  std::vector<int64_t> lengths = {};  ///< one per sequence

  bool integers = false;  ///< small ones, which an identity cell keeps exact
  bool random_layouts = false;
  bool poison = true;  ///< NaN wherever nothing may read
  bool hostile = false;
  uint64_t seed = 0;
};

/// Forward problem. `label` and `replay` follow from the description.
Problem make_rnn_problem(const RnnCase& description);
/// "bf16 gru 2x2 b=3 t=17 i=8 h=32 lengths=(3,0,17)"
std::string to_string(const RnnCase& description);

RnnCase random_rnn_case(const RandomRequest& request);
/// Named problems, tagged; and the lattice of sizes around the ends of vectors and blocks.
std::vector<RnnCase> rnn_cases();

/// Steps of each sequence by the words of operations §12, and what the status word says of them.
struct RnnLengths {
  std::vector<int64_t> steps = {};
  uint32_t status = 0;
};
RnnLengths rnn_lengths_of(const Tensor& lengths, int64_t batch, int64_t seq_len);

/// How far a relu cell's sums stay from 0, where its slope jumps, in units of what their terms amount to; infinity for
/// other cells. Two right kernels differ in gradients where it is below their rounding.
double distance_to_kink(const Problem& forward);

std::vector<Relation> rnn_relations();

const TestOperation& rnn_tests();
const TestOperation& rnn_backward_tests();

}  // namespace ejk::testing
