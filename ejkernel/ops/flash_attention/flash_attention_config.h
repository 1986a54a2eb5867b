// What the CUDA kernels of flash_attention are specialised for, shared by host and device: a Variant says what the problem
// fixes, a Config what may be chosen. Includes nothing but names.
#pragma once

#include "ejkernel/platform/cuda/device/half_type.cuh"

namespace ejk {

struct FlashForwardVariant {
  cuda::HalfType type;
  int head_dim;  ///< of query, key and value: 64, 128 or 256
  bool causal;
  bool lse;  ///< also written
};

/// A block computes 64 query rows in each of its `consumers` warpgroups, `block_k` keys at a time.
struct FlashForwardConfig {
  int consumers;       ///< 2, 3 or 4 warpgroups
  int block_k;         ///< keys per step
  int stages;          ///< blocks of keys, and of values, in shared memory
  bool lazy_rescale;   ///< the running maximum follows only when it falls behind by a factor of 2^8
  bool overlap_tiles;  ///< the next tile's first scores are started with this tile's last outputs
};

}  // namespace ejk
