// The CPU kernels of softmax attention as functions of a resolved Problem, for every operation that comes down to one,
// and how they split their work: the part that is the same for every instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/flash_attention/attention_problem.h"
#include "ejkernel/platform/cpu/amx.h"

namespace ejk::attn {

/// How many query rows and keys are computed together, and in which arithmetic. Changes speed, and results by rounding
/// only.
struct CpuConfig {
  int block_q = 128;
  int block_k = 128;
  int bf16_dot = 0;

  static constexpr auto fields() {
    return std::array{config_field<&CpuConfig::block_q, 16, 32, 64, 128, 256, 512>("block_q", "query rows of a tile"),
                      config_field<&CpuConfig::block_k, 32, 64, 128, 256>("block_k", "keys of a tile"),
                      config_field<&CpuConfig::bf16_dot, 0, 1, 2>(
                          "bf16_dot",
                          "1: bf16 tensors are multiplied as they are, and what multiplies them is rounded "
                          "to bf16; 2: likewise, on the processor's matrix unit (AMX); 0: they are widened to "
                          "float32")};
  }
};

/// Of a backward.
struct CpuBackwardConfig : CpuConfig {
  int key_parts = 1;

  static constexpr auto fields() {
    const auto shared = CpuConfig::fields();
    return std::array{shared[0], shared[1], shared[2],
                      config_field<&CpuBackwardConfig::key_parts, 1, 2, 4, 8, 16, 32, 64>(
                          "key_parts",
                          "parts that the keys of a kv head are cut into, over all sequences and by their work, each "
                          "with sums of dQ of its own")};
  }
};
inline constexpr int kMaxBlockK = 256;

/// True when products are of pairs of bf16. Keys in pages may be of another dtype than queries; scales of groups of
/// elements are applied to floats.
inline bool uses_pairs(const Problem& p, const CpuConfig& config) {
  if (config.bf16_dot == 0 || p.query.dtype != DType::bf16) return false;
  const bool exact = p.key.dtype == DType::bf16 || bits(p.key.dtype) <= 8;
  return exact && (!p.pages.present || (p.k_scale.rank() != 4 && p.v_scale.rank() != 4));
}

/// What multiplies pairs with this config: null for vectors.
inline const cpu::MatrixUnit* unit_of(const CpuConfig& config) {
  return config.bf16_dot == 2 ? cpu::matrix_unit() : nullptr;
}

/// The config with everything widened to float32.
template <class Config>
Config widened(Config config) {
  config.bf16_dot = 0;
  return config;
}

/// True when a [batch, row, head, dim] tensor of bf16 is tiny: it has numbers other than 0, and all are below 2^-50.
/// The dot instructions take subnormal products for 0, which would then be seen. Stops at the first number that is
/// larger.
bool is_tiny(const Tensor& t);
/// Of a number of bf16: that it is finite and not below 2^-50.
inline bool is_ordinary(uint16_t bits) {
  const int exponent = bits >> 7 & 0xff;
  return exponent >= 127 - 50 && exponent < 255;
}

Support supports_cpu(const FlashAttention::Inputs& in);
/// Whether this machine can run the config.
Support runs_here(const CpuConfig& config);
/// What the heuristic of a call may go by: of one that is to be deterministic neither how many threads there are nor
/// what somebody measured, since either may be another the next time.
DeviceProperties basis_of_choice(DeviceProperties device, bool deterministic);
/// For CpuConfig and CpuBackwardConfig.
template <class Config>
Config cpu_heuristic(const Problem& p, const DeviceProperties& device);
template <class Config>
std::vector<Config> cpu_candidates(const Problem& p);
/// Keys that are masked count as well: of two configs both have them.
Cost cpu_cost(const Problem& p, const CpuConfig& config);
Cost cpu_cost(const Problem& p, const CpuBackwardConfig& config);

/// Bytes that the functions below need: scratch for each of the threads that could run, and for the backward some
/// floats per query row and dQ in float32, key_parts times of the longest sequence. The forward's threads are so few
/// that their scratch is at most 7 MiB for each head of a sequence, or that of one. Tensors of the problem need no
/// data.
int64_t most_forward_workers(const Problem& p, const CpuConfig& config);
size_t forward_cpu_workspace(const Problem& p, const CpuConfig& config, const DeviceProperties& device);
size_t backward_cpu_workspace(const Problem& p, const CpuBackwardConfig& config, const DeviceProperties& device);

/// out and lse of flash_attention; an absent one is not computed.
void forward_cpu(const Problem& p, const Tensor& out, const Tensor& lse, const CpuConfig& config,
                 const RunContext& context);

/// What the gradient needs besides the problem.
struct Cotangents {
  Tensor out = {}, lse = {};
  Tensor d_out = {}, d_lse = {};  ///< absent: zero
  Tensor d_weights = {};          ///< [batch, num_q_heads, q_len, kv_len], of what multiplies the values; absent: zero
};
/// The gradients wanted; an absent one is not computed.
void backward_cpu(const Problem& p, const Cotangents& given, const FlashAttentionBackward::Outputs& wanted,
                  const CpuBackwardConfig& config, const RunContext& context);

/// Cuts the keys of sequences into parts, each a task of the backward. A sequence has so many of key_parts as its share
/// of the work is, rounded up: a long one among short ones is shared by all threads, and of many alike each has one.
/// Depends on lengths and the config alone. Every part has its own sums of dQ for the rows of its sequence.
class KeyParts {
 public:
  struct Task {
    int64_t sequence, kv_head, part;
  };

  /// Of sequences [begin, end). `memory` has room for numbers(num_sequences).
  void build(const Problem& p, const CpuBackwardConfig& config, int64_t begin, int64_t end, int64_t* memory);
  static int64_t numbers(int64_t num_sequences) { return 4 * num_sequences + 1; }

  int64_t num_tasks() const { return first_task_[end_ - begin_]; }
  /// Those of the sequences with the most work come first.
  Task find(int64_t task) const;
  int64_t count(int64_t sequence) const { return count_[sequence - begin_]; }
  /// Where the sums of a part begin, in rows of a query head; they go position by position of the kv head's group.
  int64_t first_row(const Sequence& s, int64_t kv_head, int64_t part) const {
    return first_row_[s.index - begin_] + (kv_head * count(s.index) + part) * s.q_len * group_;
  }

  /// At least as many tasks, and rows of sums, as `build` can find, from shapes alone.
  static int64_t most_tasks(const Problem& p, int64_t key_parts);
  static int64_t most_rows(const Problem& p, int64_t key_parts);

 private:
  int64_t begin_ = 0, end_ = 0, num_kv_heads_ = 1, group_ = 1;
  int64_t* order_ = nullptr;       ///< sequences, those with the most work first
  int64_t* first_task_ = nullptr;  ///< of each of them in that order, and the number of tasks
  // By sequence.
  int64_t* count_ = nullptr;
  int64_t* first_row_ = nullptr;
};

/// A call of backward_cpu, as its tasks see it. Sums that tasks hand on lie in the workspace, by row of the tensors:
/// [batch, q head, row].
struct BackwardCall {
  const Problem& problem;
  const Cotangents& given;
  const FlashAttentionBackward::Outputs& wanted;
  const CpuConfig& config;
  KeyParts parts = {};
  /// Sums of dO * O and of weight * dweight, minus dlse; -dlse for a row that sees nothing. Null: not needed.
  float* delta = nullptr;
  float* d_query = nullptr;  ///< [row of a part, padded(head_dim)]. Null: not needed.
  uint8_t* sees = nullptr;   ///< [row of a part]: 1 where the row saw a key

  float& delta_of(int64_t b, int64_t h, int64_t row) const {
    return delta[(b * problem.num_q_heads + h) * problem.q_rows + row];
  }
  float lse_of(int64_t b, int64_t h, int64_t row) const;
  float d_lse_of(int64_t b, int64_t h, int64_t row) const;
};

/// Splits the gradient of a bias into tiles; an axis of extent 1 stands for everything the bias is broadcast to.
struct BiasTiles {
  int64_t batches, heads, row_blocks, key_blocks;
  struct Place {
    int64_t batch, head, row_block, key_block;
  };
  BiasTiles(const Shape& shape, const CpuConfig& config);
  int64_t count() const { return batches * heads * row_blocks * key_blocks; }
  Place find(int64_t tile) const;
  /// What index `at` of an axis of extent `extent` stands for, out of `all`.
  struct Range {
    int64_t begin, end;
  };
  static Range stands_for(int64_t extent, int64_t all, int64_t at) {
    return extent == 1 ? Range{0, all} : Range{at, at + 1};
  }
};

/// Numbers the blocks of rows (of queries or of keys) of all sequences: blocks of one (sequence, kv head) follow each
/// other. Rows of sequences that overlap, which only damaged offsets can ask for, are found here.
class BlockMap {
 public:
  enum class Side { kQueries, kKeys };
  struct Place {
    int64_t sequence, kv_head, block;  ///< `block` counts from the sequence's first row
    int64_t num_blocks;                ///< of this sequence and kv head
  };

  /// `first` has room for num_sequences + 1 numbers. A position has `rows` rows (the query heads of a group).
  void build(const Problem& p, Side side, int64_t rows, int64_t rows_per_block, int64_t* first, uint32_t* status);
  int64_t num_blocks() const { return num_sequences_ == 0 ? 0 : first_[num_sequences_]; }
  Place find(int64_t block) const;
  /// Number of the first block of sequence `n`; of one past the last sequence, the number of blocks.
  int64_t first_block(int64_t n) const { return first_[n]; }
  /// True when two sequences may claim the same rows. Then blocks must be done in order: the last one's result stays.
  bool overlapping() const { return overlapping_; }

  /// At least as many blocks as `build` can find, from shapes alone.
  static int64_t most_blocks(const Problem& p, Side side, int64_t rows, int64_t rows_per_block);

 private:
  const int64_t* first_ = nullptr;  ///< number of the first block of each sequence, and the total
  int64_t num_sequences_ = 0, num_kv_heads_ = 1;
  bool overlapping_ = false;
};

/// Parts of forward_cpu, for kernels that have other work beside it. A tile: block `place.block` of the rows of
/// (sequence, kv head), block_q of them at most, with scratch of forward_tile_bytes(p, config).
size_t forward_tile_bytes(const Problem& p, const CpuConfig& config);
void forward_cpu_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                      const Tensor& lse, std::byte* scratch);
/// Rows of no sequence count as rows that see no key (rule 10). `overlapping` as for_each_gap has it.
void fill_gaps(const Problem& p, bool overlapping, const Tensor& out, const Tensor& lse);

/// Calls gap(batch, begin, end) for the query or key rows that no sequence owns. With overlapping sequences it may name
/// owned ones as well.
template <class Gap>
void for_each_gap(const Problem& p, BlockMap::Side side, bool overlapping, Gap gap) {
  const bool queries = side == BlockMap::Side::kQueries;
  const int64_t rows = queries ? p.q_rows : p.k_rows;
  if (p.packed && overlapping) return gap(0, 0, rows);
  int64_t owned = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    const int64_t begin = queries ? s.q_begin : s.k_begin, length = queries ? s.q_len : s.k_len;
    if (!p.packed && length < rows) gap(n, length, rows);
    if (!p.packed || length == 0) continue;
    if (begin > owned) gap(0, owned, begin);
    owned = begin + length;
  }
  if (p.packed && owned < rows) gap(0, owned, rows);
}

/// Offset of (batch, head, row) in a [batch, heads, rows] or [heads, rows] tensor of row statistics.
inline int64_t stat_offset(const Tensor& t, int64_t b, int64_t h, int64_t row) {
  return t.rank() == 3 ? b * t.strides[0] + h * t.strides[1] + row * t.strides[2]
                       : h * t.strides[0] + row * t.strides[1];
}

inline float BackwardCall::lse_of(int64_t b, int64_t h, int64_t row) const {
  return given.lse.as<const float>()[stat_offset(given.lse, b, h, row)];
}
inline float BackwardCall::d_lse_of(int64_t b, int64_t h, int64_t row) const {
  return given.d_lse.present() ? given.d_lse.as<const float>()[stat_offset(given.d_lse, b, h, row)] : 0;
}

/// Writes zeros to rows [begin, end) of all heads.
void clear_rows(const Tensor& t, int64_t b, int64_t begin, int64_t end);

}  // namespace ejk::attn
