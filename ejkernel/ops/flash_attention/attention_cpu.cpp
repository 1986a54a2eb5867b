#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

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

DeviceProperties basis_of_choice(DeviceProperties device, bool deterministic) {
  constexpr int kUnits = 16;  // parts that serve a few threads as well
  if (deterministic) device.num_units = kUnits, device.bf16_speedup = 0;
  return device;
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
  const auto tiles = [&](int block_q) {
    return BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), block_q);
  };
  // What a block of keys costs before the matrix unit can take it is shared by the rows of a tile: the larger the
  // better, while there are enough of them for the threads.
  if (config.bf16_dot == 2 && config.block_q == 128)
    while (config.block_q < 512 && rows_of(p) >= 2 * config.block_q &&
           tiles(2 * config.block_q) >= 4 * device.num_units)
      config.block_q *= 2;
  // Smaller tiles rather than threads without work, where there is not scratch for all.
  const auto wanted = [&] { return std::min<int64_t>(tiles(config.block_q), device.num_units); };
  while (std::max(config.block_q, config.block_k) > 32 && wanted() > most_forward_workers(p, config))
    (config.block_k >= config.block_q ? config.block_k : config.block_q) /= 2;
  return config;
}

template <>
CpuBackwardConfig cpu_heuristic(const Problem& p, const DeviceProperties& device) {
  CpuBackwardConfig config;
  static_cast<CpuConfig&>(config) = tiles_for(p, device);
  // One sequence may have all of the work: as many parts as that needs, while there are two blocks of keys for each and
  // their sums are at most eight times as large as dQ.
  const int64_t tensors = p.packed ? 1 : p.num_sequences, keys = tensors * p.k_rows;
  const int64_t rows = tensors * p.q_rows * p.num_q_heads;
  while (config.key_parts < 64 && p.num_kv_heads * config.key_parts < 2 * device.num_units &&
         keys > 2 * config.key_parts * config.block_k && KeyParts::most_rows(p, 2 * config.key_parts) <= 8 * rows)
    config.key_parts *= 2;
  // Every block of keys reads and writes the sums of dQ, which a cache near the core seldom holds.
  // The matrix unit reads P and dS from four arrays of a tile: half the rows keep those as small as they were.
  if (config.block_k == 128 && keys >= 2 * config.key_parts * 256) {
    config.block_k = 256;
    if (config.bf16_dot == 2) config.block_q = std::min(config.block_q, 64);
  }
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
    for (const int key_parts : {1, 2, 8, 32}) {  // what lies between is seldom worth a measurement
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
  const double blocks = std::max(1.0, std::ceil(keys_of(p) / config.block_k));
  const double parts = std::min(std::ceil(config.key_parts / sequences), blocks);
  return {.tasks = sequences * static_cast<double>(p.num_kv_heads) * parts,
          .task_flops = 2.0 * std::ceil(rows / config.block_q) * config.block_q * std::ceil(blocks / parts) *
                        config.block_k * static_cast<double>(3 * p.head_dim + 2 * p.value_dim),
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

void KeyParts::build(const Problem& p, const CpuBackwardConfig& config, int64_t begin, int64_t end, int64_t* memory) {
  begin_ = begin, end_ = end, num_kv_heads_ = p.num_kv_heads, group_ = p.group();
  const int64_t num_sequences = end - begin;
  order_ = memory, first_task_ = order_ + num_sequences;
  count_ = first_task_ + num_sequences + 1, first_row_ = count_ + num_sequences;

  const std::span<int64_t> work(count_, static_cast<size_t>(num_sequences)), order(order_, work.size());
  double all = 0;
  for (int64_t n = 0; n < num_sequences; ++n) {
    const Sequence s = p.sequence(begin + n, nullptr);
    all += static_cast<double>(count_[n] = s.q_len * s.k_len);
  }
  std::iota(order.begin(), order.end(), begin);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return std::pair(-count_[a - begin], a) < std::pair(-count_[b - begin], b); });

  int64_t tasks = 0, rows = 0;
  for (int64_t at = 0; at < num_sequences; ++at) {
    const int64_t n = order_[at] - begin;
    const Sequence s = p.sequence(order_[at], nullptr);
    const double share = all == 0 ? 0 : config.key_parts * static_cast<double>(count_[n]) / all;
    const int64_t most = std::max<int64_t>(cpu::ceil_div(s.k_len, int64_t{config.block_k}), 1);
    count_[n] = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(share)), 1, most);
    first_task_[at] = tasks, first_row_[n] = rows;
    tasks += count_[n] * p.num_kv_heads;
    rows += count_[n] * s.q_len * p.num_q_heads;
  }
  first_task_[num_sequences] = tasks;
}

KeyParts::Task KeyParts::find(int64_t task) const {
  const int64_t* past = std::upper_bound(first_task_, first_task_ + (end_ - begin_), task);
  const int64_t at = past - first_task_ - 1, local = task - first_task_[at];
  const int64_t parts = count(order_[at]);
  return {.sequence = order_[at], .kv_head = local / parts, .part = local % parts};
}

int64_t KeyParts::most_tasks(const Problem& p, int64_t key_parts) {
  return std::min(p.num_sequences * key_parts, p.num_sequences + key_parts) * p.num_kv_heads;
}

int64_t KeyParts::most_rows(const Problem& p, int64_t key_parts) {
  const int64_t all = (p.packed ? 1 : p.num_sequences) * p.q_rows;
  if (!p.packed && !p.used_q.present() && !p.used_k.present() && all > 0)  // all alike
    return all * cpu::ceil_div(key_parts, p.num_sequences) * p.num_q_heads;
  // Rounding up gives every sequence at most one part more; what is rounded is most where one sequence is all there is.
  const int64_t longest = p.packed ? std::min(p.q_rows, p.max_q) : p.q_rows;
  return std::min(all * key_parts, all + longest * key_parts) * p.num_q_heads;
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
