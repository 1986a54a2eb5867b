// Which tile of queries a block computes when, and which blocks of keys that tile sees: arithmetic only, also compiled
// for the host, where the tests hold it against brute force.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk {

struct FlashTile {
  int batch;
  int head;       ///< of the queries
  int first_row;  ///< query position
};

/// Position in a list of tiles that a block takes in a round. Every second round runs backwards, so that in a list
/// ordered by length no block gets the longest of every round.
EJK_DEVICE int snake(int round, int block, int num_blocks) {
  return round * num_blocks + (round % 2 == 0 ? block : num_blocks - 1 - block);
}

/// The tiles of one call, and who computes which: a fixed plan, balanced by construction, for a counter in memory would
/// have to be cleared before every launch.
///
/// Without a mask all tiles are equally long, and those of one head follow each other, so that blocks working side by
/// side read the same keys. With one, tiles are short at the head's beginning and long at its end. Two orders balance
/// that:
///  - pairs (`heads_per_section` = 0): a block computes a head's m-th tile from either end; all pairs are equally long.
///  - sections of heads, whose keys stay in the L2 cache together: their tiles by length, from short to long and back
///  in
///    turns, the last section ending with the shortest. Lengths change slowly along the list, and snake() does the
///    rest.
struct FlashSchedule {
  int q_len, kv_len;  ///< kv_len: without keys that no query sees
  int diagonal;       ///< causal: key j is visible to query i iff j <= i + diagonal
  int batch, num_heads;
  int heads_per_section;  ///< causal only

  template <int kRows>
  EJK_DEVICE int tiles_per_head() const {
    return cuda::ceil_div(q_len, kRows);
  }
  template <int kRows>
  EJK_DEVICE int num_tiles() const {
    return tiles_per_head<kRows>() * batch * num_heads;
  }

  /// The tile of a block in a round; false when there is none, nor in later rounds.
  template <int kRows, bool kCausal>
  EJK_DEVICE bool tile(int round, int block, int num_blocks, FlashTile& to) const {
    const int tiles = tiles_per_head<kRows>(), heads = batch * num_heads;
    int head, row;
    if (kCausal && heads_per_section == 0) {
      const int pairs = (tiles + 1) / 2, pair = round / 2 * num_blocks + block;
      if (pair >= pairs * heads) return false;
      head = pair / pairs;
      row = round % 2 == 0 ? tiles - 1 - pair % pairs : pair % pairs;
      if (round % 2 == 1 && row == tiles / 2)
        row = tiles;  // the middle tile has no other: one without rows stands for it
    } else {
      const int index = snake(round, block, num_blocks);
      if (index >= tiles * heads) return false;
      if constexpr (kCausal) {
        const int section = index / (heads_per_section * tiles), last_section = (heads - 1) / heads_per_section;
        const int first_head = section * heads_per_section, within = index - first_head * tiles;
        const int heads_here = cuda::min(heads_per_section, heads - first_head);
        head = first_head + within % heads_here;
        row = within / heads_here;
        if ((last_section - section) % 2 == 0) row = tiles - 1 - row;
      } else {
        head = index / tiles;
        row = index % tiles;
      }
    }
    to = {head / num_heads, head % num_heads, row * kRows};
    return true;
  }

  /// Blocks of `kKeys` keys, from the first, that some of the rows [first, first + kRows) see. At least one, so that
  /// rows that see nothing need no code of their own: the whole block is masked for them.
  template <int kRows, int kKeys, bool kCausal>
  EJK_DEVICE int num_blocks(int first) const {
    int keys = kv_len;
    if constexpr (kCausal) keys = cuda::min(keys, cuda::min(first + kRows, q_len) + diagonal);
    return cuda::max(1, cuda::ceil_div(keys, kKeys));
  }
  /// How many blocks, from the first, every row from `first` on sees completely.
  template <int kKeys, bool kCausal>
  EJK_DEVICE int num_whole_blocks(int first) const {
    int keys = kv_len;
    if constexpr (kCausal) keys = cuda::min(keys, first + diagonal + 1);
    return cuda::max(keys, 0) / kKeys;
  }
  /// Keys that a row sees: the first ones.
  template <bool kCausal>
  EJK_DEVICE int num_keys(int row) const {
    return kCausal ? cuda::min(kv_len, row + diagonal + 1) : kv_len;
  }
};

}  // namespace ejk
