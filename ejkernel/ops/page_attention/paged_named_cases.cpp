// Named problems over a cache: shapes of real models, and the places where kernels break.
#include <fmt/format.h>

#include "ejkernel/ops/page_attention/paged_cases.h"

namespace ejk::testing {
namespace {

constexpr double kGptOssScale = 0.125;

/// Numbers the seeds, and tags what has no tag.
std::vector<PagedCase> numbered(std::vector<PagedCase> cases, unsigned tags, uint64_t first) {
  for (size_t n = 0; n < cases.size(); ++n) {
    cases[n].seed = first + n;
    if (cases[n].tags == 0) cases[n].tags = tags;
  }
  return cases;
}

/// Lengths are those of a server's batch: no two alike.
std::vector<PagedCase> decode_models() {
  return {{.name = "llama3_8b_decode",
           .tags = kPrimary,
           .num_q_heads = 32,
           .num_kv_heads = 8,
           .head_dim = 128,
           .lens = {1000, 57, 431, 16}},
          {.name = "llama3_70b_decode",
           .tags = kPrimary,
           .num_q_heads = 64,
           .num_kv_heads = 8,
           .head_dim = 128,
           .lens = {700, 333}},
          {.name = "llama3_8b_decode_int8",
           .tags = kPrimary,
           .cache = DType::i8,
           .num_q_heads = 32,
           .num_kv_heads = 8,
           .head_dim = 128,
           .lens = {1000, 57, 431, 16},
           .scales = CacheScale::per_head},
          {.name = "llama3_8b_decode_fp8",
           .tags = kPrimary,
           .cache = DType::e4m3,
           .num_q_heads = 32,
           .num_kv_heads = 8,
           .head_dim = 128,
           .lens = {1000, 57, 431, 16},
           .scales = CacheScale::one},
          {.name = "llama3_8b_decode_int4",
           .tags = kPrimary,
           .cache = DType::i4,
           .num_q_heads = 32,
           .num_kv_heads = 8,
           .head_dim = 128,
           .lens = {1000, 57, 431, 16},
           .scales = CacheScale::grouped,
           .group = 32},
          {.name = "qwen2_5_7b_decode",
           .tags = kPrimary,
           .num_q_heads = 28,
           .num_kv_heads = 4,
           .head_dim = 128,
           .lens = {900, 511, 64}},
          {.name = "mistral_7b_window_4096",
           .tags = kPrimary,
           .num_q_heads = 32,
           .num_kv_heads = 8,
           .head_dim = 128,
           .lens = {4200},
           .params = {.sliding_window = 4095}},
          {.name = "gemma2_9b_window_and_soft_cap",
           .tags = kPrimary,
           .num_q_heads = 16,
           .num_kv_heads = 8,
           .head_dim = 256,
           .lens = {600, 130},
           .params = {.softmax_scale = 0.0625, .sliding_window = 511, .logits_soft_cap = 50.0}},
          {.name = "gpt_oss_120b_window_and_sinks",
           .tags = kPrimary,
           .num_q_heads = 64,
           .num_kv_heads = 8,
           .head_dim = 64,
           .lens = {500, 90, 128, 129},
           .params = {.softmax_scale = kGptOssScale, .sliding_window = 127},
           .num_sinks = 1},
          {.name = "deepseek_style_one_kv_head",
           .tags = kPrimary,
           .num_q_heads = 16,
           .num_kv_heads = 1,
           .head_dim = 192,
           .value_dim = 128,
           .page_size = 64,
           .lens = {800, 65}}};
}

std::vector<PagedCase> decode_edges() {
  return {
      {.name = "no_sequences", .num_q_heads = 2},
      {.name = "no_sequences_and_no_pages", .num_q_heads = 2, .spare_pages = 0},
      {.name = "no_pages", .num_q_heads = 2, .lens = {0, 0}, .spare_pages = 0},
      {.name = "no_pages_and_sinks", .num_q_heads = 2, .lens = {0, 0}, .spare_pages = 0, .num_sinks = 2},
      {.name = "no_slots_in_a_page", .num_q_heads = 2, .page_size = 0, .lens = {0, 0}},
      {.name = "no_table", .num_q_heads = 2, .lens = {0, 0}, .spare_entries = 0},
      {.name = "lengths_0_and_1", .dtype = DType::f32, .cache = DType::f32, .num_q_heads = 2, .lens = {0, 1, 0, 1}},
      {.name = "one_token_of_one_element", .head_dim = 1, .lens = {1}},
      {.name = "longer_than_the_table",
       .num_q_heads = 2,
       .page_size = 8,
       .lens = {100, 3, 16, 17},
       .params = {.sliding_window = 20},
       .most_entries = 2},
      {.name = "beyond_a_table_without_entries", .num_q_heads = 2, .lens = {100, 3}, .most_entries = 0},
      {.name = "missing_pages",
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .page_size = 8,
       .lens = {60, 33, 8},
       .missing = 0.4},
      {.name = "only_missing_pages", .num_q_heads = 2, .lens = {40, 3}, .missing = 1, .num_sinks = 1},
      {.name = "missing_pages_before_the_window",
       .num_q_heads = 2,
       .page_size = 4,
       .lens = {90, 70, 80},
       .params = {.sliding_window = 30, .attention_sink_size = 2},
       .missing = 0.1},
      {.name = "shared_pages", .num_q_heads = 4, .num_kv_heads = 2, .lens = {100, 90, 120, 33}, .shared = 1},
      {.name = "window_of_one", .num_q_heads = 2, .lens = {40, 1}, .params = {.sliding_window = 0}},
      {.name = "window_with_sink_tokens",
       .num_q_heads = 4,
       .lens = {300, 20, 131},
       .params = {.sliding_window = 30, .attention_sink_size = 4}},
      {.name = "sink_tokens_into_the_window",
       .num_q_heads = 2,
       .lens = {50, 61},
       .params = {.sliding_window = 30, .attention_sink_size = 40}},
      {.name = "soft_cap_and_shared_sinks",
       .dtype = DType::f16,
       .cache = DType::f16,
       .num_q_heads = 6,
       .num_kv_heads = 3,
       .lens = {77, 130},
       .params = {.logits_soft_cap = 5.0},
       .num_sinks = 3,
       .shared_sinks = true},
      {.name = "negative_scale", .num_q_heads = 2, .lens = {50}, .params = {.softmax_scale = -0.2}},
      {.name = "equal_logits", .num_q_heads = 2, .lens = {300, 17}, .data = Data::equal},
      {.name = "huge",
       .dtype = DType::f32,
       .cache = DType::f32,
       .num_q_heads = 2,
       .lens = {130, 17},
       .data = Data::huge},
      {.name = "subnormal", .num_q_heads = 2, .lens = {130, 17}, .data = Data::subnormal},
      {.name = "head_major",
       .num_q_heads = 8,
       .num_kv_heads = 4,
       .lens = {100, 33},
       .params = {.cache_layout = CacheLayout::head_major}},
      {.name = "head_major_int4",
       .cache = DType::i4,
       .num_q_heads = 8,
       .num_kv_heads = 4,
       .lens = {100, 33},
       .params = {.cache_layout = CacheLayout::head_major},
       .scales = CacheScale::grouped,
       .group = 16},
      {.name = "strided",
       .num_q_heads = 8,
       .num_kv_heads = 4,
       .head_dim = 40,
       .value_dim = 24,
       .lens = {100, 33, 7},
       .params = {.logits_soft_cap = 30.0},
       .num_sinks = 1,
       .random_layouts = true},
      {.name = "strided_int4",
       .cache = DType::i4,
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 32,
       .lens = {100, 33, 7},
       .scales = CacheScale::grouped,
       .random_layouts = true},
      {.name = "batch_invariant",
       .num_q_heads = 8,
       .num_kv_heads = 2,
       .lens = {5, 1200, 129, 0, 64, 700},
       .params = {.batch_invariant = true}},
      {.name = "token_axis", .num_q_heads = 4, .num_kv_heads = 2, .lens = {30, 0, 9}, .token_axis = true},
      {.name = "double",
       .dtype = DType::f64,
       .cache = DType::f64,
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .lens = {200, 31}},
      {.name = "double_over_float32", .dtype = DType::f64, .cache = DType::f32, .num_q_heads = 2, .lens = {90}},
      {.name = "float32_over_double", .dtype = DType::f32, .cache = DType::f64, .num_q_heads = 2, .lens = {90}},
  };
}

std::vector<PagedCase> mixed_models() {
  std::vector<PagedCase> cases = {{.name = "llama3_8b_decode_batch",
                                   .tags = kPrimary,
                                   .num_q_heads = 32,
                                   .num_kv_heads = 8,
                                   .head_dim = 128,
                                   .lens = {700, 57, 431, 16}},
                                  {.name = "llama3_8b_prefill_chunks",
                                   .tags = kPrimary,
                                   .num_q_heads = 32,
                                   .num_kv_heads = 8,
                                   .head_dim = 128,
                                   .lens = {300, 128, 77},
                                   .q_lens = {64, 128, 33}},
                                  {.name = "gpt_oss_20b_mixed",
                                   .tags = kPrimary,
                                   .num_q_heads = 64,
                                   .num_kv_heads = 8,
                                   .head_dim = 64,
                                   .lens = {400, 90, 128, 129},
                                   .q_lens = {40, 1, 1, 129},
                                   .params = {.softmax_scale = kGptOssScale, .sliding_window = 127},
                                   .num_sinks = 1},
                                  {.name = "gemma2_9b_mixed_soft_cap",
                                   .tags = kPrimary,
                                   .num_q_heads = 16,
                                   .num_kv_heads = 8,
                                   .head_dim = 256,
                                   .lens = {200, 130, 5},
                                   .q_lens = {50, 1, 5},
                                   .params = {.softmax_scale = 0.0625, .logits_soft_cap = 50.0}},
                                  {.name = "qwen2_5_7b_mixed_int8",
                                   .tags = kPrimary,
                                   .cache = DType::i8,
                                   .num_q_heads = 28,
                                   .num_kv_heads = 4,
                                   .head_dim = 128,
                                   .lens = {300, 511, 64},
                                   .q_lens = {30, 1, 1},
                                   .scales = CacheScale::per_head}};
  // Sarathi: a chunk of prefill rides with decodes. A chunk of 512 of 8 of its heads.
  PagedCase sarathi = {.name = "llama3_8b_sarathi_chunk_and_decodes",
                       .tags = kPrimary,
                       .num_q_heads = 8,
                       .num_kv_heads = 2,
                       .head_dim = 128,
                       .lens = {640},
                       .q_lens = {512}};
  for (int64_t n = 0; n < 31; ++n) sarathi.lens.push_back(20 + 53 * n % 400), sarathi.q_lens.push_back(1);
  cases.push_back(std::move(sarathi));
  return cases;
}

std::vector<PagedCase> mixed_edges() {
  return {
      {.name = "no_sequences", .num_q_heads = 2},
      {.name = "no_sequences_but_rows", .num_q_heads = 2, .unowned_rows = 2, .num_sinks = 1},
      {.name = "no_sequences_in_use", .num_q_heads = 2, .idle_sequences = 3, .unowned_rows = 2},
      {.name = "no_rows", .num_q_heads = 2, .lens = {20, 3}, .q_lens = {0, 0}},
      {.name = "no_pages", .num_q_heads = 2, .lens = {0, 0}, .q_lens = {2, 1}, .spare_pages = 0},
      {.name = "no_slots_in_a_page", .num_q_heads = 2, .page_size = 0, .lens = {0, 0}, .q_lens = {2, 1}},
      {.name = "no_table", .num_q_heads = 2, .lens = {0, 0}, .q_lens = {2, 1}, .spare_entries = 0},
      {.name = "one_token_of_one_element", .head_dim = 1, .lens = {1}},
      {.name = "rows_of_no_sequence",
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .lens = {33, 40, 9},
       .q_lens = {3, 40, 1},
       .idle_sequences = 2,
       .unowned_rows = 3,
       .num_sinks = 1},
      {.name = "sequences_without_rows", .num_q_heads = 2, .lens = {33, 40, 0, 9}, .q_lens = {0, 5, 0, 1}},
      {.name = "longer_than_the_table",
       .num_q_heads = 2,
       .page_size = 8,
       .lens = {100, 3, 16, 17},
       .q_lens = {12, 3, 1, 2},
       .most_entries = 2},
      {.name = "missing_pages",
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .page_size = 8,
       .lens = {60, 33, 8},
       .q_lens = {20, 1, 8},
       .missing = 0.4},
      {.name = "missing_pages_before_the_window",
       .num_q_heads = 2,
       .page_size = 4,
       .lens = {90, 70, 80},
       .q_lens = {3, 1, 8},
       .params = {.sliding_window = 30, .attention_sink_size = 2},
       .missing = 0.1},
      {.name = "shared_prefix",
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .lens = {100, 90, 120, 33},
       .q_lens = {10, 1, 40, 1},
       .shared = 1},
      {.name = "window_and_sink_tokens",
       .num_q_heads = 4,
       .lens = {150, 20, 131},
       .q_lens = {50, 20, 1},
       .params = {.sliding_window = 30, .attention_sink_size = 4}},
      {.name = "window_of_one", .num_q_heads = 2, .lens = {40, 3}, .q_lens = {20, 3}, .params = {.sliding_window = 0}},
      {.name = "soft_cap_and_shared_sinks",
       .dtype = DType::f16,
       .cache = DType::f16,
       .num_q_heads = 6,
       .num_kv_heads = 3,
       .lens = {77, 60},
       .q_lens = {17, 60},
       .params = {.logits_soft_cap = 5.0},
       .num_sinks = 3,
       .shared_sinks = true},
      {.name = "huge",
       .dtype = DType::f32,
       .cache = DType::f32,
       .num_q_heads = 2,
       .lens = {60, 17},
       .q_lens = {9, 17},
       .data = Data::huge},
      {.name = "strided",
       .num_q_heads = 8,
       .num_kv_heads = 4,
       .head_dim = 40,
       .lens = {70, 33, 7},
       .q_lens = {20, 1, 7},
       .random_layouts = true},
      {.name = "batch_invariant",
       .num_q_heads = 8,
       .num_kv_heads = 2,
       .lens = {5, 600, 129, 0, 64},
       .q_lens = {5, 1, 30, 0, 1},
       .params = {.batch_invariant = true}},
      {.name = "double",
       .dtype = DType::f64,
       .cache = DType::f64,
       .num_q_heads = 4,
       .num_kv_heads = 2,
       .lens = {90, 31},
       .q_lens = {20, 31}},
  };
}

/// Every dtype of a cache, in every form of scales.
std::vector<PagedCase> cache_dtypes(bool writes) {
  std::vector<PagedCase> cases;
  for (const DType cache : {DType::bf16, DType::f16, DType::f32, DType::i8, DType::e4m3, DType::e5m2, DType::i4})
    for (const CacheScale scales : {CacheScale::none, CacheScale::one, CacheScale::per_head, CacheScale::grouped}) {
      if (writes && (cache == DType::i4 || scales == CacheScale::grouped)) continue;
      cases.push_back({.name = fmt::format("cache_{}_scales_{}", ejk::name(cache), static_cast<int>(scales)),
                       .dtype = cases.size() % 2 == 0 ? DType::bf16 : DType::f32,
                       .cache = cache,
                       .num_q_heads = 4,
                       .num_kv_heads = 2,
                       .head_dim = 64,
                       .lens = {70, 33},
                       .scales = scales,
                       .group = cases.size() % 3 == 0 ? 0 : 32});
    }
  return cases;
}

}  // namespace

std::vector<PagedCase> decode_cases() {
  std::vector<PagedCase> cases = decode_models();
  for (auto&& list : {decode_edges(), cache_dtypes(false)}) cases.insert(cases.end(), list.begin(), list.end());
  return numbered(std::move(cases), kEdge, 1);
}

std::vector<PagedCase> mixed_cases(bool writes) {
  std::vector<PagedCase> cases = mixed_models();
  for (auto&& list : {mixed_edges(), cache_dtypes(writes)}) cases.insert(cases.end(), list.begin(), list.end());
  return numbered(std::move(cases), kEdge, 1);
}

std::vector<PagedCase> decode_lattice() {
  std::vector<PagedCase> cases;
  const DType dtypes[] = {DType::bf16, DType::f32, DType::f16};
  const DType caches[] = {DType::bf16, DType::i8, DType::f32, DType::e4m3, DType::f16, DType::i4};
  auto add = [&](PagedCase c) {
    c.dtype = dtypes[cases.size() % 3];
    if (c.cache == DType::bf16) c.cache = cases.size() % 2 == 0 ? c.dtype : caches[cases.size() / 2 % 6];
    if (bits(c.cache) <= 8) c.scales = CacheScale::per_head;
    c.name = fmt::format("lattice_{}_n{}_p{}_d{}_{}_{}", cases.size(), c.lens.back(), c.page_size, c.head_dim,
                         ejk::name(c.dtype), ejk::name(c.cache));
    cases.push_back(std::move(c));
  };
  for (const int64_t page : {1, 8, 16, 64, 128})
    for (int64_t length : {1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257})
      add({.num_q_heads = 2, .head_dim = 32, .page_size = page, .lens = {3, length}});
  for (int64_t d : {2,  4,  6,  8,  10, 12,  14,  16,  18,  24,  30,  32,  34,  48,  62,
                    64, 66, 80, 96, 98, 112, 126, 128, 130, 160, 192, 256, 258, 384, 512})
    add({.num_q_heads = 4, .num_kv_heads = 2, .head_dim = d, .lens = {19}});
  for (int64_t d : {1, 3, 5, 7, 9, 15, 17, 31, 33, 63, 65, 127, 129, 255, 257, 511})
    add({.cache = cases.size() % 2 == 0 ? DType::f32 : DType::i8,
         .num_q_heads = 2,
         .head_dim = d,
         .value_dim = 513 - d,
         .page_size = 8,
         .lens = {19}});
  for (int64_t heads : {1, 2, 3, 5, 7, 8, 9, 16, 17}) add({.num_q_heads = heads, .head_dim = 64, .lens = {40, 5}});
  return numbered(std::move(cases), kLattice, 1000);
}

std::vector<PagedCase> mixed_lattice(bool writes) {
  std::vector<PagedCase> cases;
  const DType dtypes[] = {DType::bf16, DType::f32, DType::f16};
  const DType caches[] = {DType::i8, DType::f32, DType::e4m3, DType::bf16, writes ? DType::e5m2 : DType::i4};
  auto add = [&](PagedCase c) {
    c.dtype = dtypes[cases.size() % 3];
    c.cache = cases.size() % 2 == 0 ? c.dtype : caches[cases.size() / 2 % 5];
    if (c.head_dim % 2 == 1 && c.cache == DType::i4) c.cache = DType::i8;
    if (bits(c.cache) <= 8) c.scales = CacheScale::one;
    c.name = fmt::format("lattice_{}_q{}_n{}_p{}_d{}_{}_{}", cases.size(), c.q_lens.back(), c.lens.back(), c.page_size,
                         c.head_dim, ejk::name(c.dtype), ejk::name(c.cache));
    cases.push_back(std::move(c));
  };
  for (const int64_t page : {1, 8, 16, 64})
    for (int64_t rows : {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65})
      for (int64_t older : {0, 1, 30})
        add({.num_q_heads = 2, .head_dim = 32, .page_size = page, .lens = {20, rows + older}, .q_lens = {1, rows}});
  for (int64_t d : {1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 33, 48, 63, 65, 96, 127, 129, 192, 255, 257, 511, 512})
    add({.num_q_heads = 4, .num_kv_heads = 2, .head_dim = d, .page_size = 8, .lens = {19, 21}, .q_lens = {1, 5}});
  return numbered(std::move(cases), kLattice, 1000);
}

}  // namespace ejk::testing
