// A row of softmax as device code folds it, part by part, beside the softmax of the whole row in double.
#include "ejkernel/platform/cuda/device/online_softmax.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace ejk::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a thread holds of a row: its scores, and a value to each.
struct Row {
  std::vector<float> scores, values;
  float scale;  ///< of the scores, to logits
};

struct Softmax {
  double out, lse;
};

Softmax softmax_of(const Row& row) {
  const double scale = row.scale;
  double most = -kInfinity, sum = 0, out = 0;
  for (const float score : row.scores) most = std::max(most, score * scale);
  if (most == -kInfinity) return {0, -kInfinity};
  for (size_t i = 0; i < row.scores.size(); ++i) {
    const double weight = std::exp(row.scores[i] * scale - most);
    sum += weight;
    out += weight * row.values[i];
  }
  return {out / sum, most + std::log(sum)};
}

/// As a kernel does it: `ends` are where parts end; a maximum that is behind by less than 2^lag is let be.
Softmax fold(const Row& row, const std::vector<size_t>& ends, float lag) {
  const float scale_log2 = row.scale * std::numbers::log2e_v<float>;
  OnlineSoftmax softmax;
  softmax.clear();
  float out = 0;
  size_t begin = 0;
  for (const size_t end : ends) {
    float m = kNegativeInfinity;
    for (size_t i = begin; i < end; ++i) m = greater(m, row.scores[i]);
    if (lag == 0 || softmax.behind(m) * scale_log2 > lag) out *= softmax.follow(m, scale_log2);
    for (size_t i = begin; i < end; ++i) out += softmax.weigh(row.scores[i], scale_log2) * row.values[i];
    begin = end;
  }
  return {out * softmax.normalizer(), softmax.log_sum_exp()};
}

void expect_near(const Softmax& actual, const Softmax& expected, const Row& row) {
  // Logits of size L are rounded to L 2^-24 before the exponential, which makes that a relative error of the weight.
  double largest = 1;
  for (const float score : row.scores)
    if (std::isfinite(score)) largest = std::max(largest, std::abs(double{score} * row.scale));
  const double count = static_cast<double>(row.scores.size());
  const double error = std::ldexp(4 * largest + count, -23);
  double most_value = 0;
  for (const float value : row.values) most_value = std::max(most_value, std::abs(double{value}));
  EXPECT_NEAR(actual.out, expected.out, error * most_value);
  if (expected.lse == -kInfinity)
    EXPECT_EQ(actual.lse, expected.lse);
  else
    EXPECT_NEAR(actual.lse, expected.lse, error);
}

TEST(OnlineSoftmax, of_parts_is_that_of_the_row) {
  std::mt19937 random(20261125);
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 20000; ++trial) {
    Row row;
    row.scale = std::exp2(static_cast<float>(below(9)) - 6);
    const size_t count = 1 + below(200);
    const float spread = std::exp2(static_cast<float>(below(8)) - 1), slope = normal(random) * spread / 16;
    const bool has_hidden = below(2) == 0;
    for (size_t i = 0; i < count; ++i) {
      const bool hidden = has_hidden && below(3) == 0;
      row.scores.push_back(hidden ? kNegativeInfinity : normal(random) * spread + slope * static_cast<float>(i));
      row.values.push_back(normal(random));
    }
    std::vector<size_t> ends;
    for (size_t end = 0; end < count;) ends.push_back(end = std::min(count, end + 1 + below(64)));
    SCOPED_TRACE(trial);
    expect_near(fold(row, ends, trial % 2 == 0 ? 0.f : 8.f), softmax_of(row), row);
  }
}

TEST(OnlineSoftmax, of_a_row_that_sees_nothing_is_0_with_lse_minus_infinity) {
  const Row row{{kNegativeInfinity, kNegativeInfinity, kNegativeInfinity}, {1, 2, 3}, 1};
  for (const float lag : {0.f, 8.f})
    for (const std::vector<size_t>& ends : {std::vector<size_t>{3}, {1, 2, 3}}) {
      const Softmax actual = fold(row, ends, lag);
      EXPECT_EQ(actual.out, 0);
      EXPECT_EQ(actual.lse, -kInfinity);
    }
}

TEST(OnlineSoftmax, waits_for_the_first_key_however_late_it_comes) {
  const Row row{{kNegativeInfinity, kNegativeInfinity, -30000, kNegativeInfinity, -30001}, {1, 2, 3, 4, 5}, 0.5f};
  for (const float lag : {0.f, 8.f}) expect_near(fold(row, {1, 2, 3, 4, 5}, lag), softmax_of(row), row);
}

TEST(OnlineSoftmax, with_sinks_is_that_of_a_row_with_keys_of_value_0) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 3000; ++trial) {
    Row row{{}, {}, 1};
    for (int i = 0; i < trial % 40; ++i) {
      row.scores.push_back(trial % 3 == 0 ? kNegativeInfinity : 8 * normal(random));
      row.values.push_back(normal(random));
    }
    OnlineSoftmax softmax;
    softmax.clear();
    softmax.begin(row.scores.empty() ? kNegativeInfinity : *std::max_element(row.scores.begin(), row.scores.end()),
                  kLog2E);
    float out = 0;
    for (size_t i = 0; i < row.scores.size(); ++i) out += softmax.weigh(row.scores[i], kLog2E) * row.values[i];
    Row with_sinks = row;
    for (int i = 0; i < trial % 4; ++i) {
      const float sink = i == 2 ? kNegativeInfinity : 16 * normal(random);
      out *= softmax.add(sink * kLog2E);
      with_sinks.scores.push_back(sink);
      with_sinks.values.push_back(0);
    }
    SCOPED_TRACE(trial);
    expect_near({out * softmax.normalizer(), softmax.log_sum_exp()}, softmax_of(with_sinks), with_sinks);
  }
}

TEST(OnlineSoftmax, a_sink_that_is_nan_is_not_lost_wherever_it_stands) {
  for (const bool has_keys : {false, true})
    for (const std::vector<float>& sinks :
         std::vector<std::vector<float>>{{NAN}, {NAN, 1}, {1, NAN}, {kNegativeInfinity, NAN}}) {
      OnlineSoftmax softmax;
      softmax.clear();
      if (has_keys) softmax.begin(2, kLog2E), softmax.weigh(2, kLog2E);
      for (const float sink : sinks) softmax.add(sink * kLog2E);
      EXPECT_TRUE(std::isnan(softmax.normalizer()));
      EXPECT_TRUE(std::isnan(softmax.log_sum_exp()));
    }
}

TEST(HyperbolicTangent, is_exact_to_a_few_units_of_one) {
  for (float x = -20; x <= 20; x += 0.001f) ASSERT_NEAR(hyperbolic_tangent(x), std::tanh(double{x}), 3e-7) << x;
  EXPECT_EQ(hyperbolic_tangent(1e30f), 1);
  EXPECT_EQ(hyperbolic_tangent(-1e30f), -1);
}

TEST(OnlineSoftmax, begins_like_a_cleared_row_that_follows) {
  for (const float m : {kNegativeInfinity, -3.f, 0.f, 80.f}) {
    OnlineSoftmax begun, followed;
    begun.clear();
    begun.begin(m, 0.75f);
    followed.clear();
    followed.follow(m, 0.75f);
    EXPECT_EQ(begun.maximum, followed.maximum);
    EXPECT_EQ(begun.shift, followed.shift);
    EXPECT_EQ(begun.sum, followed.sum);
  }
}

}  // namespace
}  // namespace ejk::cuda
