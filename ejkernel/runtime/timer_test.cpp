#include "ejkernel/runtime/timer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace ejk {
namespace {

TEST(Timer, the_summary_of_few_samples_is_all_of_them) {
  const std::vector<double> samples = {5, 1, 3};
  const Summary s = summarise(samples);
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.low, 1);
  EXPECT_EQ(s.high, 5);
  EXPECT_EQ(s.num_samples, 3);
  EXPECT_EQ(summarise({}).num_samples, 0);
}

TEST(Timer, the_interval_takes_the_ranks_of_the_binomial_table) {
  // n = 20, 95 %: ranks 6 and 15 (Conover, Practical Nonparametric Statistics, table A3); n = 10, 95 %: 2 and 9.
  std::vector<double> samples(20);
  std::iota(samples.begin(), samples.end(), 1.0);
  EXPECT_EQ(summarise(samples).low, 6);
  EXPECT_EQ(summarise(samples).high, 15);
  EXPECT_EQ(summarise(samples).median, 10.5);
  samples.resize(10);
  EXPECT_EQ(summarise(samples).low, 2);
  EXPECT_EQ(summarise(samples).high, 9);
}

TEST(Timer, the_interval_holds_the_median_as_often_as_it_says_whatever_the_tail) {
  std::mt19937 random(1);
  std::exponential_distribution<double> noise(1);  // its median is ln 2
  int held = 0;
  const int trials = 4000;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> samples(41);
    for (double& sample : samples) sample = 10 + std::pow(noise(random), 3);
    const Summary s = summarise(samples);
    held += s.low <= 10 + std::pow(std::log(2.0), 3) && 10 + std::pow(std::log(2.0), 3) <= s.high;
  }
  EXPECT_GT(held, 0.945 * trials);
}

TEST(Timer, a_sampler_repeats_short_work_and_counts_its_runs) {
  // An empty run takes nanoseconds, a sample 50 microseconds. An interruption while a sampler looks how long its work
  // takes may fool it, but not one sampler after the other.
  bool repeats = false;
  for (int trial = 0; trial < 100 && !repeats; ++trial) {
    int64_t last = -1;
    const Sampler sample = make_sampler([&](int64_t i) {
      EXPECT_EQ(i, last + 1);
      last = i;
    });
    const int64_t warm = last;
    EXPECT_GE(warm, 0);
    const double began = now_seconds(), seconds = sample();
    EXPECT_GT(seconds, 0);
    EXPECT_LE(seconds * static_cast<double>(last - warm), now_seconds() - began) << "not seconds of one run";
    repeats = last - warm > 1;
  }
  EXPECT_TRUE(repeats);
}

TEST(Timer, a_sampler_is_not_fooled_by_an_interruption_of_one_look) {
  // Whichever of the first looks it meets, the others say that an empty run takes nanoseconds. The machine may
  // interrupt one of those as well, but not time after time.
  for (const int64_t interrupted : {0, 1, 2, 5, 10, 40}) {
    bool repeats = false;
    for (int trial = 0; trial < 100 && !repeats; ++trial) {
      int64_t runs = 0;
      const Sampler sample = make_sampler([&](int64_t i) {
        runs = i + 1;
        if (i != interrupted) return;
        for (const double until = now_seconds() + 2e-3; now_seconds() < until;) {
        }
      });
      const int64_t before = runs;
      sample();
      repeats = runs - before > 1;
    }
    EXPECT_TRUE(repeats) << "interrupted at run " << interrupted;
  }
}

TEST(Timer, measuring_stops_when_the_spread_is_small_or_the_time_is_over) {
  int steady = 0;
  const Summary s = measure([&] { return ++steady, 1.0; }, {.max_seconds = 10, .min_samples = 9});
  EXPECT_EQ(s.num_samples, 9);
  EXPECT_EQ(s.spread(), 0);
  double x = 1;
  const Summary wild = measure([&] { return x = -x, 2 + x; }, {.max_seconds = 0.2, .spread = 0.01, .min_samples = 9});
  EXPECT_GT(wild.num_samples, 9);
  EXPECT_GT(wild.spread(), 0.3);
}

TEST(Timer, a_comparison_sees_through_drift_that_both_share) {
  std::mt19937 random(2);
  std::normal_distribution<double> noise(1, 0.01);
  double drift = 1;
  const auto a = [&] { return drift *= 1.01, drift * noise(random); };
  const auto b = [&] { return drift *= 1.01, drift * 1.1 * noise(random); };
  const Comparison c = compare(a, b, {.max_seconds = 0, .min_samples = 200, .confidence = 0.99});
  EXPECT_GT(c.ratio.low, 1.08);
  EXPECT_LT(c.ratio.high, 1.12);
  EXPECT_LE(c.ratio.low, 1.1);
  EXPECT_GE(c.ratio.high, 1.1);
}

TEST(Timer, equal_candidates_are_no_different) {
  std::mt19937 random(3);
  std::exponential_distribution<double> noise(20);
  const auto sample = [&] { return 1 + noise(random); };
  int told_apart = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Comparison c = compare(sample, sample, {.max_seconds = 0, .min_samples = 101, .confidence = 0.99});
    told_apart += c.ratio.low > 1 || c.ratio.high < 1;
  }
  EXPECT_LE(told_apart, 9);  // 1 % of 300 is 3
}

TEST(Timer, a_benchmark_counts_in_milliseconds) {
  int calls = 0;
  const Summary time = benchmark(
      [&] {
        ++calls;
        for (const double until = now_seconds() + 2e-3; now_seconds() < until;) {
        }
      },
      {.max_seconds = 0.01, .min_samples = 3});
  EXPECT_GT(calls, time.num_samples);
  EXPECT_GE(time.num_samples, 3);
  EXPECT_GE(time.low, 2) << "not seconds";
  EXPECT_LE(time.low, time.median);
  EXPECT_LE(time.median, time.high);
}

TEST(Timer, the_clock_does_not_go_back) {
  double last = now_seconds();
  for (int i = 0; i < 1000; ++i) {
    const double now = now_seconds();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace ejk
