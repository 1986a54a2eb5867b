// The rules of operations §5 and §16, one test each, on every kernel: what differs from flash_attention.
#include "ejkernel/ops/page_attention/page_attention.h"

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
using ::testing::ElementsAre;
using testing::f32;
using ::testing::HasSubstr;
using testing::i32;
using ::testing::IsEmpty;
using ::testing::Pointwise;
using testing::refusal_of;
using testing::values_of;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Array table(const Shape& shape, const std::vector<double>& pages) { return array_of(DType::i32, shape, pages); }
Array zeros(const Shape& shape) { return Array::zeros(DType::f32, shape); }

class PageAttentionRules : public ::testing::TestWithParam<std::string> {
 protected:
  using Inputs = PageAttention::Inputs;
  using Params = PageAttention::Params;

  PageAttention::Results attend(const Inputs& in, const Params& params = {}) {
    status = 0;
    return page_attention(in, params, {.plan = {.kernel = GetParam()}, .status = &status});
  }
  /// Means of what one query sees of three pages of two slots, which hold 1, 2, 4, 8, 16, 32: all logits are 0.
  double mean(double length, const std::vector<double>& pages, const Params& params = {}) {
    const Array query = f32({1, 1, 1}, {0}), keys = zeros({3, 2, 1, 1});
    const Array values = f32({3, 2, 1, 1}, {1, 2, 4, 8, 16, 32});
    const Array lens = i32({length}), tables = table({1, static_cast<int64_t>(pages.size())}, pages);
    return get(
        attend({.query = query, .key_cache = keys, .value_cache = values, .context_lens = lens, .block_tables = tables},
               params)
            .out,
        0);
  }

  uint32_t status = 0;
};

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelInfo* kernel : PageAttention::kernels())
    if (kernel->backend == Backend::cpu) names.push_back(kernel->name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(kernels, PageAttentionRules, ::testing::ValuesIn(kernel_names()),
                         [](const auto& info) { return info.param; });

TEST_P(PageAttentionRules, token_t_lies_in_slot_t_mod_page_size_of_page_t_div_page_size) {
  // Two sequences over pages of two slots: tokens of the first are in pages 2 and 0, of the second in page 1.
  const Array query = f32({2, 1, 1}, {1, 1});
  const Array keys = f32({3, 2, 1, 1}, {std::log(2.0), kNaN, 0, kNaN, 0, 0});
  const Array values = f32({3, 2, 1, 1}, {7, kNaN, 5, kNaN, 1, 2});
  const Array lens = i32({3, 1}), tables = table({2, 2}, {2, 0, 1, 99});
  const auto [out, lse] =
      attend({.query = query, .key_cache = keys, .value_cache = values, .context_lens = lens, .block_tables = tables});
  // Weights 1, 1 and 2 of the tokens 1, 2 and 7.
  EXPECT_THAT(values_of(out), Pointwise(::testing::DoubleNear(1e-6), {(1 + 2 + 2 * 7) / 4.0, 5.0}));
  EXPECT_THAT(values_of(lse), Pointwise(::testing::DoubleNear(1e-6), {std::log(4.0), 0.0}));
  EXPECT_EQ(status, 0u);
}

TEST_P(PageAttentionRules, an_empty_sequence_gives_zero_and_the_lse_of_the_sinks) {
  const Array query = f32({2, 2, 1}, {kNaN, kNaN, 1, 1}), keys = zeros({1, 1, 1, 1}), values = f32({1, 1, 1, 1}, {3});
  const Array lens = i32({0, 1}), tables = table({2, 1}, {-1, 0}), sinks = f32({2, 1}, {0, -1});
  const Inputs in = {
      .query = query, .key_cache = keys, .value_cache = values, .context_lens = lens, .block_tables = tables};
  EXPECT_THAT(values_of(attend(in).lse), ElementsAre(-kInf, -kInf, 0, 0));
  EXPECT_THAT(values_of(attend(in).out), ElementsAre(0, 0, 3, 3));
  Inputs with_sinks = in;
  with_sinks.softmax_aux = sinks;
  EXPECT_THAT(values_of(attend(with_sinks).lse),
              Pointwise(::testing::DoubleNear(1e-6), {0.0, -1.0, std::log(2.0), std::log(1 + std::exp(-1))}));
  EXPECT_EQ(status, 0u);
}

TEST_P(PageAttentionRules, lengths_beyond_the_table_are_clamped_with_their_status_bit) {
  EXPECT_EQ(mean(4, {0, 1}), 3.75);
  EXPECT_EQ(status, 0u);
  for (const double length : {5.0, 6.0, 2147483647.0}) {
    EXPECT_EQ(mean(length, {0, 1}), 3.75);
    EXPECT_EQ(status, status::kLength);
  }
  for (const double length : {-1.0, -2147483648.0}) {
    EXPECT_EQ(mean(length, {0, 1}), 0);
    EXPECT_EQ(status, status::kLength);
  }
  // The window follows the clamped length.
  EXPECT_EQ(mean(100, {0, 1}, {.sliding_window = 0}), 8);
}

TEST_P(PageAttentionRules, a_page_that_does_not_exist_is_masked_with_its_status_bit) {
  for (const double page : {-1.0, 3.0, -2147483648.0, 2147483647.0}) {
    EXPECT_EQ(mean(6, {0, page, 2}), (1 + 2 + 16 + 32) / 4.0);
    EXPECT_EQ(status, status::kPageId);
    // Tokens keep their positions: the window begins in the page that is missing.
    EXPECT_EQ(mean(6, {0, page, 2}, {.sliding_window = 2}), 24);
    EXPECT_EQ(status, status::kPageId);
  }
  EXPECT_EQ(mean(2, {-1}), 0);
  EXPECT_EQ(status, status::kPageId);
}

TEST_P(PageAttentionRules, pages_that_no_query_needs_are_no_fault) {
  EXPECT_EQ(mean(4, {0, 1, -7}), 3.75) << "past the length";
  EXPECT_EQ(status, 0u);
  EXPECT_EQ(mean(6, {-1, 1, 2}, {.sliding_window = 3}), (4 + 8 + 16 + 32) / 4.0) << "before the window";
  EXPECT_EQ(status, 0u);
  EXPECT_EQ(mean(6, {-1, 1, 2}, {.sliding_window = 3, .attention_sink_size = 1}), 15) << "a sink token needs it";
  EXPECT_EQ(status, status::kPageId);
}

TEST_P(PageAttentionRules, window_counts_back_from_the_newest_token) {
  EXPECT_EQ(mean(6, {0, 1, 2}, {.sliding_window = 0}), 32);
  EXPECT_EQ(mean(5, {0, 1, 2}, {.sliding_window = 1}), 12);
  EXPECT_EQ(mean(5, {0, 1, 2}, {.sliding_window = Window(1, 4)}), 12) << "nothing is after the newest";
  EXPECT_EQ(mean(5, {2, 1, 0}, {.sliding_window = 0, .attention_sink_size = 1}), (16 + 1) / 2.0);
  EXPECT_EQ(mean(4, {0, 1, 2}, {.sliding_window = 100}), 3.75);
}

TEST_P(PageAttentionRules, pages_may_be_shared) {
  EXPECT_EQ(mean(6, {1, 1, 1}), 6);
  EXPECT_NEAR(mean(5, {1, 0, 1}), (4 + 8 + 1 + 2 + 4) / 5.0, 1e-6);
}

TEST_P(PageAttentionRules, head_major_caches_have_their_heads_before_their_slots) {
  const Array query = f32({1, 2, 1}, {0, 0}), lens = i32({2}), tables = table({1, 1}, {0});
  const Array values = f32({1, 2, 2, 1}, {1, 2, 10, 20});
  const Array keys = zeros({1, 2, 2, 1});
  const Inputs in = {
      .query = query, .key_cache = keys, .value_cache = values, .context_lens = lens, .block_tables = tables};
  EXPECT_THAT(values_of(attend(in).out), ElementsAre(5.5, 11));  // slots 0 and 1 of each head
  EXPECT_THAT(values_of(attend(in, {.cache_layout = CacheLayout::head_major}).out), ElementsAre(1.5, 15));
}

TEST_P(PageAttentionRules, codes_are_multiplied_by_their_scale_in_all_its_forms) {
  // Two kv heads of 32 codes in one slot, whose values are read off the output: there is nothing to average.
  const Array query = zeros({1, 2, 32}), lens = i32({1}), tables = table({1, 1}, {0});
  Array keys(DType::i8, {1, 1, 2, 32}), values(DType::i8, {1, 1, 2, 32});
  for (int64_t n = 0; n < 64; ++n) set(keys, n, 1), set(values, n, static_cast<double>(n % 5) - 2);
  Inputs in = {.query = query, .key_cache = keys, .value_cache = values, .context_lens = lens, .block_tables = tables};
  auto expect_factors = [&](const std::vector<double>& of_sixteen) {
    const std::vector<double> out = values_of(attend(in).out);
    for (size_t n = 0; n < out.size(); ++n)
      EXPECT_EQ(out[n], get(values, static_cast<int64_t>(n)) * of_sixteen[n / 16]) << n;
  };
  expect_factors({1, 1, 1, 1});
  const Array one = f32({}, {0.5}), heads = f32({2}, {0.5, 4}), rows = f32({1, 1, 2, 1}, {2, 0.25}),
              groups = f32({1, 1, 2, 2}, {1, 2, 3, 4});
  in.v_scale = one, expect_factors({0.5, 0.5, 0.5, 0.5});
  in.v_scale = heads, expect_factors({0.5, 0.5, 4, 4});
  in.v_scale = rows, expect_factors({2, 2, 0.25, 0.25});
  in.v_scale = groups, expect_factors({1, 2, 3, 4});

  // Of keys it is in the logit: q.k = 16 (1 + 2) for the first head, 16 (3 + 4) for the second.
  const Array ones = f32({1, 2, 32}, std::vector<double>(64, 1));
  in.query = ones, in.k_scale = groups;
  EXPECT_THAT(values_of(attend(in, {.softmax_scale = 0.125}).lse), ElementsAre(6, 14));
}

TEST_P(PageAttentionRules, the_even_element_of_int4_is_the_low_nibble) {
  const Array query = zeros({1, 1, 2}), lens = i32({1}), tables = table({1, 1}, {0});
  Array keys(DType::i4, {1, 1, 1, 2}), values(DType::i4, {1, 1, 1, 2});
  keys.as<uint8_t>()[0] = 0;
  values.as<uint8_t>()[0] = 0x87;  // -8 in the high nibble, 7 in the low one
  const Array scale = f32({}, {0.5});
  const Inputs in = {.query = query,
                     .key_cache = keys,
                     .value_cache = values,
                     .context_lens = lens,
                     .block_tables = tables,
                     .v_scale = scale};
  EXPECT_THAT(values_of(attend(in).out), ElementsAre(3.5, -4));
}

TEST_P(PageAttentionRules, everything_may_be_empty_but_heads) {
  const Array lens0 = i32({}), lens2 = i32({0, 0});
  struct Sizes {
    int64_t sequences, pages, slots, entries;
  };
  for (const Sizes& s : {Sizes{0, 0, 0, 0}, {0, 3, 4, 2}, {2, 0, 4, 2}, {2, 3, 0, 2}, {2, 3, 4, 0}, {2, 0, 0, 0}}) {
    const Array query = zeros({s.sequences, 2, 3}), cache = zeros({s.pages, s.slots, 1, 3});
    const Array tables = Array::zeros(DType::i32, {s.sequences, s.entries});
    const auto [out, lse] = attend({.query = query,
                                    .key_cache = cache,
                                    .value_cache = cache,
                                    .context_lens = s.sequences == 0 ? lens0 : lens2,
                                    .block_tables = tables});
    EXPECT_THAT(values_of(out), ::testing::Each(0));
    EXPECT_THAT(values_of(lse), ::testing::Each(-kInf));
    EXPECT_EQ(status, 0u);
  }
}

class PageAttentionChecks : public ::testing::Test {
 protected:
  std::string refusal(const PageAttention::Inputs& changed, const PageAttention::Params& params = {}) {
    return refusal_of([&] { page_attention(changed, params); });
  }
  Array query = zeros({2, 4, 8}), cache = zeros({3, 5, 2, 8}), lens = i32({1, 1}), tables = table({2, 2}, {0, 1, 2, 0});
  PageAttention::Inputs in = {
      .query = query, .key_cache = cache, .value_cache = cache, .context_lens = lens, .block_tables = tables};
};

TEST_F(PageAttentionChecks, shapes_that_do_not_fit_are_explained) {
  const Array other = zeros({3, 5, 2, 6}), fewer = i32({1}), narrow = zeros({2, 3, 8});
  in.key_cache = other;
  EXPECT_THAT(refusal(in), HasSubstr("key_cache head_dim must equal query head_dim 8, got 6"));
  in.key_cache = cache, in.context_lens = fewer;
  EXPECT_THAT(refusal(in), HasSubstr("context_lens num_seqs must equal query num_seqs 2, got 1"));
  in.context_lens = lens, in.query = narrow;
  EXPECT_THAT(refusal(in), HasSubstr("num_q_heads must be a multiple of num_kv_heads 2, got 3"));
  in.query = query;
  EXPECT_THAT(refusal(in, {.cache_layout = CacheLayout::head_major}), HasSubstr("5"));
}

TEST_F(PageAttentionChecks, dtypes_are_explained) {
  const Array whole = Array::zeros(DType::i32, {3, 5, 2, 8}), half = Array::zeros(DType::f16, {3, 5, 2, 8});
  in.key_cache = in.value_cache = whole;
  EXPECT_THAT(refusal(in), HasSubstr("page_attention: key_cache dtype must be"));
  in.key_cache = cache, in.value_cache = half;
  EXPECT_THAT(refusal(in), HasSubstr("value_cache"));
  const Array codes = Array::zeros(DType::i8, {2, 4, 8});
  in.value_cache = cache, in.query = codes;
  EXPECT_THAT(refusal(in), HasSubstr("page_attention: query dtype must be"));
}

TEST_F(PageAttentionChecks, sizes_and_groups_out_of_range_are_explained) {
  const Array wide_query = zeros({2, 2, 513}), wide = zeros({1, 1, 1, 513});
  EXPECT_THAT(
      refusal(
          {.query = wide_query, .key_cache = wide, .value_cache = wide, .context_lens = lens, .block_tables = tables}),
      HasSubstr("head_dim must be 1 to 512, got 513"));
  const Array odd_query = zeros({2, 2, 7}), odd = Array::zeros(DType::i4, {3, 5, 2, 7});
  EXPECT_THAT(
      refusal({.query = odd_query, .key_cache = odd, .value_cache = odd, .context_lens = lens, .block_tables = tables}),
      HasSubstr("head_dim must be even for an i4 cache, got 7"));
  const Array pairs = zeros({3, 5, 2, 4}), uneven = zeros({3, 5, 2, 3});
  for (const Array& scale : {pairs, uneven}) {
    in.k_scale = scale;
    EXPECT_THAT(refusal(in), HasSubstr("k_scale must have one scale per 16, 32, 64, 128 or all of 8 elements"));
  }
}

TEST_F(PageAttentionChecks, rows_of_int4_begin_at_whole_bytes) {
  const Array bytes = Array::zeros(DType::u8, {400});
  const Tensor apart(bytes.data(), DType::i4, {3, 5, 2, 8}, {90, 18, 9, 1});
  in.key_cache = in.value_cache = apart;
  EXPECT_THAT(refusal(in), HasSubstr("the cache must have rows that begin at whole bytes"));
}

TEST_F(PageAttentionChecks, parameters_out_of_range_are_explained) {
  EXPECT_THAT(refusal(in, {.sliding_window = Window(-2, 0)}), HasSubstr("sliding_window"));
  EXPECT_THAT(refusal(in, {.attention_sink_size = -1}), HasSubstr("attention_sink_size must be"));
  EXPECT_THAT(refusal(in, {.logits_soft_cap = 0.0}), HasSubstr("logits_soft_cap must be"));
  EXPECT_THAT(refusal(in, {.softmax_scale = kInf}), HasSubstr("softmax_scale must be"));
}

}  // namespace
}  // namespace ejk
