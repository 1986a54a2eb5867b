// Which tile of keys a block of the backward computes, which blocks of queries it walks in which order, and when it may
// add its part of their dQ: arithmetic only, also compiled for the host, where the tests hold it against brute force.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk {

/// The tiles of one call. A unit is what has keys of its own: a key head, or one of the `terms` that share its queries.
///
/// Without a mask and an order to keep, the tiles of one unit follow each other. Otherwise a section of units goes
/// after the other, so that what runs at a time shares the L2 cache, and a causal section goes one of two ways:
///  - the longest tiles first, all walking the queries from the last;
///  - the shortest first, each walking from its diagonal up. What tiles that started together read and add to is then
///    a step apart, and in order none waits for another. The longest come last, so that the last section goes the
///    first way. So do units with several heads, for which this is slower, unless there is an order to keep.
struct FlashBackwardSchedule {
  int q_len;             ///< queries that see a key: those before them have gradient 0 and are not even loaded
  int kv_len, num_keys;  ///< keys that some query sees, and all
  int diagonal;          ///< causal: key j is visible to query i iff j <= i + diagonal
  int batch, num_kv_heads, queries_per_kv_head;
  int terms;              ///< blocks that share a group's query heads
  int units_per_section;  ///< causal or ordered only

  EJK_DEVICE int units() const { return batch * num_kv_heads * terms; }
};

/// What block `index` of the grid computes: kKeys keys, for some query heads of their group. Queries are walked kRows
/// at a time.
template <int kKeys, int kRows, bool kCausal, bool kOrdered>
struct FlashBackwardTile {
  int batch, kv_head;
  int term;               ///< of the sum over the group
  int first_head, heads;  ///< of queries
  int tile, first_key;
  int begin, end;  ///< blocks of queries that see it
  bool walks_up = false;

  EJK_DEVICE FlashBackwardTile(const FlashBackwardSchedule& s, int index) {
    const int tiles = cuda::ceil_div(s.num_keys, kKeys);
    heads = s.queries_per_kv_head / s.terms;
    int unit;
    if constexpr (kCausal || kOrdered) {
      const int section = index / (s.units_per_section * tiles), first = section * s.units_per_section;
      const int units_here = cuda::min(s.units_per_section, s.units() - first), within = index - first * tiles;
      unit = first + within % units_here;
      tile = within / units_here;
      if constexpr (kCausal) {
        walks_up = (kOrdered || heads == 1) && first + units_here < s.units();
        if (walks_up) tile = tiles - 1 - tile;
      }
    } else {
      unit = index / tiles;
      tile = index % tiles;
    }
    term = unit % s.terms;
    kv_head = unit / s.terms % s.num_kv_heads;
    batch = unit / s.terms / s.num_kv_heads;
    first_head = kv_head * s.queries_per_kv_head + term * heads;
    first_key = tile * kKeys;
    end = first_key < s.kv_len ? cuda::ceil_div(s.q_len, kRows) : 0;
    begin = kCausal ? cuda::max(0, first_key - s.diagonal) / kRows : 0;
  }

  /// How many blocks of queries it walks, of each head; none if not positive.
  EJK_DEVICE int blocks() const { return end - begin; }
  /// The one that comes when so many are left.
  EJK_DEVICE int block(int left) const { return kCausal && walks_up ? end - left : begin + left - 1; }
  /// The first block of queries of head number `member`, counted over all heads and batch entries.
  EJK_DEVICE cuda::int64 first_block(const FlashBackwardSchedule& s, int member) const {
    const cuda::int64 head =
        static_cast<cuda::int64>(batch) * s.num_kv_heads * s.queries_per_kv_head + first_head + member;
    return head * cuda::ceil_div(s.q_len, kRows);
  }
  /// How many tiles add their part of a block's dQ before this one: all that came before it in the grid.
  EJK_DEVICE int turn(const FlashBackwardSchedule& s, int block) const {
    if (!kCausal || !walks_up) return tile;
    return (cuda::min(s.kv_len, (block + 1) * kRows + s.diagonal) - 1) / kKeys - tile;
  }
  /// Whether some row of a block of queries misses some key.
  EJK_DEVICE bool masked(const FlashBackwardSchedule& s, int block) const {
    const int last_key = first_key + kKeys - 1;
    return last_key >= s.kv_len || (kCausal && last_key > block * kRows + s.diagonal);
  }
};

}  // namespace ejk
