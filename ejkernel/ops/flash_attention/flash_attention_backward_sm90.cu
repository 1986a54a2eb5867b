// Backward of attention on Hopper. A block holds some keys and values and walks the queries; everything that depends on
// scores is computed transposed, keys down and queries across:
//
//     S^T  = K Q^T         P^T  = exp2(S^T - lse), from the forward's lse
//     dP^T = V dO^T        dS^T = P^T * (dP^T - delta)
//     dV  += P^T dO        dK  += dS^T Q
//     dQ   = dS K
//
// Two consumers share the work. Up to a head size of 128 each has 64 of 128 keys: P^T and dS^T lie in the registers as
// the left operands of dV and dK, and only dS goes through shared memory, for dQ. At 256 the accumulators of dV and dK
// leave room for half the columns of 64 keys: P^T is shared, too. The parts of dQ are summed over the blocks of keys by
// the copy engine: two warps of the loading warpgroup see to that.
//
// What comes before and after: flash_attention_backward_ends_sm90.cu. Algorithm 2 of FlashAttention-2
// (arXiv:2307.08691) in the shape of FlashAttention-3's kernel; docs/kernels/flash_attention_backward_sm90.md has the
// measurements behind every choice.
#include "ejkernel/ops/flash_attention/flash_attention_arguments.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/device/fragments.cuh"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/mbarrier.cuh"
#include "ejkernel/platform/cuda/device/special.cuh"
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
  Mbarrier query_full[kShape.stages], query_empty[kShape.stages];              // with lse
  Mbarrier d_out_full[kShape.d_out_stages], d_out_empty[kShape.d_out_stages];  // with delta
  Mbarrier d_query_full[2], d_query_empty[2];                                  // of each consumer

  EJK_DEVICE void init() {
    keys_full.init(1);
    for (int i = 0; i < kShape.stages; ++i) query_full[i].init(1), query_empty[i].init(8);
    for (int i = 0; i < kShape.d_out_stages; ++i) d_out_full[i].init(1), d_out_empty[i].init(8);
    for (int i = 0; i < 2; ++i) d_query_full[i].init(4), d_query_empty[i].init(1);
    fence_barrier_init();
  }
};

template <FlashBackwardVariant kVariant, FlashBackwardShape kShape>
using FlashBackwardTileOf = FlashBackwardTile<kShape.keys, kShape.rows, kVariant.causal, kVariant.ordered>;

// ---- loading ----

template <FlashBackwardVariant kVariant, FlashBackwardShape kShape>
EJK_DEVICE void load_blocks(const FlashBackwardArguments& args, char* memory, FlashBackwardBarriers<kShape>& barriers) {
  const FlashBackwardTileOf<kVariant, kShape> tile(args.schedule, static_cast<int>(blockIdx.x));
  if (tile.blocks() <= 0) return;
  barriers.keys_full.arrive_expecting(2 * kShape.key_bytes);
  load_tile(memory, args.key, barriers.keys_full, 0, tile.first_key, 0, tile.kv_head, tile.batch);
  load_tile(memory + kShape.value_offset, args.value, barriers.keys_full, 0, tile.first_key, 0, tile.kv_head,
            tile.batch);

  RingPosition query_at, d_out_at;
  for (int member = 0; member < tile.heads; ++member) {
    const int64 first_row = tile.first_block(args.schedule, member) * kShape.rows;
#pragma unroll 1
    for (int left = tile.blocks(); left > 0; --left) {
      const int row = tile.block(left) * kShape.rows;
      const int64 statistics = first_row + row;
      const auto load_rows = [&](const TensorMap& map, int offset, const float* values, int values_offset, int stage,
                                 Mbarrier& full) {
        full.arrive_expecting(kShape.row_bytes + kShape.statistics_bytes);
        load_tile(memory + offset + stage * kShape.row_bytes, map, full, 0, row, 0, tile.first_head + member,
                  tile.batch);
        load_bytes(memory + values_offset + stage * kShape.statistics_bytes, values, kShape.statistics_bytes, full);
      };
      barriers.query_empty[query_at.stage].wait(query_at.parity ^ 1);
      load_rows(args.query, kShape.query_offset, args.lse_log2 + statistics, kShape.lse_offset, query_at.stage,
                barriers.query_full[query_at.stage]);
      barriers.d_out_empty[d_out_at.stage].wait(d_out_at.parity ^ 1);
      load_rows(args.d_out, kShape.d_out_offset, args.delta + statistics, kShape.delta_offset, d_out_at.stage,
                barriers.d_out_full[d_out_at.stage]);
      query_at.advance(kShape.stages);
      d_out_at.advance(kShape.d_out_stages);
    }
  }
}

// ---- adding dQ ----

/// Adds one consumer's parts of dQ to the sums in global memory. In order the tiles of keys add theirs one after the
/// other: `turns` counts those that have. None waits for a tile that has not started: blocks start in the grid's order.
template <FlashBackwardVariant kVariant, FlashBackwardShape kShape>
EJK_DEVICE void add_d_query(const FlashBackwardArguments& args, const char* memory,
                            FlashBackwardBarriers<kShape>& barriers, int consumer) {
  const FlashBackwardTileOf<kVariant, kShape> tile(args.schedule, static_cast<int>(blockIdx.x));
  RingPosition at;
  for (int member = 0; member < tile.heads; ++member) {
    const int64 first_block = tile.first_block(args.schedule, member);
    const auto index_of = [&](int block) { return (first_block + block) * 2 + consumer; };
    bool is_our_turn = false;
#pragma unroll 1
    for (int left = tile.blocks(); left > 0; --left) {
      const int block = tile.block(left);
      const int64 ours = index_of(block);
      float* part = args.d_query + ours * (kShape.parts / 2 * kShape.part_bytes / 4);
      if (kVariant.ordered && !is_our_turn) wait_for_turn(args.turns + ours, tile.turn(args.schedule, block));
#pragma unroll
      for (int i = 0; i < kShape.parts / 2; ++i, part += kShape.part_bytes / 4, at.advance(1)) {
        barriers.d_query_full[consumer].wait(at.parity);
        add_floats(part, memory + kShape.d_query_offset + consumer * kShape.part_bytes, kShape.part_bytes);
        wait_groups_read();
        barriers.d_query_empty[consumer].arrive();
      }
      if constexpr (kVariant.ordered) {
        // Most often the next turn has come, too: seen here, it costs nothing beside passing this one on.
        const int next = tile.block(left - 1);
        const int turn = left > 1 ? turn_of(args.turns + index_of(next)) : -1;
        wait_groups();
        pass_turn(args.turns + ours);
        is_our_turn = turn == tile.turn(args.schedule, next);
      }
    }
  }
}

// ---- computing ----

/// What both kinds of consumers do.
template <FlashBackwardVariant kVariant, FlashBackwardConfig kConfig>
struct FlashBackwardCommon {
  static constexpr FlashBackwardShape kShape{kVariant, kConfig};
  static constexpr int kRows = kShape.rows, kDim = kShape.dim;
  static constexpr int kKeyTileBytes = kShape.keys * 128, kRowTileBytes = kRows * 128;  // 64 columns
  static constexpr int kBothConsumers = 1;                                              // a named barrier
  using Tile = FlashBackwardTileOf<kVariant, kShape>;

  const FlashBackwardArguments& args;
  char* memory;
  FlashBackwardBarriers<kShape>& barriers;
  int consumer;

  // Where the rings stand. At a head size of 128 there is no register to spare, and it is derived from the steps done;
  // elsewhere the products start sooner when it is at hand.
  static constexpr bool kDerives = kDim == 128;
  static_assert(kShape.stages % 2 == 0);
  int steps = 0;
  RingPosition at = {};

  EJK_DEVICE int stage() const { return kDerives ? steps % kShape.stages : at.stage; }
  EJK_DEVICE int parity() const { return kDerives ? steps / kShape.stages % 2 : at.parity; }
  EJK_DEVICE int is_odd() const { return stage() % 2; }
  EJK_DEVICE void advance() {
    if constexpr (kDerives)
      ++steps;
    else
      at.advance(kShape.stages);
  }

  /// One arrival for the warp, after all of its lanes' reads and writes.
  EJK_DEVICE void release(Mbarrier& barrier) const {
    __syncwarp();
    if (lane_index() == 0) barrier.arrive();
  }
  EJK_DEVICE int warp_row() const { return thread_in_warpgroup() / 32 * 16; }

  /// Calls step<is masked>(block) for each block of queries of each head.
  template <typename Step>
  EJK_DEVICE void walk(const Tile& tile, const Step& step) const {
    for (int member = 0; member < tile.heads; ++member)
      for (int left = tile.blocks(); left > 0; --left) {
        const int block = tile.block(left);
        if (tile.masked(args.schedule, block))
          step.template operator()<true>(block);
        else
          step.template operator()<false>(block);
      }
  }

  /// A statistic of the thread's columns first_column + 8 j + 2 (lane % 4) + {0, 1}. The address is left to the
  /// compiler each time: there are no registers to keep it in.
  EJK_DEVICE float2 statistic(int offset, int stage, int first_column, int j) const {
    const char* values = memory + offset + stage * kShape.statistics_bytes;
    return *reinterpret_cast<const float2*>(values + (first_column + 8 * j + lane_index() % 4 * 2) * 4);
  }

  /// Queries of the block that do not see a key get weight 0: their scores become -inf. The scores are those of the
  /// keys from `first_key` and of the block's columns from `first_column`.
  template <int kScores>
  EJK_DEVICE void mask(float (&scores)[kScores], int block, int first_key, int first_column) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key + warp_row() + lane_index() / 4 + 8 * r;
      // The first column that sees the key, counted from the thread's own.
      int first = kVariant.causal ? key - args.schedule.diagonal - block * kRows : 0;
      if (key >= args.schedule.kv_len) first = kRows;
      first -= first_column + lane_index() % 4 * 2;
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        if (i / 2 % 2 == r && i / 4 * 8 + i % 2 < first) scores[i] = -kInfinity;
    }
  }
  /// S becomes P.
  template <int kScores>
  EJK_DEVICE void weigh(float (&scores)[kScores], int first_column) const {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 lse = statistic(kShape.lse_offset, stage(), first_column, j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[4 * j + i] =
            exp2_approximate(multiply_add(scores[4 * j + i], args.scale_log2, -(i % 2 == 0 ? lse.x : lse.y)));
    }
  }
  /// P becomes dS.
  template <int kScores>
  EJK_DEVICE void differentiate(float (&weights)[kScores], const float (&d_weights)[kScores], int stage,
                                int first_column) const {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 delta = statistic(kShape.delta_offset, stage, first_column, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[4 * j + i] *= d_weights[4 * j + i] - (i % 2 == 0 ? delta.x : delta.y);
    }
  }
  template <int kScores>
  EJK_DEVICE void pack_from(const float (&values)[kScores], uint32 (&packed)[kScores / 2]) const {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) packed[i] = pack<kVariant.type>(values[2 * i], values[2 * i + 1]);
  }

  /// Hands part number `index` of a block's dQ over, in the order of its accumulators.
  EJK_DEVICE void give_d_query(const float* d_query, int index) {
    char* part = memory + kShape.d_query_offset + consumer * kShape.part_bytes;
    barriers.d_query_empty[consumer].wait((is_odd() * (kShape.parts / 2) + index + 1) % 2);
#pragma unroll
    for (int i = 0; i < kShape.part_columns / 8; ++i)
      *reinterpret_cast<float4*>(part + (i * kWarpgroupSize + thread_in_warpgroup()) * 16) =
          make_float4(d_query[4 * i], d_query[4 * i + 1], d_query[4 * i + 2], d_query[4 * i + 3]);
    fence_shared_writes();
    release(barriers.d_query_full[consumer]);
  }

  /// Writes 64 keys' gradients of 2 kCount columns: rounded, or as a term of the sum over the group.
  template <int kCount>
  EJK_DEVICE void store(const float (&gradient)[kCount], int key_in_block, int first_column, float factor,
                        const FlashBackwardGradient& to) const {
    constexpr int kColumns = 2 * kCount;
    const Tile tile(args.schedule, static_cast<int>(blockIdx.x));
    const int first_key = tile.first_key + key_in_block;
    if (to.terms != nullptr) {
      const int64 head =
          (static_cast<int64>(tile.term) * args.schedule.batch + tile.batch) * args.schedule.num_kv_heads +
          tile.kv_head;
      float4* part = reinterpret_cast<float4*>(to.terms + (head * args.padded_keys + first_key) * kDim +
                                               first_column / kColumns * (64 * kColumns));
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i)
        part[i * kWarpgroupSize + thread_in_warpgroup()] =
            make_float4(gradient[4 * i], gradient[4 * i + 1], gradient[4 * i + 2], gradient[4 * i + 3]);
      return;
    }
    if (to.rows == nullptr) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key + warp_row() + lane_index() / 4 + 8 * r;
      store_row<kVariant.type>(
          gradient, r, factor,
          to.rows + tile.batch * to.batch + tile.kv_head * to.head + key * to.row + first_column * 2, 2 * kCount,
          key < args.schedule.num_keys, to.is_aligned);
    }
  }
};

/// Has 64 of the block's 128 keys.
template <FlashBackwardVariant kVariant, FlashBackwardConfig kConfig>
struct FlashBackwardKeysConsumer : FlashBackwardCommon<kVariant, kConfig> {
  using Common = FlashBackwardCommon<kVariant, kConfig>;
  using Common::args, Common::memory, Common::barriers, Common::consumer, Common::kShape, Common::kRows, Common::kDim;
  using Common::kKeyTileBytes, Common::kRowTileBytes;
  using typename Common::Tile;
  // Accumulators of one thread: 64 keys x queries, 64 keys x dim, and 64 queries x half of dim.
  static constexpr int kScores = kRows / 2, kGradients = kDim / 2, kQueryGradients = kDim / 4;
  // Where registers are left, keys and values are held as left operands.
  static constexpr bool kHolds = kDim == 64;
  static constexpr int kHeld = kHolds ? 16 : 1;

  float d_key[kGradients], d_value[kGradients];
  float scores[kScores], d_scores[kScores];
  uint32 packed[kScores / 2];  ///< P^T, then dS^T: left operands
  uint32 keys_held[kHeld], values_held[kHeld];
  float d_query[kQueryGradients];

  EJK_DEVICE void hold(uint32 (&held)[kHeld], int keys_offset) {
    if constexpr (kHolds) {
#pragma unroll
      for (int s = 0; s < 4; ++s)
        load_columns(shared_address(memory) + keys_offset, 64 * consumer + this->warp_row(), s, held + 4 * s);
    }
  }
  /// S^T or dP^T of this consumer's keys or values, started.
  EJK_DEVICE void start_products_with_rows(float (&to)[kScores], const uint32* held, int keys_offset, int rows_offset) {
    const Operand rows = k_major_operand(memory + rows_offset) + this->stage() * kShape.row_bytes;
    forget(to);
    begin_products();
    if constexpr (kHolds) {
      multiply_add<kVariant.type>(to, held, rows, false);
    } else {
      const Operand keys = k_major_operand(memory + keys_offset) + consumer * 64 * 128;
#pragma unroll
      for (int tile = 0; tile < kDim / 64; ++tile)
        multiply_add<kVariant.type>(to, keys + tile * kKeyTileBytes, rows + tile * kRowTileBytes, tile > 0);
    }
    commit_products();
  }
  /// dV or dK += packed (keys x queries) times the block's rows, started.
  EJK_DEVICE void start_gradient(float (&to)[kGradients], int rows_offset) {
    const Operand rows = n_major_operand(memory + rows_offset, kRowTileBytes) + this->stage() * kShape.row_bytes;
    begin_products();
    multiply_add<kVariant.type, Major::n>(to, packed, rows, true);
    commit_products();
  }
  /// This consumer's half of dQ's columns, from the scores of both.
  EJK_DEVICE void start_d_query() {
    constexpr int kColumnBytes = kDim == 64 ? 64 : kKeyTileBytes;
    const Operand d_scores_t =
        n_major_operand(memory + kShape.d_score_offset, kKeyTileBytes) + this->stage() * kShape.score_bytes;
    const Operand keys = n_major_operand(memory, kKeyTileBytes) + consumer * kColumnBytes;
    forget(d_query);
    begin_products();
#pragma unroll
    for (int four = 0; four < kShape.keys / 64; ++four)
      multiply_add<kVariant.type, Major::n, Major::n>(d_query, d_scores_t + four * 8192, keys + four * 8192, four > 0);
    commit_products();
  }

  template <bool kMasked>
  EJK_DEVICE void step(const Tile& tile, int block) {
    barriers.query_full[this->stage()].wait(this->parity());
    start_products_with_rows(scores, keys_held, 0, kShape.query_offset);
    barriers.d_out_full[this->stage()].wait(this->parity());
    start_products_with_rows(d_scores, values_held, kShape.value_offset, kShape.d_out_offset);

    wait_products<1>();
    pin(scores);
    if constexpr (kMasked) this->mask(scores, block, tile.first_key + 64 * consumer, 0);
    this->weigh(scores, 0);
    this->pack_from(scores, packed);
    start_gradient(d_value, kShape.d_out_offset);

    wait_products<1>();
    pin(d_scores);
    this->differentiate(scores, d_scores, this->stage(), 0);
    wait_products<0>();  // dV has read P^T
    pin(d_value);
    this->release(barriers.d_out_empty[this->stage()]);
    this->pack_from(scores, packed);
    const uint32 to = shared_address(memory) + kShape.d_score_offset + this->stage() * kShape.score_bytes;
#pragma unroll
    for (int s = 0; s < kRows / 16; ++s) store_columns(to, 64 * consumer + this->warp_row(), s, packed + 4 * s);
    fence_shared_writes();
    sync_barrier(Common::kBothConsumers, 2 * kWarpgroupSize);
    start_d_query();
    start_gradient(d_key, kShape.query_offset);

    wait_products<1>();
    pin(d_query);
    this->give_d_query(d_query, 0);
    wait_products<0>();
    pin(d_key);
    this->release(barriers.query_empty[this->stage()]);
    this->advance();
  }

  EJK_DEVICE void run() {
    const Tile tile(args.schedule, static_cast<int>(blockIdx.x));
    if (tile.blocks() > 0) barriers.keys_full.wait(0);
    hold(keys_held, 0);
    hold(values_held, kShape.value_offset);
    for (float& x : d_key) x = 0;
    for (float& x : d_value) x = 0;
    this->walk(tile, [&]<bool kMasked>(int block) { step<kMasked>(tile, block); });
    this->store(d_key, 64 * consumer, 0, args.scale, args.d_key);
    this->store(d_value, 64 * consumer, 0, 1, args.d_value);
  }
};

/// Has half the columns of the block's 64 keys, and computes the scores of half of the block's queries.
template <FlashBackwardVariant kVariant, FlashBackwardConfig kConfig>
struct FlashBackwardColumnsConsumer : FlashBackwardCommon<kVariant, kConfig> {
  using Common = FlashBackwardCommon<kVariant, kConfig>;
  using Common::args, Common::memory, Common::barriers, Common::consumer, Common::kShape, Common::kRows, Common::kDim;
  using Common::kKeyTileBytes, Common::kRowTileBytes;
  using typename Common::Tile;
  static constexpr int kColumns = kDim / 2;
  // Accumulators of one thread: 64 keys x half of the queries, and 64 keys or queries x half of dim.
  static constexpr int kScores = kRows / 4, kGradients = kColumns / 2;

  float d_key[kGradients], d_value[kGradients], d_query[kGradients];
  float scores[kScores], d_scores[kScores];
  uint32 packed[kScores / 2];

  /// S^T or dP^T of all keys or values and this consumer's queries, started.
  EJK_DEVICE void start_products_with_rows(float (&to)[kScores], int keys_offset, int rows_offset) {
    const Operand keys = k_major_operand(memory + keys_offset);
    const Operand rows = k_major_operand(memory + rows_offset) + consumer * (kRows / 2) * 128;
    forget(to);
    begin_products();
#pragma unroll
    for (int tile = 0; tile < kDim / 64; ++tile)
      multiply_add<kVariant.type>(to, keys + tile * kKeyTileBytes, rows + tile * kRowTileBytes, tile > 0);
    commit_products();
  }
  /// dV or dK += weights or their gradients (keys x queries) times the block's rows, started.
  EJK_DEVICE void start_gradient(float (&to)[kGradients], int scores_offset, int rows_offset) {
    begin_products();
    multiply_add<kVariant.type, Major::k, Major::n>(
        to, k_major_operand(memory + scores_offset),
        n_major_operand(memory + rows_offset, kRowTileBytes) + consumer * (kColumns / 64) * kRowTileBytes, true);
    commit_products();
  }
  EJK_DEVICE void start_d_query(int scores_offset) {
    forget(d_query);
    begin_products();
    multiply_add<kVariant.type, Major::n, Major::n>(
        d_query, n_major_operand(memory + scores_offset, kKeyTileBytes),
        n_major_operand(memory, kKeyTileBytes) + consumer * (kColumns / 64) * kKeyTileBytes, false);
    commit_products();
  }
  /// Writes this consumer's columns of P^T or dS^T.
  EJK_DEVICE void share(const float (&values)[kScores], int scores_offset) {
    this->pack_from(values, packed);
#pragma unroll
    for (int s = 0; s < kScores / 8; ++s)
      store_columns(shared_address(memory) + scores_offset, this->warp_row(), consumer * (kScores / 8) + s,
                    packed + 4 * s);
  }

  template <bool kMasked>
  EJK_DEVICE void step(const Tile& tile, int block) {
    const int query_offset = kShape.query_offset + this->stage() * kShape.row_bytes;
    const int weight_offset = kShape.weight_offset + this->stage() * kShape.score_bytes;
    const int d_score_offset = kShape.d_score_offset + this->stage() * kShape.score_bytes;
    const int first_column = consumer * (kRows / 2);  // of the block's
    barriers.query_full[this->stage()].wait(this->parity());
    start_products_with_rows(scores, 0, query_offset);
    barriers.d_out_full[0].wait(this->is_odd());
    start_products_with_rows(d_scores, kShape.value_offset, kShape.d_out_offset);

    wait_products<1>();
    pin(scores);
    if constexpr (kMasked) this->mask(scores, block, tile.first_key, first_column);
    this->weigh(scores, first_column);
    share(scores, weight_offset);
    wait_products<0>();
    pin(d_scores);
    this->differentiate(scores, d_scores, 0, first_column);
    share(scores, d_score_offset);
    fence_shared_writes();
    sync_barrier(Common::kBothConsumers, 2 * kWarpgroupSize);
    start_gradient(d_value, weight_offset, kShape.d_out_offset);
    start_d_query(d_score_offset);
    start_gradient(d_key, d_score_offset, query_offset);

    wait_products<2>();
    pin(d_value);
    this->release(barriers.d_out_empty[0]);
    wait_products<1>();
    pin(d_query);
#pragma unroll
    for (int part = 0; part < kShape.parts / 2; ++part)
      this->give_d_query(d_query + part * (kShape.part_columns / 2), part);
    wait_products<0>();
    pin(d_key);
    this->release(barriers.query_empty[this->stage()]);
    this->advance();
  }

  EJK_DEVICE void run() {
    const Tile tile(args.schedule, static_cast<int>(blockIdx.x));
    if (tile.blocks() > 0) barriers.keys_full.wait(0);
    for (float& x : d_key) x = 0;
    for (float& x : d_value) x = 0;
    this->walk(tile, [&]<bool kMasked>(int block) { step<kMasked>(tile, block); });
    this->store(d_key, 0, consumer * kColumns, args.scale, args.d_key);
    this->store(d_value, 0, consumer * kColumns, 1, args.d_value);
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
    if constexpr (kShape.splits_columns)
      FlashBackwardColumnsConsumer<kVariant, kConfig>{{args, memory, barriers, role - 1}}.run();
    else
      FlashBackwardKeysConsumer<kVariant, kConfig>{{args, memory, barriers, role - 1}}.run();
  }
}

}  // namespace ejk
