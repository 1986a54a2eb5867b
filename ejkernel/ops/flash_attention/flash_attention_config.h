// What the CUDA kernels of flash_attention are specialised for, shared by host and device: a Variant says what the
// problem fixes, a Config what may be chosen, a Shape what follows from the two.
#pragma once

#include "ejkernel/platform/cuda/device/half_type.cuh"

namespace ejk {

// ---- forward, Hopper ----

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
  bool across_tiles;  ///< one loop over the blocks of all tiles, instead of one for each tile: less to compile
};

/// What of a config the code is compiled for. The number of stages is an argument of the launch, so that configs which
/// differ in nothing else are one program.
struct FlashForwardCode {
  int consumers, block_k;
  bool lazy_rescale, across_tiles;
};
constexpr FlashForwardCode code_of(FlashForwardConfig config) {
  return {config.consumers, config.block_k, config.lazy_rescale, config.across_tiles};
}

struct FlashForwardShape {
  int dim, consumers, rows, keys, threads;
  int query_bytes, block_bytes;  ///< of one stage
  bool has_small_blocks;         ///< beside a tile: some of its rows may not see its last blocks at all
  /// The loading warpgroup gives its registers to the others.
  int loader_registers, consumer_registers;
  int registers_left;      ///< of a thread, besides scores, weights and outputs
  bool registers_suffice;  ///< else the compiler spills, or lets products wait for each other

  constexpr FlashForwardShape(FlashForwardVariant variant, FlashForwardCode code)
      : dim(variant.head_dim),
        consumers(code.consumers),
        rows(64 * consumers),
        keys(code.block_k),
        threads(128 * (consumers + 1)),
        query_bytes(rows * dim * 2),
        block_bytes(keys * dim * 2),
        has_small_blocks(variant.causal && rows >= 2 * keys),
        loader_registers(consumers == 2 ? 24 : 32),
        consumer_registers(consumers == 2   ? 240
                           : consumers == 3 ? 160
                                            : 112),
        registers_left(consumer_registers - (keys / 2 + keys / 4 + dim / 2)),
        registers_suffice(registers_left >= (code.across_tiles ? dim / 2 : 32)) {}
};

/// Where everything lies in shared memory: barriers first, then the stages of queries, of keys and of values.
struct FlashForwardMemory {
  static constexpr int kBarrierBytes = 1024;  ///< a tile's alignment
  /// What a block has, less what the alignment may cost.
  static constexpr int kMostBytes = 232448 - 1024;
  static constexpr int kMostQueryStages = 2, kMostStages = 6;

  int query_stages, stages;
  int key_offset, value_offset, bytes;
  bool passes_blocks;  ///< consumers let blocks pass that none of their rows sees

  constexpr FlashForwardMemory(FlashForwardShape shape, int num_stages)
      // A second query tile lets the next tile's first product start at once; where it does not fit, it has to wait.
      : query_stages(kBarrierBytes + 2 * shape.query_bytes + 2 * num_stages * shape.block_bytes <= kMostBytes ? 2 : 1),
        stages(num_stages),
        key_offset(kBarrierBytes + query_stages * shape.query_bytes),
        value_offset(key_offset + stages * shape.block_bytes),
        bytes(value_offset + stages * shape.block_bytes),
        // A tile's blocks are counted for all its rows. Its first consumers let the last blocks pass before they take
        // any values, so there must be stages for those.
        passes_blocks(shape.has_small_blocks && (shape.rows - 64 + shape.keys - 1) / shape.keys <= stages) {}
};

// ---- forward, Ampere and newer ----

struct FlashSm80Variant {
  cuda::HalfType type;
  int head_dim, value_dim;  ///< rounded up to multiples of 16; at most 256
  bool soft_cap;
};

/// A block's warps own 16 query rows, `row_tiles` times, each.
struct FlashSm80Config {
  int warps;      ///< 4 or 8
  int row_tiles;  ///< 1 or 2: with 2, what is read of keys and values serves twice as many rows
  int block_k;    ///< keys per step
};

struct FlashSm80Shape {
  int dim, value_dim, row_tiles, rows, keys, threads;
  int key_offset, value_offset, shared_bytes;  ///< queries come first; each in parts of 64 columns
  bool registers_suffice;  ///< for scores and outputs: of 255, what they leave goes to everything else

  constexpr FlashSm80Shape(FlashSm80Variant variant, FlashSm80Config config)
      : dim(variant.head_dim),
        value_dim(variant.value_dim),
        row_tiles(config.row_tiles),
        rows(16 * config.row_tiles * config.warps),
        keys(config.block_k),
        threads(32 * config.warps),
        key_offset(rows * row_bytes(dim)),
        value_offset(key_offset + keys * row_bytes(dim)),
        shared_bytes(value_offset + keys * row_bytes(value_dim)),
        registers_suffice(row_tiles * (keys + value_dim) / 2 <= 168) {}

  static constexpr int row_bytes(int columns) { return (columns + 63) / 64 * 128; }
};

// ---- backward, Hopper ----

struct FlashBackwardVariant {
  cuda::HalfType type;
  int head_dim;  ///< 64, 128 or 256
  bool causal;
  bool ordered;  ///< dQ is summed over the blocks of keys in their order: the same bits in every run
};

/// A block holds 128 keys (64 at a head size of 256), and walks the queries 64 at a time.
struct FlashBackwardConfig {
  int stages;  ///< blocks of queries, and of their scores, in shared memory
};

/// dQ is summed in parts of 64 queries and that many columns.
constexpr int flash_backward_part_columns(int head_dim) { return head_dim == 64 ? 32 : 64; }

struct FlashBackwardShape {
  static constexpr int kBarrierBytes = 256;

  int dim;
  bool splits_columns;  ///< between its two consumers; otherwise they split the keys
  int keys, columns;    ///< of the gradients of keys and values: a block's, and each consumer's
  int rows, threads;
  int stages, d_out_stages;  ///< of blocks of queries, and of their cotangents
  int part_columns, parts;   ///< of dQ, for a block of queries
  int key_bytes, row_bytes, statistics_bytes, score_bytes, part_bytes;
  int value_offset, query_offset, d_out_offset, weight_offset, d_score_offset, d_query_offset, lse_offset, delta_offset,
      barrier_offset;
  int shared_bytes;

  constexpr FlashBackwardShape(FlashBackwardVariant variant, FlashBackwardConfig config)
      : dim(variant.head_dim),
        splits_columns(dim == 256),
        keys(splits_columns ? 64 : 128),
        columns(splits_columns ? dim / 2 : dim),
        rows(64),
        threads(3 * 128),
        stages(config.stages),
        d_out_stages(splits_columns ? 1 : stages),  // more do not fit
        part_columns(flash_backward_part_columns(dim)),
        parts(dim / part_columns),
        key_bytes(keys * dim * 2),
        row_bytes(rows * dim * 2),
        statistics_bytes(rows * 4),
        score_bytes(keys * rows * 2),
        part_bytes(rows * part_columns * 4),
        value_offset(key_bytes),
        query_offset(2 * key_bytes),
        d_out_offset(query_offset + stages * row_bytes),
        weight_offset(d_out_offset + d_out_stages * row_bytes),
        d_score_offset(weight_offset + (splits_columns ? stages * score_bytes : 0)),
        d_query_offset(d_score_offset + stages * score_bytes),
        lse_offset(d_query_offset + 2 * part_bytes),
        delta_offset(lse_offset + stages * statistics_bytes),
        barrier_offset(delta_offset + d_out_stages * statistics_bytes),
        shared_bytes(barrier_offset + kBarrierBytes) {}
};

}  // namespace ejk
