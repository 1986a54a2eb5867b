#include "ejkernel/core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace ejk {
namespace {

void expect_draws(PhiloxCounter counter, PhiloxKey key, PhiloxCounter expected) {
  const PhiloxCounter drawn = philox4x32(counter, key);
  for (int word = 0; word < 4; ++word) EXPECT_EQ(drawn.words[word], expected.words[word]) << word;
}

TEST(Philox, gives_the_published_vectors_of_random123) {
  expect_draws({{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_draws({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {{0xffffffff, 0xffffffff}},
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_draws({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}},
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, is_known_at_compile_time) {
  static_assert(philox4x32({{0, 0, 0, 0}}, {{0, 0}}).words[3] == 0x9b00dbd8);
  static_assert(dropout_threshold(0.5) == 32768);
}

TEST(Dropout, threshold_rounds_and_stays_below_65536) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.1), 6554u);  // 6553.6
  EXPECT_EQ(dropout_threshold(0.25), 16384u);
  EXPECT_EQ(dropout_threshold(0x1p-17), 1u);  // the half rounds up
  EXPECT_EQ(dropout_threshold(0x1.fffp-18), 0u);
  EXPECT_EQ(dropout_threshold(0.99999), 65535u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 65535u);
}

TEST(Dropout, threshold_of_what_validation_refuses_stays_in_range) {
  EXPECT_EQ(dropout_threshold(-0.5), 0u);
  EXPECT_EQ(dropout_threshold(std::numeric_limits<double>::quiet_NaN()), 0u);
  EXPECT_EQ(dropout_threshold(1), 65535u);
  EXPECT_EQ(dropout_threshold(std::numeric_limits<double>::infinity()), 65535u);
}

TEST(Dropout, scale_is_the_inverse_of_what_is_kept) {
  EXPECT_EQ(dropout_scale(0), 1);
  EXPECT_EQ(dropout_scale(32768), 2);
  EXPECT_EQ(dropout_scale(65535), 65536);
  EXPECT_EQ(dropout_scale(6554), 65536.0 / 58982.0);
}

struct Row {
  uint32_t seed, offset, b, h, i, threshold;
};

std::string keep_mask(const Row& row, uint32_t num_keys = 64) {
  std::string mask;
  for (uint32_t j = 0; j < num_keys; ++j)
    mask += dropout_keep(row.seed, row.offset, row.b, row.h, row.i, j, row.threshold) ? '1' : '0';
  return mask;
}

// The masks were computed once with arbitrary-precision integers from the text of rule 11. They may never change: a
// model's backward, its replay and its other platforms all depend on them.
TEST(Dropout, keep_masks_are_golden) {
  EXPECT_EQ(keep_mask({0, 0, 0, 0, 0, 32768}), "1011101111000000110100011110000011100101111011000101111111100010");
  EXPECT_EQ(keep_mask({42, 7, 3, 5, 11, 6554}), "1110111110111111111111111111111111110111111111111111111111111111");
  EXPECT_EQ(keep_mask({0xffffffff, 0xffffffff, 0, 31, 0x7fffffff, 58982}),
            "0000000010000000000000010000010010001001000000000000000100000001");
  EXPECT_EQ(keep_mask({1, 0, 2, 0, 4095, 1}), "1111111111111111111111111111111111111111111111111111111111111111");
}

TEST(Dropout, every_key_has_a_draw_of_its_own) {
  std::set<std::pair<uint32_t, uint32_t>> draws;
  for (uint32_t j = 0; j < 4096; ++j) {
    EXPECT_LT(dropout_piece(j), 8u);
    EXPECT_EQ(dropout_group(j), 4 * (j / 32) + (j % 8) / 2);
    draws.emplace(dropout_group(j), dropout_piece(j));
  }
  EXPECT_EQ(draws.size(), 4096u);
  EXPECT_EQ(draws.rbegin()->first, 4096u / 8 - 1);  // and none is wasted
}

TEST(Dropout, a_group_drawn_at_once_equals_its_keys_drawn_one_by_one) {
  for (uint32_t j = 0; j < 256; ++j) {
    const PhiloxCounter draws = dropout_draws(5, 6, 1, 2, 3, dropout_group(j));
    const uint32_t draw = dropout_draw(draws, dropout_piece(j));
    EXPECT_TRUE(dropout_keep(5, 6, 1, 2, 3, j, draw));
    EXPECT_FALSE(dropout_keep(5, 6, 1, 2, 3, j, draw + 1));
  }
}

TEST(Dropout, each_coordinate_changes_the_mask_and_zero_probability_keeps_everything) {
  const Row row{9, 8, 1, 2, 3, 32768};
  const std::string mask = keep_mask(row);
  for (uint32_t Row::*coordinate : {&Row::seed, &Row::offset, &Row::b, &Row::h, &Row::i}) {
    Row other = row;
    other.*coordinate += 1;
    EXPECT_NE(keep_mask(other), mask);
  }
  EXPECT_EQ(keep_mask({9, 8, 1, 2, 3, 0}), std::string(64, '1'));
}

TEST(Dropout, the_share_of_dropped_keys_is_the_threshold) {
  for (double p : {0.05, 0.3, 0.9}) {
    int dropped = 0;
    constexpr int kRows = 100, kKeys = 1000;
    for (uint32_t i = 0; i < kRows; ++i)
      for (uint32_t j = 0; j < kKeys; ++j) dropped += dropout_keep(1, 2, 0, 0, i, j, dropout_threshold(p)) ? 0 : 1;
    const double sigma = std::sqrt(p * (1 - p) * kRows * kKeys);
    EXPECT_NEAR(dropped, p * kRows * kKeys, 4 * sigma);
  }
}

}  // namespace
}  // namespace ejk
