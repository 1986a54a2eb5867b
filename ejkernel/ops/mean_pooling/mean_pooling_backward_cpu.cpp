// The gradient of mean_pooling on the CPU: a task owns some rows of the result and gathers what their means give them.
//
// A tile of rows times columns is summed in float32 and stored once. Almost always each row takes part in one mean;
// rows that overlapping sequences share add up in the order of sequences, whatever the number of threads.
#include <algorithm>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/mean_pooling/mean_pooling_backward_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"

#ifndef EJK_MEAN_POOLING_BACKWARD_CPU_ONCE
#define EJK_MEAN_POOLING_BACKWARD_CPU_ONCE
namespace ejk::pooling {
namespace {

constexpr int64_t kTileRows = 16, kTileColumns = 512;

/// What all tasks share.
struct BackwardCall {
  const Problem& p;
  const SequenceMap& map;
  const Tensor &d_out, &d_x;
  const int64_t* counts;  ///< selected rows of each batch entry; null without a mask
};

/// Columns [column, column + columns) of one head in rows [begin, end) of one batch entry.
struct Tile {
  int64_t batch, head, column, columns, begin, end;
};

}  // namespace
}  // namespace ejk::pooling
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::pooling::HWY_NAMESPACE {
namespace {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary

/// share = the mean's cotangent divided by its number of rows, zeros up to a whole vector.
void load_share(const BackwardCall& call, const Tile& tile, const Group& g, float* share) {
  const int64_t at = call.p.means_of(call.d_out).offset(g.batch, g.mean, tile.head) + tile.column;
  load_row(call.d_out.data, call.d_out.dtype, at, tile.columns, share);
  std::fill(share + tile.columns, share + cpu::round_up(tile.columns, lanes()), 0.0f);
  const int64_t count = call.counts != nullptr ? call.counts[g.batch] : g.length;
  const FloatTag d;
  const FloatV divisor = hn::Set(d, static_cast<float>(count));
  for (int64_t c = 0; c < tile.columns; c += lanes()) hn::Store(hn::Div(hn::Load(d, share + c), divisor), d, share + c);
}

void add_share(const float* share, int64_t columns, float* row) {
  const FloatTag d;
  for (int64_t c = 0; c < columns; c += lanes())
    hn::Store(hn::Add(hn::Load(d, row + c), hn::Load(d, share + c)), d, row + c);
}

/// Adds one sequence's means to the rows of a tile.
void add_sequence(const BackwardCall& call, const Tile& tile, const Sequence& s, float* sums) {
  HWY_ALIGN float share[kTileColumns];
  const int64_t past = std::min(tile.end, s.begin + s.length);
  for (int64_t row = std::max(tile.begin, s.begin); row < past;) {
    const Group g = call.p.group_of_row(s, row - s.begin);
    const int64_t past_group = std::min(past, g.begin + g.length);
    const bool has_row_in_out = g.mean < call.p.num_means;
    if (has_row_in_out) load_share(call, tile, g, share);
    for (; row < past_group; ++row)
      if (has_row_in_out && call.p.selected(tile.batch, row))
        add_share(share, tile.columns, sums + (row - tile.begin) * kTileColumns);
  }
}

void spread_tile(const BackwardCall& call, const Tile& tile) {
  HWY_ALIGN float sums[kTileRows * kTileColumns];
  const Problem& p = call.p;
  const int64_t width = cpu::round_up(tile.columns, lanes());
  for (int64_t row = tile.begin; row < tile.end; ++row)
    std::fill_n(sums + (row - tile.begin) * kTileColumns, width, 0.0f);
  if (!p.packed()) {
    add_sequence(call, tile, call.map.sequence(tile.batch), sums);
  } else {
    const bool in_order = !call.map.overlapping();
    for (int64_t n = in_order ? call.map.first_sequence_past(tile.begin) : 0; n < p.num_sequences; ++n) {
      const Sequence s = call.map.sequence(n);
      if (in_order && s.begin >= tile.end) break;
      add_sequence(call, tile, s, sums);
    }
  }
  const Layout rows = p.rows_of(call.d_x);
  for (int64_t row = tile.begin; row < tile.end; ++row)
    store_row(sums + (row - tile.begin) * kTileColumns, 1, tile.columns, call.d_x.data, call.d_x.dtype,
              rows.offset(tile.batch, row, tile.head) + tile.column);
}

}  // namespace
}  // namespace ejk::pooling::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::pooling {
namespace {

HWY_EXPORT(spread_tile);

/// What the workspace holds.
struct Memory {
  int64_t* first_means;
  int64_t* counts;
  size_t bytes;

  Memory(const Problem& p, std::byte* memory) {
    cpu::Carver carver(memory);
    first_means = carver.take<int64_t>(SequenceMap::size(p));
    counts = carver.take<int64_t>(p.mask.present() ? p.num_batches : 0);
    bytes = carver.used();
  }
};

/// All heads and columns of rows [begin, end).
void spread_rows(const BackwardCall& call, int64_t b, int64_t begin, int64_t end) {
  const Problem& p = call.p;
  for (int64_t row = begin; row < end; row += kTileRows)
    for (int64_t h = 0; h < p.num_heads; ++h)
      for (int64_t column = 0; column < p.dim; column += kTileColumns) HWY_DYNAMIC_DISPATCH(spread_tile)
  (call, {.batch = b,
          .head = h,
          .column = column,
          .columns = std::min(kTileColumns, p.dim - column),
          .begin = row,
          .end = std::min(row + kTileRows, end)});
}

struct BackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;

  static Support supports(const Call<MeanPoolingBackward>& call, const DeviceProperties&) {
    if (call.inputs.d_out.dtype != DType::f64) return Support::yes();
    return Support::no("d_out dtype must be f32, f16 or bf16, got f64: this kernel sums in float32");
  }
  static size_t workspace_bytes(const Call<MeanPoolingBackward>& call, const NoConfig&, const DeviceProperties&) {
    return Memory(make_problem(call.inputs, call.params), nullptr).bytes;
  }
  static void run(const Call<MeanPoolingBackward>& call, const RunContext& context) {
    constexpr int64_t kElementsPerTask = 65536;
    Problem p = make_problem(call.inputs, call.params);
    const Tensor &d_out = call.inputs.d_out, &d_x = call.outputs.x;
    const Memory memory(p, context.workspace.data());
    const SequenceMap map(p, memory.first_means, context.status);
    if (d_x.num_elements() == 0) return;
    p.merge_heads(d_x, d_out);
    if (p.mask.present())
      cpu::parallel_for(p.num_batches, [&](int64_t b) {
        memory.counts[b] = p.count({.batch = b, .begin = 0, .length = p.num_tokens, .mean = 0});
      });
    const BackwardCall shared = {p, map, d_out, d_x, p.mask.present() ? memory.counts : nullptr};
    const int64_t tiles = std::max<int64_t>(kElementsPerTask / (p.num_heads * p.dim) / kTileRows, 1);
    const int64_t rows_per_task = tiles * kTileRows, tasks = cpu::ceil_div(p.num_tokens, rows_per_task);
    cpu::parallel_for(p.num_batches * tasks, [&](int64_t task) {
      const int64_t begin = task % tasks * rows_per_task;
      spread_rows(shared, task / tasks, begin, std::min(begin + rows_per_task, p.num_tokens));
    });
  }
};

}  // namespace
}  // namespace ejk::pooling

namespace ejk {

const KernelInfo& mean_pooling_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<MeanPoolingBackward, pooling::BackwardCpu>();
  return kernel;
}

}  // namespace ejk
#endif
