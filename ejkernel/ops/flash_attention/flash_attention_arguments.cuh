// What the Hopper kernels of flash_attention are launched with, for host and device.
#pragma once

#include "ejkernel/ops/flash_attention/flash_attention_schedule.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"
#include "ejkernel/platform/cuda/device/tensor_map.cuh"

namespace ejk {

struct FlashForwardArguments {
  cuda::TensorMap query, key, value;         ///< [batch, heads, head_dim / 64, rows, 64]; a box is a tile
  char* out;                                 ///< null: not wanted
  bool out_is_aligned;                       ///< every row starts at a multiple of 16 bytes
  float* lse;                                ///< null: not wanted
  cuda::int64 out_row, out_head, out_batch;  ///< strides in bytes
  cuda::int64 lse_row, lse_head, lse_batch;  ///< in elements
  FlashSchedule schedule;
  int queries_per_kv_head;
  float scale_log2;  ///< softmax_scale * log2(e): exponents are powers of two
};

/// Rows here are the queries that see a key; those before them have gradient 0 and are not even loaded.
struct FlashBackwardArguments {
  cuda::TensorMap query, key, value, d_out;
  const float *lse_log2, *delta;  ///< [batch, heads, padded_rows]
  float* d_query;         ///< sums in float32, [batch, heads, padded_rows, head_dim] in the order of accumulators
  int* turns;             ///< [batch, heads, padded_rows / 64, 2]: blocks of keys that have added to a part of dQ
  char *d_key, *d_value;  ///< null: not wanted
  bool d_key_is_aligned, d_value_is_aligned;       ///< every row starts at a multiple of 16 bytes
  cuda::int64 d_key_row, d_key_head, d_key_batch;  ///< strides in bytes
  cuda::int64 d_value_row, d_value_head, d_value_batch;
  int q_len, padded_rows;
  int kv_len, num_keys;  ///< keys that some query sees, and all
  int diagonal;          ///< causal: key j is visible to query i iff j <= i + diagonal
  int batch, num_kv_heads, queries_per_kv_head;
  int heads_per_section;  ///< of kv heads
  float scale, scale_log2;
};

/// Row statistics before the backward: delta = sum of d_out * out - d_lse, lse in powers of two; sums of dQ and turns
/// are cleared.
struct FlashBackwardPrepareArguments {
  const char *out, *d_out;
  const float *lse, *d_lse;
  cuda::int64 out_row, out_head, out_batch, d_out_row, d_out_head, d_out_batch;  ///< strides in bytes
  cuda::int64 lse_row, lse_head, lse_batch, d_lse_row, d_lse_head, d_lse_batch;  ///< in elements
  float *lse_log2, *delta, *d_query;
  int* turns;
  int first_row, q_len, padded_rows, num_heads;
};

/// Sums of dQ to its own dtype.
struct FlashBackwardFinishArguments {
  const float* sums;
  char* d_query;
  bool is_aligned;
  cuda::int64 row, head, batch;  ///< strides in bytes
  int first_row, q_len, padded_rows, num_heads;
  float scale;
};

}  // namespace ejk
