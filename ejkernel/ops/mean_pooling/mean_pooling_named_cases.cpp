// Named pooling problems: shapes of real models, and the places where kernels break.
#include <fmt/format.h>

#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"

namespace ejk::testing {
namespace {

std::vector<PoolingCase> primary_cases() {
  std::vector<PoolingCase> cases = {
      {.name = "minilm_sentences", .dtype = DType::f32, .batch = 32, .num_tokens = 128, .dim = 384, .masked = true},
      {.name = "bge_large_padded", .dtype = DType::f16, .batch = 8, .num_tokens = 512, .dim = 1024, .masked = true},
      {.name = "e5_mistral_packed", .dim = 4096, .packed = true, .lengths = {33, 512, 77, 240, 128, 9, 610, 301}},
      {.name = "nsa_compress_8k", .num_tokens = 8192, .num_heads = 4, .dim = 128, .chunk_size = 32},
      {.name = "nsa_compress_packed",
       .num_heads = 4,
       .dim = 128,
       .chunk_size = 64,
       .packed = true,
       .lengths = {1000, 3, 4096, 777}},
      {.name = "one_long_document", .num_tokens = 32768, .dim = 256},
  };
  for (PoolingCase& c : cases) c.tags = kPrimary;
  return cases;
}

std::vector<PoolingCase> edge_cases() {
  std::vector<PoolingCase> cases = {
      {.name = "no_batch", .batch = 0, .num_tokens = 5},
      {.name = "no_rows", .batch = 3, .num_tokens = 0},
      {.name = "no_rows_in_chunks", .batch = 2, .num_tokens = 0, .num_heads = 2, .chunk_size = 4},
      {.name = "no_sequences", .packed = true},
      {.name = "no_sequences_in_chunks", .num_heads = 2, .chunk_size = 4, .packed = true, .unowned_rows = 5},
      {.name = "one_of_everything", .dim = 1},
      {.name = "mask_selects_none",
       .dtype = DType::f32,
       .batch = 3,
       .num_tokens = 40,
       .masked = true,
       .mask_density = 0},
      {.name = "mask_selects_all",
       .dtype = DType::f32,
       .batch = 3,
       .num_tokens = 40,
       .masked = true,
       .mask_density = 1},
      {.name = "mask_selects_few", .batch = 5, .num_tokens = 300, .dim = 33, .masked = true, .mask_density = 0.02},
      {.name = "packed_with_empty_sequences",
       .dtype = DType::f32,
       .dim = 70,
       .packed = true,
       .lengths = {0, 5, 0, 0, 129, 1, 0},
       .unowned_rows = 3},
      {.name = "packed_all_empty", .packed = true, .lengths = {0, 0, 0}},
      {.name = "packed_rows_of_nobody", .packed = true, .lengths = {0}, .unowned_rows = 20},
      {.name = "chunks_of_one_row", .num_tokens = 50, .num_heads = 3, .dim = 17, .chunk_size = 1},
      {.name = "chunk_past_the_end", .batch = 2, .num_tokens = 50, .num_heads = 2, .chunk_size = 51},
      {.name = "chunk_of_any_size", .batch = 2, .num_tokens = 50, .num_heads = 2, .chunk_size = INT64_MAX},
      {.name = "chunks_with_a_tail", .batch = 2, .num_tokens = 65, .num_heads = 2, .chunk_size = 16},
      {.name = "packed_chunks_with_tails",
       .dtype = DType::f16,
       .num_heads = 2,
       .dim = 40,
       .chunk_size = 8,
       .packed = true,
       .lengths = {8, 0, 7, 9, 64, 1, 0},
       .unowned_rows = 2},
      {.name = "packed_chunks_all_empty", .num_heads = 2, .chunk_size = 8, .packed = true, .lengths = {0, 0}},
      {.name = "sums_beyond_the_range", .dtype = DType::f32, .num_tokens = 90, .data = PoolingData::huge},
      {.name = "sums_beyond_the_range_bf16", .num_tokens = 90, .data = PoolingData::huge},
      {.name = "sums_beyond_the_range_f16", .dtype = DType::f16, .num_tokens = 90, .data = PoolingData::huge},
      {.name = "long_narrow", .dtype = DType::f32, .num_tokens = 50000, .dim = 3},
      {.name = "long_masked", .num_tokens = 20000, .dim = 20, .masked = true},
      {.name = "long_sequence_among_short",
       .dtype = DType::f32,
       .dim = 24,
       .packed = true,
       .lengths = {1, 16000, 2, 0, 3}},
      {.name = "long_chunk", .num_tokens = 9001, .num_heads = 2, .dim = 20, .chunk_size = 9000},
      {.name = "double_strided", .dtype = DType::f64, .batch = 3, .num_tokens = 70, .random_layouts = true},
      {.name = "strided_chunks",
       .batch = 3,
       .num_tokens = 70,
       .num_heads = 3,
       .dim = 65,
       .chunk_size = 11,
       .random_layouts = true},
  };
  for (PoolingCase& c : cases) c.tags = kEdge;
  return cases;
}

/// Rows around the ends of chunks and of blocks of rows, columns around the ends of vectors and tiles.
std::vector<PoolingCase> lattice() {
  std::vector<PoolingCase> cases;
  const DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  auto add = [&](PoolingCase c) {
    c.tags = kLattice;
    c.dtype = dtypes[cases.size() % 3];
    c.name = fmt::format("lattice_{}_t{}_d{}{}{}", cases.size(), c.num_tokens, c.dim, c.chunk_size ? "_chunked" : "",
                         c.packed   ? "_packed"
                         : c.masked ? "_masked"
                                    : "");
    cases.push_back(std::move(c));
  };
  for (int64_t tokens : {1, 16, 17, 128, 129, 257})
    for (int64_t dim : {1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 511, 512, 513}) {
      add({.batch = 2, .num_tokens = tokens, .dim = dim, .masked = dim % 2 == 1});
      add({.num_tokens = tokens, .num_heads = 2, .dim = dim, .chunk_size = 16});
      add({.num_tokens = tokens, .dim = dim, .packed = true, .lengths = {tokens, 0, 1}});
    }
  return cases;
}

}  // namespace

std::vector<PoolingCase> pooling_cases() {
  std::vector<PoolingCase> cases;
  for (const auto& list : {primary_cases(), edge_cases(), lattice()})
    cases.insert(cases.end(), list.begin(), list.end());
  for (size_t n = 0; n < cases.size(); ++n) cases[n].seed = n + 1;
  return cases;
}

}  // namespace ejk::testing
