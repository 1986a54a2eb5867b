// Problems of grouped_matmul and its gradients: a compact description, the named ones, and random ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// Where the numbers of the operands come from.
enum class MatmulData : uint8_t {
  normal,
  outliers,  ///< normal, one in a hundred 20 times as large
  integers   ///< small ones, whose sums of products are exact in float32; scales are powers of two
};

struct MatmulCase {
  std::string name = {};
  unsigned tags = 0;
  DType dtype = DType::bf16;
  std::optional<DType> rhs_dtype = {};  ///< absent: lhs's
  std::optional<DType> out_dtype = {};
  int64_t k = 64, n = 64;
  std::vector<int64_t> sizes = {};                 ///< ragged: rows of every group
  int64_t rows_of_nobody = 0;                      ///< ragged: rows past the last group
  int64_t group_offset = 0, groups_elsewhere = 0;  ///< ragged: groups before and after those with a matrix
  bool batched = false;
  int64_t batch = 1, num_groups = 1, m = 1;  ///< batched only

  bool transpose_rhs = false, existing_out = false;
  std::optional<int> lhs_scale_rank = {}, rhs_scale_rank = {};  ///< 0, 1 or 2; 0, 2 or 3
  bool rhs_mask = false, out_mask = false;
  int64_t block_m = 16, block_k = 16, block_n = 16;
  double mask_density = 0.5;

  MatmulData data = MatmulData::normal;
  bool random_layouts = false;
  bool poison = true;  ///< NaN wherever nothing may read
  bool hostile = false;
  uint64_t seed = 0;
};

/// "bf16 (3,0,17) k=64 n=96 transposed"
std::string to_string(const MatmulCase& description);
Problem make_matmul_problem(const MatmulCase& description);
/// Of the gradient, and of the product for the weights alone: float operands, ragged for the latter.
Problem make_matmul_backward_problem(const MatmulCase& description);
Problem make_transposed_matmul_problem(const MatmulCase& description);

MatmulCase random_matmul_case(const RandomRequest& request);
/// Named problems, tagged; and the lattice of extents around the ends of vectors and tiles.
std::vector<MatmulCase> matmul_cases();

/// Rows of each group by the words of operations §15: an independent reading that shares no line with kernels.
struct GroupRows {
  struct Rows {
    int64_t begin = 0, end = 0;
  };
  std::vector<Rows> all = {};  ///< of every group
  uint32_t status = 0;
};
GroupRows rows_of_groups(const Tensor& group_sizes, int64_t m);
/// For each row the group with a matrix that owns it, counted from group_offset; -1: none does.
std::vector<int64_t> owners_of_rows(const Tensor& group_sizes, int64_t m, int64_t group_offset, int64_t num_groups);

std::vector<Relation> matmul_relations();
std::vector<Relation> matmul_backward_relations();
std::vector<Relation> transposed_matmul_relations();

const TestOperation& grouped_matmul_tests();
const TestOperation& grouped_matmul_backward_tests();
const TestOperation& transposed_grouped_matmul_tests();

}  // namespace ejk::testing
