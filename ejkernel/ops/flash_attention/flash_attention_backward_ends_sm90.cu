// What surrounds the backward of attention on Hopper (flash_attention_backward_sm90.cu): statistics of rows before it,
// and after it the sums that were kept in float32 to their own dtype.
#include "ejkernel/ops/flash_attention/flash_attention_arguments.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/store_rows.cuh"

namespace ejk {

using namespace cuda;

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

/// kDim / 8 lanes share a row. Rows past the last one get an lse that makes every weight 0.
template <HalfType kType, int kDim>
__global__ void __launch_bounds__(256) flash_attention_backward_prepare(const FlashBackwardPrepareArguments args) {
  constexpr int kLanes = kDim / 8;
  const int row = static_cast<int>(blockIdx.x) * (256 / kLanes) + static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const bool inside = row < args.q_len - args.first_row;
  float delta = 0;
  if (inside) {
    const int64 at = row + args.first_row;
    const uint4 o = *reinterpret_cast<const uint4*>(args.out + batch * args.out_batch + head * args.out_head +
                                                    at * args.out_row + lane * 16);
    const uint4 d = *reinterpret_cast<const uint4*>(args.d_out + batch * args.d_out_batch + head * args.d_out_head +
                                                    at * args.d_out_row + lane * 16);
    delta = dot<kType>(o.x, d.x) + dot<kType>(o.y, d.y) + dot<kType>(o.z, d.z) + dot<kType>(o.w, d.w);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, step);
  if (row >= args.padded_rows) return;

  const int64 index = (static_cast<int64>(batch) * args.num_heads + head) * args.padded_rows + row;
  auto* sums = reinterpret_cast<float4*>(args.d_query + index * kDim) + lane * 2;
  sums[0] = sums[1] = make_float4(0, 0, 0, 0);
  if (lane != 0) return;
  float lse = kInfinity;
  if (inside) {
    const int64 at = row + args.first_row;
    const float natural = args.lse[batch * args.lse_batch + head * args.lse_head + at * args.lse_row];
    // A row without a visible key has weights 0 as well.
    constexpr float kLog2e = 1.44269504088896341f;
    lse = natural == -kInfinity ? kInfinity : natural * kLog2e;
    if (args.d_lse != nullptr)
      delta -= args.d_lse[batch * args.d_lse_batch + head * args.d_lse_head + at * args.d_lse_row];
    if (natural == -kInfinity) delta = 0;
  }
  args.lse_log2[index] = lse;
  args.delta[index] = delta;
  if (row % 64 < 2) args.turns[index / 64 * 2 + row % 64] = 0;
}

/// A block of 128 threads adds up and rounds a part: the sums of 64 rows and kColumns columns, as one consumer's
/// accumulators held them, of each of `terms`. Blocks after those write zeros into the rows before `first_row`.
template <HalfType kType, int kDim, int kColumns>
__global__ void __launch_bounds__(128) flash_attention_backward_finish(const FlashBackwardFinishArguments args) {
  constexpr int kParts = kDim / kColumns;  // of 64 rows
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int part = static_cast<int>(blockIdx.x), parts = args.padded_rows / 64 * kParts;
  const int thread = static_cast<int>(threadIdx.x);
  char* to = args.to + batch * args.batch + head * args.head;
  if (part >= parts) {
    const int row = (part - parts) * 128 + thread;
    if (row < args.first_row)
      for (int i = 0; i < kDim; ++i) reinterpret_cast<unsigned short*>(to + row * args.row)[i] = 0;
    return;
  }
  const float* sums = args.sums + (static_cast<int64>(batch) * args.num_heads + head) * args.padded_rows * kDim +
                      static_cast<int64>(part) * (64 * kColumns);
  float d[kColumns / 2];
#pragma unroll
  for (float& x : d) x = 0;
  for (int term = 0; term < args.terms; ++term, sums += args.term_stride) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const float4 x = reinterpret_cast<const float4*>(sums)[i * 128 + thread];
      d[4 * i] += x.x, d[4 * i + 1] += x.y, d[4 * i + 2] += x.z, d[4 * i + 3] += x.w;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = args.first_row + part / kParts * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    store_row<kType>(d, r, args.scale, to + row * args.row + part % kParts * kColumns * 2, kColumns,
                     row < args.num_rows, args.is_aligned);
  }
}

}  // namespace ejk
