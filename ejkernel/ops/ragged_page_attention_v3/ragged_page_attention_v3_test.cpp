// The rules of operations §8, one test each, on every kernel: what differs from ragged_page_attention.
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ejkernel/testing/values.h"

namespace ejk {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using testing::refusal_of;
using testing::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class RaggedPageV3Rules : public ::testing::TestWithParam<std::string> {
 protected:
  using Inputs = RaggedPageAttentionV3::Inputs;
  using Params = RaggedPageAttentionV3::Params;

  RaggedPageAttentionV3::Results attend(const Inputs& in, const Params& params = {}) {
    status = 0;
    return ragged_page_attention_v3(in, params, {.plan = {.kernel = GetParam()}, .status = &status});
  }
  /// New values 100, 200, … of one head go to two pages of two slots that hold 1, 2, 4, 8; all logits are 0. Sequence 0
  /// is page 1, sequence 1 page 0.
  std::vector<double> means(int64_t rows, const std::vector<double>& offsets, const std::vector<double>& lens,
                            double total = 2, const std::vector<double>& tables = {1, 0}) {
    const Array queries = Array::zeros(DType::f32, {rows, 1, 1}), keys = queries.clone();
    const Array values = testing::counting({rows, 1, 1});
    for (int64_t n = 0; n < rows; ++n) set(values, n, 100 * static_cast<double>(n + 1));
    const Array cache = f32({2, 2, 2, 1}, {0, 1, 0, 2, 0, 4, 0, 8});
    const Array of_lens = i32(lens), of_offsets = i32(offsets), of_tables = i32(tables);
    const Array distribution = i32({-9, 77, total});
    const auto [out, updated, of_lse] = attend({.queries = queries,
                                                .keys = keys,
                                                .values = values,
                                                .kv_cache = cache,
                                                .context_lens = of_lens,
                                                .block_tables = of_tables,
                                                .query_start_loc = of_offsets,
                                                .distribution = distribution});
    EXPECT_EQ(updated.data(), cache.data()) << "in place";
    stored.clear();
    for (int64_t n = 1; n < 8; n += 2) stored.push_back(get(cache, n));
    lse = values_of(of_lse);
    return values_of(out);
  }

  uint32_t status = 0;
  std::vector<double> lse, stored;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : RaggedPageAttentionV3::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, RaggedPageV3Rules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(RaggedPageV3Rules, new_tokens_are_stored_and_then_seen) {
  EXPECT_THAT(means(3, {0, 2, 3}, {2, 2}), ElementsAre(100, 150, 150.5));
  EXPECT_THAT(stored, ElementsAre(1, 300, 100, 200));
  EXPECT_EQ(status, 0u);
}

TEST_P(RaggedPageV3Rules, all_writes_come_before_any_read) {
  // Both sequences are page 0; the first reads what the second writes.
  EXPECT_THAT(means(2, {0, 1, 2}, {2, 1}, 2, {0, 0}), ElementsAre(150, 200));
  EXPECT_THAT(stored, ElementsAre(200, 100, 4, 8));
}

TEST_P(RaggedPageV3Rules, only_the_total_of_distribution_counts) {
  EXPECT_THAT(means(2, {0, 1, 2}, {1, 1}, 1), ElementsAre(100, 0));
  EXPECT_THAT(stored, ElementsAre(1, 2, 100, 8));
  EXPECT_THAT(lse, ElementsAre(0, -kInf));
  EXPECT_EQ(status, 0u);
  EXPECT_THAT(means(2, {0, 1, 2}, {1, 1}, 0), ElementsAre(0, 0));
  EXPECT_EQ(status, 0u);
  means(2, {0, 1, 2}, {1, 1}, 3);
  EXPECT_EQ(status, status::kLength);
  means(2, {0, 1, 2}, {1, 1}, -1);
  EXPECT_EQ(status, status::kLength);
}

TEST_P(RaggedPageV3Rules, rows_without_a_place_are_dropped_with_their_status_bit) {
  EXPECT_THAT(means(3, {0, 2, 3}, {1, 1}), ElementsAre(0, 200, 300)) << "a token before the first";
  EXPECT_THAT(stored, ElementsAre(300, 2, 200, 8));
  EXPECT_EQ(status, status::kLength);
  EXPECT_THAT(means(2, {0, 1, 2}, {1, 1}, 2, {7, 0}), ElementsAre(0, 200)) << "a page that does not exist";
  EXPECT_THAT(stored, ElementsAre(200, 2, 4, 8));
  EXPECT_EQ(status, status::kPageId);
  EXPECT_THAT(means(2, {0, 1, 2}, {9, 1}), ElementsAre(52, 200)) << "past the table: clamped";
  EXPECT_THAT(stored, ElementsAre(200, 2, 4, 100));
  EXPECT_EQ(status, status::kLength);
}

TEST_P(RaggedPageV3Rules, attention_uses_what_is_stored) {
  const Array queries = f32({1, 1, 1}, {1}), keys = f32({1, 1, 1}, {1.4}), values = f32({1, 1, 1}, {2.9});
  const Array cache = Array::zeros(DType::i8, {1, 1, 2, 1}), lens = i32({1}), tables = i32({0}), offsets = i32({0, 1});
  const Array distribution = i32({1, 1, 1}), k_scale = f32({}, {1}), v_scale = f32({1}, {0.5}), q_scale = f32({}, {3});
  const auto [out, updated, of_lse] = attend({.queries = queries,
                                              .keys = keys,
                                              .values = values,
                                              .kv_cache = cache,
                                              .context_lens = lens,
                                              .block_tables = tables,
                                              .query_start_loc = offsets,
                                              .distribution = distribution,
                                              .q_scale = q_scale,
                                              .k_scale = k_scale,
                                              .v_scale = v_scale});
  EXPECT_THAT(values_of(cache), ElementsAre(1, 6));
  EXPECT_THAT(values_of(out), ElementsAre(3));
  EXPECT_THAT(values_of(of_lse), ElementsAre(3)) << "q_scale multiplies the logit 1";
}

TEST_P(RaggedPageV3Rules, everything_may_be_empty_but_heads) {
  struct Sizes {
    int64_t rows, sequences, pages, slots, entries;
  };
  for (const Sizes& s : {Sizes{0, 0, 0, 0, 0}, {3, 0, 2, 2, 0}, {0, 2, 2, 2, 4}, {0, 2, 0, 2, 4}, {0, 2, 2, 0, 0}}) {
    const Array queries = Array::zeros(DType::f32, {s.rows, 2, 3}), keys = Array::zeros(DType::f32, {s.rows, 1, 3});
    const Array cache = Array::zeros(DType::f32, {s.pages, s.slots, 2, 3});
    const Array lens = Array::zeros(DType::i32, {s.sequences}), offsets = Array::zeros(DType::i32, {s.sequences + 1});
    const Array tables = Array::zeros(DType::i32, {s.entries});
    const Array distribution = i32({0, 0, static_cast<double>(s.sequences)});
    const auto [out, updated, of_lse] = attend({.queries = queries,
                                                .keys = keys,
                                                .values = keys,
                                                .kv_cache = cache,
                                                .context_lens = lens,
                                                .block_tables = tables,
                                                .query_start_loc = offsets,
                                                .distribution = distribution});
    EXPECT_THAT(values_of(out), Each(0));
    EXPECT_THAT(values_of(of_lse), Each(-kInf));
    EXPECT_EQ(status, 0u);
  }
}

TEST(RaggedPageAttentionV3, refuses_tables_of_unequal_parts_and_caches_that_it_cannot_write) {
  const Array queries = Array::zeros(DType::f32, {1, 1, 2}), lens = i32({1, 0}), offsets = i32({0, 1, 1});
  const Array cache = Array::zeros(DType::f32, {1, 1, 2, 2}), nibbles = Array::zeros(DType::i4, {1, 1, 2, 2});
  const Array three = i32({0, 0, 0}), two = i32({0, 0}), distribution = i32({0, 0, 1});
  RaggedPageAttentionV3::Inputs in = {.queries = queries,
                                      .keys = queries,
                                      .values = queries,
                                      .kv_cache = cache,
                                      .context_lens = lens,
                                      .block_tables = three,
                                      .query_start_loc = offsets,
                                      .distribution = distribution};
  auto refusal = [&] { return refusal_of([&] { ragged_page_attention_v3(in); }); };
  EXPECT_THAT(refusal(), HasSubstr("block_tables must have as many pages for each of the 2 sequences, got 3 entries"));
  in.block_tables = two, in.kv_cache = nibbles;
  EXPECT_THAT(refusal(), HasSubstr("ragged_page_attention_v3: kv_cache dtype must be"));
}

}  // namespace
}  // namespace ejk
