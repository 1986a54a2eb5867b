// Problems of flash_attention: a compact description, the named ones, and random ones. The other attention operations
// describe theirs with it too.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// Which axes of a [batch|1, heads|1, rows|1, keys] tensor are there in full.
struct Plane {
  bool given = false;
  bool batch = true, heads = true, rows = true;
};

/// Where the numbers come from.
enum class Data : uint8_t {
  normal,
  equal,     ///< the same number everywhere
  huge,      ///< values near the end of the range; queries and keys whose products leave a 16-bit range
  subnormal  ///< values below the smallest normal number
};

/// How 8-bit codes are scaled.
enum class CodeScale : uint8_t { none, one, per_head, per_block };

struct AttentionCase {
  std::string name = {};
  unsigned tags = 0;
  DType dtype = DType::bf16;
  int64_t batch = 1, q_len = 1, kv_len = 1, num_q_heads = 1, num_kv_heads = 1, head_dim = 64;
  int64_t value_dim = 0;  ///< 0: head_dim
  FlashAttention::Params params = {};

  Plane bias = {}, mask = {};
  DType bias_dtype = DType::f32;
  double minus_infinity = 0;  ///< share of the bias's entries that exclude their key
  double mask_density = 0.7;
  int64_t num_segments = 0;  ///< 0: no segment ids
  bool kv_segments = true;   ///< false: the queries' serve for the keys
  int64_t num_sinks = 0;
  bool shared_sinks = false;  ///< rank 1
  bool dropout_seed = false;

  std::vector<int64_t> q_lens = {}, k_lens = {};  ///< packed sequences; empty: batched
  int64_t unowned_rows = 0;                       ///< packed: rows before the first and after the last sequence
  bool seqused_k = false;
  CodeScale scales = CodeScale::none;

  Data data = Data::normal;
  bool random_layouts = false;
  size_t alignment = 1;  ///< of rows in them, in bytes
  bool poison = true;    ///< NaN wherever nothing may read
  bool hostile = false;
  uint64_t seed = 0;
};

/// Forward problem. `label` and `replay` follow from the description.
Problem make_attention_problem(const AttentionCase& description);
/// "bf16 b=2 q=17 k=33 heads=4/2 d=64 causal …"
std::string to_string(const AttentionCase& description);

/// What varies with the operation that draws a description.
struct AttentionScope {
  bool packed = true;
  bool gradient = false;  ///< leave out what has no gradient: 8-bit codes, unnormalised output
};
AttentionCase random_attention_case(const RandomRequest& request, const AttentionScope& scope = {});

/// Named problems, tagged; and the lattice of lengths around tile ends, head sizes and layouts.
std::vector<AttentionCase> attention_cases();
std::vector<AttentionCase> attention_lattice();

std::vector<Relation> flash_attention_relations();
std::vector<Relation> flash_attention_backward_relations();

ExactProblem exact_attention(uint64_t seed);
ExactProblem exact_attention_backward(uint64_t seed);

const TestOperation& flash_attention_tests();
const TestOperation& flash_attention_backward_tests();

}  // namespace ejk::testing
