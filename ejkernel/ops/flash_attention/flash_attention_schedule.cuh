// Which tile of queries a block computes when, and which blocks of keys that tile sees: arithmetic only, also compiled for
// the host, where the tests hold it against brute force.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk {

struct FlashTile {
  int batch;
  int head;       ///< of the queries
  int first_row;  ///< query position
};

/// The tiles of one call. Without a mask, those of a head follow each other, so that blocks working side by side read the
/// same keys. With one, they are ordered by length, over a section of heads whose keys stay in the L2 cache together: from
/// short to long and back in turns, so that lengths change slowly, and the last section ends with the shortest.
struct FlashSchedule {
  int q_len, kv_len;  ///< kv_len: without keys that no query sees
  int diagonal;       ///< causal: key j is visible to query i iff j <= i + diagonal
  int batch, num_heads;
  int heads_per_section;  ///< causal only

  template <int kRows>
  EJK_DEVICE int row_tiles() const {
    return cuda::ceil_div(q_len, kRows);
  }
  template <int kRows>
  EJK_DEVICE int num_tiles() const {
    return row_tiles<kRows>() * batch * num_heads;
  }

  template <int kRows, bool kCausal>
  EJK_DEVICE FlashTile tile(int index) const {
    const int tiles = row_tiles<kRows>();
    int head, row;
    if constexpr (kCausal) {
      const int section = index / (heads_per_section * tiles), first_head = section * heads_per_section;
      const int heads = cuda::min(heads_per_section, batch * num_heads - first_head);
      const int last_section = (batch * num_heads - 1) / heads_per_section;
      const int within = index - first_head * tiles;
      head = first_head + within % heads;
      row = within / heads;
      if ((last_section - section) % 2 == 0) row = tiles - 1 - row;
    } else {
      head = index / tiles;
      row = index % tiles;
    }
    return {head / num_heads, head % num_heads, row * kRows};
  }

  /// Blocks of `kKeys` keys that some of the rows [first, first + kRows) see.
  template <int kRows, int kKeys, bool kCausal>
  EJK_DEVICE int num_blocks(int first) const {
    int keys = kv_len;
    if constexpr (kCausal) keys = cuda::min(keys, cuda::min(first + kRows, q_len) + diagonal);
    return cuda::ceil_div(cuda::max(keys, 0), kKeys);
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

/// The tile that a block computes in a round. Every second round runs backwards, so that among tiles in order of length no
/// block gets the longest of every round: a balance without a counter in memory, which somebody would have to clear.
EJK_DEVICE int snake(int round, int block, int num_blocks) {
  return round * num_blocks + (round % 2 == 0 ? block : num_blocks - 1 - block);
}

}  // namespace ejk
