// What compute-sanitizer's racecheck makes of a ring that is filled by bulk copies and read by two warps, in the form
// of PTX's documentation. It is the proof behind the suppression in tools/table/rows_gpu.cpp:
//
//   nvcc -arch=sm_90a -o ring tools/gpu/racecheck_ring.cu
//   compute-sanitizer --tool racecheck ./ring every    every reader arrives at the stage's barrier: no hazard
//   compute-sanitizer --tool racecheck ./ring elected  __syncwarp(), then one lane of each warp arrives: races
//
// Both are ordered: bar.warp.sync orders what the lanes did before it, and the arrival releases it. Each report counts
// 3,968 hazards, 31 parts of 32 of 4,096: the lanes that do not arrive themselves. The tool does not follow
// __syncwarp() to the arrival.
#include <cstdint>
#include <cstdio>
#include <cstring>

__device__ uint32_t address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

struct Barrier {
  uint64_t state;
  __device__ void init(int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(this)), "r"(count));
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::
            "r"(address(this)),
        "r"(parity)
        : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(this)) : "memory"); }
};

constexpr int kStages = 2, kBlocks = 64, kReaders = 64;

__global__ void ring(const float* in, float* out, bool elected) {
  __shared__ alignas(128) float data[kStages][kReaders];
  __shared__ Barrier full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) full[s].init(1), empty[s].init(elected ? kReaders / 32 : kReaders);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  float sum = 0;
  for (int b = 0; b < kBlocks; ++b) {
    const int s = b % kStages, parity = b / kStages % 2;
    if (threadIdx.x < kReaders) {
      full[s].wait(parity);
      sum += data[s][threadIdx.x];
      if (elected) __syncwarp();
      if (!elected || threadIdx.x % 32 == 0) empty[s].arrive();
    } else if (threadIdx.x == kReaders) {
      empty[s].wait(parity ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[s])), "n"(kReaders * 4)
                   : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       address(data[s])),
                   "l"(in + kReaders * b), "n"(kReaders * 4), "r"(address(&full[s]))
                   : "memory");
    }
  }
  if (threadIdx.x < kReaders) out[threadIdx.x] = sum;
}

int main(int argc, char** argv) {
  const bool elected = argc > 1 && std::strcmp(argv[1], "elected") == 0;
  float *in, *out;
  cudaMallocManaged(&in, kBlocks * kReaders * sizeof(float));
  cudaMallocManaged(&out, kReaders * sizeof(float));
  for (int i = 0; i < kBlocks * kReaders; ++i) in[i] = 1;
  ring<<<1, kReaders + 32>>>(in, out, elected);
  const cudaError_t status = cudaDeviceSynchronize();
  std::printf("%s, sum %g\n", cudaGetErrorString(status), out[0]);
  return status == cudaSuccess && out[0] == kBlocks ? 0 : 1;
}
