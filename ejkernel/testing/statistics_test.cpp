#include "ejkernel/testing/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ejk::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Statistics, a_quantile_is_one_of_the_values) {
  EXPECT_EQ(quantile({3}, 0.95), 3);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(median({5, 1, 3}), 3);
}

// From exact integer arithmetic.
TEST(Statistics, the_sign_test_counts_coins) {
  EXPECT_NEAR(sign_test(8, 10), 56.0 / 1024, 1e-12);
  EXPECT_NEAR(sign_test(10, 10), 1.0 / 1024, 1e-12);
  EXPECT_NEAR(sign_test(5, 10), 638.0 / 1024, 1e-12);
  EXPECT_NEAR(sign_test(60, 100), 0.028443966820490395, 1e-12);
  EXPECT_NEAR(sign_test(120, 200), 0.0028425779983751527, 1e-12);
  EXPECT_NEAR(sign_test(550, 1000), 0.0008652680424881588, 1e-12);
  EXPECT_NEAR(sign_test(0, 10), 1, 1e-12);
  EXPECT_NEAR(sign_test(0, 0), 1, 1e-12);
}

TEST(Statistics, ratios_of_one_say_nothing) {
  EXPECT_NEAR(sign_test_above_one(std::vector<double>{1, 1.1, 1, 1.2, 1.3}), 1.0 / 8, 1e-12);
  EXPECT_NEAR(sign_test_above_one(std::vector<double>{1, 0.9, 1.2}), 3.0 / 4, 1e-12);
  EXPECT_NEAR(sign_test_above_one({}), 1, 1e-12);
}

// Holm (1979): the smallest against alpha / 4, the next against alpha / 3, until one is not rejected.
TEST(Statistics, holm_stops_at_the_first_that_is_not_rejected) {
  EXPECT_THAT(holm_rejects(std::vector{0.01, 0.04, 0.03, 0.005}, 0.05), ElementsAre(true, false, false, true));
  EXPECT_THAT(holm_rejects(std::vector{0.011, 0.02, 0.04, 0.012}, 0.05), ElementsAre(true, true, true, true));
  EXPECT_THAT(holm_rejects(std::vector{0.02, 0.02}, 0.01), ElementsAre(false, false));
  EXPECT_THAT(holm_rejects({}, 0.01), IsEmpty());
}

}  // namespace
}  // namespace ejk::testing
