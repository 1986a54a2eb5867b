// mean_pooling on the CPU: every column of a group is summed in double, in an order that the shapes give, and scaled
// once.
//
// Reading x is what should take the time, and nothing overflows or drifts however long the sequence: floats are added
// in double one by one, 16-bit numbers four at a time in float32 (which has twice their digits) before they are
// widened. A task owns some means times a tile of columns. When there are too few of those to keep a machine busy, the
// rows of each group are cut into as many parts as the shapes alone say, whose sums meet in the workspace and are added
// in order: results do not depend on the number of threads.
#include <algorithm>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/mean_pooling/mean_pooling_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"

#ifndef EJK_MEAN_POOLING_CPU_ONCE
#define EJK_MEAN_POOLING_CPU_ONCE
namespace ejk::pooling {
namespace {

constexpr int64_t kTileColumns = 2048;
/// Rows that are read together, and how far ahead of them memory is asked for: enough to hide its latency.
constexpr int kRowsTogether = 4, kRowsAhead = 8;

/// Columns [column, column + columns) of one head in rows [begin, end) of one group.
struct Piece {
  Group group;
  int64_t head, column, columns, begin, end;
};

}  // namespace
}  // namespace ejk::pooling
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::pooling::HWY_NAMESPACE {
namespace {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary
using DoubleTag = hn::RepartitionToWide<FloatTag>;
using DoubleV = hn::Vec<DoubleTag>;

/// What is added in float32 is this part of the numbers: four of the largest bf16 would not fit.
template <class T>
constexpr float kPart = std::is_same_v<T, bf16_t> ? 0.25f : 1;

/// sums[c] += rows[r][c] for kRows rows; what lies `ahead` bytes further will be needed soon.
template <int kRows, class T>
HWY_INLINE void add_rows_together(const T* const* rows, int64_t columns, int64_t ahead, double* sums) {
  const DoubleTag d;
  const FloatV part = hn::Set(FloatTag(), kPart<T>);
  const DoubleV whole = hn::Set(d, 1 / double{kPart<T>});
  const int64_t half = lanes() / 2;
  int64_t c = 0;
  for (; c + lanes() <= columns; c += lanes()) {
    DoubleV low = hn::Load(d, sums + c), high = hn::Load(d, sums + c + half);
    const auto widen_and_add = [&](FloatV x) HWY_ATTR {
      low = hn::MulAdd(whole, hn::PromoteLowerTo(d, x), low);
      high = hn::MulAdd(whole, hn::PromoteUpperTo(d, x), high);
    };
    FloatV together = hn::Zero(FloatTag());
    for (int r = 0; r < kRows; ++r) {
      prefetch(rows[r] + c, ahead);
      const FloatV x = load_floats(rows[r] + c);
      if constexpr (std::is_same_v<T, float>)
        widen_and_add(x);
      else
        together = hn::MulAdd(x, part, together);
    }
    if constexpr (!std::is_same_v<T, float>) widen_and_add(together);
    hn::Store(low, d, sums + c);
    hn::Store(high, d, sums + c + half);
  }
  for (; c < columns; ++c)
    for (int r = 0; r < kRows; ++r) {
      if constexpr (std::is_same_v<T, float>)
        sums[c] += rows[r][c];
      else
        sums[c] += to_float(rows[r][c]);
    }
}

/// sums[c] += rows[r][c] for every r. Rows are read from one end to the other and several together, so that sums are
/// loaded and stored once for them: the first of each quarter, then the second, since processors follow several streams
/// but not rows that take turns in one page of memory.
template <class T>
void add_rows(const T* const* rows, int64_t num_rows, int64_t columns, int64_t ahead, double* sums) {
  const int64_t each = num_rows / kRowsTogether;
  for (int64_t r = 0; r < each; ++r) {
    const T* together[kRowsTogether];
    for (int i = 0; i < kRowsTogether; ++i) together[i] = rows[i * each + r];
    add_rows_together<kRowsTogether>(together, columns, ahead, sums);
  }
  for (int64_t r = kRowsTogether * each; r < num_rows; ++r) add_rows_together<1>(rows + r, columns, ahead, sums);
}

/// Adds the selected rows of a piece to its columns' sums and returns how many they are.
template <class T>
int64_t add_piece(const Problem& p, const Tensor& x, const Piece& piece, double* sums) {
  constexpr int64_t kRows = 128;  // found together
  const T* rows[kRows];
  int64_t count = 0;
  const Layout layout = p.rows_of(x);
  const int64_t ahead = kRowsAhead * layout.row * static_cast<int64_t>(sizeof(T));
  const int64_t b = piece.group.batch;
  for (int64_t row = piece.begin; row < piece.end;) {
    int64_t num_rows = 0;
    for (; row < piece.end && num_rows < kRows; ++row)
      if (p.selected(b, row)) rows[num_rows++] = x.as<const T>() + layout.offset(b, row, piece.head) + piece.column;
    add_rows(rows, num_rows, piece.columns, ahead, sums);
    count += num_rows;
  }
  return count;
}

int64_t sum_piece(const Problem& p, const Tensor& x, const Piece& piece, double* sums) {
  std::fill_n(sums, cpu::round_up(piece.columns, lanes()), 0.0);
  switch (x.dtype) {
    case DType::f32:
      return add_piece<float>(p, x, piece, sums);
    case DType::f16:
      return add_piece<f16_t>(p, x, piece, sums);
    default:
      return add_piece<bf16_t>(p, x, piece, sums);
  }
}

void store_mean(const Problem& p, const Tensor& out, const Piece& piece, const double* sums, int64_t count) {
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> half;
  HWY_ALIGN float mean[kTileColumns];
  const DoubleV factor = hn::Set(d, 1 / static_cast<double>(std::max<int64_t>(count, 1)));
  for (int64_t c = 0; c < piece.columns; c += lanes() / 2)
    hn::Store(hn::DemoteTo(half, hn::Mul(hn::Load(d, sums + c), factor)), half, mean + c);
  const int64_t at = p.means_of(out).offset(piece.group.batch, piece.group.mean, piece.head) + piece.column;
  store_row(mean, 1, piece.columns, out.data, out.dtype, at);
}

void pool_piece(const Problem& p, const Tensor& x, const Tensor& out, const Piece& piece) {
  HWY_ALIGN double sums[kTileColumns];
  store_mean(p, out, piece, sums, sum_piece(p, x, piece, sums));
}

}  // namespace
}  // namespace ejk::pooling::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::pooling {
namespace {

HWY_EXPORT(pool_piece);
HWY_EXPORT(sum_piece);
HWY_EXPORT(store_mean);

constexpr int64_t kMostParts = 64, kRowsPerPart = 2048;

/// Rows that a group may have, from shapes alone.
int64_t longest_group(const Problem& p) { return p.chunked() ? std::min(p.chunk_size, p.num_tokens) : p.num_tokens; }

int64_t num_pieces(const Problem& p) {
  return p.num_batches * p.num_means * p.num_heads * cpu::ceil_div(p.dim, kTileColumns);
}

/// How a call with results is cut: from its shapes alone, and where it shows in results, not from how tensors lie.
struct Split {
  int64_t parts = 1;  ///< of each group's rows; pieces * parts is at most kMostParts when there are several
  int64_t tiles;      ///< of columns in each head
  int64_t pieces;     ///< mean by mean, head by head, tile by tile
  int64_t pieces_per_task;

  /// Merges the problem's heads where it can.
  Split(Problem& p, const Tensor& x, const Tensor& out) {
    constexpr int64_t kElementsPerTask = 65536;
    if (num_pieces(p) < kMostParts)
      parts = std::clamp<int64_t>(longest_group(p) / kRowsPerPart, 1, kMostParts / num_pieces(p));
    p.merge_heads(x, out);
    tiles = cpu::ceil_div(p.dim, kTileColumns);
    pieces = num_pieces(p);
    const int64_t typical = p.packed() && !p.chunked() ? p.num_tokens / p.num_sequences : longest_group(p);
    const int64_t elements = std::clamp<int64_t>(typical, 1, kElementsPerTask) * std::min(p.dim, kTileColumns);
    pieces_per_task = std::max<int64_t>(kElementsPerTask / elements, 1);
  }
};

/// What the workspace holds.
struct Memory {
  int64_t* first_means;
  double* sums;     ///< [piece][part][kTileColumns]; only when rows may be cut into parts
  int64_t* counts;  ///< [piece][part]
  size_t bytes;

  Memory(const Problem& p, std::byte* memory) {
    cpu::Carver carver(memory);
    const int64_t num_parts = longest_group(p) / kRowsPerPart > 1 ? kMostParts : 0;
    first_means = carver.take<int64_t>(SequenceMap::size(p));
    sums = carver.take<double>(num_parts * kTileColumns);
    counts = carver.take<int64_t>(num_parts);
    bytes = carver.used();
  }
};

Piece piece_at(const Problem& p, const SequenceMap& map, const Split& split, int64_t index) {
  const int64_t tile = index % split.tiles, head = index / split.tiles % p.num_heads;
  const int64_t mean = index / split.tiles / p.num_heads;
  const Group g = map.group_of_mean(mean / p.num_means, mean % p.num_means);
  const int64_t column = tile * kTileColumns;
  return {.group = g,
          .head = head,
          .column = column,
          .columns = std::min(kTileColumns, p.dim - column),
          .begin = g.begin,
          .end = g.begin + g.length};
}

void pool_whole_groups(const Problem& p, const SequenceMap& map, const Split& split, const Tensor& x,
                       const Tensor& out) {
  cpu::parallel_for(cpu::ceil_div(split.pieces, split.pieces_per_task), [&](int64_t task) {
    const int64_t first = task * split.pieces_per_task, past = std::min(first + split.pieces_per_task, split.pieces);
    for (int64_t n = first; n < past; ++n) HWY_DYNAMIC_DISPATCH(pool_piece)(p, x, out, piece_at(p, map, split, n));
  });
}

void pool_groups_in_parts(const Problem& p, const SequenceMap& map, const Split& split, const Memory& memory,
                          const Tensor& x, const Tensor& out) {
  const int64_t parts = split.parts;
  cpu::parallel_for(split.pieces * parts, [&](int64_t task) {
    Piece piece = piece_at(p, map, split, task / parts);
    const int64_t length = piece.group.length, part = task % parts;
    piece.begin = piece.group.begin + length / parts * part + std::min(part, length % parts);
    piece.end = piece.begin + length / parts + (part < length % parts ? 1 : 0);
    memory.counts[task] = HWY_DYNAMIC_DISPATCH(sum_piece)(p, x, piece, memory.sums + task * kTileColumns);
  });
  for (int64_t n = 0; n < split.pieces; ++n) {
    const Piece piece = piece_at(p, map, split, n);
    double* sums = memory.sums + n * parts * kTileColumns;
    int64_t count = memory.counts[n * parts];
    for (int64_t part = 1; part < parts; ++part) {
      for (int64_t c = 0; c < piece.columns; ++c) sums[c] += sums[part * kTileColumns + c];
      count += memory.counts[n * parts + part];
    }
    HWY_DYNAMIC_DISPATCH(store_mean)(p, out, piece, sums, count);
  }
}

struct Cpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;

  static Support supports(const Call<MeanPooling>& call, const DeviceProperties&) {
    if (call.inputs.x.dtype != DType::f64) return Support::yes();
    return Support::no("x dtype must be f32, f16 or bf16, got f64: this kernel rounds through float32");
  }
  static size_t workspace_bytes(const Call<MeanPooling>& call, const NoConfig&, const DeviceProperties&) {
    return Memory(make_problem(call.inputs, call.params), nullptr).bytes;
  }
  static void run(const Call<MeanPooling>& call, const RunContext& context) {
    Problem p = make_problem(call.inputs, call.params);
    const Tensor &x = call.inputs.x, &out = call.outputs.out, &offsets = call.outputs.chunk_offsets;
    const Memory memory(p, context.workspace.data());
    const SequenceMap map(p, memory.first_means, context.status);
    if (offsets.present())
      for (int64_t n = 0; n <= p.num_sequences; ++n) offsets.as<int32_t>()[n] = static_cast<int32_t>(map.first_mean(n));
    if (out.num_elements() == 0) return;
    const Split split(p, x, out);
    if (split.parts == 1)
      pool_whole_groups(p, map, split, x, out);
    else
      pool_groups_in_parts(p, map, split, memory, x, out);
  }
};

}  // namespace
}  // namespace ejk::pooling

namespace ejk {

const KernelInfo& mean_pooling_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<MeanPooling, pooling::Cpu>();
  return kernel;
}

}  // namespace ejk
#endif
