// Named products: layers of real models, and the places where kernels break.
#include <fmt/format.h>

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"

namespace ejk::testing {
namespace {

/// Rows per group as routers give them: the share of a group falls like 1 / (its place + 1), and places are mixed.
std::vector<int64_t> skewed(int64_t rows, int64_t count) {
  double total = 0;
  for (int64_t g = 0; g < count; ++g) total += 1 / static_cast<double>(g + 1);
  std::vector<int64_t> sizes(static_cast<size_t>(count), 0);
  int64_t left = rows;
  for (int64_t g = 0; g < count; ++g) {
    const auto share = static_cast<int64_t>(static_cast<double>(rows) / static_cast<double>(g + 1) / total);
    sizes[static_cast<size_t>(g)] = share;
    left -= share;
  }
  sizes[0] += left;
  Random random(7);
  random.shuffle(sizes);
  return sizes;
}
std::vector<int64_t> even(int64_t rows, int64_t count) {
  return std::vector<int64_t>(static_cast<size_t>(count), rows / count);
}

/// Extents are the models'; the parts of a tensor- or expert-parallel rank where a whole layer is larger than tests.
std::vector<MatmulCase> primary_cases() {
  std::vector<MatmulCase> cases = {
      {.name = "mixtral_8x7b_up_tp8", .k = 4096, .n = 1792, .sizes = skewed(128, 8)},
      {.name = "mixtral_8x7b_down_tp8", .k = 1792, .n = 4096, .sizes = even(128, 8), .transpose_rhs = true},
      {.name = "deepseek_v3_ep64",
       .k = 7168,
       .n = 2048,
       .sizes = even(1024, 256),
       .group_offset = 96,
       .groups_elsewhere = 156},
      {.name = "deepseek_v3_fp8_ep128",
       .dtype = DType::e4m3,
       .k = 7168,
       .n = 2048,
       .sizes = even(2048, 256),
       .group_offset = 10,
       .groups_elsewhere = 244,
       .transpose_rhs = true,
       .lhs_scale_rank = 2,
       .rhs_scale_rank = 3},
      {.name = "qwen3_30b_a3b_tp8", .k = 2048, .n = 96, .sizes = skewed(1024, 128)},
      {.name = "qwen3_30b_a3b_decode_tp8", .k = 2048, .n = 96, .sizes = skewed(64, 128)},
      {.name = "mixtral_8x7b_int8_weights_tp8",
       .rhs_dtype = DType::i8,
       .k = 4096,
       .n = 1792,
       .sizes = skewed(64, 8),
       .transpose_rhs = true,
       .rhs_scale_rank = 2},
      {.name = "minilm_up_f32", .dtype = DType::f32, .k = 384, .n = 1536, .sizes = {1024}, .transpose_rhs = true},
      {.name = "minilm_down_f32", .dtype = DType::f32, .k = 1536, .n = 384, .sizes = {1024}, .transpose_rhs = true},
      {.name = "square_2048_f32", .dtype = DType::f32, .k = 2048, .n = 2048, .sizes = {2048}},
      {.name = "square_2048_bf16", .k = 2048, .n = 2048, .sizes = {2048}},
      {.name = "square_2048_int8",
       .dtype = DType::i8,
       .k = 2048,
       .n = 2048,
       .sizes = {2048},
       .lhs_scale_rank = 1,
       .rhs_scale_rank = 2},
      {.name = "megablocks_sparse",
       .k = 1024,
       .n = 1024,
       .sizes = skewed(512, 4),
       .rhs_mask = true,
       .out_mask = true,
       .block_m = 128,
       .block_k = 128,
       .block_n = 128},
      {.name = "expert_capacity_batched", .k = 1024, .n = 512, .batched = true, .batch = 2, .num_groups = 8, .m = 40},
  };
  for (MatmulCase& c : cases) c.tags = kPrimary;
  return cases;
}

std::vector<MatmulCase> edge_cases() {
  const DType f32 = DType::f32;
  std::vector<MatmulCase> cases = {
      {.name = "no_groups", .dtype = f32, .k = 8, .n = 8},
      {.name = "no_groups_but_rows", .k = 8, .n = 8, .rows_of_nobody = 5},
      {.name = "no_groups_here", .k = 8, .n = 8, .sizes = {3, 4}, .group_offset = 1, .groups_elsewhere = 1},
      {.name = "no_rows", .dtype = f32, .sizes = {0, 0, 0}},
      {.name = "no_depth", .dtype = f32, .k = 0, .n = 40, .sizes = {3, 0, 5}},
      {.name = "no_depth_onto_existing", .k = 0, .n = 40, .sizes = {3, 0, 5}, .existing_out = true},
      {.name = "no_columns", .k = 40, .n = 0, .sizes = {3, 0, 5}},
      {.name = "one_of_everything", .dtype = f32, .k = 1, .n = 1, .sizes = {1}},
      {.name = "one_row", .k = 300, .n = 500, .sizes = {1}},
      {.name = "one_row_f32", .dtype = f32, .k = 300, .n = 500, .sizes = {1}, .transpose_rhs = true},
      {.name = "one_column", .dtype = f32, .k = 300, .n = 1, .sizes = {70, 3}},
      {.name = "empty_groups", .dtype = f32, .k = 33, .n = 65, .sizes = {0, 0, 7, 0, 1, 0, 20, 0}},
      {.name = "rows_of_nobody", .k = 33, .n = 65, .sizes = {9, 2}, .rows_of_nobody = 11},
      {.name = "rows_of_others",
       .k = 33,
       .n = 65,
       .sizes = {9, 2, 30, 4, 8},
       .rows_of_nobody = 3,
       .group_offset = 2,
       .groups_elsewhere = 1},
      {.name = "rows_of_others_onto_existing",
       .dtype = f32,
       .k = 33,
       .n = 65,
       .sizes = {9, 2, 30, 4, 8},
       .rows_of_nobody = 3,
       .group_offset = 2,
       .groups_elsewhere = 1,
       .existing_out = true},
      {.name = "hostile_sizes", .k = 20, .n = 30, .sizes = {5, 5, 5, 5, 5, 5}, .hostile = true},
      {.name = "hostile_sizes_of_others",
       .dtype = f32,
       .k = 20,
       .n = 30,
       .sizes = {5, 5, 5, 5, 5, 5},
       .group_offset = 2,
       .groups_elsewhere = 2,
       .hostile = true},
      {.name = "hundred_groups_of_one_row", .k = 32, .n = 32, .sizes = even(100, 100)},
      {.name = "one_large_group_among_small", .dtype = f32, .k = 65, .n = 33, .sizes = {1, 900, 0, 2, 1}},
      {.name = "double", .dtype = DType::f64, .k = 70, .n = 50, .sizes = {9, 20}, .transpose_rhs = true},
      {.name = "half", .dtype = DType::f16, .k = 70, .n = 50, .sizes = {9, 20}},
      {.name = "outliers", .k = 600, .n = 50, .sizes = {9, 20}, .data = MatmulData::outliers},
      {.name = "bf16_into_f32", .out_dtype = f32, .k = 600, .n = 50, .sizes = {9, 20}, .existing_out = true},
      {.name = "f32_into_bf16", .dtype = f32, .out_dtype = DType::bf16, .k = 600, .n = 50, .sizes = {9, 20}},
      {.name = "int8_without_scales", .dtype = DType::i8, .k = 600, .n = 50, .sizes = {9, 20}},
      {.name = "int8_per_row",
       .dtype = DType::i8,
       .k = 600,
       .n = 50,
       .sizes = {9, 20},
       .lhs_scale_rank = 1,
       .rhs_scale_rank = 2,
       .data = MatmulData::outliers},
      {.name = "int8_per_block",
       .dtype = DType::i8,
       .out_dtype = f32,
       .k = 300,
       .n = 150,
       .sizes = {9, 20},
       .rows_of_nobody = 2,
       .lhs_scale_rank = 2,
       .rhs_scale_rank = 3},
      {.name = "e4m3_per_block",
       .dtype = DType::e4m3,
       .k = 257,
       .n = 129,
       .sizes = {9, 20},
       .transpose_rhs = true,
       .lhs_scale_rank = 2,
       .rhs_scale_rank = 3},
      {.name = "e5m2_times_e4m3",
       .dtype = DType::e5m2,
       .rhs_dtype = DType::e4m3,
       .k = 257,
       .n = 129,
       .sizes = {9, 20},
       .lhs_scale_rank = 0,
       .rhs_scale_rank = 0},
      {.name = "f32_times_int8",
       .dtype = f32,
       .rhs_dtype = DType::i8,
       .k = 257,
       .n = 129,
       .sizes = {9},
       .rhs_scale_rank = 3},
      {.name = "f16_times_e4m3", .dtype = DType::f16, .rhs_dtype = DType::e4m3, .k = 257, .n = 129, .sizes = {9, 3}},
      {.name = "masks_of_one_element",
       .dtype = f32,
       .k = 9,
       .n = 11,
       .sizes = {4, 5},
       .rhs_mask = true,
       .out_mask = true,
       .block_m = 1,
       .block_k = 1,
       .block_n = 1},
      {.name = "masks_of_any_size",
       .k = 40,
       .n = 50,
       .sizes = {4, 5},
       .rhs_mask = true,
       .out_mask = true,
       .block_m = INT64_MAX,
       .block_k = INT64_MAX,
       .block_n = INT64_MAX},
      {.name = "masks_with_tails",
       .dtype = f32,
       .k = 100,
       .n = 90,
       .sizes = {40, 0, 33},
       .rows_of_nobody = 4,
       .transpose_rhs = true,
       .existing_out = true,
       .rhs_mask = true,
       .out_mask = true,
       .block_m = 32,
       .block_k = 48,
       .block_n = 20},
      {.name = "masks_select_nothing",
       .k = 40,
       .n = 50,
       .sizes = {4, 5},
       .rhs_mask = true,
       .block_k = 8,
       .block_n = 8,
       .mask_density = 0},
      {.name = "batched_no_batch", .batched = true, .batch = 0, .num_groups = 2, .m = 3},
      {.name = "batched_no_groups", .batched = true, .batch = 2, .num_groups = 0, .m = 3},
      {.name = "batched_no_rows", .batched = true, .batch = 2, .num_groups = 2, .m = 0},
      {.name = "batched_transposed",
       .dtype = f32,
       .k = 33,
       .n = 20,
       .batched = true,
       .batch = 2,
       .num_groups = 3,
       .m = 7,
       .transpose_rhs = true,
       .existing_out = true},
      {.name = "batched_int8",
       .dtype = DType::i8,
       .k = 33,
       .n = 20,
       .batched = true,
       .batch = 2,
       .num_groups = 3,
       .m = 7,
       .lhs_scale_rank = 0,
       .rhs_scale_rank = 0},
      {.name = "strided", .k = 70, .n = 90, .sizes = {20, 3, 0, 9}, .existing_out = true, .random_layouts = true},
      {.name = "strided_batched",
       .dtype = f32,
       .k = 70,
       .n = 90,
       .batched = true,
       .batch = 3,
       .num_groups = 2,
       .m = 9,
       .random_layouts = true},
  };
  for (MatmulCase& c : cases) c.tags = kEdge;
  return cases;
}

/// Extents around the ends of vectors, of register tiles and of cache blocks, in every dtype.
std::vector<MatmulCase> lattice() {
  std::vector<MatmulCase> cases;
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::bf16, DType::i8, DType::e4m3};
  const int64_t depths[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 513};
  for (int64_t m : {1, 2, 5, 6, 7, 8, 13, 15, 16, 17, 31, 33, 65})
    for (int64_t n : {1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 129}) {
      const size_t at = cases.size();
      MatmulCase c = {.tags = kLattice, .dtype = dtypes[at % 6], .k = depths[at % 16], .n = n, .sizes = {m, 3, m + 1}};
      c.transpose_rhs = at % 7 < 3;
      if (at % 6 >= 4) c.lhs_scale_rank = static_cast<int>(at % 3), c.rhs_scale_rank = at % 2 == 0 ? 2 : 3;
      c.name = fmt::format("lattice_{}_m{}_k{}_n{}", at, m, c.k, n);
      cases.push_back(std::move(c));
    }
  return cases;
}

}  // namespace

std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> cases;
  for (const auto& list : {primary_cases(), edge_cases(), lattice()})
    cases.insert(cases.end(), list.begin(), list.end());
  for (size_t n = 0; n < cases.size(); ++n) cases[n].seed = n + 1;
  return cases;
}

}  // namespace ejk::testing
