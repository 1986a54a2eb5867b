// Products of a warpgroup and nothing else: the rate that "% of peak" refers to, for 16-bit numbers on Hopper.
#include "ejkernel/platform/cuda/device/half_type.cuh"
#include "ejkernel/platform/cuda/device/target.cuh"
#include "ejkernel/platform/cuda/device/tma.cuh"
#include "ejkernel/platform/cuda/device/wgmma.cuh"

namespace ejk {

using namespace cuda;

/// Each of two warpgroups multiplies [64, 64] by [64, 256] a round, numbers of both signs from
/// shared memory: zeros would take less power, and the clock would tell.
__global__ void __launch_bounds__(256, 1) peak_bfloat16(float* sink, int rounds) {
  constexpr int kTileA = 64 * 128, kTileB = 256 * 128;  // bytes
  extern __shared__ __align__(1024) char memory[];
  auto* words = reinterpret_cast<uint32*>(memory);
  uint32 bits = 2654435761u * (threadIdx.x + 1);
  for (int i = static_cast<int>(threadIdx.x); i < (2 * kTileA + kTileB) / 4; i += 256) {
    bits = bits * 1664525u + 1013904223u;
    words[i] = 0x3f803f80u | (bits & 0x807f807fu);  // ±1 to ±2
  }
  __syncthreads();
  fence_shared_writes();
  const Operand a = k_major_operand(memory + threadIdx.x / 128 * kTileA), b = k_major_operand(memory + 2 * kTileA);
  float d[128] = {};
  for (int round = 0; round < rounds; ++round) {
    begin_products();
    multiply_add<HalfType::bf16>(d, a, b, true);
    commit_products();
    wait_products<0>();
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  if (sum == -1.0f) *sink = sum;
}

}  // namespace ejk
