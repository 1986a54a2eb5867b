// Forward attention on Hopper. One thread walks the block's tiles and loads them by TMA; the other warpgroups learn
// from it which tile there is, and compute: each owns 64 query rows and walks the keys from the last visible block to
// the first. While the matrix units work on the scores of the next block and on P V of this one, the warpgroup's other
// units work on the softmax between them:
//
//     S = Q K^T         of block n - 1, started first
//     O = O + P V       of block n, started behind it
//     P = exp2(S - m)   of block n - 1, when its S is there; O and the row sums follow the maximum m
//
// The scheme is FlashAttention-3's (arXiv:2407.08608); docs/kernels/flash_attention_sm90.md has the measurements behind
// every choice.
#include "ejkernel/ops/flash_attention/flash_attention_arguments.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/mbarrier.cuh"
#include "ejkernel/platform/cuda/device/online_softmax.cuh"
#include "ejkernel/platform/cuda/device/store_rows.cuh"
#include "ejkernel/platform/cuda/device/tma.cuh"
#include "ejkernel/platform/cuda/device/warp.cuh"
#include "ejkernel/platform/cuda/device/wgmma.cuh"

namespace ejk {

using namespace cuda;

/// What the loader says of a tile, beside its queries.
struct __align__(16) FlashForwardTile : FlashTile {
  int blocks;  ///< of keys that some row of the tile sees; 0: there are no more tiles
};

struct FlashForwardBarriers {
  FlashForwardTile tiles[FlashForwardMemory::kMostQueryStages];
  Mbarrier query_full[FlashForwardMemory::kMostQueryStages], query_empty[FlashForwardMemory::kMostQueryStages];
  Mbarrier key_full[FlashForwardMemory::kMostStages], key_empty[FlashForwardMemory::kMostStages];
  Mbarrier value_full[FlashForwardMemory::kMostStages], value_empty[FlashForwardMemory::kMostStages];

  EJK_DEVICE void init(const FlashForwardMemory& layout, int consumers) {
#pragma unroll 1
    for (int i = 0; i < layout.query_stages; ++i) query_full[i].init(1), query_empty[i].init(4 * consumers);
#pragma unroll 1
    for (int i = 0; i < layout.stages; ++i) {
      key_full[i].init(1), key_empty[i].init(4 * consumers);
      value_full[i].init(1), value_empty[i].init(4 * consumers);
    }
    fence_barrier_init();
  }
};
static_assert(sizeof(FlashForwardBarriers) <= FlashForwardMemory::kBarrierBytes);

// ---- loading ----

template <FlashForwardVariant kVariant, FlashForwardCode kCode>
EJK_DEVICE void load_tiles(const FlashForwardArguments& args, char* memory, FlashForwardBarriers& barriers) {
  static constexpr FlashForwardShape kShape{kVariant, kCode};
  RingPosition q, k, v;
  const auto load_query = [&](const FlashForwardTile& tile) {
    barriers.query_empty[q.stage].wait(q.parity ^ 1);
    barriers.tiles[q.stage] = tile;
    barriers.query_full[q.stage].arrive_expecting(kShape.query_bytes);
    load_tile(memory + FlashForwardMemory::kBarrierBytes + q.stage * kShape.query_bytes, args.query,
              barriers.query_full[q.stage], 0, tile.first_row, 0, tile.head, tile.batch);
    q.advance(args.memory.query_stages);
  };
  const auto load_block = [&](const TensorMap& map, int offset, Mbarrier* full, Mbarrier* empty, RingPosition& at,
                              const FlashTile& tile, int block) {
    empty[at.stage].wait(at.parity ^ 1);
    full[at.stage].arrive_expecting(kShape.block_bytes);
    load_tile(memory + offset + at.stage * kShape.block_bytes, map, full[at.stage], 0, block * kShape.keys, 0,
              args.queries_per_kv_head.quotient(tile.head), tile.batch);
    at.advance(args.memory.stages);
  };
  const auto load_key = [&](const FlashTile& tile, int block) {
    load_block(args.key, args.memory.key_offset, barriers.key_full, barriers.key_empty, k, tile, block);
  };
  const auto load_value = [&](const FlashTile& tile, int block) {
    load_block(args.value, args.memory.value_offset, barriers.value_full, barriers.value_empty, v, tile, block);
  };

  // Values lag one block behind keys, also across tiles: the next tile's first product waits for nothing. A loop across
  // tiles takes values with the first block of keys as well, and keys with the last block of values.
  if constexpr (kCode.across_tiles) {
    barriers.value_full[v.stage].arrive();
    v.advance(args.memory.stages);
  }
  FlashForwardTile tile = {}, owing = {};
  int owed = -1;  // the block of values that `owing` still needs
  const int block = static_cast<int>(blockIdx.x), num_blocks = static_cast<int>(gridDim.x);
  for (int round = 0; args.schedule.tile<kVariant.causal>(round, block, num_blocks, tile); ++round) {
    tile.blocks = args.schedule.num_blocks<kShape.rows, kShape.keys, kVariant.causal>(tile.first_row);
#pragma unroll 1
    for (int n = tile.blocks - 1; n >= 0; --n) {
      load_key(tile, n);
      if (n == tile.blocks - 1) load_query(tile);
      if (owed >= 0) load_value(owing, owed);
      owing = tile;
      owed = n;
    }
  }
  if (owed >= 0) load_value(owing, owed);
  if constexpr (kCode.across_tiles) {
    barriers.key_empty[k.stage].wait(k.parity ^ 1);
    barriers.key_full[k.stage].arrive();
  }
  barriers.query_empty[q.stage].wait(q.parity ^ 1);
  barriers.tiles[q.stage].blocks = 0;
  barriers.query_full[q.stage].arrive();
}

// ---- computing ----

template <FlashForwardVariant kVariant, FlashForwardCode kCode>
struct FlashForwardConsumer {
  static constexpr FlashForwardShape kShape{kVariant, kCode};
  static constexpr int kScores = kShape.keys / 2, kOutputs = kShape.dim / 2;  // accumulators of one thread
  /// The order within a step is ours and not the compiler's; in a tile's own loops at 64, where exponentials are most
  /// of a step, that is slower.
  static constexpr bool kPaced = kShape.dim > 64 || kCode.across_tiles;
  /// Of a tile's own loops: one copy of the step serves all blocks, whether they are the first, masked or neither. Its
  /// branches cost speed at 64, and in full calls at 256.
  static constexpr bool kOneStep = kShape.dim == 128 || (kShape.dim == 256 && kVariant.causal);
  /// Of a thread's rows, copies of the code that stores them: with one, an eighth less to compile, and the main loop is
  /// 2 to 5 % slower with two consumers, up to 5 % faster with more.
  static constexpr int kStores = kCode.across_tiles || kShape.consumers > 2 ? 1 : 2;

  const FlashForwardArguments& args;
  char* memory;
  FlashForwardBarriers& barriers;
  int consumer;  ///< of the block's

  RingPosition q = {}, k = {}, v = {};
  Operand queries = {};  ///< of this consumer, in the current stage
  Operand first_keys = k_major_operand(memory + args.memory.key_offset);
  Operand first_values = n_major_operand(memory + args.memory.value_offset, kShape.keys * 128);

  float scores[kScores];
  uint32 weights[kScores / 2];  ///< P, packed: the left operand of P V
  float outputs[kOutputs];
  OnlineSoftmax rows[2];  ///< the thread's

  /// As a predicate, not a branch: nothing could be moved across that.
  EJK_DEVICE void release(Mbarrier& barrier, bool holds = true) const {
    if ((lane_index() == 0) & holds) barrier.arrive();
  }
  EJK_DEVICE void release_queries(bool holds = true) {
    release(barriers.query_empty[q.stage], holds);
    q.advance(args.memory.query_stages, holds);
  }
  EJK_DEVICE void release_keys() {
    release(barriers.key_empty[k.stage]);
    k.advance(args.memory.stages);
  }
  EJK_DEVICE void release_values(bool holds = true) {
    release(barriers.value_empty[v.stage], holds);
    v.advance(args.memory.stages, holds);
  }

  /// S = Q K^T, started.
  EJK_DEVICE void start_scores() {
    const Operand keys = first_keys + k.stage * kShape.block_bytes;
    begin_products();
#pragma unroll
    for (int tile = 0; tile < kShape.dim / 64; ++tile)
      multiply_add<kVariant.type>(scores, queries + tile * kShape.rows * 128, keys + tile * kShape.keys * 128,
                                  tile > 0);
    commit_products();
  }

  /// O = O + P V, started.
  EJK_DEVICE void start_outputs(bool keep) {
    const Operand values = first_values + v.stage * kShape.block_bytes;
    begin_products();
    constexpr int kSteps = kShape.keys / 16, kFours = kSteps / 4;
#pragma unroll
    for (int four = 0; four < kFours; ++four)
      multiply_add<kVariant.type, Major::n>(outputs, weights + 16 * four, values + four * 8192, keep || four > 0);
#pragma unroll
    for (int step = 4 * kFours; step < kSteps; ++step)
      multiply_add_16<kVariant.type, Major::n>(outputs, weights + 4 * step, values + step * 2048, keep || step > 0);
    commit_products();
  }

  /// Scores of keys that a row does not see become -inf.
  EJK_DEVICE void mask(int block, int row) {
    const int first_key = block * kShape.keys + lane_index() % 4 * 2;
    const int visible[2] = {args.schedule.num_keys<kVariant.causal>(row) - first_key,
                            args.schedule.num_keys<kVariant.causal>(row + 8) - first_key};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (i / 4 * 8 + i % 2 >= visible[i / 2 % 2]) scores[i] = kNegativeInfinity;
  }

  /// The greatest of a row's scores, or `least`.
  EJK_DEVICE float row_maximum(int row, float least = kNegativeInfinity) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (i / 2 % 2 == row) least = greater(least, scores[i]);
    return quad_max(least);
  }

  /// P = exp2(S - m) of a row, and its part of the row's sum.
  EJK_DEVICE void weigh(int row) {
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      if (i / 2 % 2 == row) scores[i] = rows[row].weigh(scores[i], args.scale_log2);
  }
  EJK_DEVICE void pack_weights() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) weights[i] = pack<kVariant.type>(scores[2 * i], scores[2 * i + 1]);
  }

  EJK_DEVICE void take_outputs() {
    wait_products<0>();
    pin(outputs);
  }
  EJK_DEVICE void rescale_outputs(const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) outputs[i] *= factors[i / 2 % 2];
  }

  /// Softmax of a block's scores beside P V of the block before it. Behind that its stage of values is given back, if
  /// there were any, and the outputs follow the maxima, unless they are another tile's.
  EJK_DEVICE void follow(bool has_values, bool rescales) {
    if constexpr (kPaced && !kCode.lazy_rescale)
      follow_row_by_row(has_values, rescales);
    else
      follow_at_once(has_values, rescales);
  }

  /// P V is waited for behind half of P: the second row's maximum is found while the first row's exponentials run. Left
  /// alone, some compilers find both maxima first, and some wait for P V before any exponential; so each is made to
  /// depend on what it shall follow.
  EJK_DEVICE void follow_row_by_row(bool has_values, bool rescales) {
    float factors[2];
    const float m = row_maximum(0);
    factors[0] = rows[0].follow(m, args.scale_log2);
    weigh(0);
    factors[1] = rows[1].follow(row_maximum(1, is_known(m) ? kNegativeInfinity : 0), args.scale_log2);
    weigh(1);
    hold_wait(scores[0]);
    take_outputs();
    release_values(has_values);
    if (!rescales) factors[0] = factors[1] = 1;
    rescale_outputs(factors);
  }

  /// Maxima beside P V, and all else behind it.
  EJK_DEVICE void follow_at_once(bool has_values, bool rescales) {
    const float m[2] = {row_maximum(0), row_maximum(1)};
    const float behind = greater(rows[0].behind(m[0]), rows[1].behind(m[1])) * args.scale_log2;
    const bool follows = !kCode.lazy_rescale || __any_sync(0xffffffffu, behind > 8.f);
    if constexpr (kPaced) hold_wait(behind);
    take_outputs();
    release_values(has_values);
    if (follows) {
      float factors[2] = {rows[0].follow(m[0], args.scale_log2), rows[1].follow(m[1], args.scale_log2)};
      if (!rescales) factors[0] = factors[1] = 1;
      rescale_outputs(factors);
    }
    weigh(0);
    weigh(1);
  }

  /// Lets blocks pass that this consumer's rows do not see.
  EJK_DEVICE void pass_keys(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      barriers.key_full[k.stage].wait(k.parity);
      __syncwarp();  // the stage may be filled again as soon as one lane gives it back
      release_keys();
    }
  }
  EJK_DEVICE void pass_values(int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      barriers.value_full[v.stage].wait(v.parity);
      __syncwarp();
      release_values();
    }
  }

  EJK_DEVICE int own_blocks(const FlashForwardTile& tile) const {
    if (!kShape.has_small_blocks || !args.memory.passes_blocks || first_row(tile) >= args.schedule.q_len)
      return tile.blocks;
    return args.schedule.num_blocks<64, kShape.keys, kVariant.causal>(first_row(tile));
  }
  EJK_DEVICE int first_row(const FlashTile& tile) const { return tile.first_row + 64 * consumer; }
  /// The first of the thread's two rows; the second lies 8 below.
  EJK_DEVICE int row_of(const FlashTile& tile) const {
    return first_row(tile) + thread_in_warpgroup() / 32 * 16 + lane_index() / 4;
  }

  EJK_DEVICE Operand tile_queries() const {
    return k_major_operand(memory + FlashForwardMemory::kBarrierBytes) +
           (q.stage * kShape.query_bytes + consumer * 64 * 128);
  }
  EJK_DEVICE void begin_rows() {
    rows[0].clear();
    rows[1].clear();
  }

  /// The tile whose queries the loader brings next. The lane that releases its stage reads it. The maximum over the
  /// warp is that lane's number, for none is negative, and the compiler knows it to be the same in every thread:
  /// otherwise each operand's address costs a move.
  EJK_DEVICE FlashForwardTile next_tile() const {
    barriers.query_full[q.stage].wait(q.parity);
    FlashForwardTile tile = {};
    if (lane_index() == 0) tile = barriers.tiles[q.stage];
    constexpr uint32 kAll = 0xffffffffu;
    tile.batch = __reduce_max_sync(kAll, tile.batch);
    tile.head = __reduce_max_sync(kAll, tile.head);
    tile.first_row = __reduce_max_sync(kAll, tile.first_row);
    tile.blocks = __reduce_max_sync(kAll, tile.blocks);
    return tile;
  }

  // ---- one loop over the blocks of all tiles ----

  /// Scores of each block beside outputs of the one before it, be that another tile's last. So there is one copy of
  /// everything, and half as many products as with a tile's own loops: a fifth less to compile.
  ///
  /// After the first block of a tile the outputs are those of the tile before, and are stored. Before the first tile
  /// and behind the last one lies a tile without blocks: what is multiplied there is whatever lies in shared memory,
  /// and nothing of it is used, for a product behind a branch would wait for the other.
  EJK_DEVICE void run_across_tiles() {
    FlashForwardTile before = {}, tile = {};
    OnlineSoftmax finished[2];  // the rows of the tile before
    begin_rows();
#pragma unroll
    for (uint32& pair : weights) pair = 0;
    int n = 0, row = 0, whole_blocks = 0, passed = 0;
    bool begins = true, began = false;  // block n is a tile's first; the one before it was
    bool keep = false;
    for (;;) {
      if (began) {
        if (before.blocks > 0) store(before, finished);
        if (tile.blocks == 0) return;
        pass_values(passed);
      }
      if (begins) {
        release_queries(tile.blocks > 0);
        before = tile;
        tile = next_tile();
        row = row_of(tile);
        whole_blocks = args.schedule.num_whole_blocks<kShape.keys, kVariant.causal>(first_row(tile));
        queries = tile_queries();
        n = own_blocks(tile) - 1;
        passed = tile.blocks - 1 - n;
        pass_keys(passed);
        finished[0] = rows[0], finished[1] = rows[1];
        begin_rows();
      }
      do {
        barriers.key_full[k.stage].wait(k.parity);
        start_scores();
        barriers.value_full[v.stage].wait(v.parity);
        start_outputs(keep);
        wait_products<1>();
        pin(scores);
        release_keys();
        if (n >= whole_blocks) mask(n, row);
        follow(true, !begins);
        pack_weights();
        for (OnlineSoftmax& r : rows) pin(r.sum);  // of the last tile nobody asks for them, and they would be put off

        keep = !begins;
        began = begins;
        begins = n == 0;
        --n;
      } while (!(began | begins));
    }
  }

  // ---- a loop for each tile ----

  /// One block further: scores of block n, outputs of the block before it, which the first one has not.
  EJK_DEVICE void step(int n, int row, bool first, bool keep, bool masked) {
    barriers.key_full[k.stage].wait(k.parity);
    start_scores();
    if (first) {
      wait_products<0>();
      pin(scores);
      if (!kVariant.causal && masked) mask(n, row);  // full calls mask no other block
    } else {
      barriers.value_full[v.stage].wait(v.parity);
      start_outputs(keep);
      wait_products<1>();
      pin(scores);
    }
    release_keys();
    if (kVariant.causal && masked) mask(n, row);
    follow(!first, true);
    pack_weights();
  }

  /// The first block of a full tile, where it has a copy of its own.
  EJK_DEVICE void first_step(int n, int row, int whole_blocks) {
    barriers.key_full[k.stage].wait(k.parity);
    start_scores();
    wait_products<0>();
    pin(scores);
    release_keys();
    if (n >= whole_blocks) mask(n, row);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r].begin(row_maximum(r), args.scale_log2);
      weigh(r);
    }
    pack_weights();
  }

  EJK_DEVICE void compute(const FlashForwardTile& tile) {
    const int row = row_of(tile);
    const int whole_blocks = args.schedule.num_whole_blocks<kShape.keys, kVariant.causal>(first_row(tile));
    queries = tile_queries();
    int n = own_blocks(tile);
    pass_keys(tile.blocks - n);
    pass_values(tile.blocks - n);
    begin_rows();

    bool keep = false;
    const int last = --n;
    if constexpr (kOneStep || kVariant.causal) {
      do {
        step(n, row, n == last, keep, n >= whole_blocks);
        keep = n < last;
      } while (--n >= (kOneStep ? 0 : whole_blocks));
    } else {
      first_step(n, row, whole_blocks);
      --n;
    }
    if constexpr (!kOneStep)
      for (; n >= 0; --n, keep = true) step(n, row, false, keep, false);
    release_queries();

    barriers.value_full[v.stage].wait(v.parity);
    start_outputs(keep);
    take_outputs();
    release_values();
    store(tile, rows);
  }

  EJK_DEVICE void run() {
    if constexpr (kCode.across_tiles)
      run_across_tiles();
    else
      for (FlashForwardTile tile = next_tile(); tile.blocks > 0; tile = next_tile()) compute(tile);
  }

  /// Where one copy of the code stores both rows, the second row's numbers take the first one's place for it.
  EJK_DEVICE void store(const FlashTile& tile, OnlineSoftmax (&finished)[2]) {
#pragma unroll(kStores)
    for (int r = 0; r < 2; ++r) {
      const int row = row_of(tile) + 8 * r;
      finished[0].sum = quad_sum(finished[0].sum);
      const bool exists = row < args.schedule.q_len;
      store_row<kVariant.type>(outputs, 0, finished[0].normalizer(),
                               args.out + tile.batch * args.out_batch + tile.head * args.out_head + row * args.out_row,
                               kShape.dim, exists && args.out != nullptr, args.out_is_aligned);
      if (exists && args.lse != nullptr && lane_index() % 4 == 0)
        args.lse[tile.batch * args.lse_batch + tile.head * args.lse_head + row * args.lse_row] =
            finished[0].log_sum_exp();
      finished[0] = finished[1];
#pragma unroll
      for (int i = 0; i < kOutputs; i += 4) outputs[i] = outputs[i + 2], outputs[i + 1] = outputs[i + 3];
    }
  }
};

template <FlashForwardVariant kVariant, FlashForwardCode kCode>
__global__ void __launch_bounds__(FlashForwardShape(kVariant, kCode).threads, 1)
    flash_attention_forward(const __grid_constant__ FlashForwardArguments args) {
  static constexpr FlashForwardShape kShape{kVariant, kCode};
  static_assert(kShape.loader_registers + kShape.consumers * kShape.consumer_registers <=
                    (kShape.consumers + 1) * (65536 / kShape.threads / 8 * 8),
                "asking for more registers than there are waits forever");
  extern __shared__ __align__(1024) char memory[];
  auto& barriers = *reinterpret_cast<FlashForwardBarriers*>(memory);
  if (threadIdx.x == 0) barriers.init(args.memory, kShape.consumers);
  __syncthreads();

  const int role = warpgroup_index();
  if (role == 0) {
    give_registers<kShape.loader_registers>();
    if (threadIdx.x == 0) load_tiles<kVariant, kCode>(args, memory, barriers);
  } else {
    take_registers<kShape.consumer_registers>();
    FlashForwardConsumer<kVariant, kCode>{args, memory, barriers, role - 1}.run();
  }
}

}  // namespace ejk
