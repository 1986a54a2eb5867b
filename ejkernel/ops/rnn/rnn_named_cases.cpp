// Named problems: cells of real models, and the places where kernels break.
#include <fmt/format.h>

#include "ejkernel/ops/rnn/rnn_cases.h"

namespace ejk::testing {
namespace {

std::vector<RnnCase> primary_cases() {
  std::vector<RnnCase> cases = {
      {.name = "silero_vad_cell", .input_size = 128, .hidden_size = 128},
      {.name = "speech_lstm_512", .batch = 2, .seq_len = 3, .input_size = 512, .hidden_size = 512, .states = false},
      {.name = "tagger_gru_two_ways",
       .cell_type = CellType::gru,
       .bidirectional = true,
       .num_layers = 2,
       .batch = 4,
       .seq_len = 12,
       .input_size = 100,
       .hidden_size = 64,
       .states = false,
       .has_lengths = true,
       .lengths = {12, 5, 0, 9}},
      {.name = "deepspeech_relu",
       .cell_type = CellType::rnn,
       .activation = CellActivation::relu,
       .bidirectional = true,
       .batch = 2,
       .seq_len = 6,
       .input_size = 160,
       .hidden_size = 200,
       .states = false,
       .has_lengths = true,
       .lengths = {4, 6}},
      {.name = "elman_tanh",
       .cell_type = CellType::rnn,
       .batch = 3,
       .seq_len = 30,
       .input_size = 27,
       .hidden_size = 100},
      {.name = "half_precision_lstm",
       .dtype = DType::bf16,
       .batch = 8,
       .seq_len = 10,
       .input_size = 96,
       .hidden_size = 128,
       .keep_gates = true},
  };
  for (RnnCase& c : cases) c.tags = kPrimary;
  return cases;
}

std::vector<RnnCase> edge_cases() {
  std::vector<RnnCase> cases = {
      {.name = "no_batch", .batch = 0, .seq_len = 3},
      {.name = "no_steps", .bidirectional = true, .num_layers = 2, .batch = 2, .seq_len = 0},
      {.name = "no_inputs", .cell_type = CellType::gru, .batch = 2, .seq_len = 3, .input_size = 0},
      {.name = "one_of_everything", .input_size = 1, .hidden_size = 1},
      {.name = "nothing_optional", .batch = 2, .seq_len = 4, .states = false, .bias_ih = false, .bias_hh = false},
      {.name = "one_bias_of_a_gru", .cell_type = CellType::gru, .batch = 2, .seq_len = 4, .bias_ih = false},
      {.name = "the_other_bias_of_a_gru", .cell_type = CellType::gru, .batch = 2, .seq_len = 4, .bias_hh = false},
      {.name = "states_without_their_axis", .batch = 3, .seq_len = 4, .flat_states = true},
      {.name = "all_sequences_empty",
       .bidirectional = true,
       .batch = 3,
       .seq_len = 4,
       .has_lengths = true,
       .lengths = {0, 0, 0}},
      {.name = "kept_gates_of_an_lstm",
       .bidirectional = true,
       .num_layers = 2,
       .batch = 3,
       .seq_len = 5,
       .keep_gates = true,
       .has_lengths = true,
       .lengths = {3, 0, 5}},
      {.name = "kept_gates_of_a_gru", .cell_type = CellType::gru, .batch = 2, .seq_len = 4, .keep_gates = true},
      {.name = "kept_gates_of_a_vanilla_cell",
       .cell_type = CellType::rnn,
       .batch = 2,
       .seq_len = 4,
       .hidden_size = 40,
       .keep_gates = true},
      {.name = "lengths_rise",
       .cell_type = CellType::gru,
       .bidirectional = true,
       .batch = 5,
       .seq_len = 7,
       .has_lengths = true,
       .lengths = {0, 1, 3, 6, 7}},
      {.name = "lengths_fall_in_layers",
       .bidirectional = true,
       .num_layers = 3,
       .batch = 4,
       .seq_len = 9,
       .has_lengths = true,
       .lengths = {8, 8, 2, 0}},
      {.name = "nobody_takes_the_last_steps", .batch = 2, .seq_len = 20, .has_lengths = true, .lengths = {3, 4}},
      {.name = "more_rows_than_a_panel", .batch = 150, .seq_len = 2, .input_size = 5, .hidden_size = 37},
      {.name = "float64", .dtype = DType::f64, .cell_type = CellType::gru, .batch = 2, .seq_len = 6},
      {.name = "float16_layers", .dtype = DType::f16, .num_layers = 2, .batch = 3, .seq_len = 6, .hidden_size = 20},
      {.name = "sigmoid_cell",
       .cell_type = CellType::rnn,
       .activation = CellActivation::sigmoid,
       .batch = 2,
       .seq_len = 8},
      {.name = "identity_cell",
       .cell_type = CellType::rnn,
       .activation = CellActivation::identity,
       .num_layers = 2,
       .batch = 2,
       .seq_len = 8},
      {.name = "strange_layouts",
       .bidirectional = true,
       .num_layers = 2,
       .batch = 3,
       .seq_len = 5,
       .input_size = 7,
       .hidden_size = 19,
       .random_layouts = true},
  };
  for (RnnCase& c : cases) c.tags = kEdge;
  return cases;
}

/// Sizes around the ends of vectors and of the blocks that tasks compute.
std::vector<RnnCase> lattice() {
  std::vector<RnnCase> cases;
  for (const CellType cell : {CellType::lstm, CellType::gru, CellType::rnn})
    for (const int64_t hidden : {15, 16, 17, 31, 32, 33, 65})
      cases.push_back({.name = fmt::format("lattice_{}_h{}", name_in(enum_names(cell), cell), hidden),
                       .tags = kLattice,
                       .dtype = hidden % 2 == 0 ? DType::bf16 : DType::f32,
                       .cell_type = cell,
                       .batch = hidden % 4 + 7,
                       .seq_len = 3,
                       .input_size = 33 - hidden / 4,
                       .hidden_size = hidden});
  return cases;
}

}  // namespace

std::vector<RnnCase> rnn_cases() {
  std::vector<RnnCase> all;
  uint64_t seed = 1;
  for (const auto& group : {primary_cases(), edge_cases(), lattice()})
    for (const RnnCase& c : group) {
      all.push_back(c);
      all.back().seed = seed++;
    }
  return all;
}

}  // namespace ejk::testing
