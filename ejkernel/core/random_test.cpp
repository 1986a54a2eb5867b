#include "ejkernel/core/random_internal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ejkernel/testing/random.h"

namespace ejk {
namespace {

/// Seeds in tests, in failures that were reported and in records of the table replay what was drawn when they were
/// written.
TEST(Random, a_seed_means_these_numbers) {
  testing::Random random(7);
  EXPECT_EQ(random.below(1000), 142);
  EXPECT_EQ(random.between(-5, 5), -5);
  EXPECT_EQ(random.uniform(), 0x1.2f1096384646ap-2);
  EXPECT_DOUBLE_EQ(random.normal(), 0x1.0ea1c6e934a33p-4);
  EXPECT_TRUE(random.chance(0.5));
  EXPECT_EQ(random.log_uniform(1, 1000), 3);
  EXPECT_EQ(random.pick({1, 2, 3, 4, 5}), 4);
  std::vector<int> items = {0, 1, 2, 3, 4, 5, 6, 7};
  random.shuffle(items);
  EXPECT_THAT(items, ::testing::ElementsAre(6, 5, 1, 0, 2, 3, 4, 7));
  EXPECT_EQ(random.pick(items), 6);
  EXPECT_EQ(random.fork(3).bits(), 0x2a7bf6824518228au);
  EXPECT_EQ(testing::random_length(random, 1000), 131);
  EXPECT_EQ(random.bits(), 0xc810afd373dce776u);
}

TEST(Random, one_number_to_choose_from_is_taken_without_a_draw) {
  Random random(7), untouched(7);
  EXPECT_EQ(random.between(5, 5), 5);
  EXPECT_EQ(random.between(5, 3), 5);
  EXPECT_EQ(random.below(0), 0);
  EXPECT_EQ(random.bits(), untouched.bits());
}

}  // namespace
}  // namespace ejk
