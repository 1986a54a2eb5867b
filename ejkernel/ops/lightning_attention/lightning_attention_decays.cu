// See lightning_attention_decays.cuh. One block.
#include "ejkernel/ops/lightning_attention/lightning_attention_decays.cuh"

namespace ejk::cuda {

__global__ void __launch_bounds__(kLightningDecaysThreads)
    lightning_attention_decays(const __grid_constant__ LightningDecays decays) {
  store_decays(decays, threadIdx.x, blockDim.x);
}

}  // namespace ejk::cuda
