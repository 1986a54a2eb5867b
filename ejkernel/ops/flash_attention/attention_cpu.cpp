#include <cmath>
#include <cstring>
#include <limits>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/platform/cpu/bf16_dot.h"
#include "ejkernel/platform/cpu/layout.h"

namespace ejk::attn {

Support supports_cpu(const FlashAttention::Inputs& in) {
  switch (in.query.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return Support::yes();
    case DType::f64:
      return Support::no("query dtype must be f32, f16 or bf16, got f64: this kernel accumulates in float32");
    default:
      return Support::no("query dtype must be f32, f16 or bf16, got " + std::string(name(in.query.dtype)));
  }
}

Support runs_here(const CpuConfig& config) { return cpu::bf16_dot_runs_here(config.bf16_dot); }

namespace {

/// Rows of queries that a key head meets.
int64_t rows_of(const Problem& p) { return p.q_rows * p.group(); }

CpuConfig tiles_for(const Problem& p, const DeviceProperties& device) {
  CpuConfig config;
  config.bf16_dot = p.query.dtype == DType::bf16 ? cpu::best_bf16_dot(device) : 0;
  // Query rows lie across SIMD lanes: decode has no use for more tile than it has rows.
  while (config.block_q > 16 && rows_of(p) <= config.block_q / 2) config.block_q /= 2;
  const int64_t dims = std::max(p.head_dim, p.value_dim);
  // Blocks of keys and values stay in the second-level cache while panels pass over them.
  if (dims > 256) config.block_q = std::min(config.block_q, 64);
  if (dims > 256) config.block_k = 64;
  return config;
}

}  // namespace

template <>
CpuConfig cpu_heuristic(const Problem& p, const DeviceProperties& device) {
  CpuConfig config = tiles_for(p, device);
  if (config.bf16_dot != 2 || config.block_q != 128) return config;
  // What a block of keys costs before the matrix unit can take it is shared by the rows of a tile: the larger the
  // better, while there are enough of them for the threads.
  const auto tiles = [&](int block_q) {
    return BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), block_q);
  };
  while (config.block_q < 512 && rows_of(p) >= 2 * config.block_q && tiles(2 * config.block_q) >= 4 * device.num_units)
    config.block_q *= 2;
  return config;
}

template <>
CpuBackwardConfig cpu_heuristic(const Problem& p, const DeviceProperties& device) {
  CpuBackwardConfig config;
  static_cast<CpuConfig&>(config) = tiles_for(p, device);
  const int64_t tasks = std::max<int64_t>(p.num_sequences * p.num_kv_heads, 1);
  while (config.key_parts < 8 && tasks * config.key_parts < 2 * device.num_units &&
         p.k_rows > 2 * config.key_parts * config.block_k)
    config.key_parts *= 2;
  return config;
}

template <>
std::vector<CpuConfig> cpu_candidates(const Problem& p) {
  std::vector<CpuConfig> all;
  const int dots = p.query.dtype != DType::bf16 ? 1 : cpu::matrix_unit() == nullptr ? 2 : 3;
  for (const int block_q : {16, 32, 64, 128, 256, 512})
    for (const int block_k : {32, 64, 128, 256})
      for (int dot = block_q == 512 ? 2 : 0; dot < dots; ++dot)  // vectors have no use for so many rows
        all.push_back({.block_q = block_q, .block_k = block_k, .bf16_dot = dot});
  return all;
}

template <>
std::vector<CpuBackwardConfig> cpu_candidates(const Problem& p) {
  std::vector<CpuBackwardConfig> all;
  for (const CpuConfig& tiles : cpu_candidates<CpuConfig>(p))
    for (const int key_parts : {1, 2, 4, 8}) {
      CpuBackwardConfig& config = all.emplace_back();
      static_cast<CpuConfig&>(config) = tiles;
      config.key_parts = key_parts;
    }
  return all;
}

namespace {

/// Of a sequence, on average.
double keys_of(const Problem& p) {
  const double keys = static_cast<double>(p.k_rows);
  return p.packed ? keys / static_cast<double>(std::max<int64_t>(p.num_sequences, 1)) : keys;
}
DType arithmetic_of(const Problem& p, const CpuConfig& config) {
  return uses_pairs(p, config) ? DType::bf16 : DType::f32;
}

}  // namespace

Cost cpu_cost(const Problem& p, const CpuConfig& config) {
  const double keys = std::ceil(keys_of(p) / config.block_k) * config.block_k;
  const int64_t tiles = BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q);
  return {.tasks = static_cast<double>(tiles),
          .task_flops = 2.0 * config.block_q * keys * static_cast<double>(p.head_dim + p.value_dim),
          .arithmetic = arithmetic_of(p, config)};
}

Cost cpu_cost(const Problem& p, const CpuBackwardConfig& config) {
  const double sequences = static_cast<double>(std::max<int64_t>(p.num_sequences, 1));
  const double rows = static_cast<double>(rows_of(p)) / (p.packed ? sequences : 1);
  const double blocks = std::ceil(keys_of(p) / config.block_k / config.key_parts);
  return {.tasks = sequences * static_cast<double>(p.num_kv_heads) * config.key_parts,
          .task_flops = 2.0 * std::ceil(rows / config.block_q) * config.block_q * blocks * config.block_k *
                        static_cast<double>(3 * p.head_dim + 2 * p.value_dim),
          .arithmetic = arithmetic_of(p, config)};
}

bool is_tiny(const Tensor& t) {
  const Strides strides = strides_of(t);
  const int64_t batches = t.rank() == 4 ? t.shape[0] : 1, rows = t.shape[-3], heads = t.shape[-2], dims = t.shape[-1];
  const auto* numbers = t.as<const uint16_t>();
  bool any = false;
  for (int64_t b = 0; b < batches; ++b)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t h = 0; h < heads; ++h) {
        const uint16_t* at = numbers + strides.offset(b, row, h);
        for (int64_t i = 0; i < dims; ++i) {
          if (is_ordinary(at[i])) return false;  // infinities and NaN prove nothing
          any = any || (at[i] & 0x7fff) != 0;
        }
      }
  return any;
}

void BlockMap::build(const Problem& p, Side side, int64_t rows, int64_t rows_per_block, int64_t* first,
                     uint32_t* status) {
  first_ = first, num_sequences_ = p.num_sequences, num_kv_heads_ = p.num_kv_heads, overlapping_ = false;
  int64_t total = 0, owned = 0;
  for (int64_t n = 0; n < num_sequences_; ++n) {
    first[n] = total;
    const Sequence s = p.sequence(n, status);
    const int64_t begin = side == Side::kQueries ? s.q_begin : s.k_begin;
    const int64_t length = side == Side::kQueries ? s.q_len : s.k_len;
    total += cpu::ceil_div(length * rows, rows_per_block) * num_kv_heads_;
    if (!p.packed || length == 0) continue;
    overlapping_ = overlapping_ || begin < owned;
    owned = begin + length;
  }
  if (num_sequences_ > 0) first[num_sequences_] = total;
}

BlockMap::Place BlockMap::find(int64_t block) const {
  const int64_t* past = std::upper_bound(first_, first_ + num_sequences_, block);
  const int64_t sequence = past - first_ - 1;
  const int64_t num_blocks = (first_[sequence + 1] - first_[sequence]) / num_kv_heads_;
  const int64_t local = block - first_[sequence];
  return {.sequence = sequence, .kv_head = local / num_blocks, .block = local % num_blocks, .num_blocks = num_blocks};
}

int64_t BlockMap::most_blocks(const Problem& p, Side side, int64_t rows, int64_t rows_per_block) {
  const int64_t all = side == Side::kQueries ? p.q_rows : p.k_rows;
  const int64_t whole = cpu::ceil_div(all * rows, rows_per_block);
  // Packed: each sequence adds at most one incomplete block.
  return (p.packed ? whole + p.num_sequences : whole * p.num_sequences) * p.num_kv_heads;
}

BiasTiles::BiasTiles(const Shape& shape, const CpuConfig& config)
    : batches(shape[0]),
      heads(shape[1]),
      row_blocks(cpu::ceil_div(shape[2], config.block_q)),
      key_blocks(cpu::ceil_div(shape[3], config.block_k)) {}

BiasTiles::Place BiasTiles::find(int64_t tile) const {
  const int64_t key_block = tile % key_blocks, rest = tile / key_blocks;
  const int64_t row_block = rest % row_blocks, matrix = rest / row_blocks;
  return {.batch = matrix / heads, .head = matrix % heads, .row_block = row_block, .key_block = key_block};
}

void clear_rows(const Tensor& t, int64_t b, int64_t begin, int64_t end) {
  const Strides strides = strides_of(t);
  const int64_t heads = t.shape[-2], size = bits(t.dtype) / 8;
  const auto bytes = static_cast<size_t>(t.shape[-1] * size);
  for (int64_t row = begin; row < end; ++row)
    for (int64_t h = 0; h < heads; ++h) std::memset(t.as<std::byte>() + strides.offset(b, row, h) * size, 0, bytes);
}

}  // namespace ejk::attn
