// Decode over caches with its products on a matrix unit, for which an emulation stands in: the harness judges it as it
// judges every config, and what is special to the unit is tested by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/ejkernel.h"
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_cpu_cases.h"
#include "ejkernel/ops/page_attention/paged_cpu_internal.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"
#include "ejkernel/testing/allocation_counter.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/emulated_tiles.h"
#include "ejkernel/testing/emulated_tiles_harness.h"
#include "ejkernel/testing/operations.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

PlanOptions with_stream_dot(int64_t dot, int64_t block) {
  return {.kernel = "cpu",
          .config = ConfigValues{{"split_keys", 128}, {"stream_block", block}, {"stream_dot", dot}, {"bf16_dot", 0}}};
}
PlanOptions on_unit(int64_t block = 64) { return with_stream_dot(2, block); }
PlanOptions of_digits(int64_t block = 128) { return with_stream_dot(3, block); }

// ---- every product, judged by the harness ----

class PagedHarnessOnMatrixUnit : public HarnessOnMatrixUnit {
 protected:
  ConfigValues config_of(size_t n) const override {
    return {{"split_keys", nth_of({128, 256, 1024, 512}, n)},
            {"stream_block", nth_of({32, 64, 128}, n)},
            {"stream_dot", 2}};
  }
};
INSTANTIATE_TEST_SUITE_P(Operations, PagedHarnessOnMatrixUnit,
                         ::testing::Values("page_attention", "ragged_decode_attention", "ragged_page_attention",
                                           "ragged_page_attention_v3"),
                         name_of_operation);

TEST_P(PagedHarnessOnMatrixUnit, meets_the_error_rule_at_random) { check_random(1, 60); }
TEST_P(PagedHarnessOnMatrixUnit, survives_hostile_indices) {
  check_random(1, 60, {.size = Size::small, .hostile = true});
}

class PagedHarnessOfDigits : public HarnessOnMatrixUnit {
 protected:
  ConfigValues config_of(size_t n) const override {
    return {
        {"split_keys", nth_of({128, 256, 1024, 512}, n)}, {"stream_block", nth_of({128, 64}, n)}, {"stream_dot", 3}};
  }
};
INSTANTIATE_TEST_SUITE_P(Operations, PagedHarnessOfDigits,
                         ::testing::Values("page_attention", "ragged_decode_attention", "ragged_page_attention",
                                           "ragged_page_attention_v3"),
                         name_of_operation);

/// Small problems over int8 caches that digits fit.
Problem problem_of_codes(std::string_view operation, unsigned seed, bool hostile) {
  std::mt19937 random(seed);
  const auto pick = [&](std::initializer_list<int64_t> from) { return from.begin()[random() % from.size()]; };
  const int64_t kv_heads = pick({1, 2, 3}), group = pick({1, 2, 3, 4, 5, 8});
  PagedCase c = {.dtype = static_cast<DType>(pick({static_cast<int64_t>(DType::bf16), static_cast<int64_t>(DType::f32),
                                                   static_cast<int64_t>(DType::f16)})),
                 .cache = DType::i8,
                 .num_q_heads = kv_heads * group,
                 .num_kv_heads = kv_heads,
                 .head_dim = pick({64, 128}),
                 .page_size = pick({1, 5, 16, 16, 16, 32}),
                 .lens = {pick({0, 1, 40, 64}), pick({17, 128, 130}), pick({200, 300})},
                 .missing = random() % 4 == 0 ? 0.2 : 0.0,
                 .scales = static_cast<CacheScale>(pick({0, 1, 2, 3})),
                 .num_sinks = pick({0, 0, 1}),
                 .random_layouts = random() % 2 == 0,
                 .hostile = hostile,
                 .seed = seed};
  c.params.softmax_scale = 0.003;
  if (random() % 3 == 0) c.params.sliding_window = Window(pick({3, 70, 150}));
  if (random() % 4 == 0) c.params.logits_soft_cap = 5;
  if (operation == "ragged_page_attention_v3" && c.scales == CacheScale::grouped) c.scales = CacheScale::per_head;
  if (operation == "page_attention") return make_paged_problem<PageAttention>(c);
  if (operation == "ragged_decode_attention") return make_paged_problem<RaggedDecodeAttention>(c);
  if (operation == "ragged_page_attention") return make_paged_problem<RaggedPageAttention>(c);
  return make_paged_problem<RaggedPageAttentionV3>(c);
}

TEST_P(PagedHarnessOfDigits, meets_the_error_rule) {
  for (unsigned seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    const Problem problem = problem_of_codes(GetParam(), seed, seed % 4 == 0);
    check(problem, tests.oracle(problem, 1e6));
  }
}

// ---- what is special to it ----

namespace batches = paged_batches;

/// Each row of three sequences, under batch_invariant and with the heuristic's config, which takes the unit.
void expect_same_bits_alone(batches::Problem& p, const ScopedEmulatedMatrixUnit& unit) {
  p.params.batch_invariant = true;
  const auto together = ragged_page_attention(p.in, p.params, {.plan = batches::kCpu});
  EXPECT_GT(unit.num_products(), 0) << "the heuristic takes the unit for such groups";
  const int64_t row = together.out.shape()[1] * together.out.shape()[2];
  for (const int64_t n : {0, 1, 2})
    for (auto at = static_cast<int64_t>(get(p.in.query_start_loc, n)), begin = int64_t{0};
         at + begin < static_cast<int64_t>(get(p.in.query_start_loc, n + 1)); ++begin) {
      const auto one = batches::alone(p, n, begin, 1);
      for (int64_t i = 0; i < row; ++i)
        ASSERT_EQ(get(one.out, i), get(together.out, (at + begin) * row + i)) << row << " " << n << " " << begin;
    }
}

/// Groups that fill a tile's rows, leave some, and take several tiles.
TEST(PagedOnMatrixUnit, is_right_for_every_number_of_rows) {
  const ScopedEmulatedMatrixUnit unit;
  unsigned seed = 0;
  for (const int64_t group : {1, 2, 3, 4, 5, 8, 12, 15, 16, 17, 24, 33})
    for (const DType cache : {DType::bf16, DType::i8, DType::e4m3, DType::e5m2, DType::i4}) {
      batches::Problem p(++seed);
      const int64_t head_dim = p.pick({32, 64, 96});
      batches::make_tensors(p, {.contexts = {1, 31, 40, 150},
                                .queries = {1, 2, 1, 1},
                                .group = group,
                                .head_dim = head_dim,
                                .dtype = DType::bf16,
                                .cache = cache});
      batches::add_scales(p, {.head_dim = head_dim, .cache = cache}, p.pick({0, 1, 2}));
      batches::choose_params(p, 2 * group);
      const int64_t before = unit.num_products();
      batches::expect_right(p, "group " + std::to_string(group) + " of " + std::string(name(cache)),
                            on_unit(p.pick({32, 64, 128})));
      EXPECT_GT(unit.num_products(), before) << group << " " << head_dim << " " << name(cache);
      if (HasFailure()) return;
    }
}

TEST(PagedOnMatrixUnit, is_right_with_vectors_of_every_width) {
  for (const std::string_view target : cpu::simd_targets()) {
    const cpu::ScopedSimdTarget scoped(target);
    const ScopedEmulatedMatrixUnit unit;
    for (const int64_t group : {4, 16, 20})
      for (const DType cache : {DType::bf16, DType::i8}) {
        batches::Problem p(static_cast<unsigned>(group));
        batches::make_tensors(p, {.contexts = {300, 33},
                                  .queries = {1, 1},
                                  .group = group,
                                  .head_dim = 64,
                                  .dtype = DType::bf16,
                                  .cache = cache});
        batches::expect_right(p, std::string(target), on_unit());
      }
    EXPECT_GT(unit.num_products(), 0) << target;
  }
}

/// A scale of each slot and kv head is folded into logits and weights.
TEST(PagedOnMatrixUnit, slots_with_scales_of_their_own_take_part) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(3);
  batches::make_tensors(
      p, {.contexts = {200}, .queries = {1}, .group = 8, .head_dim = 64, .dtype = DType::bf16, .cache = DType::i8});
  const Shape scales{p.in.kv_pages.shape[0], 16, 2, 1};
  for (Tensor* scale : {&p.in.k_scale, &p.in.v_scale})
    p.tensor(*scale, DType::f32, scales, [&] { return 0.02 + 0.0005 * static_cast<double>(p.random() % 100); });
  batches::expect_right(p, "scales of slots", on_unit());
  EXPECT_GT(unit.num_products(), 0);
}

/// int8 as it lies there: 16 slots of a page are a tile, of smaller pages copies are; queries of every dtype.
TEST(PagedOnMatrixUnit, codes_with_digits_are_right_for_every_number_of_rows) {
  const ScopedEmulatedMatrixUnit unit;
  unsigned seed = 100;
  for (const int64_t group : {1, 3, 4, 5, 16, 20})
    for (const int64_t page_size : {1, 5, 16, 24}) {
      batches::Problem p(++seed);
      const auto query = static_cast<DType>(nth_of(
          {static_cast<int64_t>(DType::bf16), static_cast<int64_t>(DType::f16), static_cast<int64_t>(DType::f32)},
          seed));
      const batches::Sizes sizes = {.contexts = {1, 64, 200},
                                    .queries = {1, 0, 2},
                                    .page_size = page_size,
                                    .group = group,
                                    .head_dim = p.pick({64, 128}),
                                    .dtype = query,
                                    .cache = DType::i8};
      batches::make_tensors(p, sizes);
      batches::add_scales(p, sizes, p.pick({0, 1, 2}));
      batches::choose_params(p, 2 * group);
      const int64_t before = unit.num_products();
      batches::expect_right(p, "group " + std::to_string(group) + ", pages of " + std::to_string(page_size),
                            of_digits(p.pick({64, 128})));
      EXPECT_GT(unit.num_products(), before) << group << " " << page_size;
      if (HasFailure()) return;
    }
}

TEST(PagedOnMatrixUnit, codes_with_digits_are_right_with_vectors_of_every_width) {
  for (const std::string_view target : cpu::simd_targets()) {
    const cpu::ScopedSimdTarget scoped(target);
    const ScopedEmulatedMatrixUnit unit;
    for (const int64_t group : {4, 7}) {
      batches::Problem p(static_cast<unsigned>(group));
      batches::make_tensors(p, {.contexts = {300, 33},
                                .queries = {1, 1},
                                .group = group,
                                .head_dim = 128,
                                .dtype = DType::f32,
                                .cache = DType::i8});
      batches::expect_right(p, std::string(target), of_digits());
    }
    EXPECT_GT(unit.num_products(), 0) << target;
  }
}

/// Digits have a unit for each row: one row's size decides nothing of another's, and scales may be tiny.
TEST(PagedOnMatrixUnit, digits_keep_rows_and_scales_of_any_size) {
  const ScopedEmulatedMatrixUnit unit;
  for (const double size : {1e-30, 1e-4, 1e4}) {
    batches::Problem p(12);
    batches::make_tensors(
        p, {.contexts = {200}, .queries = {1}, .group = 4, .head_dim = 64, .dtype = DType::f32, .cache = DType::i8});
    for (int64_t d = 0; d < 64; ++d) set(p.in.queries, 2 * 64 + d, get(p.in.queries, 2 * 64 + d) * size);
    p.tensor(p.in.k_scale, DType::f32, {}, [] { return 0.01; });
    p.tensor(p.in.v_scale, DType::f32, {}, [&] { return size; });
    const auto actual = ragged_page_attention(p.in, p.params, {.plan = of_digits()});
    const auto expected = ragged_page_attention(p.in, p.params, {.plan = batches::kReference});
    for (int64_t n = 0; n < 8 * 64; ++n)
      EXPECT_NEAR(get(actual.out, n), get(expected.out, n), 2e-3 * size) << size << " " << n;
  }
  EXPECT_GT(unit.num_products(), 0);
}

TEST(PagedOnMatrixUnit, a_nan_in_a_row_stays_there_with_digits) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(13);
  batches::make_tensors(
      p, {.contexts = {200}, .queries = {1}, .group = 4, .head_dim = 64, .dtype = DType::f32, .cache = DType::i8});
  set(p.in.queries, 5 * 64 + 3, batches::kNaN);
  const auto results = ragged_page_attention(p.in, p.params, {.plan = of_digits()});
  for (int64_t h = 0; h < 8; ++h) EXPECT_EQ(std::isnan(get(results.out, h * 64)), h == 5) << h;
  EXPECT_GT(unit.num_products(), 0);
}

TEST(PagedOnMatrixUnit, a_row_of_digits_has_the_same_bits_alone_and_in_any_batch) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(14);
  batches::make_tensors(p, {.contexts = {300, 40, 130},
                            .queries = {3, 1, 2},
                            .group = 4,
                            .head_dim = 64,
                            .dtype = DType::bf16,
                            .cache = DType::i8});
  expect_same_bits_alone(p, unit);
}

TEST(PagedOnMatrixUnit, head_sizes_that_are_no_whole_tiles_stay_with_vectors) {
  const ScopedEmulatedMatrixUnit unit;
  for (const int64_t head_dim : {14, 16, 48, 80}) {
    batches::Problem p(4);
    batches::make_tensors(p, {.contexts = {70},
                              .queries = {1},
                              .group = 8,
                              .head_dim = head_dim,
                              .dtype = DType::bf16,
                              .cache = DType::bf16});
    batches::expect_right(p, std::to_string(head_dim), on_unit());
  }
  EXPECT_EQ(unit.num_products(), 0);
}

/// One row's result depends on no other: not on how many share its tile, and not on the batch.
TEST(PagedOnMatrixUnit, a_row_has_the_same_bits_alone_and_in_any_batch) {
  const ScopedEmulatedMatrixUnit unit;
  for (const int64_t group : {8, 20}) {
    batches::Problem p(5);
    batches::make_tensors(p, {.contexts = {300, 40, 130},
                              .queries = {3, 1, 2},
                              .group = group,
                              .head_dim = 64,
                              .dtype = DType::bf16,
                              .cache = DType::bf16});
    expect_same_bits_alone(p, unit);
  }
}

TEST(PagedOnMatrixUnit, rows_do_not_depend_on_the_rows_that_share_their_tile) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(6);
  batches::make_tensors(p, {.contexts = {300},
                            .queries = {1},
                            .kv_heads = 1,
                            .group = 20,
                            .head_dim = 64,
                            .dtype = DType::bf16,
                            .cache = DType::bf16});
  const auto all = ragged_page_attention(p.in, p.params, {.plan = on_unit()});
  for (const int64_t heads : {1, 3, 16, 17}) {
    batches::Problem some(0);
    some.in = p.in;
    some.in.queries.shape = {p.in.queries.shape[0], heads, 64};
    some.in.queries.strides = p.in.queries.strides;
    const auto few = ragged_page_attention(some.in, some.params, {.plan = on_unit()});
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < 64; ++d)
        ASSERT_EQ(get(few.out, h * 64 + d), get(all.out, h * 64 + d)) << heads << " " << h;
  }
}

TEST(PagedOnMatrixUnit, values_below_what_it_keeps_are_not_lost) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(7);
  batches::make_tensors(
      p, {.contexts = {100}, .queries = {1}, .group = 8, .head_dim = 32, .dtype = DType::bf16, .cache = DType::bf16});
  for (int64_t n = 0; n < p.in.kv_pages.num_elements(); ++n)
    if (n / 32 % 4 == 3) set(p.in.kv_pages, n, get(p.in.kv_pages, n) * 1e-38);  // of kv head 1
  const auto actual = ragged_page_attention(p.in, p.params, {.plan = on_unit()});
  const auto expected = ragged_page_attention(p.in, p.params, {.plan = batches::kReference});
  for (int64_t n = 0; n < 16 * 32; ++n)
    EXPECT_NEAR(get(actual.out, n), get(expected.out, n), n / 32 >= 8 ? 1e-40 : 2e-2) << n;
  EXPECT_GT(unit.num_products(), 0);
}

TEST(PagedOnMatrixUnit, a_nan_logit_reaches_its_own_rows_alone) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(8);
  batches::make_tensors(p, {.contexts = {200, 200},
                            .queries = {1, 1},
                            .group = 8,
                            .head_dim = 32,
                            .dtype = DType::bf16,
                            .cache = DType::bf16});
  const auto page = static_cast<int64_t>(get(p.in.block_tables, 2));
  set(p.in.kv_pages, page * 16 * 4 * 32, batches::kNaN);  // kv head 0 of sequence 0, token 32
  const auto results = ragged_page_attention(p.in, p.params, {.plan = on_unit()});
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t h = 0; h < 16; ++h)
      EXPECT_EQ(std::isnan(get(results.out, (row * 16 + h) * 32)), row == 0 && h < 8) << row << " " << h;
}

TEST(PagedOnMatrixUnit, run_does_not_allocate_and_has_the_same_bits_on_any_number_of_threads) {
  const ScopedEmulatedMatrixUnit unit;
  batches::Problem p(9);
  batches::make_tensors(p, {.contexts = {300, 40, 130},
                            .queries = {1, 1, 1},
                            .group = 20,
                            .head_dim = 64,
                            .dtype = DType::bf16,
                            .cache = DType::i8});
  const auto plan = ejk::plan<RaggedPageAttention>(p.in, p.params, on_unit());
  const Array workspace(DType::u8, {static_cast<int64_t>(plan.workspace_bytes())});
  RaggedPageAttention::Results first;
  for (const int threads : {1, 2, 5}) {
    const cpu::ScopedNumThreads scoped(threads);
    auto results = plan.allocate_outputs();
    const auto run = [&] {
      plan.run(p.in, {.out = results.out, .lse = results.lse},
               {.workspace = {workspace.as<std::byte>(), plan.workspace_bytes()}});
    };
    run();  // starts the pool's threads
    const int64_t before = num_news();
    run();
    EXPECT_EQ(num_news(), before);
    EXPECT_EQ(unit.num_configured(), 0);
    if (threads == 1) first = results;
    EXPECT_TRUE(batches::same_bits(results.out, first.out) && batches::same_bits(results.lse, first.lse));
  }
}

// ---- what is chosen where ----

int stream_dot(DType query, int64_t q_heads, int64_t positions = 1, bool batch_invariant = false,
               DType cache = DType::bf16) {
  const Call<RaggedPageAttention> call{.inputs = {.queries = Tensor(nullptr, query, {2 * positions, q_heads, 64}),
                                                  .kv_pages = Tensor(nullptr, cache, {8, 16, 4, 64}),
                                                  .context_lens = Tensor(nullptr, DType::i32, {2}),
                                                  .block_tables = Tensor(nullptr, DType::i32, {2, 4}),
                                                  .query_start_loc = Tensor(nullptr, DType::i32, {3}),
                                                  .num_seqs = Tensor(nullptr, DType::i32, {1})},
                                       .params = {.batch_invariant = batch_invariant},
                                       .outputs = {}};
  return attn::paged_cpu_heuristic(attn::paged_call(call), {}).stream_dot;
}

TEST(PagedOnMatrixUnit, is_the_heuristics_choice_from_five_rows_on) {
  const ScopedEmulatedMatrixUnit unit;
  EXPECT_EQ(stream_dot(DType::bf16, 8), 0) << "four rows for each of two kv heads";
  EXPECT_EQ(stream_dot(DType::bf16, 10), 2);
  EXPECT_EQ(stream_dot(DType::bf16, 64), 2);
  EXPECT_EQ(stream_dot(DType::f32, 16), 0);
  EXPECT_EQ(stream_dot(DType::bf16, 4, 4), 2) << "four positions of two rows";
  EXPECT_EQ(stream_dot(DType::bf16, 4, 4, true), 0) << "which may not depend on how many positions there are";
  EXPECT_EQ(stream_dot(DType::bf16, 16, 1, true), 2);
}

TEST(PagedOnMatrixUnit, digits_are_the_heuristics_choice_for_three_and_four_rows_of_codes) {
  const auto of_codes = [](DType query, int64_t q_heads) { return stream_dot(query, q_heads, 1, false, DType::i8); };
  {
    const ScopedEmulatedMatrixUnit unit;
    EXPECT_EQ(of_codes(DType::bf16, 4), 0) << "two rows for each of two kv heads";
    EXPECT_EQ(of_codes(DType::bf16, 6), 3);
    EXPECT_EQ(of_codes(DType::bf16, 8), 3);
    EXPECT_EQ(of_codes(DType::bf16, 10), 2) << "pairs of 16 rows take the time of one";
    EXPECT_EQ(of_codes(DType::f32, 10), 3) << "which float32 queries do not fit";
    EXPECT_EQ(stream_dot(DType::bf16, 8, 1, false, DType::e4m3), 0);
  }
  const cpu::ScopedMatrixUnit none(nullptr);
  EXPECT_EQ(of_codes(DType::f32, 8), 0);
}

TEST(PagedOnMatrixUnit, is_refused_and_not_offered_where_there_is_none) {
  batches::Problem p(10);
  batches::make_tensors(p,
                        {.contexts = {5}, .queries = {1}, .head_dim = 32, .dtype = DType::bf16, .cache = DType::bf16});
  const auto is_offered = [&] {
    attn::PagedCall call;
    call.problem.query.dtype = DType::bf16;
    call.problem.num_sequences = call.problem.num_q_heads = call.problem.num_kv_heads = 1;
    const auto offered = attn::paged_cpu_candidates(call, DeviceProperties{});
    return std::any_of(offered.begin(), offered.end(), [](const auto& config) { return config.stream_dot == 2; });
  };
  {
    const cpu::ScopedMatrixUnit none(nullptr);
    EXPECT_THAT([&] { ejk::plan<RaggedPageAttention>(p.in, p.params, on_unit()); },
                ThrowsMessage<Unsupported>(HasSubstr("stream_dot=2 needs AMX, which")));
    EXPECT_THAT([&] { ejk::plan<RaggedPageAttention>(p.in, p.params, of_digits()); },
                ThrowsMessage<Unsupported>(HasSubstr("stream_dot=3 needs AMX, which")));
    EXPECT_FALSE(is_offered());
  }
  const ScopedEmulatedMatrixUnit unit;
  EXPECT_NO_THROW(ejk::plan<RaggedPageAttention>(p.in, p.params, on_unit()));
  EXPECT_TRUE(is_offered());
}

}  // namespace
}  // namespace ejk::testing
