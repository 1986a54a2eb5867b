// The rules of operations §7, one test each, on every kernel: what differs from page_attention.
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using testing::array_of;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using testing::refusal_of;
using testing::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class RaggedPageRules : public ::testing::TestWithParam<std::string> {
 protected:
  using Inputs = RaggedPageAttention::Inputs;
  using Params = RaggedPageAttention::Params;

  RaggedPageAttention::Results attend(const Inputs& in, const Params& params = {}) {
    status = 0;
    return ragged_page_attention(in, params, {.plan = {.kernel = GetParam()}, .status = &status});
  }
  /// Means of what each of `rows` queries sees of pages 0 to 2 of two slots, which hold 1, 2, 4, 8, 16, 32; all logits
  /// are 0. Sequence 0 is pages 0, 1; sequence 1 page 2.
  std::vector<double> means(int64_t rows, const std::vector<double>& offsets, const std::vector<double>& lens,
                            double num_seqs = 2, const Params& params = {}) {
    const Array queries = Array::zeros(DType::f32, {rows, 1, 1});
    const Array pages = f32({3, 2, 2, 1}, {0, 1, 0, 2, 0, 4, 0, 8, 0, 16, 0, 32});
    const Array tables = array_of(DType::i32, {2, 2}, {0, 1, 2, -1});
    const Array of_offsets = i32(offsets), of_lens = i32(lens), count = i32({num_seqs});
    const auto [out, of_lse] = attend({.queries = queries,
                                       .kv_pages = pages,
                                       .context_lens = of_lens,
                                       .block_tables = tables,
                                       .query_start_loc = of_offsets,
                                       .num_seqs = count},
                                      params);
    lse = values_of(of_lse);
    return values_of(out);
  }

  uint32_t status = 0;
  std::vector<double> lse;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : RaggedPageAttention::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, RaggedPageRules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(RaggedPageRules, rows_are_the_newest_tokens_and_see_what_is_not_after_them) {
  EXPECT_THAT(means(3, {0, 2, 3}, {4, 1}), ElementsAre(DoubleNear(7.0 / 3, 1e-6), 3.75, 16));
  EXPECT_EQ(status, 0u);
  EXPECT_THAT(means(4, {0, 3, 4}, {3, 2}), ElementsAre(1, 1.5, DoubleNear(7.0 / 3, 1e-6), 24));
  EXPECT_THAT(means(3, {0, 2, 3}, {4, 2}, 2, {.sliding_window = 1}), ElementsAre(3, 6, 24));
}

TEST_P(RaggedPageRules, keys_and_values_of_a_head_interleave) {
  const Array queries = f32({1, 4, 1}, {1, 1, 1, 1}), count = i32({1}), offsets = i32({0, 1}), lens = i32({2});
  // Two kv heads: keys at 0 and 2, values at 1 and 3.
  const double k = std::log(3.0);
  const Array pages = f32({1, 2, 4, 1}, {0, 4, k, 8, k, 12, 0, 24});
  const Array tables = array_of(DType::i32, {1, 1}, {0});
  const auto [out, of_lse] = attend({.queries = queries,
                                     .kv_pages = pages,
                                     .context_lens = lens,
                                     .block_tables = tables,
                                     .query_start_loc = offsets,
                                     .num_seqs = count});
  EXPECT_THAT(values_of(out),
              ElementsAre(DoubleNear(10, 1e-5), DoubleNear(10, 1e-5), DoubleNear(12, 1e-5), DoubleNear(12, 1e-5)));
}

TEST_P(RaggedPageRules, rows_of_no_sequence_see_nothing) {
  EXPECT_THAT(means(5, {1, 2, 3}, {1, 1}), ElementsAre(0, 1, 16, 0, 0));
  EXPECT_THAT(lse, ElementsAre(-kInf, 0, 0, -kInf, -kInf));
  EXPECT_EQ(status, 0u);
}

TEST_P(RaggedPageRules, only_the_first_num_seqs_count_and_what_the_others_say_is_no_fault) {
  EXPECT_THAT(means(3, {0, 1, 2147483647.0}, {1, -5}, 1), ElementsAre(1, 0, 0));
  EXPECT_EQ(status, 0u);
  EXPECT_THAT(means(1, {7, -3, 5}, {99, -5}, 0), ElementsAre(0));
  EXPECT_EQ(status, 0u);
  EXPECT_THAT(means(2, {0, 1, 2}, {1, 1}, 3), ElementsAre(1, 16));
  EXPECT_EQ(status, status::kLength);
  EXPECT_THAT(means(2, {0, 1, 2}, {1, 1}, -1), ElementsAre(0, 0));
  EXPECT_EQ(status, status::kLength);
}

TEST_P(RaggedPageRules, more_rows_than_tokens_begin_before_the_first) {
  EXPECT_THAT(means(5, {0, 3, 5}, {2, 1}), ElementsAre(0, 1, 1.5, 0, 16));
  EXPECT_THAT(lse, ElementsAre(-kInf, 0, DoubleNear(std::log(2), 1e-6), -kInf, 0));
  EXPECT_EQ(status, 0u);
}

TEST_P(RaggedPageRules, offsets_and_lengths_are_clamped_with_their_status_bits) {
  EXPECT_THAT(means(2, {-4, 1, 9}, {1, 1}), ElementsAre(1, 16));
  EXPECT_EQ(status, status::kOffsets);
  EXPECT_THAT(means(2, {1, 0, 2}, {1, 2}), ElementsAre(16, 24)) << "descending: empty";
  EXPECT_EQ(status, status::kOffsets);
  EXPECT_THAT(means(2, {0, 1, 2}, {99, 1}), ElementsAre(3.75, 16)) << "positions follow the clamped length";
  EXPECT_EQ(status, status::kLength);
  EXPECT_THAT(means(2, {0, 1, 2}, {-1, 1}), ElementsAre(0, 16));
  EXPECT_EQ(status, status::kLength);
  EXPECT_THAT(means(2, {0, 1, 2}, {1, 3}), ElementsAre(1, 24)) << "its second page does not exist";
  EXPECT_EQ(status, status::kPageId);
}

TEST_P(RaggedPageRules, everything_may_be_empty_but_heads) {
  struct Sizes {
    int64_t rows, sequences, pages, slots, entries;
  };
  for (const Sizes& s :
       {Sizes{0, 0, 0, 0, 0}, {3, 0, 2, 2, 2}, {0, 2, 2, 2, 2}, {3, 2, 0, 2, 2}, {3, 2, 2, 0, 2}, {3, 2, 2, 2, 0}}) {
    const Array queries = Array::zeros(DType::f32, {s.rows, 2, 3});
    const Array pages = Array::zeros(DType::f32, {s.pages, s.slots, 2, 3});
    const Array lens = Array::zeros(DType::i32, {s.sequences}), offsets = Array::zeros(DType::i32, {s.sequences + 1});
    const Array tables = Array::zeros(DType::i32, {s.sequences, s.entries});
    const Array count = i32({static_cast<double>(s.sequences)});
    const auto [out, of_lse] = attend({.queries = queries,
                                       .kv_pages = pages,
                                       .context_lens = lens,
                                       .block_tables = tables,
                                       .query_start_loc = offsets,
                                       .num_seqs = count});
    EXPECT_THAT(values_of(out), Each(0));
    EXPECT_THAT(values_of(of_lse), Each(-kInf));
    EXPECT_EQ(status, 0u);
  }
}

TEST_P(RaggedPageRules, nothing_of_an_unread_slot_reaches_a_result) {
  const Array queries = Array::zeros(DType::f32, {2, 1, 1}), count = i32({1}), offsets = i32({0, 1}), lens = i32({1});
  set(queries, 1, kNaN);  // of no sequence
  const Array pages = f32({2, 2, 2, 1}, {0, 5, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN});
  const Array tables = array_of(DType::i32, {1, 2}, {0, 1});
  const auto [out, of_lse] = attend({.queries = queries,
                                     .kv_pages = pages,
                                     .context_lens = lens,
                                     .block_tables = tables,
                                     .query_start_loc = offsets,
                                     .num_seqs = count});
  EXPECT_THAT(values_of(out), ElementsAre(5, 0));
  EXPECT_THAT(values_of(of_lse), ElementsAre(0, -kInf));
}

TEST(RaggedPageAttention, heads_of_int4_begin_at_whole_bytes) {
  const Array bytes = Array::zeros(DType::u8, {40}), queries = Array::zeros(DType::f32, {1, 1, 8});
  const Tensor pages(bytes.data(), DType::i4, {1, 2, 2, 8}, {40, 20, 9, 1});
  EXPECT_THAT(refusal_of([&] {
                ragged_page_attention({.queries = queries,
                                       .kv_pages = pages,
                                       .context_lens = i32({1}),
                                       .block_tables = array_of(DType::i32, {1, 1}, {0}),
                                       .query_start_loc = i32({0, 1}),
                                       .num_seqs = i32({1})});
              }),
              HasSubstr("the cache must have rows that begin at whole bytes"));
}

TEST(RaggedPageAttention, shapes_that_do_not_fit_are_explained) {
  const Array queries = Array::zeros(DType::f32, {2, 4, 8}), pages = Array::zeros(DType::f32, {3, 2, 4, 8});
  const Array odd = Array::zeros(DType::f32, {3, 2, 3, 8}), three = Array::zeros(DType::f32, {3, 2, 6, 8});
  const Array lens = i32({1}), tables = array_of(DType::i32, {1, 1}, {0}), offsets = i32({0, 1}), count = i32({1});
  RaggedPageAttention::Inputs in = {.queries = queries,
                                    .kv_pages = odd,
                                    .context_lens = lens,
                                    .block_tables = tables,
                                    .query_start_loc = offsets,
                                    .num_seqs = count};
  auto refusal = [&] { return refusal_of([&] { ragged_page_attention(in); }); };
  EXPECT_THAT(refusal(), HasSubstr("kv_pages"));
  in.kv_pages = three;
  EXPECT_THAT(refusal(), HasSubstr("num_q_heads must be a multiple of num_kv_heads 3, got 4"));
  in.kv_pages = pages, in.query_start_loc = lens;
  EXPECT_THAT(refusal(), HasSubstr("query_start_loc"));
}

}  // namespace
}  // namespace ejk
