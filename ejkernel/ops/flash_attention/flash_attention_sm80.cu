// Forward attention on Ampere and everything newer. A block owns a tile of query rows, 16 or 32 to a warp, and walks
// the keys they see from the last block to the first:
//
//     S = Q K^T           while the values of the block arrive
//     P = exp2(S - m)     likewise; O and the row sums follow the maximum m
//     O = O + P V         while the keys of the next one arrive
//
// The scheme is FlashAttention-2's (arXiv:2307.08691). Packed rows are tiled as they lie: a tile that several sequences
// share is computed for each of them, and a row belongs to the last that claims it.
#include "ejkernel/ops/flash_attention/flash_attention_sm80.cuh"
#include "ejkernel/platform/cuda/device/anew.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"
#include "ejkernel/platform/cuda/device/copy_async.cuh"
#include "ejkernel/platform/cuda/device/fragments.cuh"
#include "ejkernel/platform/cuda/device/half.cuh"
#include "ejkernel/platform/cuda/device/mma.cuh"
#include "ejkernel/platform/cuda/device/online_softmax.cuh"
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

  /// The block's, computed anew where it is wanted: registers are scarce between.
  EJK_DEVICE FlashSm80Tile tile() const { return args.tile(anew(static_cast<int>(blockIdx.x)), kShape.rows); }
  /// The sequence of that number; nobody's rows, which see no key, before the first.
  EJK_DEVICE AttentionSequence sequence(int number) const {
    return number < 0 ? AttentionSequence{} : p.sequence(anew(number));
  }
  /// In the tile.
  EJK_DEVICE static int warp_row() { return static_cast<int>(threadIdx.x) / kWarpSize * 16 * kRowTiles; }
  /// In the tile, the first of the thread's rows: others lie 16 below for each row tile, and 8 below that.
  EJK_DEVICE static int thread_row() { return warp_row() + lane_index() / 4; }

  // ---- copying ----

  EJK_DEVICE static const char* address_of(const TensorRef& t, int64 entry, int64 row, int64 head) {
    return static_cast<const char*>(t.data) + 2 * t.offset(entry, row, head, 0);
  }
  EJK_DEVICE void start_queries(const FlashSm80Tile& tile) const {
    copy_rows<kShape.rows, kShape.dim, kShape.threads>(
        memory, {.first = address_of(p.query, tile.batch, tile.first_row, tile.head),
                 .stride = 2 * p.query.strides[1],
                 .begin = 0,
                 .end = static_cast<int>(min<int64>(p.q_rows - tile.first_row, kShape.rows)),
                 .columns = static_cast<int>(p.head_dim)});
  }
  /// A block of keys or of values, whose first row lies at `first`; those that no row of the tile sees become zeros.
  template <int kColumns>
  EJK_DEVICE static void start_block(uint32 to, const char* first, int64 stride, int64 columns,
                                     const FlashSm80Blocks& blocks, int n) {
    copy_rows<kKeys, kColumns, kShape.threads>(to, {.first = first + n * (kKeys * 2 * stride),
                                                    .stride = 2 * stride,
                                                    .begin = blocks.begin - n * kKeys,
                                                    .end = blocks.end - n * kKeys,
                                                    .columns = static_cast<int>(columns)});
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
    const int first_key = n * kKeys + lane_index() % 4 * 2, first = anew(first_row) + thread_row();
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

  /// P = exp2(S - m); O and the row sums follow.
  EJK_DEVICE void exponentiate() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float m[2] = {kNegativeInfinity, kNegativeInfinity};
#pragma unroll
      for (int i = 0; i < kScores; ++i) m[i / 2 % 2] = greater(m[i / 2 % 2], scores[t][i]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = rows[t][r].follow(quad_max(m[r]), args.scale_log2);
#pragma unroll
        for (int i = 0; i < kOutputs / 2; ++i) outputs[t][i / 2 * 4 + 2 * r + i % 2] *= factor;
      }
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[t][i] = rows[t][i / 2 % 2].weigh(scores[t][i], args.scale_log2);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) weights[t][i] = pack<kVariant.type>(scores[t][2 * i], scores[t][2 * i + 1]);
    }
  }

  EJK_DEVICE void attend(int number) {
    const FlashSm80Tile tile = this->tile();
    const AttentionSequence s = sequence(number);
    clear(outputs);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) rows[t][0].clear(), rows[t][1].clear();
    const int first_row = tile.first_row - static_cast<int>(s.q_begin);
    const int first = max(first_row, 0), past = min(first_row + kShape.rows, static_cast<int>(s.q_len));
    if (first >= past) return;
    const FlashSm80Keys seen(p, s);
    const FlashSm80Blocks blocks = key_blocks<kKeys>(seen, first, past);
    const int64 kv_head = tile.head / p.group();
    const char* key_rows = address_of(p.key, tile.batch, s.k_begin, kv_head);
    const char* value_rows = address_of(p.value, tile.batch, s.k_begin, kv_head);
    const auto start_keys = [&](int n) {
      start_block<kShape.dim>(memory + kShape.key_offset, key_rows, p.key.strides[1], p.head_dim, blocks, n);
    };
    const auto start_values = [&](int n) {
      start_block<kShape.value_dim>(memory + kShape.value_offset, value_rows, p.value.strides[1], p.value_dim, blocks,
                                    n);
    };

    if (blocks.first == blocks.past) return;
    start_queries(tile);
    start_keys(blocks.past - 1);
#pragma unroll 1
    for (int n = blocks.past - 1; n >= blocks.first; --n) {
      wait_copies<0>();
      __syncthreads();  // the keys are there, and nobody reads values any more
      start_values(n);
      compute_scores();
      if constexpr (kVariant.soft_cap) cap();
      if (!blocks.is_whole(n)) mask(seen, first_row, n);
      exponentiate();
      wait_copies<0>();
      __syncthreads();  // the values are there, and nobody reads keys any more
      if (n > blocks.first) start_keys(n - 1);
      compute_outputs();
    }
  }

  // ---- storing ----

  /// A head's sinks as one logit, in powers of two.
  EJK_DEVICE float sink(int head) const {
    OnlineSoftmax sinks;
    sinks.clear();
#pragma unroll 1
    for (int64 a = 0; a < p.num_sinks; ++a) sinks.add(static_cast<float>(p.sink(head, a)) * kLog2E);
    return sinks.sum == 0 ? kNegativeInfinity : sinks.shift + log2_approximate(sinks.sum);
  }

  /// The rows of the sequence; all that are before the first.
  EJK_DEVICE void store(int number) {
    const FlashSm80Tile tile = this->tile();
    const AttentionSequence s = sequence(number);
    const float sinks = sink(tile.head);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        OnlineSoftmax& row = rows[t][r];
        row.sum = quad_sum(row.sum);
        float factor = row.add(sinks);
        factor *= row.normalizer();
        const int at = tile.first_row + thread_row() + 16 * t + 8 * r;
        if (number < 0 ? at >= p.q_rows : !s.has_row(at)) continue;
        if (args.to.lse.present() && lane_index() % 4 == 0)
          static_cast<float*>(args.to.lse.data)[args.to.lse.offset(at, tile.batch, tile.head, 0)] = row.log_sum_exp();
        if (!args.to.out.present()) continue;
        auto* out = static_cast<unsigned short*>(args.to.out.data) + args.to.out.offset(tile.batch, at, tile.head, 0);
#pragma unroll
        for (int step = 0; step < kShape.value_dim / 8; ++step) {
          const int column = 8 * step + lane_index() % 4 * 2, i = 4 * step + 2 * r;
          if (column >= p.value_dim) continue;
          const uint32 word = pack<kVariant.type>(outputs[t][i] * factor, outputs[t][i + 1] * factor);
          if (args.out_is_aligned) {
            *reinterpret_cast<uint32*>(out + column) = word;
          } else {
            out[column] = static_cast<unsigned short>(word);
            out[column + 1] = static_cast<unsigned short>(word >> 16);
          }
        }
      }
  }

  /// The first sequence after `after` that owns a row of the tile; num_sequences when none does.
  EJK_DEVICE int next_owner(int after) const {
    const FlashSm80Tile tile = this->tile();
    const int count = static_cast<int>(p.num_sequences);
    for (int n = after + 1; n < count; n += kWarpSize) {
      const int mine = n + lane_index();
      const AttentionSequence s = mine < count ? p.sequence(mine) : AttentionSequence{};
      const bool owns = s.q_len > 0 && s.q_begin < tile.first_row + kShape.rows && s.q_begin + s.q_len > tile.first_row;
      if (const unsigned owners = __ballot_sync(0xffffffffu, owns)) return n + __ffs(static_cast<int>(owners)) - 1;
    }
    return count;
  }

  EJK_DEVICE void run() {
    // A packed row that no sequence claims is like one that sees no key.
    int number = p.packed() ? -1 : tile().batch;
#pragma unroll 1
    do {
      attend(number);
      store(number);
      number = p.packed() ? next_owner(number) : static_cast<int>(p.num_sequences);
    } while (number < p.num_sequences);
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
__global__ void __launch_bounds__(FlashSm80Shape(kVariant, kConfig).threads)
    flash_attention_sm80(const __grid_constant__ FlashSm80Arguments args) {
  extern __shared__ __align__(128) char memory[];
  if (blockIdx.x == 0) raise_sequence_faults(args.problem, ThreadBlock());
  if (static_cast<int>(blockIdx.x) < args.num_tiles) FlashSm80Block<kVariant, kConfig>(args, memory).run();
}

}  // namespace ejk
