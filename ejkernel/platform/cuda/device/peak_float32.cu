// Multiply-adds and nothing else: the rate that "% of peak" refers to, for float32.
namespace ejk {

/// float32: each thread does 16 multiply-adds a round, independent of each other. `sink` keeps them from being left
/// out.
__global__ void __launch_bounds__(256) peak_float32(float* sink, int rounds) {
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = 1.0f + 0.01f * static_cast<float>(static_cast<int>(threadIdx.x) + i);
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = x[i] * 0.999f + 0.5f;
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += x[i];
  if (sum == -1.0f) *sink = sum;
}

}  // namespace ejk
