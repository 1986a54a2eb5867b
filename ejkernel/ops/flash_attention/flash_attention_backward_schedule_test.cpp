// The tiles of the Hopper kernel of the backward against brute force: every pair of blocks once, an order that can be
// kept, a balance.
#include "ejkernel/ops/flash_attention/flash_attention_backward_schedule.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"

namespace ejk {
namespace {

constexpr int kRows = 64;

using Pair = std::tuple<int64_t, int>;  // a block of queries, counted over all heads, and a tile of keys

/// Whether some row of a block of queries sees some key of a tile, or all see all.
struct Visible {
  bool some = false, all = true;
  Visible(const FlashBackwardSchedule& s, bool causal, int keys, int block, int tile) {
    for (int i = block * kRows; i < (block + 1) * kRows; ++i)
      for (int j = tile * keys; j < (tile + 1) * keys; ++j) {
        const bool sees = j < s.kv_len && (!causal || j <= i + s.diagonal);
        some |= sees && i < s.q_len;
        all &= sees;
      }
  }
};

/// Walks the grid in the order in which its blocks start.
template <int kKeys, bool kCausal, bool kOrdered>
void expect_every_pair_once_and_in_order(const FlashBackwardSchedule& s) {
  using Tile = FlashBackwardTile<kKeys, kRows, kCausal, kOrdered>;
  const int tiles = (s.num_keys + kKeys - 1) / kKeys, blocks = (s.q_len + kRows - 1) / kRows;
  std::vector<Visible> visible;  // the same for every head
  for (int block = 0; block < blocks; ++block)
    for (int tile = 0; tile < tiles; ++tile) visible.emplace_back(s, kCausal, kKeys, block, tile);
  std::map<Pair, int> seen;
  std::map<int64_t, int> added;  // parts of a block's dQ
  std::map<std::tuple<int, int, int, int>, int> gradients;
  for (int index = 0; index < s.units() * tiles; ++index) {
    const Tile tile(s, index);
    ++gradients[{tile.term, tile.batch, tile.kv_head, tile.tile}];
    for (int member = 0; member < tile.heads; ++member) {
      ASSERT_EQ((tile.first_head + member) / s.queries_per_kv_head, tile.kv_head);
      for (int left = tile.blocks(); left > 0; --left) {
        const int block = tile.block(left);
        const int64_t counted = tile.first_block(s, member) + block;
        ++seen[{counted, tile.tile}];
        if (kOrdered) {
          ASSERT_EQ(tile.turn(s, block), added[counted]) << "block " << counted << ", tile " << tile.tile;
        }
        ++added[counted];
        ASSERT_EQ(tile.masked(s, block), !visible[block * tiles + tile.tile].all);
      }
    }
  }
  std::map<Pair, int> wanted;
  for (int head = 0; head < s.batch * s.num_kv_heads * s.queries_per_kv_head; ++head)
    for (int block = 0; block < blocks; ++block)
      for (int tile = 0; tile < tiles; ++tile)
        if (visible[block * tiles + tile].some) wanted[{int64_t{head} * blocks + block, tile}] = 1;
  ASSERT_EQ(seen, wanted) << s.q_len << " queries, " << s.kv_len << " keys, diagonal " << s.diagonal;
  ASSERT_EQ(gradients.size(), static_cast<size_t>(s.units()) * tiles) << "not every gradient has a block";
}

template <bool kCausal, bool kOrdered>
void try_shapes() {
  for (const int q_len : {1, 64, 65, 330})
    for (const int num_keys : {1, 128, 200, 390})
      for (const int diagonal : {0, num_keys - q_len, 70}) {
        // As the host half passes it: no query is before the diagonal, and no key after it.
        if (diagonal < 0) continue;
        const int kv_len = kCausal ? std::min(num_keys, q_len + diagonal) : num_keys - num_keys / 3;
        for (const auto& [batch, kv_heads, group, terms] :
             {std::tuple(1, 1, 1, 1), {2, 3, 1, 1}, {1, 2, 4, 1}, {2, 1, 4, 2}, {1, 3, 4, 4}})
          for (const int section : {1, 2, 5}) {
            const FlashBackwardSchedule s = {.q_len = q_len,
                                             .kv_len = kv_len,
                                             .num_keys = num_keys,
                                             .diagonal = diagonal,
                                             .batch = batch,
                                             .num_kv_heads = kv_heads,
                                             .queries_per_kv_head = group,
                                             .terms = terms,
                                             .units_per_section = section};
            expect_every_pair_once_and_in_order<64, kCausal, kOrdered>(s);
            expect_every_pair_once_and_in_order<128, kCausal, kOrdered>(s);
          }
      }
}

TEST(FlashBackwardSchedule, every_pair_of_blocks_that_see_each_other_is_computed_once) {
  try_shapes<false, false>();
  try_shapes<true, false>();
}

// A tile's turn comes after those of tiles that started before it. So none waits for one that has not started.
TEST(FlashBackwardSchedule, parts_are_added_in_the_order_in_which_tiles_start) {
  try_shapes<false, true>();
  try_shapes<true, true>();
}

/// When the last of `units` multiprocessors is done over the average, if each takes the grid's next tile when it is
/// free.
template <bool kOrdered>
double imbalance(const FlashBackwardSchedule& s, int units) {
  constexpr int kKeys = 128;
  std::priority_queue<int, std::vector<int>, std::greater<>> free_at{std::greater<>(), std::vector<int>(units)};
  int last = 0;
  int64_t sum = 0;
  for (int index = 0; index < s.units() * (s.num_keys / kKeys); ++index) {
    const FlashBackwardTile<kKeys, kRows, true, kOrdered> tile(s, index);
    const int work = tile.heads * tile.blocks(), end = free_at.top() + work;
    free_at.pop();
    free_at.push(end);
    sum += work;
    last = std::max(last, end);
  }
  return last / (static_cast<double>(sum) / units);
}

TEST(FlashBackwardSchedule, causal_tiles_are_shared_evenly) {
  constexpr int kUnits = 132;
  for (const int s : {1024, 4096, 16384}) {
    const FlashBackwardSchedule schedule = {.q_len = s,
                                            .kv_len = s,
                                            .num_keys = s,
                                            .diagonal = 0,
                                            .batch = 16384 / s,
                                            .num_kv_heads = 16,
                                            .queries_per_kv_head = 1,
                                            .terms = 1,
                                            .units_per_section = (kUnits * 128 + s - 1) / s};
    EXPECT_LT(imbalance<true>(schedule, kUnits), 1.07) << s;
    EXPECT_LT(imbalance<false>(schedule, kUnits), 1.07) << s;
  }
}

/// The dense problems that the device's tests draw are large enough for both ways of a causal section.
TEST(FlashBackwardSchedule, both_ways_are_met_by_random_problems) {
  constexpr int kUnits = 132;
  int in_order = 0, in_any_order = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    const testing::AttentionCase c = testing::random_attention_case(
        {.seed = i + 1, .size = i % 4 == 0 ? testing::Size::normal : testing::Size::small, .dense = true},
        {.packed = false, .gradient = true});
    const int64_t tile_keys = c.head_dim == 256 ? 64 : 128, tiles = (c.kv_len + tile_keys - 1) / tile_keys;
    const bool several_sections = c.batch * c.num_kv_heads * tiles > kUnits + tiles;
    if (c.params.causal && several_sections) ++(c.params.deterministic ? in_order : in_any_order);
  }
  EXPECT_GE(in_order, 20);
  EXPECT_GE(in_any_order, 20);
}

}  // namespace
}  // namespace ejk
