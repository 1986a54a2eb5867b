#include <algorithm>
#include <cassert>
#include <string>

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cpu_internal.h"
#include "ejkernel/platform/cpu/bf16_dot.h"

namespace ejk::gmm {
namespace {

/// Rows of no group that a task copies or clears.
constexpr int64_t kGapRows = 64;

bool holds_bf16(const Operand& x) { return x.matrix.dtype == DType::bf16 || bits(x.matrix.dtype) == 8; }

/// Rows that a group has, on average.
int64_t average_rows(const Product& p) {
  return p.ragged == Ragged::rows ? cpu::ceil_div(p.rows, std::max<int64_t>(p.num_groups, 1)) : p.rows;
}

/// Whether most groups have few rows, and read b as it lies in memory (platform/cpu/matmul-inl.h, stream_block).
bool streams(const Product& p) {
  return average_rows(p) <= cpu::kMostStreamedRows && p.b.matrix.column == 1 && p.b.scale.data == nullptr &&
         bits(p.b.matrix.dtype) > 8;
}

/// Tasks when all groups have as many rows.
int64_t likely_tasks(const Product& p, const CpuConfig& config) {
  const Cuts cuts(p);
  return p.num_batches * p.num_groups * Blocks(config.block_rows, cuts.rows, 0).count({0, average_rows(p)}) *
         Blocks(config.block_columns, cuts.columns, 0).count({0, p.columns});
}

int64_t cut_of(const Mask& one, int64_t one_extent, const Mask& other, int64_t other_extent) {
  assert(one.data == nullptr || other.data == nullptr || one_extent == other_extent);
  return one.data != nullptr ? one_extent : other.data != nullptr ? other_extent : 0;
}

bool is_tiny(const Matrix& m, int64_t batches, int64_t groups, int64_t rows, int64_t columns) {
  if (m.dtype != DType::bf16) return false;
  if (m.column != 1 && columns > 1)
    return is_tiny({m.data, m.dtype, m.batch, m.group, m.column, m.row}, batches, groups, columns, rows);
  const auto* numbers = static_cast<const uint16_t*>(m.data);
  bool any = false;
  for (int64_t b = 0; b < batches; ++b)
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = numbers + m.offset(b, g, r, 0);
        for (int64_t c = 0; c < columns; ++c) {
          const int exponent = row[c] >> 7 & 0xff;
          if (exponent >= 127 - 50 && exponent < 255) return false;  // infinities and NaN prove nothing
          any = any || (row[c] & 0x7fff) != 0;
        }
      }
  return any;
}

/// Of a group, on average where groups divide the depth.
int64_t average_depth(const Product& p) {
  return p.ragged == Ragged::depth ? p.depth / std::max<int64_t>(p.num_groups, 1) : p.depth;
}

}  // namespace

Support supports_cpu(DType a, DType b, DType out) {
  for (const DType dtype : {a, b})
    if (dtype == DType::f64) return Support::no("factors must not be f64: this kernel accumulates in float32");
  if (out == DType::f64) return Support::no("out must not be f64: this kernel accumulates in float32");
  return Support::yes();
}

Support runs_here(const CpuConfig& config) { return cpu::bf16_dot_runs_here(config.bf16_dot); }

bool fits_pairs(const Product& p) {
  return holds_bf16(p.a) && holds_bf16(p.b) && (p.a.scale.data == nullptr || p.a.scale.is_of_rows()) &&
         (p.b.scale.data == nullptr || p.b.scale.is_of_columns());
}

bool is_tiny(const Product& p) {
  const int64_t groups = p.num_groups;
  return is_tiny(p.a.matrix, p.num_batches, p.ragged == Ragged::none ? groups : 1, p.rows, p.depth) ||
         is_tiny(p.b.matrix, p.num_batches, p.ragged == Ragged::depth ? 1 : groups, p.depth, p.columns);
}

CpuConfig cpu_heuristic(const Product& p, const DeviceProperties& device) {
  CpuConfig config;
  config.bf16_dot = fits_pairs(p) ? cpu::best_bf16_dot(device) : 0;
  const auto leaves_each_thread = [&](int64_t tasks) { return likely_tasks(p, config) >= tasks * device.num_units; };
  // Every row of a task pays for a share of packing its columns, which the matrix unit does not make faster. Sums of so
  // many rows do not fit in the second-level cache: that pays where they stay in registers for long, and where threads
  // that are slowed down still finish with the others.
  config.block_rows = 1024;
  if (average_depth(p) < 1024 || !leaves_each_thread(8)) config.block_rows = 512;
  const int64_t rows = average_rows(p);
  while (config.block_rows > 64 && rows <= config.block_rows / 2) config.block_rows /= 2;
  // Long pieces of b's rows: memory is read in the order of its pages.
  if (streams(p)) config.block_columns = 2048;
  // Threads finish together, as long as blocks are large enough to pay for packing their sides; none stays idle.
  while (!leaves_each_thread(4)) {
    if (config.block_rows > std::max(256, config.block_columns))
      config.block_rows /= 2;
    else if (config.block_columns > (leaves_each_thread(1) ? 256 : 128))
      config.block_columns /= 2;
    else
      break;
  }
  return config;
}

std::vector<CpuConfig> cpu_candidates(const Product& p) {
  std::vector<CpuConfig> all;
  const int dots = !fits_pairs(p) ? 1 : cpu::matrix_unit() == nullptr ? 2 : 3;
  const auto add = [&](int block_rows, int block_columns) {
    for (int dot = 0; dot < dots; ++dot)
      all.push_back({.block_rows = block_rows, .block_columns = block_columns, .bf16_dot = dot});
  };
  for (const int block_rows : {64, 128, 256, 512, 1024, 2048})
    if (block_rows <= 512 || p.rows > block_rows / 2)
      for (const int block_columns : {64, 128, 256, 512}) add(block_rows, block_columns);
  if (streams(p))
    for (const int block_columns : {1024, 2048}) add(64, block_columns);
  return all;
}

Cost cpu_cost(const Product& p, const CpuConfig& config) {
  const int64_t rows = std::min<int64_t>(average_rows(p), config.block_rows);
  return {.tasks = static_cast<double>(TaskMap::most_tasks(p, config)),
          .task_flops =
              2.0 * static_cast<double>(rows * std::min<int64_t>(p.columns, config.block_columns) * average_depth(p)),
          .arithmetic = uses_pairs(p, config) ? DType::bf16 : DType::f32};
}

Cuts::Cuts(const Product& p)
    : rows(cut_of(p.a.mask, p.a.mask.block_rows, p.out_mask, p.out_mask.block_rows)),
      columns(cut_of(p.b.mask, p.b.mask.block_columns, p.out_mask, p.out_mask.block_columns)),
      depth(cut_of(p.a.mask, p.a.mask.block_columns, p.b.mask, p.b.mask.block_rows)) {}

TaskMap::TaskMap(const Product& p, const CpuConfig& config, int64_t* offsets, int64_t* first, uint32_t* status)
    : p_(p),
      config_(config),
      cuts_(p),
      columns_(config.block_columns, cuts_.columns, 0),
      offsets_(offsets),
      first_(first) {
  p.find_groups(offsets, status);
  const int64_t across = columns_.count({0, p.columns});
  first[0] = 0;
  for (int64_t g = 0; g < p.num_groups; ++g) first[g + 1] = first[g] + row_blocks(g).count(rows_of(g)) * across;
  num_owned_ = p.num_batches * first[p.num_groups];
}

Product::Range TaskMap::gap(int64_t which) const {
  if (p_.ragged != Ragged::rows) return {};
  return which == 0 ? Product::Range{0, offsets_[0]} : Product::Range{offsets_[p_.num_groups], p_.rows};
}

int64_t TaskMap::num_gap_blocks() const {
  int64_t count = 0;
  for (const int64_t which : {0, 1}) count += Blocks(kGapRows, 0, gap(which).begin).count(gap(which));
  return count;
}

TaskMap::Tile TaskMap::find(int64_t task) const {
  if (task >= num_owned_) {
    int64_t block = task - num_owned_, which = 0;
    const int64_t before = Blocks(kGapRows, 0, 0).count(gap(0));
    if (block >= before) which = 1, block -= before;
    const Product::Range rows = gap(which);
    return {0, 0, Blocks(kGapRows, 0, rows.begin).find(rows, block), {0, p_.columns}, false};
  }
  const int64_t batch = task / first_[p_.num_groups], in_batch = task % first_[p_.num_groups];
  const int64_t group = std::upper_bound(first_, first_ + p_.num_groups + 1, in_batch) - first_ - 1;
  // Down the columns: tasks that follow each other read the same columns of b.
  const int64_t down = row_blocks(group).count(rows_of(group)), local = in_batch - first_[group];
  return {batch, group, row_blocks(group).find(rows_of(group), local % down),
          columns_.find({0, p_.columns}, local / down), true};
}

int64_t TaskMap::most_tasks(const Product& p, const CpuConfig& config) {
  const Cuts cuts(p);
  const Product::Range all{0, p.rows};
  // Ragged: each group adds at most two incomplete blocks, and so do rows of no group.
  int64_t down = Blocks(config.block_rows, cuts.rows, 0).count(all);
  down = p.ragged == Ragged::rows ? down + 2 * p.num_groups : down * p.num_groups;
  const int64_t across = Blocks(config.block_columns, cuts.columns, 0).count({0, p.columns});
  return down * across * p.num_batches + (p.ragged == Ragged::rows ? cpu::ceil_div(p.rows, kGapRows) + 2 : 0);
}

}  // namespace ejk::gmm
