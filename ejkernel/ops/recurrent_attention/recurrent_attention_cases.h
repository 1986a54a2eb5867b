// Problems of recurrent_attention: a compact description, named cases, and random descriptions from a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/testing/gradient_check.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// What the gates of a problem hold, in logarithms.
enum class Decays : uint8_t {
  model,    ///< close to 0, as trained models have them
  wide,     ///< from nothing to what float32 hardly holds
  resets,   ///< mostly close to 0; some are -1e4 or -inf
  forget,   ///< all -1e4
  zeros,    ///< all 0
  growing,  ///< on both sides of 0
  switches  ///< 0, -1e4 or -inf: exact in any arithmetic
};

struct RecurrenceCase {
  std::string name = {};
  unsigned tags = 0;
  DType dtype = DType::bf16;
  std::optional<DType> gate_dtype = {};  ///< absent: float32 (float64 with float64 queries)
  int64_t batch = 1, seq_len = 1;        ///< unless packed
  int64_t num_q_heads = 1, num_kv_heads = 1, key_dim = 64, value_dim = 64;
  bool packed = false;
  std::vector<int64_t> lengths = {};  ///< of packed sequences
  int64_t unowned_rows = 0;           ///< packed: rows before the first and after the last sequence

  bool g = false, g_gamma = false, gk = false, gv = false;
  Decays decays = Decays::model;
  bool initial_state = false;
  std::optional<DType> initial_dtype = {};  ///< absent: float32 (float64 with float64 queries)
  RecurrentAttention::Params params = {};

  bool integers = false;  ///< small ones, whose sums are exact in float32
  bool random_layouts = false;
  bool poison = true;  ///< NaN wherever nothing may read
  bool hostile = false;
  uint64_t seed = 0;
};

/// Forward problem. `label` and `replay` follow from the description.
Problem make_recurrence_problem(const RecurrenceCase& description);
Problem make_recurrence_backward_problem(const RecurrenceCase& description);
/// "bf16 packed (3,0,17) heads=4/2 k=64 v=32 g gk h0 reverse"
std::string to_string(const RecurrenceCase& description);

RecurrenceCase random_recurrence_case(const RandomRequest& request);
/// Small integers, and gates that keep everything or nothing: exact in any arithmetic.
RecurrenceCase exact_recurrence_case(uint64_t seed, bool backward);
/// Named problems, tagged; and the lattice of lengths and head sizes around the ends of vectors and chunks.
std::vector<RecurrenceCase> recurrence_cases();

/// The sequences of a call by the words of operations §0.15: rows [begin, begin + length) of batch entry `batch`.
struct TokenRun {
  int64_t batch = 0, begin = 0, length = 0;
};
struct TokenRuns {
  std::vector<TokenRun> all = {};
  uint32_t status = 0;
  bool overlapping = false;  ///< a row belongs to several sequences: it holds one of their results
};
TokenRuns token_runs(const Tensor& query, const Tensor& cu_seqlens);

/// Answers in float64, outputs in field order.
Answer recurrence_answer(const RecurrentAttention::Inputs& in, const RecurrentAttention::Params& params, double budget,
                         uint64_t seed);
Answer recurrence_backward_answer(const RecurrentAttentionBackward::Inputs& in,
                                  const RecurrentAttention::Params& params, double budget, uint64_t seed);

/// The same problem of an operation that is recurrent_attention, or its gradient, with some of its inputs.
Problem narrowed(const Problem& recurrent, const Operation& to, const ParamsBlock& params);
/// The answer's outputs that this gradient operation has, in its order.
Answer narrowed(Answer recurrent_backward, const Operation& to);
/// Runs the kernel of recurrent_attention that has this one's name, on its device.
KernelRunner runner_of_recurrence(const KernelRunner& run);

std::vector<Relation> recurrence_relations();

const TestOperation& recurrent_attention_tests();
const TestOperation& recurrent_attention_backward_tests();

}  // namespace ejk::testing
