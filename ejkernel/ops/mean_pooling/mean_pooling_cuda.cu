// mean_pooling and its gradient at the speed of memory. See mean_pooling_tiles.cuh.
#include "ejkernel/ops/mean_pooling/mean_pooling_tiles.cuh"

namespace ejk::cuda {

template <MeanPoolingTile kTile>
inline constexpr int kTileThreads = kTile.vectors* kTile.rows;

/// For Blackwell NVRTC 13.5 needs a few registers more than three blocks leave a thread, and would spill.
template <Number kNumber, MeanPoolingTile kTile>
__global__ void __launch_bounds__(kPoolingThreads, __CUDA_ARCH__ < 1000 ? kPoolingBlocksPerUnit : 2)
    mean_pooling(const __grid_constant__ PoolingProblem p, const __grid_constant__ PoolingLaunch launch) {
  using Tiles = PoolingTiles<kNumber, kTile, ThreadBlock>;
  __shared__ typename Tiles::Shared shared;
  Tiles(p, launch, ThreadBlock(), shared).pool(blockIdx.x);
}

/// The second launch, when groups were cut into slices.
template <Number kNumber>
__global__ void mean_pooling_combine(const __grid_constant__ PoolingProblem p,
                                     const __grid_constant__ PoolingLaunch launch) {
  __shared__ double sums[kPoolingThreads];
  combine_slices<kNumber>(p, launch, blockIdx.x, ThreadBlock(), sums);
}

template <Number kNumber, MeanPoolingTile kTile>
__global__ void __launch_bounds__(kPoolingThreads, 2)
    mean_pooling_backward(const __grid_constant__ PoolingProblem p, const __grid_constant__ PoolingLaunch launch) {
  using Tiles = PoolingTiles<kNumber, kTile, ThreadBlock>;
  __shared__ typename Tiles::Shared shared;
  Tiles(p, launch, ThreadBlock(), shared).spread(blockIdx.x);
}

}  // namespace ejk::cuda
