// What the CUDA kernels of flash_attention are specialised for, shared by host and device: a Variant says what the
// problem fixes, a Config what may be chosen, a Shape what follows from the two.
#pragma once

#include "ejkernel/platform/cuda/device/half_type.cuh"

namespace ejk {

struct FlashForwardVariant {
  cuda::HalfType type;
  int head_dim;  ///< of query, key and value: 64, 128 or 256
  bool causal;
};

/// A block computes 64 query rows in each of its `consumers` warpgroups, `block_k` keys at a time.
struct FlashForwardConfig {
  int consumers;      ///< 2, 3 or 4 warpgroups
  int block_k;        ///< keys per step
  int stages;         ///< blocks of keys, and of values, in shared memory
  bool lazy_rescale;  ///< the running maximum follows only when it falls behind by a factor of 2^8
};

/// Sizes, and where everything lies in shared memory.
struct FlashForwardShape {
  static constexpr int kMaxSharedBytes = 232448, kBarrierBytes = 256;

  int dim, consumers, rows, keys, threads;
  int query_bytes, block_bytes;  ///< of one stage
  int query_stages, stages;
  int key_offset, value_offset, barrier_offset, shared_bytes;
  bool passes_blocks;

  constexpr FlashForwardShape(FlashForwardVariant variant, FlashForwardConfig config)
      : dim(variant.head_dim),
        consumers(config.consumers),
        rows(64 * consumers),
        keys(config.block_k),
        threads(128 * (consumers + 1)),
        query_bytes(rows * dim * 2),
        block_bytes(keys * dim * 2),
        // A second query tile lets the next tile's first product start at once; where it does not fit, it has to wait.
        query_stages(2 * query_bytes + 2 * config.stages * block_bytes + kBarrierBytes <= kMaxSharedBytes ? 2 : 1),
        stages(config.stages),
        key_offset(query_stages * query_bytes),
        value_offset(key_offset + stages * block_bytes),
        barrier_offset(value_offset + stages * block_bytes),
        shared_bytes(barrier_offset + kBarrierBytes),
        // A tile's blocks are counted for all its rows. Where a block is small beside a tile, the consumers of its
        // first rows let the last blocks pass, which they do not see. They do so before they take any values, so there
        // must be stages for those.
        passes_blocks(variant.causal && rows >= 2 * keys && (rows - 64 + keys - 1) / keys <= stages) {}
};

struct FlashBackwardVariant {
  cuda::HalfType type;
  int head_dim;  ///< 64 or 128
  bool causal;
};

/// A block holds 128 keys, 64 in each of its two consumers, and walks the queries 64 at a time.
struct FlashBackwardConfig {
  int stages;  ///< blocks of queries and of their cotangents in shared memory
};

struct FlashBackwardShape {
  static constexpr int kBarrierBytes = 256;

  int dim, keys, rows, stages, threads;
  int key_bytes, row_bytes, statistics_bytes, d_score_bytes, d_query_bytes;
  int value_offset, query_offset, d_out_offset, d_score_offset, d_query_offset, lse_offset, delta_offset,
      barrier_offset;
  int shared_bytes;

  constexpr FlashBackwardShape(FlashBackwardVariant variant, FlashBackwardConfig config)
      : dim(variant.head_dim),
        keys(128),
        rows(64),
        stages(config.stages),
        threads(3 * 128),
        key_bytes(keys * dim * 2),
        row_bytes(rows * dim * 2),
        statistics_bytes(rows * 4),
        d_score_bytes(keys * rows * 2),
        d_query_bytes(rows * dim * 4),
        value_offset(key_bytes),
        query_offset(2 * key_bytes),
        d_out_offset(query_offset + stages * row_bytes),
        d_score_offset(d_out_offset + stages * row_bytes),
        d_query_offset(d_score_offset + 2 * d_score_bytes),
        lse_offset(d_query_offset + d_query_bytes),
        delta_offset(lse_offset + stages * statistics_bytes),
        barrier_offset(delta_offset + stages * statistics_bytes),
        shared_bytes(barrier_offset + kBarrierBytes) {}
};

}  // namespace ejk
