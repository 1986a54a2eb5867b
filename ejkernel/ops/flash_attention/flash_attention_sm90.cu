// Forward attention on Hopper. One warpgroup loads tiles by TMA, the others compute: each owns 64 query rows and walks the
// keys from the last visible block to the first. While the matrix units work on the scores of the next block and on P V of
// this one, the warpgroup's other units work on the softmax between them:
//
//     S = Q K^T         of block n - 1, started first
//     O = O + P V       of block n, started behind it
//     P = exp2(S - m)   of block n - 1, when its S is there; O and the row sums follow the maximum m
//
// The scheme is FlashAttention-3's (arXiv:2407.08608); docs/kernels/flash_attention_sm90.md has the measurements behind
// every choice.
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/ops/flash_attention/flash_attention_schedule.cuh"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/mbarrier.cuh"
#include "ejkernel/platform/cuda/device/tma.cuh"
#include "ejkernel/platform/cuda/device/warp.cuh"
#include "ejkernel/platform/cuda/device/wgmma.cuh"

namespace ejk {

using namespace cuda;

/// What the host half passes (FlashForwardArguments in flash_attention_cuda.cpp, field by field).
struct FlashForwardArguments {
  TensorMap query, key, value;  // [64, rows, head_dim / 64, heads, batch]
  char* out;
  float* lse;
  int64 out_row, out_head, out_batch;  // strides in bytes
  int64 lse_row, lse_head, lse_batch;  // strides in elements
  FlashSchedule schedule;
  int queries_per_kv_head;
  float scale_log2;  // softmax_scale * log2(e): exponents are powers of two
};

constexpr float kNegativeInfinity = __builtin_bit_cast(float, 0xff800000u);
constexpr float kLn2 = 0.693147180559945309f;

/// Sizes that follow from the template arguments, and where everything lies in shared memory.
template <FlashForwardVariant kVariant, FlashForwardConfig kConfig>
struct FlashForwardShape {
  static constexpr int kDim = kVariant.head_dim, kKeys = kConfig.block_k, kConsumers = kConfig.consumers;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kThreads = kWarpgroupSize * (kConsumers + 1);

  static constexpr int kQueryBytes = kRows * kDim * 2, kBlockBytes = kKeys * kDim * 2;  // of one stage
  static constexpr int kStages = 2;
  static constexpr int kMaxSharedBytes = 232448;
  static constexpr int kBarrierBytes = 128;
  // A second query tile lets the next tile's first product start at once; where it does not fit, it has to wait.
  static constexpr int kQueryStages = 2 * kQueryBytes + 2 * kStages * kBlockBytes + kBarrierBytes <= kMaxSharedBytes ? 2 : 1;
  static constexpr int kKeyOffset = kQueryStages * kQueryBytes, kValueOffset = kKeyOffset + kStages * kBlockBytes;
  static constexpr int kBarrierOffset = kValueOffset + kStages * kBlockBytes;
  static constexpr int kSharedBytes = kBarrierOffset + kBarrierBytes;

  // The loading warpgroup gives its registers to the others; together they have 65,536.
  static constexpr int kLoaderRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : kConsumers == 3 ? 160 : 112;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kLoaderRegisters + kConsumers * kConsumerRegisters <= (kConsumers + 1) * kLaunchRegisters,
                "asking for more registers than there are waits forever");
  static_assert(kSharedBytes <= kMaxSharedBytes);
};

template <class Shape>
struct FlashForwardBarriers {
  Mbarrier query_full[Shape::kQueryStages], query_empty[Shape::kQueryStages];
  Mbarrier key_full[Shape::kStages], key_empty[Shape::kStages];
  Mbarrier value_full[Shape::kStages], value_empty[Shape::kStages];

  EJK_DEVICE void init() {
    for (int i = 0; i < Shape::kQueryStages; ++i) query_full[i].init(1), query_empty[i].init(4 * Shape::kConsumers);
    for (int i = 0; i < Shape::kStages; ++i) {
      key_full[i].init(1), key_empty[i].init(4 * Shape::kConsumers);
      value_full[i].init(1), value_empty[i].init(4 * Shape::kConsumers);
    }
    fence_barrier_init();
  }
};

/// Every role walks the block's tiles in the same order: `body(tile, blocks)` for those that see a key.
template <FlashForwardVariant kVariant, class Shape>
struct FlashForwardTiles {
  const FlashSchedule& schedule;
  int round = 0;

  EJK_DEVICE bool next(FlashTile& tile, int& blocks) {
    const int index = snake(round++, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    if (index >= schedule.num_tiles<Shape::kRows>()) return false;
    tile = schedule.tile<Shape::kRows, kVariant.causal>(index);
    blocks = schedule.num_blocks<Shape::kRows, Shape::kKeys, kVariant.causal>(tile.first_row);
    return true;
  }
};

// ---- loading ----

template <FlashForwardVariant kVariant, class Shape>
EJK_DEVICE void load_tiles(const FlashForwardArguments& args, char* memory, FlashForwardBarriers<Shape>& barriers) {
  RingPosition<Shape::kQueryStages> q;
  RingPosition<Shape::kStages> k, v;
  const auto load_query = [&](const FlashTile& tile) {
    barriers.query_empty[q.stage].wait(q.parity ^ 1);
    barriers.query_full[q.stage].arrive_expecting(Shape::kQueryBytes);
    load_tile(memory + q.stage * Shape::kQueryBytes, args.query, barriers.query_full[q.stage], 0, tile.first_row, 0,
              tile.head, tile.batch);
    q.advance();
  };
  const auto load_key = [&](const FlashTile& tile, int block) {
    barriers.key_empty[k.stage].wait(k.parity ^ 1);
    barriers.key_full[k.stage].arrive_expecting(Shape::kBlockBytes);
    load_tile(memory + Shape::kKeyOffset + k.stage * Shape::kBlockBytes, args.key, barriers.key_full[k.stage], 0,
              block * Shape::kKeys, 0, tile.head / args.queries_per_kv_head, tile.batch);
    k.advance();
  };
  const auto load_value = [&](const FlashTile& tile, int block) {
    barriers.value_empty[v.stage].wait(v.parity ^ 1);
    barriers.value_full[v.stage].arrive_expecting(Shape::kBlockBytes);
    load_tile(memory + Shape::kValueOffset + v.stage * Shape::kBlockBytes, args.value, barriers.value_full[v.stage], 0,
              block * Shape::kKeys, 0, tile.head / args.queries_per_kv_head, tile.batch);
    v.advance();
  };

  // Values lag one block behind keys, also across tiles: the next tile's first product waits for nothing.
  FlashForwardTiles<kVariant, Shape> tiles{args.schedule};
  FlashTile tile, previous;
  int blocks;
  bool owes_value = false;
  while (tiles.next(tile, blocks)) {
    if (blocks == 0) continue;
    load_key(tile, blocks - 1);
    load_query(tile);
    if (owes_value) load_value(previous, 0);
    for (int n = blocks - 2; n >= 0; --n) {
      load_key(tile, n);
      load_value(tile, n + 1);
    }
    previous = tile;
    owes_value = true;
  }
  if (owes_value) load_value(previous, 0);
}

// ---- computing ----

template <FlashForwardVariant kVariant, FlashForwardConfig kConfig>
struct FlashForwardConsumer {
  using Shape = FlashForwardShape<kVariant, kConfig>;
  static constexpr int kScores = Shape::kKeys / 2, kOutputs = Shape::kDim / 2;  // accumulators of one thread

  const FlashForwardArguments& args;
  char* memory;
  FlashForwardBarriers<Shape>& barriers;
  int consumer;  ///< of the block's

  RingPosition<Shape::kQueryStages> q = {};
  RingPosition<Shape::kStages> k = {}, v = {};
  Operand queries = {};  ///< of this consumer, in the current stage
  Operand first_keys = k_major_operand(memory + Shape::kKeyOffset);
  Operand first_values = n_major_operand(memory + Shape::kValueOffset, Shape::kKeys * 128);

  float scores[kScores];
  uint32 weights[kScores / 2];  ///< P, packed: the left operand of P V
  float outputs[kOutputs];
  // Of the thread's two rows. Exponents are taken as scores * scale_log2 - shift; a row that has seen nothing keeps shift 0.
  float maximum[2], shift[2], sum[2];

  EJK_DEVICE void release(Mbarrier& barrier) const {
    if (lane_index() == 0) barrier.arrive();
  }

  /// S = Q K^T, started.
  EJK_DEVICE void start_scores() {
    const Operand keys = first_keys + k.stage * Shape::kBlockBytes;
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kDim / 16; ++step) {
      const int tile = step / 4, column = step % 4 * 32;
      multiply_add<kVariant.type>(scores, queries + (tile * Shape::kRows * 128 + column),
                                  keys + (tile * Shape::kKeys * 128 + column), step > 0);
    }
    commit_products();
  }

  /// O = O + P V, started.
  EJK_DEVICE void start_outputs(bool keep) {
    const Operand values = first_values + v.stage * Shape::kBlockBytes;
    begin_products();
#pragma unroll
    for (int step = 0; step < Shape::kKeys / 16; ++step)
      multiply_add<kVariant.type, Major::n>(outputs, weights + 4 * step, values + step * 2048, keep || step > 0);
    commit_products();
  }

  /// Scores of keys that a row does not see become -inf.
  EJK_DEVICE void mask(int block, int row) {
    const int first_key = block * Shape::kKeys + lane_index() % 4 * 2;
    const int visible[2] = {args.schedule.num_keys<kVariant.causal>(row) - first_key,
                            args.schedule.num_keys<kVariant.causal>(row + 8) - first_key};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (i / 4 * 8 + i % 2 >= visible[i / 2 % 2]) scores[i] = kNegativeInfinity;
  }

  EJK_DEVICE void row_maximum(float (&m)[2]) const {
    m[0] = m[1] = kNegativeInfinity;
#pragma unroll
    for (int i = 0; i < kScores; ++i) m[i / 2 % 2] = fmaxf(m[i / 2 % 2], scores[i]);
    m[0] = quad_max(m[0]);
    m[1] = quad_max(m[1]);
  }

  EJK_DEVICE void set_maximum(int r, float m) {
    maximum[r] = m;
    shift[r] = m == kNegativeInfinity ? 0 : m * args.scale_log2;
  }

  /// P = exp2(S - m), and its part of the row sums.
  EJK_DEVICE void exponentiate() {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = exp2_approximate(__fmaf_rn(scores[i], args.scale_log2, -shift[i / 2 % 2]));
      sum[i / 2 % 2] += scores[i];
    }
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) weights[i] = pack<kVariant.type>(scores[2 * i], scores[2 * i + 1]);
  }

  /// One block further: scores of block n, outputs of the block before it.
  template <bool kMasked>
  EJK_DEVICE void step(int n, int row, bool keep) {
    barriers.key_full[k.stage].wait(k.parity);
    if constexpr (kConfig.ping_pong) sync_barrier(1 + consumer, 2 * kWarpgroupSize);
    start_scores();
    barriers.value_full[v.stage].wait(v.parity);
    start_outputs(keep);
    if constexpr (kConfig.ping_pong) arrive_barrier(2 - consumer, 2 * kWarpgroupSize);

    wait_products<1>();
    pin(scores);
    release(barriers.key_empty[k.stage]);
    k.advance();
    if constexpr (kMasked) mask(n, row);
    float m[2];
    row_maximum(m);
    const float behind = fmaxf(m[0] - maximum[0], m[1] - maximum[1]) * args.scale_log2;
    const bool rescale = !kConfig.lazy_rescale || __any_sync(0xffffffffu, behind > 8.f);

    wait_products<0>();
    pin(outputs);
    release(barriers.value_empty[v.stage]);
    v.advance();
    if (rescale) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float old = maximum[r] * args.scale_log2;
        set_maximum(r, fmaxf(maximum[r], m[r]));
        const float factor = exp2_approximate(old - shift[r]);
        sum[r] *= factor;
#pragma unroll
        for (int i = 0; i < kOutputs / 2; ++i) outputs[i / 2 * 4 + r * 2 + i % 2] *= factor;
      }
    }
    exponentiate();
  }

  EJK_DEVICE void compute(const FlashTile& tile, int blocks) {
    const int first_row = tile.first_row + 64 * consumer;
    const int row = first_row + thread_in_warpgroup() / 32 * 16 + lane_index() / 4;
    const int whole_blocks = args.schedule.num_whole_blocks<Shape::kKeys, kVariant.causal>(first_row);

    queries = k_major_operand(memory) + (q.stage * Shape::kQueryBytes + consumer * 64 * 128);
    barriers.query_full[q.stage].wait(q.parity);
    barriers.key_full[k.stage].wait(k.parity);
    start_scores();
    wait_products<0>();
    pin(scores);
    release(barriers.key_empty[k.stage]);
    k.advance();
    int n = blocks - 1;
    if (n >= whole_blocks) mask(n, row);
    float m[2];
    row_maximum(m);
    set_maximum(0, m[0]);
    set_maximum(1, m[1]);
    sum[0] = sum[1] = 0;
    exponentiate();

    --n;
    bool keep = false;
    if constexpr (kVariant.causal)
      for (; n >= whole_blocks; --n, keep = true) step<true>(n, row, keep);
    for (; n >= 0; --n, keep = true) step<false>(n, row, keep);
    release(barriers.query_empty[q.stage]);
    q.advance();

    barriers.value_full[v.stage].wait(v.parity);
    start_outputs(keep);
    wait_products<0>();
    pin(outputs);
    release(barriers.value_empty[v.stage]);
    v.advance();
    finish(tile, row);
  }

  EJK_DEVICE void finish(const FlashTile& tile, int row) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      const float factor = sum[r] == 0 ? 0 : 1 / sum[r];
      char* to = args.out + tile.batch * args.out_batch + tile.head * args.out_head + (row + 8 * r) * args.out_row;
#pragma unroll
      for (int group = 0; group < Shape::kDim / 32; ++group) {  // 64 bytes of the row: 16 for each lane of the quad
        uint32 words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int i = group * 16 + j * 4 + r * 2;
          words[j] = pack<kVariant.type>(outputs[i] * factor, outputs[i + 1] * factor);
        }
        quad_transpose(words);
        if (row + 8 * r < args.schedule.q_len)
          *reinterpret_cast<uint4*>(to + group * 64 + lane_index() % 4 * 16) = make_uint4(words[0], words[1], words[2], words[3]);
      }
      if (kVariant.lse && lane_index() % 4 == 0 && row + 8 * r < args.schedule.q_len)
        args.lse[tile.batch * args.lse_batch + tile.head * args.lse_head + (row + 8 * r) * args.lse_row] =
            sum[r] == 0 ? kNegativeInfinity : (shift[r] + log2_approximate(sum[r])) * kLn2;
    }
  }

  EJK_DEVICE void run() {
    if (kConfig.ping_pong && consumer == 0) arrive_barrier(1, 2 * kWarpgroupSize);
    FlashForwardTiles<kVariant, Shape> tiles{args.schedule};
    FlashTile tile;
    int blocks;
    while (tiles.next(tile, blocks)) {
      if (blocks > 0) {
        compute(tile, blocks);
      } else {
        const int row = tile.first_row + 64 * consumer + thread_in_warpgroup() / 32 * 16 + lane_index() / 4;
        for (float& x : outputs) x = 0;
        sum[0] = sum[1] = 0;
        finish(tile, row);
      }
    }
  }
};

template <FlashForwardVariant kVariant, FlashForwardConfig kConfig>
__global__ void __launch_bounds__(FlashForwardShape<kVariant, kConfig>::kThreads, 1)
    flash_attention_forward(const __grid_constant__ FlashForwardArguments args) {
  using Shape = FlashForwardShape<kVariant, kConfig>;
  extern __shared__ __align__(1024) char memory[];
  auto& barriers = *reinterpret_cast<FlashForwardBarriers<Shape>*>(memory + Shape::kBarrierOffset);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  const int role = warpgroup_index();
  if (role == 0) {
    give_registers<Shape::kLoaderRegisters>();
    if (threadIdx.x == 0) load_tiles<kVariant, Shape>(args, memory, barriers);
  } else {
    take_registers<Shape::kConsumerRegisters>();
    FlashForwardConsumer<kVariant, kConfig>{args, memory, barriers, role - 1}.run();
  }
}

}  // namespace ejk
