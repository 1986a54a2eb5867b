// Descriptions of tensors for the tensor memory accelerator (TMA): a kernel gets one by value and copies boxes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ejkernel/core/dtype.h"
#include "ejkernel/platform/cuda/device/tensor_map.cuh"

namespace ejk::cuda {

/// A tiled map of up to 5 axes, innermost first: `sizes` and `box` in elements, `strides` in bytes (of axes 1 to
/// rank - 1). What a box reads outside of the tensor is zero; what it writes there is dropped. `swizzle_bytes` is 0,
/// 32, 64 or 128. Throws Internal when the driver refuses: a kernel's `supports` declines what TMA cannot do (base
/// aligned to 16 bytes, strides multiples of 16 below 2^40, box axes at most 256, the inner one at most the swizzle).
TensorMap make_tensor_map(const void* base, DType dtype, std::span<const uint64_t> sizes,
                          std::span<const uint64_t> strides, std::span<const uint32_t> box, int swizzle_bytes);

}  // namespace ejk::cuda
