// Multiply-adds and nothing else: the rate that "% of peak" refers to, for float32 and float64.
namespace ejk {

/// Each thread does 16 multiply-adds a round, independent of each other. `sink` keeps them from being left out.
template <class T>
__global__ void __launch_bounds__(256) peak_multiply_add(T* sink, int rounds) {
  T x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = T(1) + T(0.01) * static_cast<T>(static_cast<int>(threadIdx.x) + i);
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = x[i] * T(0.999) + T(0.5);
  }
  T sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += x[i];
  if (sum == T(-1)) *sink = sum;
}

}  // namespace ejk
