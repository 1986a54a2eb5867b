#include "examples/minilm/ranking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace minilm {
namespace {

std::vector<size_t> order_of(const std::vector<double>& likenesses) {
  std::vector<Match> matches;
  for (const double likeness : likenesses) matches.push_back({.likeness = likeness, .index = matches.size()});
  sort_by_likeness(matches);
  std::vector<size_t> order;
  for (const Match& match : matches) order.push_back(match.index);
  return order;
}

TEST(Ranking, the_most_like_come_first_and_equals_keep_their_order) {
  EXPECT_THAT(order_of({0.1, 0.9, -0.5, 0.9}), testing::ElementsAre(1, 3, 0, 2));
}

TEST(Ranking, nan_comes_last) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(order_of({kNaN, 0.1, kNaN, 0.9, -1, kNaN}), testing::ElementsAre(3, 1, 4, 0, 2, 5));
  // Enough of them that a comparison which takes NaN for equal to everything would leave the numbers unsorted.
  std::vector<double> likenesses;
  for (int n = 0; n < 100; ++n) likenesses.push_back(n % 3 == 0 ? kNaN : n);
  const std::vector<size_t> order = order_of(likenesses);
  for (size_t n = 0; n + 1 < 66; ++n) EXPECT_GT(order[n], order[n + 1]);
  for (size_t n = 66; n < 100; ++n) EXPECT_EQ(order[n] % 3, 0u);
}

}  // namespace
}  // namespace minilm
