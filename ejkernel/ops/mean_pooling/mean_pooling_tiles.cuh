// mean_pooling and its gradient at the speed of memory: a thread takes 16 bytes of a row at a time and has several such
// loads on their way. x is read once and its gradient written once; everything else is small.
//
// Forward: a block owns a tile of columns in a slice of a group's rows. Long groups are cut into slices so that a few
// of them keep the whole device busy; the slices' sums meet in the workspace and are added in order by a second launch,
// so results are bit-equal run to run. Sums are double; of 16-bit numbers, float over the loads that are on their way
// together, scaled by a power of two so that nothing overflows.
//
// Backward: a block owns a tile of columns in some rows, and a thread keeps what its group's rows get in registers.
// Rows that do not begin at multiples of 16 bytes are written number by number: a thread's are then `kTile.vectors`
// apart, so that those of a warp lie together.
#pragma once

#include "ejkernel/ops/mean_pooling/mean_pooling_config.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_survey.cuh"
#include "ejkernel/platform/cuda/device/vector.cuh"

namespace ejk::cuda {

template <Number kNumber, MeanPoolingTile kTile, class Block>
class PoolingTiles {
 public:
  static constexpr int kVector = kVectorLength<kNumber>;
  static constexpr int kColumns = kTile.vectors * kVector;
  struct Shared {
    double sums[kTile.rows][kColumns];
  };

  EJK_DEVICE PoolingTiles(const PoolingProblem& p, const PoolingLaunch& launch, Block block, Shared& shared)
      : p_(p), launch_(launch), block_(block), shared_(shared), row_(block.thread() / kTile.vectors) {}

  /// Tile n of [batch, mean, slice, head, column tile].
  EJK_DEVICE void pool(uint32 n) const {
    const auto [rest, h, column] = split(n);
    const uint32 slices = launch_.slices, means = static_cast<uint32>(p_.num_means);
    pool_tile(rest / slices / means, rest / slices % means, rest % slices, h, column);
  }

  /// Tile n of [batch, block of rows, head, column tile] of the gradient.
  EJK_DEVICE void spread(uint32 n) const {
    const auto [rest, h, column] = split(n);
    const auto blocks = static_cast<uint32>((p_.num_tokens + launch_.block_rows - 1) / launch_.block_rows);
    spread_tile(rest / blocks, rest % blocks * launch_.block_rows, h, column);
  }

 private:
  struct TileAt {
    uint32 rest, head;
    int64 column;
  };
  /// 32-bit numbers: there are fewer tiles, and 64-bit divisions are calls of functions.
  EJK_DEVICE TileAt split(uint32 n) const {
    const uint32 tiles = (static_cast<uint32>(p_.dim) + kColumns - 1) / kColumns;
    const auto heads = static_cast<uint32>(p_.num_heads);
    return {n / tiles / heads, n / tiles % heads, int64{n % tiles} * kColumns};
  }

  /// The first of this thread's columns in a tile.
  EJK_DEVICE int64 column_in(int64 tile_column) const {
    return tile_column + block_.thread() % kTile.vectors * kVector;
  }
  EJK_DEVICE bool has_whole_vector(int64 column) const { return launch_.whole_vectors && column + kVector <= p_.dim; }

  // ---- forward ----

  EJK_DEVICE void pool_tile(int64 b, int64 mean, uint32 slice, int64 h, int64 tile_column) const {
    const PoolingGroup g = p_.group_of_mean(b, mean);
    const uint32 slice_rows = (static_cast<uint32>(g.length) + launch_.slices - 1) / launch_.slices;
    const int64 begin = g.begin + int64{slice} * slice_rows, end = min<int64>(begin + slice_rows, g.begin + g.length);
    const int64 column = column_in(tile_column), at = p_.x.offset(b, 0, h, column);
    double sums[kVector] = {};
    if (has_whole_vector(column)) {
      for (int64 row = begin + row_; row < end; row += kTile.rows * kTile.unroll) {
        // The mask first, and without branches: its loads are on their way together as well.
        bool counts[kTile.unroll];
        for (int u = 0; u < kTile.unroll; ++u) {
          const int64 r = row + u * kTile.rows;
          counts[u] = p_.selected(b, min<int64>(r, end - 1)) & (r < end);
        }
        Vector16 vectors[kTile.unroll];
        for (int u = 0; u < kTile.unroll; ++u)
          vectors[u] =
              counts[u] ? load_once<kNumber>(p_.x.data, at + (row + u * kTile.rows) * p_.x.strides[1]) : Vector16{};
        add(vectors, sums);
      }
    } else {
      for (int64 row = begin + row_; row < end; row += kTile.rows) {
        if (!p_.selected(b, row)) continue;
        const Vector16 vectors[] = {load_some<kNumber>(p_.x.data, at + row * p_.x.strides[1], p_.dim - column)};
        add(vectors, sums);
      }
    }
    store_sums(g, b, slice, h, tile_column, sums);
  }

  /// Adds vectors, element by element.
  template <int kCount>
  EJK_DEVICE static void add(const Vector16 (&vectors)[kCount], double (&sums)[kVector]) {
    constexpr float kShare = kNumber == Number::f32 ? 1.0f : 1.0f / kCount;  // exact: a power of two
    float parts[kVector] = {}, numbers[kVector];
    for (int u = 0; u < kCount; ++u) {
      unpack<kNumber>(vectors[u], numbers);
      for (int e = 0; e < kVector; ++e)
        if constexpr (kNumber == Number::f32)
          sums[e] += numbers[e];
        else
          parts[e] += kShare * numbers[e];
    }
    if constexpr (kNumber != Number::f32)
      for (int e = 0; e < kVector; ++e) sums[e] += static_cast<double>(parts[e]) * kCount;
  }

  /// The sums of the block's threads, column by column: a mean when the slice is the whole group.
  EJK_DEVICE void store_sums(const PoolingGroup& g, int64 b, int64 slice, int64 h, int64 tile_column,
                             const double (&sums)[kVector]) const {
    for (int e = 0; e < kVector; ++e) shared_.sums[row_][block_.thread() % kTile.vectors * kVector + e] = sums[e];
    block_.sync();
    for (int64 c = block_.thread(); c < kColumns && tile_column + c < p_.dim; c += block_.threads()) {
      const int64 column = tile_column + c;
      double sum = 0;
      for (int r = 0; r < kTile.rows; ++r) sum += shared_.sums[r][c];
      if (launch_.slices == 1) {
        store(p_.out.data, kNumber, p_.out.offset(b, g.mean, h, column), sum / p_.divisor(g));
      } else {
        const int64 part = (b * p_.num_means + g.mean) * launch_.slices + slice;
        launch_.slice_sums[(part * p_.num_heads + h) * p_.dim + column] = sum;
      }
    }
    block_.sync();
  }

  // ---- backward ----

  EJK_DEVICE void spread_tile(int64 b, int64 begin, int64 h, int64 tile_column) const {
    const int step = launch_.whole_vectors ? 1 : kTile.vectors;  // from one of this thread's columns to the next
    const int64 column = launch_.whole_vectors ? column_in(tile_column) : tile_column + block_.thread() % kTile.vectors;
    if (column >= p_.dim) return;
    const int64 at = p_.x.offset(b, 0, h, column);
    const int64 end = min<int64>(begin + launch_.block_rows, p_.num_tokens);
    PoolingGroup group;  // whose rows all get `share`; the empty one has none
    Vector16 share = {};
    for (int64 row = begin + row_; row < end; row += kTile.rows) {
      if (!group.has(row)) share = share_of_row(b, row, h, column, step, group);
      const Vector16 gradient = p_.selected(b, row) ? share : Vector16{};
      if (has_whole_vector(column))
        store_vector<kNumber>(p_.x.data, at + row * p_.x.strides[1], gradient);
      else
        store_some<kNumber>(p_.x.data, at + row * p_.x.strides[1], p_.dim - column, step, gradient);
    }
  }

  /// The gradient of one row. `group` becomes the one that it belongs to alone.
  EJK_DEVICE Vector16 share_of_row(int64 b, int64 row, int64 h, int64 column, int step, PoolingGroup& group) const {
    double sums[kVector] = {};
    group = {};
    p_.for_each_group_of_row(b, row, [&](const PoolingGroup& g) {
      const int64 at = p_.out.offset(b, g.mean, h, column);
      float numbers[kVector];
      unpack<kNumber>(has_whole_vector(column) ? load_once<kNumber>(p_.out.data, at)
                                               : load_some<kNumber>(p_.out.data, at, p_.dim - column, step),
                      numbers);
      const double share = 1 / p_.divisor(g);
      for (int e = 0; e < kVector; ++e) sums[e] += numbers[e] * share;
      if (!p_.packed() || *p_.overlapping == 0) group = g;
    });
    float shares[kVector];
    for (int e = 0; e < kVector; ++e) shares[e] = static_cast<float>(sums[e]);
    return pack<kNumber>(shares);
  }

  const PoolingProblem& p_;
  const PoolingLaunch& launch_;
  Block block_;
  Shared& shared_;
  int row_;  ///< of the thread in its block
};

/// Adds the slices' sums of block n of the elements of [batch, mean, head, dim]. An element's threads take its slices
/// in turn, and `sums`, a number for each of the block's threads, is where they meet.
template <Number kNumber, class Block>
EJK_DEVICE void combine_slices(const PoolingProblem& p, const PoolingLaunch& launch, uint32 n, Block block,
                               double* sums) {
  const int elements = block.threads() / static_cast<int>(launch.combining);
  const int part = block.thread() / elements, element = block.thread() % elements;
  const int64 columns = p.num_heads * p.dim, at = int64{n} * elements + element;
  const int64 row = at / columns, column = at % columns, b = row / p.num_means, mean = row % p.num_means;
  const bool exists = at < p.num_batches * p.num_means * columns;
  double sum = 0;
  for (uint32 slice = part; exists && slice < launch.slices; slice += launch.combining)
    sum += launch.slice_sums[(row * launch.slices + slice) * columns + column];
  sums[block.thread()] = sum;
  block.sync();
  if (part != 0 || !exists) return;
  for (uint32 other = 1; other < launch.combining; ++other) sum += sums[other * elements + element];
  store(p.out.data, kNumber, p.out.offset(b, mean, column / p.dim, column % p.dim),
        sum / p.divisor(p.group_of_mean(b, mean)));
}

}  // namespace ejk::cuda
