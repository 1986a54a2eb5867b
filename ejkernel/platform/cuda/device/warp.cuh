// Warps, warpgroups and what they say to each other.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

EJK_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) % kWarpSize; }
/// The same number in every thread of the warpgroup, and the compiler knows it.
EJK_DEVICE int warpgroup_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroupSize, 0); }
EJK_DEVICE int thread_in_warpgroup() { return static_cast<int>(threadIdx.x) % kWarpgroupSize; }

/// A hardware barrier that some of the block's threads share: the last of `threads` to come lets all go on. Barrier 0
/// is __syncthreads's.
EJK_DEVICE void sync_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Registers per thread of the calling warpgroup, a multiple of 8. Asking for more waits until others have given
/// theirs.
template <int kRegisters>
EJK_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
EJK_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Over the four lanes that share a row of a matrix accumulator.
EJK_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
EJK_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// Transposes the quad's 4x4 words: lane t gives words of columns 0..3 and receives column t of lanes 0..3.
EJK_DEVICE void quad_transpose(uint32 (&w)[4]) {
  const int t = lane_index() % 4;
  const bool odd = t & 1, high = t & 2;
  // Two rounds of exchanging halves: with the neighbour, then with the lane two away.
  const uint32 give_01 = odd ? w[0] : w[1], give_23 = odd ? w[2] : w[3];
  const uint32 got_01 = __shfl_xor_sync(0xffffffffu, give_01, 1), got_23 = __shfl_xor_sync(0xffffffffu, give_23, 1);
  const uint32 a0 = odd ? got_01 : w[0], a1 = odd ? w[1] : got_01;
  const uint32 a2 = odd ? got_23 : w[2], a3 = odd ? w[3] : got_23;
  const uint32 give_0 = high ? a0 : a2, give_1 = high ? a1 : a3;
  const uint32 got_0 = __shfl_xor_sync(0xffffffffu, give_0, 2), got_1 = __shfl_xor_sync(0xffffffffu, give_1, 2);
  w[0] = high ? got_0 : a0;
  w[1] = high ? got_1 : a1;
  w[2] = high ? a2 : got_0;
  w[3] = high ? a3 : got_1;
}

}  // namespace ejk::cuda
