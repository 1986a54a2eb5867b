// The decays of lightning_attention's heads, of kernels on the host and on a GPU.
#pragma once

#include "ejkernel/platform/cuda/device/tensor.cuh"

namespace ejk::cuda {

inline constexpr int kLightningDecaysThreads = 128;

struct LightningDecays {
  TensorRef to;  ///< [head]
  int64 num_heads = 0;
  double slope = 0;  ///< of the heads' logarithms
};

/// Heads `first`, `first + stride`, ….
EJK_DEVICE void store_decays(const LightningDecays& decays, int64 first, int64 stride) {
  for (int64 h = first; h < decays.num_heads; h += stride)
    decays.to.set(0, 0, 0, h, decays.slope * static_cast<double>(h));
}

}  // namespace ejk::cuda
