// Problems of mean_pooling: a compact description, the named ones, and random ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// Where the numbers of x come from.
enum class PoolingData : uint8_t {
  normal,
  huge,     ///< near the end of the range: their sum would leave it
  integers  ///< small ones, whose sums are exact in float32
};

struct PoolingCase {
  std::string name = {};
  unsigned tags = 0;
  DType dtype = DType::bf16;
  int64_t batch = 1, num_tokens = 1, num_heads = 1, dim = 64;  ///< batch and num_tokens: unless packed
  std::optional<int64_t> chunk_size = {};                      ///< absent: whole sequences, and no heads
  bool packed = false;
  std::vector<int64_t> lengths = {};  ///< of packed sequences
  int64_t unowned_rows = 0;           ///< packed: rows before the first and after the last sequence
  bool masked = false;
  double mask_density = 0.7;

  PoolingData data = PoolingData::normal;
  bool random_layouts = false;
  bool poison = true;  ///< NaN wherever nothing may read
  bool hostile = false;
  uint64_t seed = 0;
};

/// Forward problem. `label` and `replay` follow from the description.
Problem make_pooling_problem(const PoolingCase& description);
/// "bf16 packed (3,0,17) heads=4 d=64 chunk=8"
std::string to_string(const PoolingCase& description);

PoolingCase random_pooling_case(const RandomRequest& request);
/// Named problems, tagged; and the lattice of row counts and widths around the ends of vectors and tiles.
std::vector<PoolingCase> pooling_cases();

/// The rows that make one mean, by the words of operations §14: an independent reading that shares no line with
/// kernels.
struct Pool {
  int64_t batch = 0;
  std::vector<int64_t> rows = {};  ///< of x, selected ones only
  int64_t mean = 0;                ///< row of out
};
struct Pools {
  std::vector<Pool> all = {};               ///< those that have a row in out
  std::vector<int64_t> chunk_offsets = {};  ///< packed chunks only
  uint32_t status = 0;
};
Pools pools_of(const Tensor& mask, const Tensor& cu_seqlens, int64_t num_batches, int64_t num_tokens,
               std::optional<int64_t> chunk_size);
/// Rows of out in each batch entry.
int64_t means_per_batch(const Tensor& cu_seqlens, int64_t num_tokens, std::optional<int64_t> chunk_size);

std::vector<Relation> pooling_relations();

const TestOperation& mean_pooling_tests();
const TestOperation& mean_pooling_backward_tests();

}  // namespace ejk::testing
