// The tile schedule of the Hopper kernel against brute force: every row once, every visible key in some block, a
// balance.
#include "ejkernel/ops/flash_attention/flash_attention_schedule.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace ejk {
namespace {

constexpr int kRows = 128, kKeys = 80, kUnits = 132;

bool visible(const FlashSchedule& s, bool causal, int i, int j) {
  return j < s.kv_len && (!causal || j <= i + s.diagonal);
}

template <bool kCausal>
void expect_every_tile_once(const FlashCall& call, int num_blocks) {
  const FlashSchedule s(call, kRows);
  std::multiset<std::tuple<int, int, int>> seen;
  for (int block = 0; block < num_blocks; ++block) {
    FlashTile tile;
    for (int round = 0; s.tile<kCausal>(round, block, num_blocks, tile); ++round)
      if (tile.first_row < s.q_len) seen.insert({tile.batch, tile.head, tile.first_row});
  }
  std::multiset<std::tuple<int, int, int>> wanted;
  for (int b = 0; b < s.batch; ++b)
    for (int h = 0; h < s.num_heads; ++h)
      for (int row = 0; row < s.q_len; row += kRows) wanted.insert({b, h, row});
  ASSERT_EQ(seen, wanted) << s.q_len << " rows, " << s.heads_per_section << " heads a section, " << num_blocks;
}

TEST(FlashSchedule, every_tile_has_one_block) {
  for (int q_len : {0, 1, 127, 128, 129, 256, 384, 1000, 1280, 2048})
    for (int heads : {1, 2, 3, 7, 16})
      for (int batch : {0, 1, 3})
        for (int num_blocks : {1, 2, 5, 132}) {
          for (int section : {0, 1, 2, 4, 16, 40})
            expect_every_tile_once<true>({.q_len = q_len,
                                          .kv_len = q_len,
                                          .diagonal = 0,
                                          .batch = batch,
                                          .num_heads = heads,
                                          .heads_per_section = section},
                                         num_blocks);
          expect_every_tile_once<false>({.q_len = q_len,
                                         .kv_len = q_len,
                                         .diagonal = 0,
                                         .batch = batch,
                                         .num_heads = heads,
                                         .heads_per_section = 0},
                                        num_blocks);
        }
}

template <bool kCausal>
void expect_blocks_cover_what_is_visible(const FlashCall& call) {
  const FlashSchedule s(call, kRows);
  for (int first = 0; first < s.q_len; first += kRows) {
    const int last = std::min(first + kRows, s.q_len) - 1;
    const int blocks = s.num_blocks<kRows, kKeys, kCausal>(first), whole = s.num_whole_blocks<kKeys, kCausal>(first);
    int needed = 0, seen_by_all = 0;
    for (int j = 0; j < s.kv_len; ++j) {
      bool some = false, all = true;
      for (int i = first; i <= last; ++i) {
        some |= visible(s, kCausal, i, j);
        all &= visible(s, kCausal, i, j);
        ASSERT_EQ(visible(s, kCausal, i, j), j < s.num_keys<kCausal>(i)) << i << ' ' << j;
      }
      if (some) needed = j / kKeys + 1;
      if (all) ++seen_by_all;
    }
    EXPECT_EQ(blocks, std::max(1, needed)) << "from row " << first;
    EXPECT_EQ(whole, seen_by_all / kKeys) << "from row " << first;
    EXPECT_LE(whole, blocks);
  }
}

TEST(FlashSchedule, blocks_are_those_that_brute_force_finds) {
  for (int q_len : {1, 63, 128, 129, 300})
    for (int kv_len : {1, 79, 80, 81, 160, 333}) {
      expect_blocks_cover_what_is_visible<false>(
          {.q_len = q_len, .kv_len = kv_len, .diagonal = 0, .batch = 1, .num_heads = 1, .heads_per_section = 0});
      for (int diagonal : {0, kv_len - q_len, 5, -7}) {
        const int seen = std::min(kv_len, q_len + diagonal);  // as the host half passes it
        if (seen < 1) continue;
        expect_blocks_cover_what_is_visible<true>(
            {.q_len = q_len, .kv_len = seen, .diagonal = diagonal, .batch = 1, .num_heads = 1, .heads_per_section = 0});
      }
    }
}

/// Work of the busiest block over the average, in blocks of keys, with half a block for a tile's beginning and end.
double imbalance(const FlashCall& call) {
  const FlashSchedule s(call, kRows);
  double sum = 0, most = 0;
  for (int block = 0; block < kUnits; ++block) {
    FlashTile tile;
    double work = 0;
    for (int round = 0; s.tile<true>(round, block, kUnits, tile); ++round)
      if (tile.first_row < s.q_len) work += .5 + s.num_blocks<kRows, 128, true>(tile.first_row);
    sum += work;
    most = std::max(most, work);
  }
  return most / (sum / kUnits);
}

TEST(FlashSchedule, causal_tiles_are_shared_evenly) {
  for (int q_len : {512, 1024, 2048})  // pairs: at most one round more than the average 7.76
    EXPECT_LT(imbalance({.q_len = q_len,
                         .kv_len = q_len,
                         .diagonal = 0,
                         .batch = 16384 / q_len,
                         .num_heads = 16,
                         .heads_per_section = 0}),
              1.04);
  for (int q_len : {4096, 8192, 16384})
    EXPECT_LT(imbalance({.q_len = q_len,
                         .kv_len = q_len,
                         .diagonal = 0,
                         .batch = 16384 / q_len,
                         .num_heads = 16,
                         .heads_per_section = (250 * kRows + q_len - 1) / q_len}),
              1.02);
}

}  // namespace
}  // namespace ejk
