// Batches of sequences over pages for tests of the CPU kernels: built from sizes or at random, with what no sequence
// uses poisoned, and compared with the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ejkernel/ejkernel.h"

namespace ejk::paged_batches {

using Op = RaggedPageAttention;

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline const PlanOptions kCpu{.kernel = "cpu"};
inline const PlanOptions kReference{.kernel = "reference"};

/// A mixed batch that owns its tensors. The same seed gives the same one.
struct Problem {
  std::vector<Array> arrays = {};
  Op::Inputs in = {};
  Op::Params params = {};
  std::mt19937 random;

  explicit Problem(unsigned seed) : random(seed) {}

  int64_t pick(std::initializer_list<int64_t> from) { return from.begin()[random() % from.size()]; }
  double real(std::initializer_list<double> from) { return from.begin()[random() % from.size()]; }
  bool chance(unsigned percent) { return random() % 100 < percent; }
  double normal() { return std::normal_distribution<double>()(random); }

  Tensor& tensor(Tensor& place, DType dtype, const Shape& shape, const std::function<double()>& value) {
    arrays.emplace_back(dtype, shape);
    for (int64_t n = 0; n < arrays.back().num_elements(); ++n) set(arrays.back(), n, value());
    return place = arrays.back();
  }
  void indices(Tensor& place, const std::vector<int64_t>& values) {
    size_t n = 0;
    tensor(place, DType::i32, {static_cast<int64_t>(values.size())}, [&] { return static_cast<double>(values[n++]); });
  }
};

struct Sizes {
  std::vector<int64_t> contexts = {}, queries = {};
  int64_t page_size = 16, kv_heads = 2, group = 2, head_dim = 32;
  DType dtype = DType::f32, cache = DType::f32;
};

/// Of what a cache holds.
inline double content(Problem& p, DType dtype) {
  return p.normal() * (bits(dtype) < 8 ? 3 : bits(dtype) == 8 ? 20 : 1);
}

/// Sequences with pages in random order. What no sequence uses is NaN, where the dtype has one.
inline void make_tensors(Problem& p, const Sizes& s) {
  const auto count = static_cast<int64_t>(s.contexts.size());
  const int64_t width =
      (std::max<int64_t>(s.contexts.empty() ? 0 : *std::max_element(s.contexts.begin(), s.contexts.end()), 1) +
       s.page_size - 1) /
      s.page_size;
  std::vector<int64_t> pages(static_cast<size_t>(count * width + 2)), starts = {0};
  for (size_t n = 0; n < pages.size(); ++n) pages[n] = static_cast<int64_t>(n);
  std::shuffle(pages.begin(), pages.end(), p.random);
  for (const int64_t q : s.queries) starts.push_back(starts.back() + q);

  const Shape cache{static_cast<int64_t>(pages.size()), s.page_size, 2 * s.kv_heads, s.head_dim};
  const double unused = is_float(s.cache) ? kNaN : 7;
  p.tensor(p.in.kv_pages, s.cache, cache, [&] { return unused; });
  size_t at = 0;
  p.tensor(p.in.block_tables, DType::i32, {count, width}, [&] { return static_cast<double>(pages[at++]); });
  const int64_t row = 2 * s.kv_heads * s.head_dim;
  for (int64_t n = 0; n < count; ++n)
    for (int64_t t = 0; t < s.contexts[static_cast<size_t>(n)]; ++t) {
      const auto page = static_cast<int64_t>(get(p.in.block_tables, n * width + t / s.page_size));
      for (int64_t i = 0; i < row; ++i)
        set(p.in.kv_pages, (page * s.page_size + t % s.page_size) * row + i, content(p, s.cache));
    }
  p.tensor(p.in.queries, s.dtype, {starts.back() + 2, s.kv_heads * s.group, s.head_dim}, [&] { return p.normal(); });
  p.indices(p.in.context_lens, s.contexts);
  p.indices(p.in.query_start_loc, starts);
  p.indices(p.in.num_seqs, {count});
}

inline void add_scales(Problem& p, const Sizes& s, int64_t kind) {
  const double usual = bits(s.cache) < 8 ? 0.3 : bits(s.cache) == 8 ? 0.05 : 1;
  const int64_t pages = p.in.kv_pages.shape[0];
  for (Tensor* scale : {&p.in.k_scale, &p.in.v_scale}) {
    const auto value = [&] { return usual * (0.5 + static_cast<double>(p.random() % 100) / 100); };
    if (kind == 1) p.tensor(*scale, DType::f32, {}, value);
    if (kind == 2) p.tensor(*scale, DType::f32, {s.kv_heads}, value);
    const int64_t groups = s.head_dim % 16 == 0 ? s.head_dim / 16 : 1;
    if (kind == 3) p.tensor(*scale, DType::f32, {pages, s.page_size, s.kv_heads, groups}, value);
  }
}

inline void choose_params(Problem& p, int64_t heads) {
  if (p.chance(30)) p.params.sliding_window = Window(p.pick({0, 3, 40, 130}), 0);
  if (p.chance(30)) p.params.attention_sink_size = p.pick({1, 5, 33});
  if (p.chance(30)) p.params.logits_soft_cap = 2.5;
  if (p.chance(20)) p.params.softmax_scale = p.real({-0.37, 0, 0.37});
  if (p.chance(30)) {
    const int64_t sinks = p.pick({1, 3});
    p.tensor(p.in.softmax_aux, DType::f32, p.chance(50) ? Shape{heads, sinks} : Shape{sinks},
             [&] { return p.normal(); });
  }
}

inline Sizes random_sizes(Problem& p) {
  Sizes s{.page_size = p.pick({1, 3, 16}),
          .kv_heads = p.pick({1, 2}),
          .group = p.pick({1, 2, 3, 5, 7}),
          .head_dim = p.pick({2, 14, 16, 32, 80})};
  for (int64_t n = p.pick({0, 1, 3, 4}); n > 0; --n) {
    s.contexts.push_back(p.pick({0, 1, 7, 31, 64, 150, 300}));
    s.queries.push_back(p.pick({0, 1, 1, 1, 2, 9, 40}));
  }
  s.dtype = static_cast<DType>(p.pick({1, 2, 3}));
  s.cache = p.chance(50) ? s.dtype
                         : static_cast<DType>(p.pick(
                               {1, 2, 3, 4, 5, static_cast<int64_t>(DType::i8), static_cast<int64_t>(DType::i4)}));
  return s;
}

/// Queries may be more than the tokens there are: rows before the first token see nothing.
inline Problem random_problem(unsigned seed) {
  Problem p(seed);
  const Sizes s = random_sizes(p);
  make_tensors(p, s);
  add_scales(p, s, p.pick({0, 1, 2, 3}));
  choose_params(p, s.kv_heads * s.group);
  if (p.chance(20) && p.in.block_tables.num_elements() > 0)
    for (int n = 0; n < 2; ++n)
      set(p.in.block_tables, p.random() % p.in.block_tables.num_elements(),
          static_cast<double>(p.pick({-1, 99999, INT32_MIN})));
  if (p.chance(20)) set(p.in.num_seqs, 0, static_cast<double>(p.pick({-2, 1, 2})));
  p.params.batch_invariant = p.chance(30);
  return p;
}

inline double tolerance(DType dtype) { return dtype == DType::bf16 ? 1.6e-2 : dtype == DType::f16 ? 2e-3 : 2e-5; }

inline void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what, double allowed) {
  ASSERT_EQ(actual.present(), expected.present()) << what;
  double largest = 1;
  for (int64_t n = 0; n < expected.num_elements(); ++n)
    if (std::isfinite(get(expected, n))) largest = std::max(largest, std::abs(get(expected, n)));
  for (int64_t n = 0; n < expected.num_elements(); ++n) {
    const double x = get(actual, n), y = get(expected, n);
    if (std::isinf(y))
      ASSERT_EQ(x, y) << what << " element " << n;
    else
      ASSERT_NEAR(x, y, allowed * largest) << what << " element " << n << " of " << to_string(actual);
  }
}

inline void expect_right(const Problem& p, const std::string& what, const PlanOptions& cpu = kCpu) {
  const auto expected = ragged_page_attention(p.in, p.params, {.plan = kReference});
  const auto actual = ragged_page_attention(p.in, p.params, {.plan = cpu});
  expect_close(actual.out, expected.out, what + " out", tolerance(p.in.queries.dtype));
  expect_close(actual.lse, expected.lse, what + " lse", 2e-5);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.num_elements() == b.num_elements() &&
         (a.num_elements() == 0 || std::memcmp(a.data, b.data, static_cast<size_t>(num_bytes(a.dtype, a.shape))) == 0);
}

/// Rows [begin, begin + count) of sequence n alone, as the newest tokens of a cache that ends with them.
inline Op::Results alone(const Problem& p, int64_t n, int64_t begin, int64_t count) {
  Problem one(0);
  one.in = p.in, one.params = p.params;
  const auto start = static_cast<int64_t>(get(p.in.query_start_loc, n));
  const auto length = static_cast<int64_t>(get(p.in.query_start_loc, n + 1)) - start;
  const int64_t width = p.in.block_tables.shape[1], row = p.in.queries.shape[1] * p.in.queries.shape[2];
  one.indices(one.in.context_lens, {static_cast<int64_t>(get(p.in.context_lens, n)) - length + begin + count});
  one.indices(one.in.query_start_loc, {0, count});
  one.indices(one.in.num_seqs, {1});
  int64_t at = n * width;
  one.tensor(one.in.block_tables, DType::i32, {1, width}, [&] { return get(p.in.block_tables, at++); });
  at = (start + begin) * row;
  one.tensor(one.in.queries, p.in.queries.dtype, {count, p.in.queries.shape[1], p.in.queries.shape[2]},
             [&] { return get(p.in.queries, at++); });
  return ragged_page_attention(one.in, one.params, {.plan = kCpu});
}

}  // namespace ejk::paged_batches
