// Backward of attention on Hopper. A block holds 128 keys and values, 64 in each of its two consumers, and walks the
// queries; everything that depends on scores is computed transposed, keys down and queries across:
//
//     S^T  = K Q^T         P^T  = exp2(S^T - lse), from the forward's lse
//     dP^T = V dO^T        dS^T = P^T * (dP^T - delta)
//     dV  += P^T dO        dK  += dS^T Q
//     dQ   = dS K
//
// P^T and dS^T lie in the registers as the left operands of dV and dK. For dQ, dS goes through shared memory; the parts
// of dQ are summed over the blocks of keys, in their order, by the copy engine: two warps of the loading warpgroup see
// to that.
//
// Three launches: row statistics, this, and the sums of dQ to their dtype. Algorithm 2 of FlashAttention-2
// (arXiv:2307.08691) in the shape of FlashAttention-3's kernel; docs/kernels/flash_attention_backward_sm90.md has the
// measurements behind every choice.
#include "ejkernel/ops/flash_attention/flash_attention_arguments.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/mbarrier.cuh"
#include "ejkernel/platform/cuda/device/store_rows.cuh"
#include "ejkernel/platform/cuda/device/tma.cuh"
#include "ejkernel/platform/cuda/device/warp.cuh"
#include "ejkernel/platform/cuda/device/wgmma.cuh"

namespace ejk {

using namespace cuda;

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

template <FlashBackwardShape kShape>
struct FlashBackwardBarriers {
  Mbarrier keys_full;
  Mbarrier query_full[kShape.stages], query_empty[kShape.stages];  // with lse
  Mbarrier d_out_full[kShape.stages], d_out_empty[kShape.stages];  // with delta
  Mbarrier d_query_full[2], d_query_empty[2];                      // of each consumer

  EJK_DEVICE void init() {
    keys_full.init(1);
    for (int i = 0; i < kShape.stages; ++i) {
      query_full[i].init(1), query_empty[i].init(8);
      d_out_full[i].init(1), d_out_empty[i].init(8);
    }
    for (int i = 0; i < 2; ++i) d_query_full[i].init(4), d_query_empty[i].init(1);
    fence_barrier_init();
  }
};

/// What one block computes: a block of keys, and which blocks of queries see some of them.
template <FlashBackwardVariant kVariant, FlashBackwardShape kShape>
struct FlashBackwardTile {
  int batch, kv_head, first_key;
  int tile;        ///< of keys
  int begin, end;  ///< blocks of queries, walked from the last to the first

  EJK_DEVICE explicit FlashBackwardTile(const FlashBackwardArguments& args) {
    const int tiles = ceil_div(args.num_keys, kShape.keys), heads = args.batch * args.num_kv_heads;
    const int index = static_cast<int>(blockIdx.x);
    int head;
    if constexpr (kVariant.causal) {  // the longest first, a section of heads after the other
      const int section = index / (args.heads_per_section * tiles), first_head = section * args.heads_per_section;
      const int heads_here = min(args.heads_per_section, heads - first_head), within = index - first_head * tiles;
      head = first_head + within % heads_here;
      tile = within / heads_here;
    } else {
      head = index / tiles;
      tile = index % tiles;
    }
    batch = head / args.num_kv_heads;
    kv_head = head % args.num_kv_heads;
    first_key = tile * kShape.keys;
    end = first_key < args.kv_len ? ceil_div(args.q_len, kShape.rows) : 0;
    begin = kVariant.causal ? max(0, first_key - args.diagonal) / kShape.rows : 0;
  }
  /// Whether some row of a block of queries misses some key.
  EJK_DEVICE bool masked(const FlashBackwardArguments& args, int block) const {
    const int last_key = first_key + kShape.keys - 1;
    return last_key >= args.kv_len || (kVariant.causal && last_key > block * kShape.rows + args.diagonal);
  }
};

// ---- loading ----

template <FlashBackwardVariant kVariant, FlashBackwardShape kShape>
EJK_DEVICE void load_blocks(const FlashBackwardArguments& args, char* memory, FlashBackwardBarriers<kShape>& barriers) {
  const FlashBackwardTile<kVariant, kShape> tile(args);
  if (tile.begin >= tile.end) return;
  barriers.keys_full.arrive_expecting(2 * kShape.key_bytes);
  load_tile(memory, args.key, barriers.keys_full, 0, tile.first_key, 0, tile.kv_head, tile.batch);
  load_tile(memory + kShape.value_offset, args.value, barriers.keys_full, 0, tile.first_key, 0, tile.kv_head,
            tile.batch);

  RingPosition<kShape.stages> at;
  for (int member = 0; member < args.queries_per_kv_head; ++member) {
    const int head = tile.kv_head * args.queries_per_kv_head + member;
    const int64 statistics =
        (static_cast<int64>(tile.batch) * args.num_kv_heads * args.queries_per_kv_head + head) * args.padded_rows;
#pragma unroll 1
    for (int block = tile.end - 1; block >= tile.begin; --block) {
      const int row = block * kShape.rows;
      const auto load_rows = [&](const TensorMap& map, int offset, const float* values, int values_offset,
                                 Mbarrier& full, Mbarrier& empty) {
        empty.wait(at.parity ^ 1);
        full.arrive_expecting(kShape.row_bytes + kShape.statistics_bytes);
        load_tile(memory + offset + at.stage * kShape.row_bytes, map, full, 0, row, 0, head, tile.batch);
        load_bytes(memory + values_offset + at.stage * kShape.statistics_bytes, values, kShape.statistics_bytes, full);
      };
      load_rows(args.query, kShape.query_offset, args.lse_log2 + statistics + row, kShape.lse_offset,
                barriers.query_full[at.stage], barriers.query_empty[at.stage]);
      load_rows(args.d_out, kShape.d_out_offset, args.delta + statistics + row, kShape.delta_offset,
                barriers.d_out_full[at.stage], barriers.d_out_empty[at.stage]);
      at.advance();
    }
  }
}

// ---- adding dQ ----

/// Adds one consumer's parts of dQ to the sums in global memory. Each part is added to by the blocks of keys one after
/// the other, from the first: `turns` counts those that have. Blocks start in that order and all walk the queries from
/// the last, so that the one before is a step ahead and none waits for a block that has not started.
template <FlashBackwardVariant kVariant, FlashBackwardShape kShape>
EJK_DEVICE void add_d_query(const FlashBackwardArguments& args, const char* memory,
                            FlashBackwardBarriers<kShape>& barriers, int consumer) {
  constexpr int kPartBytes = kShape.d_query_bytes / 2;
  const FlashBackwardTile<kVariant, kShape> tile(args);
  RingPosition<1> at;
  for (int member = 0; member < args.queries_per_kv_head; ++member) {
    const int64 blocks =
        ((static_cast<int64>(tile.batch) * args.num_kv_heads + tile.kv_head) * args.queries_per_kv_head + member) *
        (args.padded_rows / kShape.rows);
#pragma unroll 1
    for (int block = tile.end - 1; block >= tile.begin; --block, at.advance()) {
      const int64 part = (blocks + block) * 2 + consumer;
      barriers.d_query_full[consumer].wait(at.parity);
      wait_for_turn(args.turns + part, tile.tile);
      add_floats(args.d_query + part * (kPartBytes / 4), memory + kShape.d_query_offset + consumer * kPartBytes,
                 kPartBytes);
      wait_groups();
      pass_turn(args.turns + part);
      barriers.d_query_empty[consumer].arrive();
    }
  }
}

// ---- computing ----

template <FlashBackwardVariant kVariant, FlashBackwardConfig kConfig>
struct FlashBackwardConsumer {
  static constexpr FlashBackwardShape kShape{kVariant, kConfig};
  static constexpr int kRows = kShape.rows, kDim = kShape.dim;
  // Accumulators of one thread: 64 keys x queries, 64 keys x dim, and 64 queries x half of dim.
  static constexpr int kScores = kRows / 2, kGradients = kDim / 2, kQueryGradients = kDim / 4;
  static constexpr int kPartBytes = 64 * kDim / 2 * 4;
  static constexpr int kKeyTileBytes = kShape.keys * 128, kRowTileBytes = kRows * 128;  // 64 columns
  static constexpr int kBothConsumers = 1;                                              // a named barrier

  const FlashBackwardArguments& args;
  char* memory;
  FlashBackwardBarriers<kShape>& barriers;
  int consumer;

  RingPosition<kShape.stages> at = {};
  RingPosition<1> d_query_at = {};
  int d_score_stage = 0;
  float d_key[kGradients], d_value[kGradients];
  float scores[kScores], d_scores[kScores];
  uint32 packed[kScores / 2];  ///< P^T, then dS^T: left operands
  float d_query[kQueryGradients];

  EJK_DEVICE void release(Mbarrier& barrier) const {
    if (lane_index() == 0) barrier.arrive();
  }
  EJK_DEVICE int warp_row() const { return thread_in_warpgroup() / 32 * 16; }

  /// A statistic of the thread's columns 8 j + 2 (lane % 4) + {0, 1}.
  EJK_DEVICE float2 statistic(int offset, int j) const {
    const char* values = memory + offset + at.stage * kShape.statistics_bytes;
    return *reinterpret_cast<const float2*>(values + (8 * j + lane_index() % 4 * 2) * 4);
  }

  /// S^T or dP^T of this consumer's keys or values, started.
  EJK_DEVICE void start_products_with_rows(float (&to)[kScores], int keys_offset, int rows_offset) {
    const Operand keys = k_major_operand(memory + keys_offset) + consumer * 64 * 128;
    const Operand rows = k_major_operand(memory + rows_offset) + at.stage * kShape.row_bytes;
    forget(to);
    begin_products();
#pragma unroll
    for (int tile = 0; tile < kDim / 64; ++tile)
      multiply_add<kVariant.type>(to, keys + tile * kKeyTileBytes, rows + tile * kRowTileBytes, tile > 0);
    commit_products();
  }

  /// dV or dK += packed (keys x queries) times the block's rows, started.
  EJK_DEVICE void start_gradient(float (&to)[kGradients], int rows_offset, bool keep) {
    const Operand rows = n_major_operand(memory + rows_offset, kRowTileBytes) + at.stage * kShape.row_bytes;
    begin_products();
    static_assert(kRows == 64);
    multiply_add<kVariant.type, Major::n>(to, packed, rows, keep);
    commit_products();
  }

  /// This consumer's half of dQ's columns, from the scores of both.
  EJK_DEVICE void start_d_query() {
    constexpr int kColumnBytes = kDim == 64 ? 64 : kKeyTileBytes;
    const Operand d_scores_t =
        n_major_operand(memory + kShape.d_score_offset, kKeyTileBytes) + d_score_stage * kShape.d_score_bytes;
    const Operand keys = n_major_operand(memory, kKeyTileBytes) + consumer * kColumnBytes;
    forget(d_query);
    begin_products();
#pragma unroll
    for (int four = 0; four < kShape.keys / 64; ++four)
      multiply_add<kVariant.type, Major::n, Major::n>(d_query, d_scores_t + four * 8192, keys + four * 8192, four > 0);
    commit_products();
  }

  /// Queries of the block that do not see a key get weight 0: their scores become -inf.
  EJK_DEVICE void mask(const FlashBackwardTile<kVariant, kShape>& tile, int block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = tile.first_key + 64 * consumer + warp_row() + lane_index() / 4 + 8 * r;
      // The first column that sees the key, counted from the thread's own.
      int first = kVariant.causal ? key - args.diagonal - block * kRows : 0;
      if (key >= args.kv_len) first = kRows;
      first -= lane_index() % 4 * 2;
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if (i / 2 % 2 == r && i / 4 * 8 + i % 2 < first) scores[i] = -kInfinity;
    }
  }

  EJK_DEVICE void pack_from(const float (&values)[kScores]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) packed[i] = pack<kVariant.type>(values[2 * i], values[2 * i + 1]);
  }

  template <bool kMasked>
  EJK_DEVICE void step(const FlashBackwardTile<kVariant, kShape>& tile, int block, bool keep) {
    barriers.query_full[at.stage].wait(at.parity);
    start_products_with_rows(scores, 0, kShape.query_offset);
    barriers.d_out_full[at.stage].wait(at.parity);
    start_products_with_rows(d_scores, kShape.value_offset, kShape.d_out_offset);

    wait_products<1>();
    pin(scores);
    if constexpr (kMasked) mask(tile, block);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 lse = statistic(kShape.lse_offset, j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[4 * j + i] =
            exp2_approximate(__fmaf_rn(scores[4 * j + i], args.scale_log2, -(i % 2 == 0 ? lse.x : lse.y)));
    }
    pack_from(scores);
    start_gradient(d_value, kShape.d_out_offset, keep);

    wait_products<1>();
    pin(d_scores);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 delta = statistic(kShape.delta_offset, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * j + i] *= d_scores[4 * j + i] - (i % 2 == 0 ? delta.x : delta.y);
    }
    wait_products<0>();  // dV has read P^T
    pin(d_value);
    release(barriers.d_out_empty[at.stage]);
    pack_from(scores);
    const uint32 to = shared_address(memory) + kShape.d_score_offset + d_score_stage * kShape.d_score_bytes;
#pragma unroll
    for (int s = 0; s < kRows / 16; ++s)
      store_columns(to + s / 4 * kKeyTileBytes, 64 * consumer + warp_row(), s % 4, packed + 4 * s);
    fence_shared_writes();
    sync_barrier(kBothConsumers, 2 * kWarpgroupSize);
    start_d_query();
    start_gradient(d_key, kShape.query_offset, keep);

    wait_products<1>();
    pin(d_query);
    give_d_query();
    wait_products<0>();
    pin(d_key);
    release(barriers.query_empty[at.stage]);
    at.advance();
    d_score_stage ^= 1;
  }

  /// Hands the consumer's part of dQ over, in the order of its accumulators.
  EJK_DEVICE void give_d_query() {
    char* part = memory + kShape.d_query_offset + consumer * kPartBytes;
    barriers.d_query_empty[consumer].wait(d_query_at.parity ^ 1);
#pragma unroll
    for (int i = 0; i < kQueryGradients / 4; ++i)
      *reinterpret_cast<float4*>(part + (i * kWarpgroupSize + thread_in_warpgroup()) * 16) =
          make_float4(d_query[4 * i], d_query[4 * i + 1], d_query[4 * i + 2], d_query[4 * i + 3]);
    fence_shared_writes();
    __syncwarp();
    release(barriers.d_query_full[consumer]);
    d_query_at.advance();
  }

  EJK_DEVICE void run() {
    const FlashBackwardTile<kVariant, kShape> tile(args);
    if (tile.begin < tile.end) barriers.keys_full.wait(0);
    bool keep = false;
    for (int member = 0; member < args.queries_per_kv_head; ++member)
      for (int block = tile.end - 1; block >= tile.begin; --block, keep = true) {
        if (tile.masked(args, block))
          step<true>(tile, block, keep);
        else
          step<false>(tile, block, keep);
      }
    if (!keep) {
      for (float& x : d_key) x = 0;
      for (float& x : d_value) x = 0;
    }
    store(tile, d_key, args.scale, args.d_key, args.d_key_is_aligned, args.d_key_row, args.d_key_head,
          args.d_key_batch);
    store(tile, d_value, 1, args.d_value, args.d_value_is_aligned, args.d_value_row, args.d_value_head,
          args.d_value_batch);
  }

  EJK_DEVICE void store(const FlashBackwardTile<kVariant, kShape>& tile, const float (&gradient)[kGradients],
                        float factor, char* to, bool is_aligned, int64 row_stride, int64 head_stride,
                        int64 batch_stride) const {
    if (to == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = tile.first_key + 64 * consumer + warp_row() + lane_index() / 4 + 8 * r;
      store_row<kVariant.type>(gradient, r, factor,
                               to + tile.batch * batch_stride + tile.kv_head * head_stride + key * row_stride,
                               key < args.num_keys, is_aligned);
    }
  }
};

template <FlashBackwardVariant kVariant, FlashBackwardConfig kConfig>
__global__ void __launch_bounds__(FlashBackwardShape(kVariant, kConfig).threads, 1)
    flash_attention_backward(const __grid_constant__ FlashBackwardArguments args) {
  constexpr FlashBackwardShape kShape{kVariant, kConfig};
  extern __shared__ __align__(1024) char memory[];
  auto& barriers = *reinterpret_cast<FlashBackwardBarriers<kShape>*>(memory + kShape.barrier_offset);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  const int role = warpgroup_index();
  if (role == 0) {
    give_registers<40>();
    if (threadIdx.x == 0)
      load_blocks<kVariant, kShape>(args, memory, barriers);
    else if (threadIdx.x == 32 || threadIdx.x == 64)
      add_d_query<kVariant, kShape>(args, memory, barriers, static_cast<int>(threadIdx.x) / 32 - 1);
  } else {
    take_registers<232>();
    FlashBackwardConsumer<kVariant, kConfig>{args, memory, barriers, role - 1}.run();
  }
}

// ---- before and after ----

/// kDim / 8 lanes share a row. Rows past the last one get an lse that makes every weight 0.
template <HalfType kType, int kDim>
__global__ void __launch_bounds__(256) flash_attention_backward_prepare(const FlashBackwardPrepareArguments args) {
  constexpr int kLanes = kDim / 8;
  const int row = (static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x)) / kLanes;
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

/// A block of 128 threads rounds 64 rows' sums of half of dim, which lie as one consumer's accumulators held them.
/// Blocks after those write the gradients of rows before the first that sees a key: 0.
template <HalfType kType, int kDim>
__global__ void __launch_bounds__(128) flash_attention_backward_finish(const FlashBackwardFinishArguments args) {
  constexpr int kColumns = kDim / 2;
  const int head = static_cast<int>(blockIdx.y), batch = static_cast<int>(blockIdx.z);
  const int part = static_cast<int>(blockIdx.x), parts = args.padded_rows / 64 * 2;
  const int thread = static_cast<int>(threadIdx.x);
  char* to = args.d_query + batch * args.batch + head * args.head;
  if (part >= parts) {
    const int row = (part - parts) * 128 + thread;
    if (row < args.first_row)
      for (int i = 0; i < kDim; ++i) reinterpret_cast<unsigned short*>(to + row * args.row)[i] = 0;
    return;
  }
  const float* sums = args.sums + (static_cast<int64>(batch) * args.num_heads + head) * args.padded_rows * kDim +
                      part * (64 * kColumns);
  float d[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
    const float4 x = reinterpret_cast<const float4*>(sums)[i * 128 + thread];
    d[4 * i] = x.x, d[4 * i + 1] = x.y, d[4 * i + 2] = x.z, d[4 * i + 3] = x.w;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = args.first_row + part / 2 * 64 + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    store_row<kType>(d, r, args.scale, to + row * args.row + part % 2 * kColumns * 2, row < args.q_len,
                     args.is_aligned);
  }
}

}  // namespace ejk
