// What the Hopper kernels of flash_attention are launched with, for host and device.
#pragma once

#include "ejkernel/ops/flash_attention/flash_attention_backward_schedule.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
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
  FlashForwardMemory memory;
  cuda::Divisor queries_per_kv_head;
  float scale_log2;  ///< softmax_scale * log2(e): exponents are powers of two
};

/// Where the gradient of the keys or of the values goes.
struct FlashBackwardGradient {
  char* rows;                    ///< null: not wanted
  bool is_aligned;               ///< every row starts at a multiple of 16 bytes
  cuda::int64 row, head, batch;  ///< strides in bytes
  float* terms;                  ///< of the sum over the group's query heads, where it has several; null otherwise:
                                 ///< [terms, batch, kv_heads, padded_keys, head_dim] in the order of accumulators
};

struct FlashBackwardArguments {
  cuda::TensorMap query, key, value, d_out;
  const float *lse_log2, *delta;  ///< [batch, heads, padded_rows]
  float* d_query;  ///< sums in float32, [batch, heads, padded_rows, head_dim] in the order of accumulators
  int* turns;      ///< [batch, heads, padded_rows / 64, 2]: tiles of keys that have added a consumer's part of dQ
  FlashBackwardGradient d_key, d_value;
  FlashBackwardSchedule schedule;
  int padded_keys;  ///< all keys, in whole tiles
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

/// Sums in float32 to their own dtype.
struct FlashBackwardFinishArguments {
  const float* sums;  ///< [terms, batch, num_heads, padded_rows, head_dim] in the order of accumulators
  int terms;
  cuda::int64 term_stride;  ///< in elements
  char* to;
  bool is_aligned;
  cuda::int64 row, head, batch;  ///< strides in bytes
  int first_row, num_rows, padded_rows, num_heads;
  float scale;
};

}  // namespace ejk
