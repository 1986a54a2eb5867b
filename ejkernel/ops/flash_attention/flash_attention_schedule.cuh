// Which tile of queries a block computes when, and which blocks of keys that tile sees: arithmetic only, also compiled
// for the host, where the tests hold it against brute force.
#pragma once

#include "ejkernel/platform/cuda/device/divisor.cuh"
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

/// What the tiles of one call follow from.
struct FlashCall {
  int q_len, kv_len;  ///< kv_len: without keys that no query sees
  int diagonal;       ///< causal: key j is visible to query i iff j <= i + diagonal
  int batch, num_heads;
  int heads_per_section;  ///< causal only
};

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
struct FlashSchedule : FlashCall {
  int rows;       ///< of a tile
  int heads;      ///< of all batch entries
  int num_tiles;  ///< of all heads
  int sections;   ///< without heads_per_section they are not used
  cuda::Divisor tiles, pairs, section_tiles;
  cuda::Divisor section_heads, last_section_heads, heads_of_batch;

  constexpr FlashSchedule(const FlashCall& call, int rows)
      : FlashCall(call),
        rows(rows),
        heads(batch * num_heads),
        num_tiles(cuda::ceil_div(q_len, rows) * heads),
        sections(heads_per_section == 0 ? 1 : cuda::ceil_div(heads, heads_per_section)),
        // Of a call without rows or heads nothing is divided.
        tiles(cuda::max(cuda::ceil_div(q_len, rows), 1)),
        pairs((tiles.value + 1) / 2),
        section_tiles(cuda::max(heads_per_section, 1) * tiles.value),
        section_heads(cuda::max(heads_per_section, 1)),
        last_section_heads(cuda::max(heads - (sections - 1) * heads_per_section, 1)),
        heads_of_batch(num_heads) {}

  /// The tile of a block in a round; false when there is none, nor in later rounds.
  template <bool kCausal>
  EJK_DEVICE bool tile(int round, int block, int num_blocks, FlashTile& to) const {
    int head, row;
    if (kCausal && heads_per_section == 0) {
      const int pair = round / 2 * num_blocks + block;
      if (pair >= pairs.value * heads || num_tiles == 0) return false;
      head = pairs.quotient(pair);
      const int within = pair - head * pairs.value;
      row = round % 2 == 0 ? tiles.value - 1 - within : within;
      if (round % 2 == 1 && row == tiles.value / 2)
        row = tiles.value;  // the middle tile has no other: one without rows stands for it
    } else {
      const int index = snake(round, block, num_blocks);
      if (index >= num_tiles) return false;
      if constexpr (kCausal) {
        const int section = section_tiles.quotient(index), within = index - section * section_tiles.value;
        const bool is_last = section == sections - 1;
        row = is_last ? last_section_heads.quotient(within) : section_heads.quotient(within);
        head = section * heads_per_section + within - row * (is_last ? last_section_heads : section_heads).value;
        if ((sections - 1 - section) % 2 == 0) row = tiles.value - 1 - row;
      } else {
        head = tiles.quotient(index);
        row = index - head * tiles.value;
      }
    }
    const int entry = heads_of_batch.quotient(head);
    to = {entry, head - entry * num_heads, row * rows};
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
