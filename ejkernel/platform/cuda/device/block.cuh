// The threads of a block, as formulas that also run on the host know them: a `Block` says which thread this is, waits
// for the others, and sums over a warp. On the host a test brings threads of its own.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

#ifdef __CUDACC_RTC__
struct ThreadBlock {
  EJK_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  EJK_DEVICE int threads() const { return static_cast<int>(blockDim.x); }
  EJK_DEVICE int lane() const { return thread() % 32; }
  EJK_DEVICE int lanes() const { return 32; }
  EJK_DEVICE int warp() const { return thread() / 32; }
  EJK_DEVICE int warps() const { return threads() / 32; }
  EJK_DEVICE void sync() const { __syncthreads(); }
  /// The same bits in every lane.
  EJK_DEVICE double warp_sum(double x) const {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  }
};
#endif

/// What all threads' values merge to, in every thread, always in the same order. `memory` holds one value per thread.
template <class Block, class T, class Merge>
EJK_DEVICE T reduce(const Block& block, T* memory, T mine, Merge merge) {
  const int thread = block.thread();
  memory[thread] = mine;
  block.sync();
  for (int count = block.threads(); count > 1;) {
    const int half = (count + 1) / 2;
    if (thread + half < count) memory[thread] = merge(memory[thread], memory[thread + half]);
    block.sync();
    count = half;
  }
  const T all = memory[0];
  block.sync();  // the memory may be used again
  return all;
}

/// The sum of the values of all threads before this one. `memory` holds one value per thread.
template <class Block, class T>
EJK_DEVICE T sum_before(const Block& block, T* memory, T mine) {
  const int thread = block.thread();
  memory[thread] = mine;
  block.sync();
  for (int step = 1; step < block.threads(); step *= 2) {
    const T from_left = thread >= step ? memory[thread - step] : T{0};
    block.sync();
    memory[thread] += from_left;
    block.sync();
  }
  const T before = memory[thread] - mine;
  block.sync();  // the memory may be used again
  return before;
}

}  // namespace ejk::cuda
