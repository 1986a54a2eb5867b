// How the CPU kernels of this folder split products into tasks, and what may be chosen about it: the part that is the
// same for every instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_internal.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/matmul.h"

namespace ejk::gmm {

/// The part of out that a task computes, and in which arithmetic. Changes speed, and results by rounding only.
struct CpuConfig {
  int block_rows = 256;
  int block_columns = 512;
  int bf16_dot = 0;

  static constexpr auto fields() {
    return std::array{
        config_field<&CpuConfig::block_rows, 64, 128, 256, 512, 1024, 2048>("block_rows",
                                                                            "rows of out that a task computes"),
        config_field<&CpuConfig::block_columns, 64, 128, 256, 512, 1024, 2048>("block_columns",
                                                                               "columns of out that a task computes"),
        config_field<&CpuConfig::bf16_dot, 0, 1, 2>(
            "bf16_dot",
            "1: bf16 numbers and 8-bit codes are multiplied as they are, two by two; 2: likewise, on the processor's "
            "matrix unit (AMX); 0: they are widened to float32")};
  }
};

/// Whether the kernels take tensors of these dtypes: `out` is the result's.
Support supports_cpu(DType a, DType b, DType out);
/// Whether this machine can run the config.
Support runs_here(const CpuConfig& config);
CpuConfig cpu_heuristic(const Product& p, const DeviceProperties& device);
std::vector<CpuConfig> cpu_candidates(const Product& p);
Cost cpu_cost(const Product& p, const CpuConfig& config);

/// True when both factors can be multiplied as pairs of bf16: they hold such numbers or codes, whose scales, if any,
/// are the same along the depth.
bool fits_pairs(const Product& p);
inline bool uses_pairs(const Product& p, const CpuConfig& config) { return config.bf16_dot != 0 && fits_pairs(p); }

/// True when a factor of bf16 is tiny: it has numbers other than 0, and all are below 2^-50. The dot instructions take
/// subnormal products for 0, which would then be seen. Stops at the first number that is larger.
bool is_tiny(const Product& p);

/// An axis cut into blocks, none of which crosses a multiple of a mask's blocks.
class Blocks {
 public:
  /// Blocks of at most `block` from `origin` on; `cut` is the extent of a mask's blocks, 0 without a mask.
  Blocks(int64_t block, int64_t cut, int64_t origin)
      : cut_(cut > 0 ? cut : std::numeric_limits<int64_t>::max() / 2),
        block_(std::min(block, cut_)),
        per_cut_(cpu::ceil_div(cut_, block_)),
        origin_(cut > 0 ? 0 : origin) {}

  int64_t count(const Product::Range& range) const {
    return range.begin >= range.end ? 0 : index_of(range.end - 1) - index_of(range.begin) + 1;
  }
  /// The i-th block of a range.
  Product::Range find(const Product::Range& range, int64_t i) const {
    const int64_t index = index_of(range.begin) + i, cut = origin_ + index / per_cut_ * cut_;
    const int64_t begin = cut + index % per_cut_ * block_, end = std::min(begin + block_, cut + cut_);
    return {std::max(begin, range.begin), std::min(end, range.end)};
  }

 private:
  int64_t index_of(int64_t at) const { return (at - origin_) / cut_ * per_cut_ + (at - origin_) % cut_ / block_; }

  int64_t cut_, block_, per_cut_, origin_;
};

/// Extents of masks' blocks along the axes of a product; 0 without a mask. Masks that share an axis share its blocks.
struct Cuts {
  int64_t rows = 0, columns = 0, depth = 0;
  explicit Cuts(const Product& p);
};

/// Numbers the tasks of a product: blocks of out of every group, and then rows that belong to no group.
class TaskMap {
 public:
  struct Tile {
    int64_t batch, group;
    Product::Range rows, columns;
    bool is_owned;  ///< by a group
  };

  /// `offsets` has room for p.num_offsets() numbers, `first` for p.num_groups + 1.
  TaskMap(const Product& p, const CpuConfig& config, int64_t* offsets, int64_t* first, uint32_t* status);
  int64_t num_tasks() const { return num_owned_ + num_gap_blocks(); }
  Tile find(int64_t task) const;
  const int64_t* offsets() const { return offsets_; }

  /// At least as many tasks as there can be, from shapes alone.
  static int64_t most_tasks(const Product& p, const CpuConfig& config);

 private:
  Blocks row_blocks(int64_t g) const { return Blocks(config_.block_rows, cuts_.rows, rows_of(g).begin); }
  Product::Range rows_of(int64_t g) const { return p_.rows_of(offsets_, g); }
  // Rows of no group: before the first and after the last one.
  Product::Range gap(int64_t which) const;
  int64_t num_gap_blocks() const;

  const Product& p_;
  const CpuConfig config_;
  const Cuts cuts_;
  const Blocks columns_;
  int64_t* const offsets_;
  int64_t* const first_;  ///< number of the first task of each group in a batch entry, and how many there are
  int64_t num_owned_ = 0;
};

/// Bytes that multiply_cpu needs: scratch for each of the threads that could run. Matrices need no data.
size_t cpu_workspace(const Product& p, const CpuConfig& config, const DeviceProperties& device);
/// Computes p.out.
void multiply_cpu(const Product& p, const CpuConfig& planned, const RunContext& context);

}  // namespace ejk::gmm
