// Named problems of recurrent_attention: shapes of real models, and the places where kernels break.
#include <fmt/format.h>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"

namespace ejk::testing {
namespace {

std::vector<RecurrenceCase> primary_cases() {
  std::vector<RecurrenceCase> cases = {
      {.name = "gla_1_3b",
       .seq_len = 1024,
       .num_q_heads = 4,
       .num_kv_heads = 4,
       .key_dim = 256,
       .value_dim = 512,
       .gk = true},
      {.name = "minimax_lightning",
       .seq_len = 1024,
       .num_q_heads = 8,
       .num_kv_heads = 8,
       .key_dim = 128,
       .value_dim = 128,
       .g_gamma = true,
       .initial_state = true},
      {.name = "rwkv6_7b", .seq_len = 1024, .num_q_heads = 16, .num_kv_heads = 16, .gk = true, .initial_state = true},
      {.name = "mamba2_2_7b",
       .seq_len = 1024,
       .num_q_heads = 16,
       .num_kv_heads = 1,
       .key_dim = 128,
       .value_dim = 64,
       .g = true},
      {.name = "gla_train_packed",
       .dtype = DType::f32,
       .num_q_heads = 4,
       .num_kv_heads = 4,
       .key_dim = 64,
       .value_dim = 128,
       .packed = true,
       .lengths = {700, 33, 0, 512, 1, 290},
       .gk = true},
      {.name = "decode_step_bf16_state",
       .batch = 8,
       .num_q_heads = 16,
       .num_kv_heads = 16,
       .key_dim = 128,
       .value_dim = 128,
       .g = true,
       .initial_state = true,
       .initial_dtype = DType::bf16,
       .params = {.state_dtype = DType::bf16}},
      {.name = "linear_attention_4k", .dtype = DType::f32, .seq_len = 4096, .num_q_heads = 4, .num_kv_heads = 4},
  };
  for (RecurrenceCase& c : cases) c.tags = kPrimary;
  return cases;
}

std::vector<RecurrenceCase> lengths_and_sequences() {
  return {
      {.name = "no_batch", .batch = 0, .seq_len = 5, .gk = true, .initial_state = true},
      {.name = "no_tokens", .batch = 2, .seq_len = 0, .num_q_heads = 2, .g_gamma = true, .initial_state = true},
      {.name = "no_tokens_no_state", .batch = 2, .seq_len = 0, .gk = true},
      {.name = "no_sequences", .packed = true, .g = true, .initial_state = true},
      {.name = "rows_of_nobody", .packed = true, .lengths = {0}, .unowned_rows = 9, .gk = true, .initial_state = true},
      {.name = "packed_all_empty", .packed = true, .lengths = {0, 0, 0}, .g = true, .initial_state = true},
      {.name = "packed_with_empty_sequences",
       .dtype = DType::f32,
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .key_dim = 24,
       .value_dim = 40,
       .packed = true,
       .lengths = {0, 5, 0, 0, 129, 1, 0},
       .unowned_rows = 3,
       .gk = true,
       .initial_state = true},
      {.name = "packed_in_reverse",
       .dtype = DType::f32,
       .num_q_heads = 2,
       .key_dim = 32,
       .value_dim = 16,
       .packed = true,
       .lengths = {70, 0, 64, 3},
       .g = true,
       .gv = true,
       .initial_state = true,
       .params = {.reverse = true}},
      {.name = "one_of_everything", .dtype = DType::f32, .key_dim = 1, .value_dim = 1, .g = true},
      {.name = "one_column", .dtype = DType::f32, .seq_len = 100, .key_dim = 33, .value_dim = 1, .gk = true},
      {.name = "one_row", .dtype = DType::f32, .seq_len = 100, .key_dim = 1, .value_dim = 33, .gv = true},
      {.name = "odd_sizes",
       .dtype = DType::f32,
       .batch = 2,
       .seq_len = 131,
       .num_q_heads = 3,
       .num_kv_heads = 1,
       .key_dim = 67,
       .value_dim = 29,
       .g = true,
       .g_gamma = true,
       .gk = true,
       .gv = true,
       .initial_state = true},
      {.name = "decode_step_f32",
       .dtype = DType::f32,
       .batch = 3,
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .gk = true,
       .initial_state = true},
      {.name = "double_strided",
       .dtype = DType::f64,
       .batch = 2,
       .seq_len = 70,
       .num_q_heads = 2,
       .key_dim = 19,
       .value_dim = 21,
       .gk = true,
       .gv = true,
       .initial_state = true,
       .random_layouts = true},
      {.name = "strided_gqa",
       .batch = 2,
       .seq_len = 90,
       .num_q_heads = 6,
       .num_kv_heads = 2,
       .key_dim = 48,
       .value_dim = 80,
       .g = true,
       .gk = true,
       .initial_state = true,
       .random_layouts = true},
      {.name = "no_gates_in_reverse", .seq_len = 200, .num_q_heads = 2, .params = {.reverse = true}},
      {.name = "half_precision_gates",
       .dtype = DType::f16,
       .gate_dtype = DType::f16,
       .seq_len = 140,
       .num_q_heads = 2,
       .g = true,
       .gk = true,
       .params = {.state_dtype = DType::f16}},
  };
}

/// One kind of gate after the other, each with every kind of decay.
std::vector<RecurrenceCase> decays() {
  std::vector<RecurrenceCase> cases;
  const std::pair<const char*, Decays> kinds[] = {{"wide", Decays::wide},
                                                  {"resets", Decays::resets},
                                                  {"forget", Decays::forget},
                                                  {"zeros", Decays::zeros},
                                                  {"growing", Decays::growing}};
  for (const auto& [kind, decays] : kinds)
    for (const char* gate : {"g", "g_gamma", "gk", "gv"}) {
      const std::string_view which = gate;
      cases.push_back({.name = fmt::format("{}_{}", gate, kind),
                       .dtype = DType::f32,
                       .seq_len = 150,
                       .num_q_heads = 2,
                       .key_dim = 32,
                       .value_dim = 48,
                       .g = which == "g",
                       .g_gamma = which == "g_gamma",
                       .gk = which == "gk",
                       .gv = which == "gv",
                       .decays = decays,
                       .initial_state = true});
    }
  return cases;
}

/// Lengths around the ends of chunks, head sizes around the ends of vectors.
std::vector<RecurrenceCase> lattice() {
  std::vector<RecurrenceCase> cases;
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  for (int64_t length : {1, 15, 17, 63, 64, 65, 129})
    for (int64_t dim : {1, 8, 15, 17, 32, 65}) {
      const size_t n = cases.size();
      cases.push_back({.name = fmt::format("lattice_t{}_d{}", length, dim),
                       .tags = kLattice,
                       .dtype = dtypes[n % 3],
                       .seq_len = length,
                       .num_q_heads = 2,
                       .num_kv_heads = n % 2 == 0 ? 1 : 2,
                       .key_dim = dim,
                       .value_dim = n % 4 == 3 ? 16 : dim,
                       .g = n % 3 == 0,
                       .g_gamma = n % 5 == 0,
                       .gk = n % 2 == 1,
                       .gv = n % 7 == 0,
                       .initial_state = n % 4 == 0});
    }
  return cases;
}

}  // namespace

std::vector<RecurrenceCase> recurrence_cases() {
  std::vector<RecurrenceCase> cases = primary_cases();
  for (const auto& list : {lengths_and_sequences(), decays()})
    for (RecurrenceCase c : list) {
      c.tags = kEdge;
      cases.push_back(std::move(c));
    }
  for (RecurrenceCase& c : lattice()) cases.push_back(std::move(c));
  for (size_t n = 0; n < cases.size(); ++n) cases[n].seed = n + 1;
  return cases;
}

}  // namespace ejk::testing
