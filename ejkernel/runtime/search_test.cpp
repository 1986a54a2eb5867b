// The search with times that the test makes up.
#include "ejkernel/runtime/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace ejk::testing {
namespace {

struct Shape2 {
  int x = 0, y = 0;
  static constexpr auto fields() {
    return std::array{config_field<&Shape2::x, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9>("x", "across"),
                      config_field<&Shape2::y, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9>("y", "down")};
  }
};
constexpr auto kFields = Shape2::fields();

/// Times are a function of the config, with noise that never helps.
class MadeUpLab : public TuningLab {
 public:
  MadeUpLab(std::span<const ConfigBlock> candidates, std::function<double(Shape2)> seconds, double noise = 0)
      : candidates_(candidates), seconds_(std::move(seconds)), noise_(noise) {}

  void expect(size_t candidate) override { expected.push_back(candidate); }
  std::string admit(size_t candidate) override {
    EXPECT_THAT(expected, ::testing::Contains(candidate)) << "it is told of what comes";
    admitted.push_back(candidate);
    return rejects ? rejects(candidates_[candidate].as<Shape2>()) : "";
  }
  double sample(size_t candidate) override {
    ++num_samples;
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    const double uniform = static_cast<double>(state_ >> 11) * 0x1p-53;
    return seconds_(candidates_[candidate].as<Shape2>()) * (1 + noise_ * uniform * uniform);
  }
  bool is_out_of_time() override { return num_samples >= most_samples; }

  std::function<std::string(Shape2)> rejects;
  std::vector<size_t> expected, admitted;
  int num_samples = 0, most_samples = 1 << 30;

 private:
  std::span<const ConfigBlock> candidates_;
  std::function<double(Shape2)> seconds_;
  double noise_;
  uint64_t state_ = 1;
};

std::vector<ConfigBlock> grid(int width, int height) {
  std::vector<ConfigBlock> all;
  for (int x = 0; x < width; ++x)
    for (int y = 0; y < height; ++y) all.push_back(ConfigBlock::of(Shape2{x, y}));
  return all;
}
/// A valley with its floor at (6, 7).
double valley(Shape2 at) { return 1 + 0.1 * ((at.x - 6) * (at.x - 6) + (at.y - 7) * (at.y - 7)); }

/// What else the machine does takes its time from three samples in five, and only from those of the fastest.
TEST(Search, a_busy_machine_does_not_hide_the_fastest) {
  const auto candidates = grid(1, 2);
  MadeUpLab lab(candidates, [n = 0](Shape2 at) mutable {
    if (at.y == 0) return 1.0;
    return n++ % 5 < 3 ? 1.6 : 0.8;
  });
  const SearchResult found = search(candidates, kFields, lab, {.breadth = 64});
  EXPECT_EQ(found.best, 1u);
  EXPECT_EQ(found.trials[1].median(), 1.6) << "its median would have put it out";
  EXPECT_EQ(found.trials[1].quartile(), 0.8);
}

TEST(Search, a_small_space_races_whole_and_the_fastest_wins) {
  const auto candidates = grid(4, 4);
  MadeUpLab lab(
      candidates, [](Shape2 at) { return at.x == 2 && at.y == 1 ? 1 : 1.3; }, 0.2);
  const SearchResult found = search(candidates, kFields, lab);
  EXPECT_EQ(found.best, 9u);
  EXPECT_TRUE(found.complete);
  EXPECT_EQ(lab.admitted.size(), 16u);
  for (const Trial& trial : found.trials) EXPECT_GE(trial.samples.size(), 1u);
  EXPECT_EQ(found.trials[9].samples.size(), 1u + 2 + 4 + 8) << "who goes on gets more of the clock";
  EXPECT_EQ(lab.num_samples, 4 * 16);
}

TEST(Search, a_round_of_few_has_as_many_samples_as_one_of_many) {
  const auto samples_of = [](int count) {
    const auto candidates = grid(1, count);
    MadeUpLab lab(candidates, [](Shape2 at) { return 9.0 - at.y; });
    const SearchResult found = search(candidates, kFields, lab);
    EXPECT_EQ(found.best, static_cast<size_t>(count - 1));
    return std::pair(found.trials[found.best].samples.size(), lab.num_samples);
  };
  EXPECT_EQ(samples_of(2), std::pair(size_t{8}, 2 * 8));
  EXPECT_EQ(samples_of(3), std::pair(size_t{6 + 8}, 3 * 6 + 2 * 8));
  EXPECT_EQ(samples_of(5), std::pair(size_t{4 + 6 + 8}, 5 * 4 + 3 * 6 + 2 * 8));
}

TEST(Search, a_broader_one_races_more_and_samples_more) {
  const auto candidates = grid(4, 5);
  MadeUpLab lab(candidates, [](Shape2 at) { return at.x == 2 && at.y == 1 ? 1 : 1.3; });
  const SearchResult found = search(candidates, kFields, lab, {.breadth = 40});
  EXPECT_EQ(found.best, 11u);
  EXPECT_EQ(lab.admitted.size(), 20u) << "whole";
  EXPECT_EQ(found.trials[11].samples.size(), 2u + 4 + 8 + 14 + 20);
}

/// An interruption takes longer than any config.
TEST(Search, one_slow_sample_decides_nothing) {
  const auto candidates = grid(1, 2);
  int samples_of_the_faster = 0;
  MadeUpLab lab(candidates, [&](Shape2 at) { return at.y == 0 ? 1.3 : ++samples_of_the_faster == 1 ? 100.0 : 1.0; });
  EXPECT_EQ(search(candidates, kFields, lab).best, 1u);
}

TEST(Search, of_a_large_space_a_selection_races_and_then_neighbours_for_as_long_as_one_wins) {
  const auto candidates = grid(10, 10);
  MadeUpLab lab(candidates, valley);
  const SearchResult found = search(candidates, kFields, lab);
  const auto best = candidates[found.best].as<Shape2>();
  EXPECT_EQ(best.x, 6);
  EXPECT_EQ(best.y, 7);
  EXPECT_LT(lab.admitted.size(), 60u) << "not all of 100";
  std::sort(lab.admitted.begin(), lab.admitted.end());
  EXPECT_EQ(std::adjacent_find(lab.admitted.begin(), lab.admitted.end()), lab.admitted.end()) << "each is asked once";
}

TEST(Search, where_to_start_is_tried_second_and_leads_to_its_neighbours) {
  const auto candidates = grid(10, 10);
  MadeUpLab lab(candidates, valley);
  const size_t near = 6 * 10 + 8;
  const SearchResult found = search(candidates, kFields, lab, {.also = near});
  EXPECT_EQ(lab.admitted[0], 0u);
  EXPECT_EQ(lab.admitted[1], near);
  EXPECT_EQ(found.best, 6u * 10 + 7);
  for (const size_t n : lab.admitted) EXPECT_EQ(std::count(lab.admitted.begin(), lab.admitted.end(), n), 1) << n;
}

TEST(Search, the_same_times_lead_to_the_same_answer) {
  const auto candidates = grid(10, 10);
  MadeUpLab one(candidates, valley, 0.3), other(candidates, valley, 0.3);
  const SearchResult a = search(candidates, kFields, one, {.seed = 7}),
                     b = search(candidates, kFields, other, {.seed = 7});
  EXPECT_EQ(a.best, b.best);
  EXPECT_EQ(one.admitted, other.admitted);
  EXPECT_EQ(one.num_samples, other.num_samples);
}

TEST(Search, rejected_candidates_are_never_timed_and_never_win) {
  const auto candidates = grid(4, 4);
  MadeUpLab lab(candidates, [](Shape2 at) { return at.x == 3 ? 0.1 : 1 - 0.1 * at.y; });
  lab.rejects = [](Shape2 at) { return at.x == 3 ? "wrong" : ""; };
  const SearchResult found = search(candidates, kFields, lab);
  EXPECT_EQ(candidates[found.best].as<Shape2>().y, 3);
  EXPECT_NE(candidates[found.best].as<Shape2>().x, 3);
  for (size_t n = 12; n < 16; ++n) {
    EXPECT_EQ(found.trials[n].rejected, "wrong");
    EXPECT_TRUE(found.trials[n].samples.empty());
  }
}

TEST(Search, a_candidate_that_fails_while_it_is_timed_is_out) {
  const auto candidates = grid(2, 2);
  MadeUpLab lab(candidates, [](Shape2 at) { return at.x == 1 ? -1.0 : 1 - 0.1 * at.y; });
  const SearchResult found = search(candidates, kFields, lab);
  EXPECT_EQ(found.best, 1u);
  EXPECT_EQ(found.trials[2].rejected, "it failed while it was timed");
}

TEST(Search, without_the_heuristics_config_nothing_is_compared) {
  const auto candidates = grid(4, 4);
  MadeUpLab lab(candidates, valley);
  lab.rejects = [](Shape2 at) { return at.x == 0 && at.y == 0 ? "broken" : ""; };
  EXPECT_EQ(search(candidates, kFields, lab).best, 0u);
  EXPECT_EQ(lab.num_samples, 0);
}

TEST(Search, all_others_rejected_leaves_the_heuristics_config) {
  const auto candidates = grid(4, 4);
  MadeUpLab lab(candidates, valley);
  lab.rejects = [](Shape2 at) { return at.x == 0 && at.y == 0 ? "" : "wrong"; };
  EXPECT_EQ(search(candidates, kFields, lab).best, 0u);
}

TEST(Search, when_time_runs_out_the_last_whole_round_decides) {
  const auto candidates = grid(4, 4);
  for (const int most : {0, 1, 15, 16, 17, 40}) {
    MadeUpLab lab(candidates, [](Shape2 at) { return at.x == 2 && at.y == 1 ? 1 : 1.3; });
    lab.most_samples = most;
    const SearchResult found = search(candidates, kFields, lab);
    EXPECT_LE(lab.num_samples, most);
    EXPECT_FALSE(found.complete);
    EXPECT_EQ(found.best, most < 16 ? 0u : 9u) << most;
  }
}

}  // namespace
}  // namespace ejk::testing
