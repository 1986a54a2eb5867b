// What the Hopper kernels of flash_attention are launched with, for host and device.
#pragma once

#include "ejkernel/ops/flash_attention/flash_attention_schedule.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"
#include "ejkernel/platform/cuda/device/tensor_map.cuh"

namespace ejk {

struct FlashForwardArguments {
  cuda::TensorMap query, key, value;  ///< [batch, heads, head_dim / 64, rows, 64]; a box is a tile
  char* out;
  float* lse;                                ///< null: not wanted
  cuda::int64 out_row, out_head, out_batch;  ///< strides in bytes
  cuda::int64 lse_row, lse_head, lse_batch;  ///< in elements
  FlashSchedule schedule;
  int queries_per_kv_head;
  float scale_log2;  ///< softmax_scale * log2(e): exponents are powers of two
};

}  // namespace ejk
