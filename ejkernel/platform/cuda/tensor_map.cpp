#include "ejkernel/platform/cuda/tensor_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "ejkernel/core/error.h"
#include "ejkernel/platform/cuda/driver.h"

namespace ejk::cuda {
namespace {

using namespace abi;  // NOLINT: the driver's names

int element_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::i64:
      return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case DType::i32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::u32:
      return CU_TENSOR_MAP_DATA_TYPE_UINT32;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;  // every dtype of one byte
  }
}

int swizzle(int bytes) {
  switch (bytes) {
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

TensorMap make_tensor_map(const void* base, DType dtype, std::span<const uint64_t> sizes,
                          std::span<const uint64_t> strides, std::span<const uint32_t> box, int swizzle_bytes) {
  static constexpr uint32_t kSteps[5] = {1, 1, 1, 1, 1};
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  CUtensorMap encoded;
  const CUresult result = driver().tensor_map_encode_tiled.attempt(
      &encoded, element_type(dtype), static_cast<uint32_t>(sizes.size()), const_cast<void*>(base), sizes.data(),
      strides.data(), box.data(), kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle(swizzle_bytes),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Internal(
        fmt::format("make_tensor_map: the driver refuses {} at {} with sizes [{}], strides [{}] bytes, box "
                    "[{}], swizzle {} (code {})",
                    name(dtype), base, fmt::join(sizes, ", "), fmt::join(strides, ", "), fmt::join(box, ", "),
                    swizzle_bytes, result));
  TensorMap map;
  std::memcpy(&map, &encoded, sizeof(map));
  return map;
}

}  // namespace ejk::cuda
