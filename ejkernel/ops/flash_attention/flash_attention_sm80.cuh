// What the forward kernel for Ampere and newer is launched with, and which keys a tile reads: for host and device.
#pragma once

#include "ejkernel/ops/flash_attention/attention_cuda_problem.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/device/divisor.cuh"

namespace ejk {

/// Rows that a block computes, in one head: a sequence's from `first_row` of the queries' tensor on, as many as fit.
struct FlashSm80Tile {
  static constexpr int kNobody = -1;

  int sequence;  ///< kNobody: rows of a packed tensor that no sequence claims, which are like those that see no key
  int head;
  int first_row;

  EJK_DEVICE bool is_nobodys() const { return sequence == kNobody; }
};

struct FlashSm80Arguments {
  cuda::AttentionProblem problem;
  cuda::AttentionResults to;
  int num_blocks;
  int blocks_per_head;         ///< of a packed call
  cuda::Divisor tiles, heads;  ///< tiles of the tensor's rows in one head
  float scale_log2;            ///< of scores, to powers of two: softmax_scale * log2(e); with a soft cap 1
  float cap_in, cap_out;       ///< with one, scores become cap_out * tanh(cap_in * score)
  bool out_is_aligned;         ///< every row starts at a multiple of 16 bytes

  /// Of a call that is not packed. The last tile of a head first: with a causal mask it is the longest.
  EJK_DEVICE FlashSm80Tile tile(int index, int rows) const {
    const int of_head = tiles.quotient(index), batch = heads.quotient(of_head);
    const int from_last = index - of_head * tiles.value;
    return {batch, of_head - batch * heads.value, (tiles.value - 1 - from_last) * rows};
  }
};

/// Which keys the rows of a sequence see: row i those from i + first to i + past - 1, of the first `count`.
struct FlashSm80Keys {
  int first, past, count;

  EJK_DEVICE FlashSm80Keys(const cuda::AttentionProblem& p, const cuda::AttentionSequence& s) {
    constexpr cuda::int64 kFar = 1 << 30;  // rows and keys are fewer
    cuda::int64 right = p.window_right < 0 ? kFar : cuda::min<cuda::int64>(p.window_right, kFar);
    if (p.causal) right = 0;
    const cuda::int64 left = p.window_left < 0 ? kFar : cuda::min<cuda::int64>(p.window_left, kFar);
    first = static_cast<int>(cuda::max(s.offset - left, -kFar));
    past = static_cast<int>(cuda::min(s.offset + right + 1, kFar));
    count = static_cast<int>(s.k_len);
  }
  EJK_DEVICE int begin(int row) const { return cuda::max(row + first, 0); }
  EJK_DEVICE int end(int row) const { return cuda::min(row + past, count); }
};

/// What a tile of rows walks: blocks of keys, counted from the sequence's first, that some row sees a key of.
struct FlashSm80Blocks {
  int first = 0, past = 0;
  int end = 0;  ///< of the keys that some row sees
};

/// Of the rows [first_row, past_row), of which there is one.
template <int kKeys>
EJK_DEVICE FlashSm80Blocks key_blocks(const FlashSm80Keys& keys, int first_row, int past_row) {
  // What a row sees moves along by one key a row: the first row's begins first, the last one's ends last.
  const int begin = keys.begin(first_row), end = keys.end(past_row - 1);
  if (begin >= end) return {};
  return {.first = begin / kKeys, .past = cuda::ceil_div(end, kKeys), .end = end};
}
/// Whether every row from the first to the last sees the whole block.
template <int kKeys>
EJK_DEVICE bool all_see_block(const FlashSm80Keys& keys, int first_row, int last_row, int block) {
  return block * kKeys >= keys.begin(last_row) && (block + 1) * kKeys <= keys.end(first_row);
}

}  // namespace ejk
