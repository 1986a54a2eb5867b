// The rules of page_append (operations §5), one test each, on every kernel.
#include "ejkernel/ops/page_append/page_append.h"

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
using ::testing::Each;
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using testing::refusal_of;
using testing::values_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class PageAppendRules : public ::testing::TestWithParam<std::string> {
 protected:
  using Inputs = PageAppend::Inputs;

  PageAppend::Results append(const Inputs& in, const PageAppend::Params& params = {}) {
    status = 0;
    return page_append(in, params, {.plan = {.kernel = GetParam()}, .status = &status});
  }
  /// Three pages of two slots with -1 in them, after keys 1, 2, … were appended to sequences of these offsets and
  /// lengths. Sequence 0 is pages 2, 0; sequence 1 page 1.
  std::vector<double> pages_after(int64_t rows, const std::vector<double>& offsets, const std::vector<double>& lens,
                                  const std::vector<double>& tables = {2, 0, 1, -1}) {
    const Array keys = testing::counting({rows, 1, 1});
    const Array key_cache = f32({3, 2, 1, 1}, std::vector<double>(6, -1)), value_cache = key_cache.clone();
    const Array of_lens = i32(lens), of_offsets = i32(offsets);
    const Array of_tables = array_of(DType::i32, {2, 2}, tables);
    append({.keys = keys,
            .values = keys,
            .key_cache = key_cache,
            .value_cache = value_cache,
            .context_lens = of_lens,
            .block_tables = of_tables,
            .query_start_loc = of_offsets});
    EXPECT_EQ(values_of(key_cache), values_of(value_cache));
    return values_of(key_cache);
  }
  /// One row of one head as a cache of this dtype stores it.
  std::vector<double> stored(DType dtype, const std::vector<double>& row, double scale) {
    const auto dims = static_cast<int64_t>(row.size());
    const Array keys = f32({1, 1, dims}, row), lens = i32({1}), offsets = i32({0, 1});
    const Array cache = Array::zeros(dtype, {1, 1, 1, dims}), other = cache.clone();
    const Array tables = array_of(DType::i32, {1, 1}, {0}), scales = f32({}, {scale});
    append({.keys = keys,
            .values = keys,
            .key_cache = cache,
            .value_cache = other,
            .context_lens = lens,
            .block_tables = tables,
            .query_start_loc = offsets,
            .k_scale = scales});
    return values_of(cache);
  }

  uint32_t status = 0;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : PageAppend::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, PageAppendRules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(PageAppendRules, rows_go_to_the_last_positions_of_their_sequence_and_nothing_else_is_touched) {
  EXPECT_THAT(pages_after(3, {0, 2, 3}, {3, 1}), ElementsAre(2, -1, 3, -1, -1, 1));
  EXPECT_EQ(status, 0u);
  EXPECT_THAT(pages_after(5, {0, 4, 5}, {4, 2}), ElementsAre(3, 4, -1, 5, 1, 2));
  EXPECT_THAT(pages_after(3, {1, 1, 2}, {3, 1}), ElementsAre(-1, -1, 2, -1, -1, -1)) << "rows of no sequence";
  EXPECT_EQ(status, 0u);
}

TEST_P(PageAppendRules, rows_without_a_place_are_dropped_with_their_status_bit) {
  EXPECT_THAT(pages_after(3, {0, 3, 3}, {2, 0}), ElementsAre(-1, -1, -1, -1, 2, 3)) << "before the first token";
  EXPECT_EQ(status, status::kLength);
  EXPECT_THAT(pages_after(1, {0, 1, 1}, {9, 0}), ElementsAre(-1, 1, -1, -1, -1, -1)) << "past the table: clamped";
  EXPECT_EQ(status, status::kLength);
  EXPECT_THAT(pages_after(2, {0, 0, 2}, {0, 3}), ElementsAre(-1, -1, -1, 1, -1, -1)) << "page -1";
  EXPECT_EQ(status, status::kPageId);
  EXPECT_THAT(pages_after(2, {0, 2, 2}, {2, 0}, {3, 0, 1, 1}), Each(-1)) << "page 3 of 3";
  EXPECT_EQ(status, status::kPageId);
  EXPECT_THAT(pages_after(2, {0, 1, 9}, {1, 1}), ElementsAre(-1, -1, 2, -1, 1, -1));
  EXPECT_EQ(status, status::kOffsets);
}

TEST_P(PageAppendRules, pages_that_no_row_goes_to_are_no_fault) {
  pages_after(1, {0, 1, 1}, {3, 0}, {-5, 0, 99, 99});
  EXPECT_EQ(status, 0u);
}

TEST_P(PageAppendRules, codes_are_rounded_to_nearest_even_and_saturate) {
  EXPECT_THAT(stored(DType::i8, {0.5, 1.5, -2.5, 63.4, 1000, -1000}, 0.5), ElementsAre(1, 3, -5, 127, 127, -128));
  EXPECT_THAT(stored(DType::i8, {0.5, 1.5, -2.5, 63.5}, 1), ElementsAre(0, 2, -2, 64));
  EXPECT_THAT(stored(DType::e4m3, {1.0625, 1.1875, 1e6, -1e6}, 1), ElementsAre(1, 1.25, 448, -448));
  EXPECT_THAT(stored(DType::e5m2, {1.125, 1.375, 1e9, -1e9}, 1), ElementsAre(1, 1.5, 57344, -57344));
  EXPECT_THAT(stored(DType::bf16, {1 + 0x1p-8, 1 + 3 * 0x1p-8, 3}, 1), ElementsAre(1, 1 + 0x1p-6, 3));
  // A third is not exact in float32: 1.5 / (1/3) = 4.5 - tiny is below the tie of 4.5.
  const double third = static_cast<float>(1.0 / 3);
  EXPECT_THAT(stored(DType::i8, {1.5, 1}, third), ElementsAre(std::nearbyint(1.5 / third), 3));
  EXPECT_TRUE(std::isnan(stored(DType::e4m3, {kNaN}, 1)[0]));
}

TEST_P(PageAppendRules, scales_may_be_per_head_and_values_have_their_own) {
  const Array keys = f32({1, 2, 1}, {8, 8}), values = f32({1, 2, 1}, {6, 6}), lens = i32({1}), offsets = i32({0, 1});
  const Array key_cache = Array::zeros(DType::i8, {1, 1, 2, 1}), value_cache = key_cache.clone();
  const Array tables = array_of(DType::i32, {1, 1}, {0}), k_scale = f32({2}, {1, 4}), v_scale = f32({}, {2});
  append({.keys = keys,
          .values = values,
          .key_cache = key_cache,
          .value_cache = value_cache,
          .context_lens = lens,
          .block_tables = tables,
          .query_start_loc = offsets,
          .k_scale = k_scale,
          .v_scale = v_scale});
  EXPECT_THAT(values_of(key_cache), ElementsAre(8, 2));
  EXPECT_THAT(values_of(value_cache), ElementsAre(3, 3));
}

TEST_P(PageAppendRules, head_major_caches_have_their_heads_before_their_slots) {
  const Array keys = f32({1, 2, 1}, {1, 2}), lens = i32({2}), offsets = i32({0, 1});
  const Array key_cache = Array::zeros(DType::f32, {1, 2, 3, 1}), value_cache = key_cache.clone();
  const Array tables = array_of(DType::i32, {1, 1}, {0});
  append({.keys = keys,
          .values = keys,
          .key_cache = key_cache,
          .value_cache = value_cache,
          .context_lens = lens,
          .block_tables = tables,
          .query_start_loc = offsets},
         {.cache_layout = CacheLayout::head_major});
  EXPECT_THAT(values_of(key_cache), ElementsAre(0, 1, 0, 0, 2, 0));
}

TEST_P(PageAppendRules, everything_may_be_empty_but_heads) {
  struct Sizes {
    int64_t rows, sequences, pages, slots, entries;
  };
  for (const Sizes& s : {Sizes{0, 0, 0, 0, 0}, {3, 0, 2, 2, 2}, {0, 2, 2, 2, 2}, {0, 2, 0, 2, 2}, {0, 2, 2, 0, 0}}) {
    const Array keys = Array::zeros(DType::f32, {s.rows, 2, 3}),
                cache = Array::zeros(DType::f32, {s.pages, s.slots, 2, 3});
    const Array other = cache.clone(), lens = Array::zeros(DType::i32, {s.sequences});
    const Array offsets = Array::zeros(DType::i32, {s.sequences + 1});
    const Array tables = Array::zeros(DType::i32, {s.sequences, s.entries});
    append({.keys = keys,
            .values = keys,
            .key_cache = cache,
            .value_cache = other,
            .context_lens = lens,
            .block_tables = tables,
            .query_start_loc = offsets});
    EXPECT_THAT(values_of(cache), Each(0));
    EXPECT_EQ(status, 0u);
  }
}

TEST(PageAppend, refuses_a_cache_that_it_cannot_write) {
  const Array keys = Array::zeros(DType::f32, {1, 1, 2}), lens = i32({1}), offsets = i32({0, 1});
  const Array nibbles = Array::zeros(DType::i4, {1, 1, 1, 2}), bytes = Array::zeros(DType::i8, {1, 1, 1, 2});
  const Array tables = array_of(DType::i32, {1, 1}, {0}), groups = f32({1, 1, 1, 1}, {1});
  PageAppend::Inputs in = {.keys = keys,
                           .values = keys,
                           .key_cache = nibbles,
                           .value_cache = nibbles,
                           .context_lens = lens,
                           .block_tables = tables,
                           .query_start_loc = offsets};
  EXPECT_THAT(refusal_of([&] { page_append(in); }), HasSubstr("page_append: key_cache dtype must be"));
  in.key_cache = in.value_cache = bytes, in.k_scale = groups;
  EXPECT_THAT(refusal_of([&] { page_append(in); }), HasSubstr("k_scale"));
}

}  // namespace
}  // namespace ejk
