// What the host halves of the Hopper attention kernels share.
#pragma once

#include <string_view>

#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cuda/device/tensor_map.cuh"

namespace ejk::attn {

/// The part of a call's arithmetic that decides what is launched.
struct Sm90Lengths {
  int64_t num_rows = 0;  ///< of all heads and batch entries
  int64_t kv_len = 0;    ///< without keys that no query sees; they may hold anything, so that they are not even loaded
  int64_t diagonal = 0;  ///< causal: key j is visible to query i iff j <= i + diagonal
  Sm90Lengths(const FlashAttention::Inputs& in, const FlashAttention::Params& params);
};

Support supports_sm90(const FlashAttention::Inputs& in, const FlashAttention::Params& params,
                      const DeviceProperties& device);

/// Whether float32 has the positive number, and devices do not take it for 0: what scores can be multiplied with.
bool is_factor(double x);
inline constexpr const char* kScaleIsFactor = "its softmax_scale is positive, and a normal number in float32";

/// Whether TMA can walk a [batch, rows, heads, dim] tensor of 16-bit elements: multiples of 16 bytes everywhere.
bool fits_tensor_map(const Tensor& t);
/// A plan knows how its tensors were aligned; those that it runs on may not be: InvalidArgument.
void require_alignment(std::string_view operation, std::string_view argument, const Tensor& t);
/// The first `num_rows` rows of such a tensor in tiles of `tile_rows` x dim, each split into columns of 64 in the
/// 128-byte swizzle.
cuda::TensorMap tile_map(const Tensor& t, int64_t num_rows, int tile_rows);

/// Of a causal FlashSchedule.
int heads_per_section(int64_t tiles_per_head, int64_t queries_per_kv_head, int num_units);

}  // namespace ejk::attn
