// What a tensor map is to host and device: 128 bytes that the driver encodes (platform/cuda/tensor_map.h) and the copy
// engine reads. It travels inside a __grid_constant__ kernel parameter.
#pragma once

namespace ejk::cuda {

struct alignas(64) TensorMap {
  char bytes[128];
};

}  // namespace ejk::cuda
