// What is special to the CPU kernels of the operations over a cache: streams and tiles, splits, any number of threads,
// any instruction set, batch invariance bit by bit. Every kernel's results are tested by the harness.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ejkernel/ejkernel.h"
#include "ejkernel/ops/page_attention/paged_cpu_cases.h"
#include "ejkernel/ops/page_attention/paged_cpu_internal.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/emulated_tiles.h"

namespace ejk {
namespace {

using namespace paged_batches;  // NOLINT: what these tests are of

ConfigValues values_of(const attn::PagedCpuConfig& c) {
  return {{"block_q", c.block_q},       {"block_k", c.block_k},           {"bf16_dot", c.bf16_dot},
          {"split_keys", c.split_keys}, {"stream_block", c.stream_block}, {"stream_dot", c.stream_dot}};
}

/// Splits that short sequences have several of.
PlanOptions short_splits(int block = 32) {
  PlanOptions options = kCpu;
  options.config = ConfigValues{{"block_q", 32}, {"block_k", 32}, {"split_keys", 128}, {"stream_block", block}};
  return options;
}

/// Weights are multiplied by such scales before they are rounded, and products below the smallest normal number are
/// what the instruction for pairs takes for zero.
TEST(PagedCpu, tiny_scales_of_slots_do_not_lose_values) {
  Problem p(1);
  make_tensors(p, {.contexts = {40, 3}, .queries = {1, 1}, .head_dim = 64, .dtype = DType::bf16, .cache = DType::i8});
  const Shape scales{p.in.kv_pages.shape[0], 16, 2, 1};
  p.tensor(p.in.k_scale, DType::f32, scales, [] { return 0.05; });
  p.tensor(p.in.v_scale, DType::f32, scales, [] { return 0x1p-122; });
  const auto got = ragged_page_attention(p.in, p.params, {.plan = kCpu}).out;
  const auto expected = ragged_page_attention(p.in, p.params, {.plan = kReference}).out;
  double largest = 0, difference = 0;
  for (int64_t n = 0; n < got.num_elements(); ++n) {
    largest = std::max(largest, std::abs(get(expected, n)));
    difference = std::max(difference, std::abs(get(got, n) - get(expected, n)));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LT(difference, 0x1p-6 * largest);
}

TEST(PagedCpu, random_batches_equal_the_reference) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    expect_right(random_problem(seed), "seed " + std::to_string(seed), seed % 2 == 0 ? kCpu : short_splits());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(PagedCpu, every_instruction_set_is_right) {
  for (const std::string_view target : cpu::simd_targets()) {
    const cpu::ScopedSimdTarget scoped(target);
    for (unsigned seed = 0; seed < 40; ++seed) {
      expect_right(random_problem(seed), std::string(target) + " seed " + std::to_string(seed), short_splits(64));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(PagedCpu, every_config_is_right) {
  attn::PagedCall bf16;
  bf16.problem.query.dtype = bf16.problem.key.dtype = DType::bf16;
  bf16.problem.num_sequences = bf16.problem.num_q_heads = bf16.problem.num_kv_heads = 1;
  bf16.problem.packed = true;
  bf16.problem.cu_seqlens_q = Tensor(&bf16, DType::i32, {2});
  unsigned seed = 1000;
  for (const auto& config : attn::paged_cpu_candidates(bf16, DeviceProperties{})) {
    PlanOptions options = kCpu;
    options.config = values_of(config);
    for (const unsigned past = seed + 2; seed < past; ++seed)
      expect_right(random_problem(seed), "seed " + std::to_string(seed), options);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(PagedCpu, bit_equal_for_any_number_of_threads) {
  for (unsigned seed = 300; seed < 340; ++seed) {
    const Problem p = random_problem(seed);
    Op::Results first;
    for (const int threads : {1, 2, 3, 8}) {
      const cpu::ScopedNumThreads scoped(threads);
      auto results = ragged_page_attention(p.in, p.params, {.plan = short_splits()});
      if (threads == 1) first = results;
      EXPECT_TRUE(same_bits(results.out, first.out) && same_bits(results.lse, first.lse)) << "seed " << seed;
    }
  }
}

TEST(PagedCpu, a_row_has_the_same_bits_alone_in_chunks_and_in_any_batch) {
  int64_t rows = 0;
  for (unsigned seed = 400; seed < 440; ++seed) {
    Problem p(seed);
    Sizes s = random_sizes(p);
    for (size_t n = 0; n < s.contexts.size(); ++n)
      s.queries[n] = std::min(s.queries[n], s.contexts[n]), s.contexts[n] *= p.pick({1, 5});
    make_tensors(p, s);
    add_scales(p, s, p.pick({0, 1, 2}));
    choose_params(p, s.kv_heads * s.group);
    p.params.batch_invariant = true;
    const auto together = ragged_page_attention(p.in, p.params, {.plan = kCpu});
    const int64_t row = together.out.shape()[1] * together.out.shape()[2], heads = together.out.shape()[1];
    for (size_t n = 0; n < s.contexts.size(); ++n)
      for (const int64_t chunk : {int64_t{1}, int64_t{3}, s.queries[n]})
        for (int64_t begin = 0; begin < s.queries[n]; begin += std::max<int64_t>(chunk, 1)) {
          const int64_t count = std::min(chunk, s.queries[n] - begin);
          const auto start = static_cast<int64_t>(get(p.in.query_start_loc, static_cast<int64_t>(n))) + begin;
          const auto some = alone(p, static_cast<int64_t>(n), begin, count);
          for (int64_t i = 0; i < count * row; ++i)
            ASSERT_EQ(get(some.out, i), get(together.out, start * row + i)) << "seed " << seed;
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < count; ++i)
              ASSERT_EQ(get(some.lse, h * count + i), get(together.lse, h * together.lse.shape()[1] + start + i))
                  << "seed " << seed;
          rows += count;
        }
  }
  EXPECT_GT(rows, 500);
}

TEST(PagedCpu, pairs_are_the_heuristics_choice_where_the_processor_multiplies_them) {
  const cpu::ScopedMatrixUnit none(nullptr);
  const auto stream_dot = [](DType query, DType cache) {
    const Call<PageAttention> call{.inputs = {.query = Tensor(nullptr, query, {2, 4, 64}),
                                              .key_cache = Tensor(nullptr, cache, {8, 2, 16, 64}),
                                              .value_cache = Tensor(nullptr, cache, {8, 2, 16, 64}),
                                              .context_lens = Tensor(nullptr, DType::i32, {2}),
                                              .block_tables = Tensor(nullptr, DType::i32, {2, 4})},
                                   .params = {},
                                   .outputs = {}};
    return attn::paged_cpu_heuristic(attn::paged_call(call), {}).stream_dot;
  };
  const int native = cpu::has_bf16_dot() ? 1 : 0;
  EXPECT_EQ(stream_dot(DType::bf16, DType::bf16), native);
  EXPECT_EQ(stream_dot(DType::bf16, DType::i8), native);
  EXPECT_EQ(stream_dot(DType::f32, DType::i8), 0);
}

/// A kv head may be done with a block in which the next one, computed in the same call, still has weights.
TEST(PagedCpu, a_kv_head_without_weights_in_a_block_takes_no_other_with_it) {
  for (const int64_t kv_head : {0, 1}) {
    Problem p(12);
    make_tensors(p, {.contexts = {200}, .queries = {1}, .kv_heads = 2, .group = 1, .head_dim = 32});
    const int64_t first = static_cast<int64_t>(get(p.in.block_tables, 0)) * p.in.kv_pages.shape[1];
    for (int64_t d = 0; d < 32; ++d)  // the first key's logit is so large that later blocks' weights are 0
      set(p.in.kv_pages, (first * 4 + 2 * kv_head) * 32 + d, 1000 * get(p.in.queries, kv_head * 32 + d));
    expect_right(p, "kv head " + std::to_string(kv_head));
  }
}

/// 31 sequences that decode, beside a chunk of one, are no tiles.
TEST(PagedCpu, tiles_are_enough_for_the_threads_whatever_sequences_decode) {
  const testing::ScopedEmulatedMatrixUnit unit;
  const auto block_q = [](int64_t tokens, int64_t sequences, int64_t q_heads, int64_t kv_heads, int threads) {
    const Call<RaggedPageAttention> call{
        .inputs = {.queries = Tensor(nullptr, DType::bf16, {tokens, q_heads, 128}),
                   .kv_pages = Tensor(nullptr, DType::bf16, {100, 16, 2 * kv_heads, 128}),
                   .context_lens = Tensor(nullptr, DType::i32, {sequences}),
                   .block_tables = Tensor(nullptr, DType::i32, {sequences, 40}),
                   .query_start_loc = Tensor(nullptr, DType::i32, {sequences + 1}),
                   .num_seqs = Tensor(nullptr, DType::i32, {1})},
        .params = {},
        .outputs = {}};
    return attn::paged_cpu_heuristic(attn::paged_call(call), {.num_units = threads}).block_q;
  };
  EXPECT_EQ(block_q(512 + 31, 32, 8, 2, 16), 128);
  EXPECT_EQ(block_q(512 + 31, 32, 8, 2, 2), 512);
  EXPECT_EQ(block_q(56, 3, 16, 8, 16), 64) << "a tile of 128 for each of eight kv heads leaves threads without work";
  EXPECT_EQ(block_q(56, 3, 16, 8, 8), 128);
}

TEST(PagedCpu, a_nan_logit_reaches_its_own_rows_and_no_other_sequence) {
  for (const int64_t queries : {1, 40}) {
    Problem p(5);
    make_tensors(p, {.contexts = {200, 200}, .queries = {queries, queries}});
    const auto page = static_cast<int64_t>(get(p.in.block_tables, 2));
    set(p.in.kv_pages, page * 16 * 4 * 32, kNaN);  // kv head 0 of sequence 0, token 32
    const auto results = ragged_page_attention(p.in, p.params, {.plan = short_splits()});
    for (int64_t row = 0; row < 2 * queries; ++row)
      for (int64_t h = 0; h < 4; ++h) {
        const bool poisoned = row < queries && h < 2;
        EXPECT_EQ(std::isnan(get(results.lse, h * results.lse.shape()[1] + row)), poisoned) << row << " " << h;
        EXPECT_EQ(std::isnan(get(results.out, (row * 4 + h) * 32)), poisoned) << row << " " << h;
      }
  }
}

TEST(PagedCpu, overlapping_sequences_hold_one_of_the_results) {
  Problem p(9);
  make_tensors(p, {.contexts = {150, 300, 40}, .queries = {30, 20, 1}});
  p.indices(p.in.query_start_loc, {0, 30, 10, 1000});
  const auto expected = ragged_page_attention(p.in, p.params, {.plan = kReference});
  for (const int threads : {1, 4}) {
    const cpu::ScopedNumThreads scoped(threads);
    uint32_t status = 0;
    const auto actual = ragged_page_attention(p.in, p.params, {.plan = kCpu, .status = &status});
    EXPECT_EQ(status, status::kOffsets);
    expect_close(actual.out, expected.out, "out", 2e-5);
    expect_close(actual.lse, expected.lse, "lse", 2e-5);
  }
}

// The workspace has room for as many tasks as there are rows: here sequences claim ten times as many.
TEST(PagedCpu, sequences_that_all_claim_every_row_stay_within_the_workspace) {
  for (const bool batch_invariant : {false, true}) {
    Problem p(10);
    make_tensors(p, {.contexts = std::vector<int64_t>(20, 60), .queries = std::vector<int64_t>(20, 10)});
    p.params.batch_invariant = batch_invariant;
    p.indices(p.in.query_start_loc,
              {0, 202, 0, 202, 0, 202, 0, 202, 0, 202, 0, 202, 0, 202, 0, 202, 0, 202, 0, 202, 0});
    expect_right(p, batch_invariant ? "in streams" : "in tiles", batch_invariant ? kCpu : short_splits());
  }
}

TEST(PagedCpu, run_does_not_allocate) {
  for (unsigned seed = 500; seed < 520; ++seed) {
    const Problem p = random_problem(seed);
    const auto plan = ejk::plan<Op>(p.in, p.params, short_splits());
    const auto results = plan.allocate_outputs();
    const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
    for (const int threads : {1, 2}) {
      const cpu::ScopedNumThreads scoped(threads);
      const auto run = [&] {
        plan.run(p.in, {.out = results.out, .lse = results.lse},
                 {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
      };
      run();  // starts the pool's threads
      const int64_t before = testing::num_news();
      run();
      EXPECT_EQ(testing::num_news(), before) << "seed " << seed;
    }
  }
}

TEST(PagedCpu, values_below_what_dot_instructions_keep_are_not_lost) {
  for (const int64_t queries : {1, 60})
    for (const int64_t tiny : {0, 1, 2}) {  // of this kv head, or of both
      Problem p(6);
      make_tensors(p, {.contexts = {100}, .queries = {queries}, .dtype = DType::bf16, .cache = DType::bf16});
      const auto is_tiny = [&](int64_t kv_head) { return tiny == 2 || tiny == kv_head; };
      for (int64_t n = 0; n < p.in.kv_pages.num_elements(); ++n)
        if (n / 32 % 2 == 1 && is_tiny(n / 64 % 2)) set(p.in.kv_pages, n, get(p.in.kv_pages, n) * 1e-38);
      const PlanOptions pairs{.kernel = "cpu", .config = ConfigValues{{"stream_dot", 1}}};
      const auto actual = ragged_page_attention(p.in, p.params, {.plan = pairs});
      const auto expected = ragged_page_attention(p.in, p.params, {.plan = kReference});
      for (int64_t n = 0; n < queries * 4 * 32; ++n)
        EXPECT_NEAR(get(actual.out, n), get(expected.out, n), is_tiny(n / 64 % 2) ? 1e-40 : 2e-2)
            << "tiny " << tiny << " element " << n;
    }
}

TEST(PagedCpu, declines_what_it_cannot_do_with_a_reason) {
  Problem p(10);
  make_tensors(p, {.contexts = {5}, .queries = {1}, .dtype = DType::f64, .cache = DType::f64});
  try {
    ragged_page_attention(p.in, p.params, {.plan = kCpu});
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("query dtype must not be f64"), std::string::npos) << error.what();
  }
}

/// New rows for a mixed batch of theirs, and what both kernels store.
TEST(PagedCpu, appended_codes_equal_the_references) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (const DType cache : {dtype, DType::f32, DType::bf16, DType::f16, DType::i8, DType::e4m3, DType::e5m2})
      for (const int64_t scaled : {0, 1, 2}) {
        Problem p(static_cast<unsigned>(scaled) + 7);
        const Shape shape{9, 3, 2, 21};
        PageAppend::Inputs in;
        p.tensor(in.keys, dtype, {30, 2, 21}, [&] { return p.normal() * p.real({1, 100, 1e5, 1e-3, 1e-9}); });
        p.tensor(in.values, dtype, {30, 2, 21}, [&] {
          return p.chance(5) ? p.real({-INFINITY, INFINITY})
                             : 0.5 * static_cast<double>(p.pick({1, 3, 5, 7, 255, 257, 929, 1000}));
        });
        p.tensor(in.key_cache, cache, shape, [] { return 1; });
        p.tensor(in.value_cache, cache, shape, [] { return 2; });
        p.indices(in.context_lens, {12, 3, 20});
        p.indices(in.query_start_loc, {0, 12, 13, 29});
        size_t n = 0;
        const double table[] = {3, 1, 4, 1, 5, 99, 0, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, -1, 2, 3, 4};
        p.tensor(in.block_tables, DType::i32, {3, 7}, [&] { return table[n++]; });
        if (scaled == 1) p.tensor(in.k_scale, DType::f32, {}, [] { return 0.3; });
        if (scaled == 2) p.tensor(in.v_scale, DType::f32, {2}, [&] { return p.chance(50) ? 0.7 : 1.3; });
        const auto run = [&](const PlanOptions& options, uint32_t& status) {
          PageAppend::Inputs mine = in;
          p.arrays.push_back(convert(in.key_cache, cache)), mine.key_cache = p.arrays.back();
          p.arrays.push_back(convert(in.value_cache, cache)), mine.value_cache = p.arrays.back();
          page_append(mine, {}, {.plan = options, .status = &status});
          return mine;
        };
        uint32_t expected_status = 0, status = 0;
        const auto expected = run(kReference, expected_status);
        const cpu::ScopedNumThreads scoped(4);
        const auto actual = run(kCpu, status);
        EXPECT_EQ(status, expected_status);
        EXPECT_TRUE(same_bits(actual.key_cache, expected.key_cache)) << name(dtype) << " " << name(cache) << scaled;
        EXPECT_TRUE(same_bits(actual.value_cache, expected.value_cache)) << name(dtype) << " " << name(cache) << scaled;
      }
}

}  // namespace
}  // namespace ejk
