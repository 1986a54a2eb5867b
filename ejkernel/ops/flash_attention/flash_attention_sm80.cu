// Forward attention on Ampere and everything newer. A block owns a tile of query rows, 16 or 32 to a warp, and walks
// the keys they see from the last block to the first:
//
//     S = Q K^T           while the values of the block arrive
//     P = exp2(S - m)     likewise; O and the row sums follow the maximum m
//     O = O + P V         while the keys of the next one arrive
//
// The scheme is FlashAttention-2's (arXiv:2307.08691).
#include "ejkernel/ops/flash_attention/flash_attention_sm80.cuh"
#include "ejkernel/platform/cuda/device/anew.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"
#include "ejkernel/platform/cuda/device/copy_async.cuh"
#include "ejkernel/platform/cuda/device/fragments.cuh"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/mma.cuh"
#include "ejkernel/platform/cuda/device/online_softmax.cuh"
#include "ejkernel/platform/cuda/device/store_rows.cuh"
#include "ejkernel/platform/cuda/device/warp.cuh"

namespace ejk {

using namespace cuda;

template <FlashSm80Variant kVariant, FlashSm80Config kConfig>
struct FlashSm80Block {
  static constexpr FlashSm80Shape kShape{kVariant, kConfig};
  static constexpr int kRowTiles = kShape.row_tiles, kKeys = kShape.keys;
  static constexpr int kScores = kKeys / 2, kOutputs = kShape.value_dim / 2;  // of one thread, in each of its row tiles

  const FlashSm80Arguments& args;
  const AttentionProblem& p;
  uint32 memory;  ///< the block's
  uint32 pieces;  ///< the lane's address in a piece that stands at the memory's beginning

  float scores[kRowTiles][kScores];
  uint32 weights[kRowTiles][kScores / 2];  ///< P, packed
  float outputs[kRowTiles][kOutputs];
  OnlineSoftmax rows[kRowTiles][2];

  EJK_DEVICE FlashSm80Block(const FlashSm80Arguments& args, const void* memory)
      : args(args), p(args.problem), memory(shared_address(memory)), pieces(address_of_columns(this->memory, 0, 0)) {}

  /// In the tile.
  EJK_DEVICE static int warp_row() { return static_cast<int>(threadIdx.x) / kWarpSize * 16 * kRowTiles; }
  /// In the tile, the first of the thread's rows: others lie 16 below for each row tile, and 8 below that.
  EJK_DEVICE static int thread_row() { return warp_row() + lane_index() / 4; }

  // ---- copying ----

  EJK_DEVICE static const char* address_of(const TensorRef& t, int64 entry, int64 row, int64 head) {
    return static_cast<const char*>(t.data) + 2 * t.offset(entry, row, head, 0);
  }
  EJK_DEVICE void start_queries(const FlashSm80Tile& tile, int num_rows) const {
    copy_rows<kShape.rows, kShape.dim, kShape.threads>(
        memory, {.first = address_of(p.query, p.packed() ? 0 : tile.sequence, tile.first_row, tile.head),
                 .stride = 2 * p.query.strides[1],
                 .begin = 0,
                 .end = num_rows,
                 .columns = static_cast<int>(p.head_dim)});
  }
  /// A block of keys or of values, whose first row lies at `first`; all but the rows [begin, end) become zeros.
  template <int kColumns>
  EJK_DEVICE static void start_block(uint32 to, const char* first, int64 stride, int64 columns, int begin, int end) {
    copy_rows<kKeys, kColumns, kShape.threads>(
        to, {.first = first, .stride = 2 * stride, .begin = begin, .end = end, .columns = static_cast<int>(columns)});
    commit_copies();
  }

  // ---- computing ----

  /// S = Q K^T
  EJK_DEVICE void compute_scores() {
    clear(scores);
    const uint32 queries = anew(pieces) + static_cast<uint32>(warp_row() * 128);
    const uint32 keys = anew(pieces);
#pragma unroll
    for (int step = 0; step < kShape.dim / 16; ++step) {
      uint32 q[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        load_piece(move_to_columns(queries, step / 4 * kShape.rows + 16 * t, step % 4), q[t]);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32 k[4];
        load_piece(move_to_columns(keys, kShape.key_offset / 128 + step / 4 * kKeys + 16 * n, step % 4), k);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_add_transposed<kVariant.type>(scores[t] + 8 * n, q[t], k);
      }
    }
  }

  /// O = O + P V
  EJK_DEVICE void compute_outputs() {
    const uint32 values = anew(pieces);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
      for (int step = 0; step < kShape.value_dim / 16; ++step) {
        uint32 v[4];
        load_piece_transposed(move_to_columns(values, kShape.value_offset / 128 + step / 4 * kKeys + 16 * n, step % 4),
                              v);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply_add<kVariant.type>(outputs[t] + 8 * step, weights[t] + 4 * n, v);
      }
    }
  }

  EJK_DEVICE void cap() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[t][i] = args.cap_out * hyperbolic_tangent(args.cap_in * scores[t][i]);
  }

  /// Scores of keys that a row does not see become -inf. `first_row` is the tile's first one in the sequence.
  EJK_DEVICE void mask(const FlashSm80Keys& seen, int first_row, int n) {
    const int first_key = n * kKeys + lane_index() % 4 * 2, first = first_row + thread_row();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first + 16 * t + 8 * r;
        const int begin = seen.begin(row) - first_key, end = seen.end(row) - first_key;
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
          const int key = i / 2 * 8 + i % 2;
          if (key < begin || key >= end) scores[t][i / 2 * 4 + 2 * r + i % 2] = kNegativeInfinity;
        }
      }
  }

  /// P = exp2(S - m). O and the row sums follow m where one of the warp's rows is behind by a factor of 2^8.
  EJK_DEVICE void exponentiate() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float m[2] = {kNegativeInfinity, kNegativeInfinity};
#pragma unroll
      for (int i = 0; i < kScores; ++i) m[i / 2 % 2] = greater(m[i / 2 % 2], scores[t][i]);
      m[0] = quad_max(m[0]);
      m[1] = quad_max(m[1]);
      const float behind = greater(rows[t][0].behind(m[0]), rows[t][1].behind(m[1])) * args.scale_log2;
      if (__any_sync(0xffffffffu, behind > 8.f)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float factor = rows[t][r].follow(m[r], args.scale_log2);
#pragma unroll
          for (int i = 0; i < kOutputs / 2; ++i) outputs[t][i / 2 * 4 + 2 * r + i % 2] *= factor;
        }
      }
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[t][i] = rows[t][i / 2 % 2].weigh(scores[t][i], args.scale_log2);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) weights[t][i] = pack<kVariant.type>(scores[t][2 * i], scores[t][2 * i + 1]);
    }
  }

  EJK_DEVICE void attend(const FlashSm80Tile& tile) {
    clear(outputs);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) rows[t][0].clear(), rows[t][1].clear();
    if (tile.is_nobodys()) return;
    const AttentionSequence s = p.sequence(tile.sequence);
    const int first_row = tile.first_row - static_cast<int>(s.q_begin);
    const int past_row = min(first_row + kShape.rows, static_cast<int>(s.q_len));
    const FlashSm80Keys seen(p, s);
    const FlashSm80Blocks blocks = key_blocks<kKeys>(seen, first_row, past_row);
    const int64 kv_head = tile.head / p.group();
    const char* key_rows = address_of(p.key, p.batch_of(s), s.k_begin, kv_head);
    const char* value_rows = address_of(p.value, p.batch_of(s), s.k_begin, kv_head);
    // Keys that no row of the tile sees may hold anything, and are not read.
    const auto start_keys = [&](int n) {
      start_block<kShape.dim>(memory + kShape.key_offset, key_rows + n * (kKeys * 2 * p.key.strides[1]),
                              p.key.strides[1], p.head_dim, seen.begin(anew(first_row)) - n * kKeys,
                              blocks.end - n * kKeys);
    };
    const auto start_values = [&](int n) {
      start_block<kShape.value_dim>(memory + kShape.value_offset, value_rows + n * (kKeys * 2 * p.value.strides[1]),
                                    p.value.strides[1], p.value_dim, seen.begin(anew(first_row)) - n * kKeys,
                                    blocks.end - n * kKeys);
    };

    if (blocks.first == blocks.past) return;
    start_queries(tile, past_row - first_row);
    start_keys(blocks.past - 1);
#pragma unroll 1
    for (int n = blocks.past - 1; n >= blocks.first; --n) {
      wait_copies<0>();
      __syncthreads();  // the keys are there, and nobody reads values any more
      start_values(n);
      compute_scores();
      if constexpr (kVariant.soft_cap) cap();
      if (const int row = anew(first_row); !all_see_block<kKeys>(seen, row, row + kShape.rows - 1, n))
        mask(seen, row, n);
      exponentiate();
      wait_copies<0>();
      __syncthreads();  // the values are there, and nobody reads keys any more
      if (n > blocks.first) start_keys(n - 1);
      compute_outputs();
    }
  }

  // ---- storing ----

  /// A finite sink stays finite.
  static EJK_DEVICE float in_powers_of_two(double sink) {
    constexpr double kMost = 2.35e38;
    const bool is_finite = sink - sink == 0;
    return static_cast<float>(is_finite ? min(max(sink, -kMost), kMost) : sink) * kLog2E;
  }
  /// A head's sinks as one logit, in powers of two.
  EJK_DEVICE float sink(int head) const {
    OnlineSoftmax sinks;
    sinks.clear();
#pragma unroll 1
    for (int64 a = 0; a < p.num_sinks; ++a) sinks.add(in_powers_of_two(p.sink(head, a)));
    return sinks.sum == 0 ? kNegativeInfinity : sinks.shift + log2_approximate(sinks.sum);
  }

  /// The tile's rows that are its sequence's, or nobody's.
  EJK_DEVICE void store(const FlashSm80Tile& tile) {
    const unsigned wanted = own_rows(tile);
    const int batch = p.packed() ? 0 : tile.sequence;
    const float sinks = sink(tile.head);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        OnlineSoftmax& row = rows[t][r];
        row.sum = quad_sum(row.sum);
        // A row that has seen nothing has output 0, whatever a sink holds.
        const bool is_empty = row.sum == 0;
        float factor = row.add(sinks);
        factor = is_empty ? 0 : factor * row.normalizer();
        const int at = tile.first_row + thread_row() + 16 * t + 8 * r;
        const bool is_wanted = (wanted >> (2 * t + r) & 1) != 0;
        if (is_wanted && args.to.lse.present() && lane_index() % 4 == 0)
          static_cast<float*>(args.to.lse.data)[args.to.lse.offset(at, batch, tile.head, 0)] = row.log_sum_exp();
        store_row<kVariant.type>(outputs[t], r, factor,
                                 static_cast<char*>(args.to.out.data) + 2 * args.to.out.offset(batch, at, tile.head, 0),
                                 static_cast<int>(p.value_dim), is_wanted && args.to.out.present(),
                                 args.out_is_aligned);
      }
  }

  // ---- who owns what ----

  /// Which of the thread's rows lie at [first, past) of the tensor, a bit for each.
  EJK_DEVICE static unsigned rows_between(const FlashSm80Tile& tile, int64 first, int64 past) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 2 * kRowTiles; ++i) {
      const int at = tile.first_row + thread_row() + 8 * i;
      bits |= static_cast<unsigned>(at >= first && at < past) << i;
    }
    return bits;
  }

  /// A packed row belongs to the last sequence that claims it, and to nobody where none does.
  EJK_DEVICE unsigned own_rows(const FlashSm80Tile& tile) const {
    if (!p.packed()) return rows_between(tile, 0, p.q_rows);
    int64 first = 0, past = p.q_rows;
    if (!tile.is_nobodys()) {
      const AttentionSequence s = p.sequence(tile.sequence);
      first = s.q_begin, past = s.q_begin + s.q_len;
    }
    unsigned own = rows_between(tile, first, past);
    const int64 begin = tile.first_row, end = min<int64>(begin + kShape.rows, past);
    for (int64 n = tile.sequence + 1; n < p.num_sequences; n += kWarpSize) {
      const int64 mine = n + lane_index();
      const AttentionSequence s = mine < p.num_sequences ? p.sequence(mine) : AttentionSequence{};
      unsigned claims = __ballot_sync(0xffffffffu, s.q_begin < end && s.q_begin + s.q_len > begin);
      for (; claims != 0; claims &= claims - 1) {
        const AttentionSequence later = p.sequence(n + __ffs(static_cast<int>(claims)) - 1);
        own &= ~rows_between(tile, later.q_begin, later.q_begin + later.q_len);
      }
    }
    return own;
  }

  /// A packed call's tiles in one head: first the tensor's, for rows that are nobody's, then those of each sequence.
  /// False where there are no more.
  EJK_DEVICE bool find_packed(int index, FlashSm80Tile& tile) const {
    tile = {.sequence = FlashSm80Tile::kNobody, .head = tile.head, .first_row = index * kShape.rows};
    int before = args.tiles.value;  // tiles before those of sequence n
    if (index < before) return true;
    for (int n = 0; n < p.num_sequences; n += kWarpSize) {
      const int mine = n + lane_index();
      const AttentionSequence s = mine < p.num_sequences ? p.sequence(mine) : AttentionSequence{};
      const int tiles = ceil_div(static_cast<int>(s.q_len), kShape.rows);
      int past = tiles;  // tiles up to and with those of the lane's sequence
#pragma unroll
      for (int step = 1; step < kWarpSize; step *= 2) {
        const int from_left = __shfl_up_sync(0xffffffffu, past, step);
        if (lane_index() >= step) past += from_left;
      }
      past += before;
      if (const unsigned found = __ballot_sync(0xffffffffu, index < past)) {
        const int lane = __ffs(static_cast<int>(found)) - 1;
        const int first = static_cast<int>(s.q_begin) + (index - past + tiles) * kShape.rows;
        tile.sequence = n + lane;
        tile.first_row = __shfl_sync(0xffffffffu, first, lane);
        return true;
      }
      before = __shfl_sync(0xffffffffu, past, kWarpSize - 1);
    }
    return false;
  }

  EJK_DEVICE void run() {
    const int block = static_cast<int>(blockIdx.x);
    FlashSm80Tile tile = p.packed() ? FlashSm80Tile{.sequence = 0, .head = block % args.heads.value, .first_row = 0}
                                    : args.tile(block, kShape.rows);
    // Packed tiles are more than there are blocks only where sequences overlap.
#pragma unroll 1
    for (int index = block / args.heads.value;; index += args.blocks_per_head) {
      if (p.packed() && !find_packed(index, tile)) return;
      attend(tile);
      store(tile);
      if (!p.packed()) return;
    }
  }

  template <int kCount>
  EJK_DEVICE static void clear(float (&x)[kRowTiles][kCount]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[t][i] = 0;
  }
};

template <FlashSm80Variant kVariant, FlashSm80Config kConfig>
__global__ void __launch_bounds__(FlashSm80Shape(kVariant, kConfig).threads, 1)
    flash_attention_sm80(const __grid_constant__ FlashSm80Arguments args) {
  extern __shared__ __align__(128) char memory[];
  if (blockIdx.x == 0) raise_sequence_faults(args.problem, ThreadBlock());
  if (static_cast<int>(blockIdx.x) < args.num_blocks) FlashSm80Block<kVariant, kConfig>(args, memory).run();
}

}  // namespace ejk
