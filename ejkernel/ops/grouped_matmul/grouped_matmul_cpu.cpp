// grouped_matmul and its gradients on the CPU: products of packed factors, sums in float32.
//
// A task computes one block of out of one group, over the whole depth: for each part of the depth it packs the columns
// of b into strips and the rows of a, a panel at a time, and multiplies them (platform/cpu/matmul-inl.h). Groups of few
// rows read b as it lies in memory instead. Nothing is shared, and the order of a sum does not depend on how the work
// is split, so results do not depend on the number of threads. Sums are rounded to out's dtype once. What a mask takes
// away is never multiplied: blocks do not cross those of masks.
#include <algorithm>
#include <cstring>

#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/grouped_matmul/grouped_matmul_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/matmul_pack-inl.h"
// After that:
#include "ejkernel/platform/cpu/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::gmm::HWY_NAMESPACE {
namespace {

using namespace ejk::cpu;                 // NOLINT
using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT

/// A group's matrix. Scales that are the same along the depth stay out: sums are multiplied by them.
Factor factor_of(const Operand& x, int64_t batch, int64_t group, int64_t rows, int64_t columns, bool scale_at_end) {
  const Matrix& m = x.matrix;
  const int64_t size = bits(m.dtype) / 8, offset = batch * m.batch + group * m.group;
  const auto* data = static_cast<const std::byte*>(m.data);
  Factor f = {.data = data == nullptr ? nullptr : data + offset * size,  // null: of no elements
              .dtype = m.dtype,
              .row = m.row,
              .column = m.column,
              .rows_in_memory = m.column == 1 || columns == 1 || (m.row != 1 && rows != 1)};
  if (x.scale.data == nullptr || scale_at_end) return f;
  f.scale = x.scale.data + group * x.scale.group;
  f.scale_row = x.scale.row, f.scale_column = x.scale.column;
  f.scale_block_rows = x.scale.block_rows, f.scale_block_columns = x.scale.block_columns;
  return f;
}

/// One block of out.
class Tile {
 public:
  Tile(const Product& p, const CpuConfig& config, const int64_t* offsets, const TaskMap::Tile& at)
      : p_(p),
        config_(config),
        at_(at),
        depth_(p.depth_of(offsets, at.group)),
        scales_a_at_end_(p.a.scale.is_of_rows()),
        scales_b_at_end_(p.b.scale.is_of_columns()),
        a_(factor_of(p.a, at.batch, at.group, p.rows, p.depth, scales_a_at_end_)),
        b_(factor_of(p.b, at.batch, at.group, p.depth, p.columns, scales_b_at_end_)) {}

  void run(std::byte* memory) const {
    const auto s = carve<float>(memory);
    // A scale may be NaN, and sums of nothing are 0 all the same.
    if (sum(memory) && (scales_a_at_end_ || scales_b_at_end_)) scale(s);
    store(s);
  }

  /// Rows of no group.
  void run_gap(std::byte* memory) const {
    const auto s = carve<float>(memory);
    // Sums of nothing, as many at a time as there is room for.
    Tile part = *this;
    for (int64_t n = 0; n < p_.columns; n += config_.block_columns) {
      part.at_.columns = {n, std::min(n + config_.block_columns, p_.columns)};
      part.clear(s);
      part.store(s);
    }
  }

 private:
  int64_t num_rows() const { return at_.rows.end - at_.rows.begin; }
  int64_t num_columns() const { return at_.columns.end - at_.columns.begin; }

  template <class E>
  MatmulScratch<E> carve(std::byte* memory) const {
    Carver carver(memory);
    return MatmulScratch<E>::carve(carver, config_.block_rows, config_.block_columns);
  }

  bool streams() const {
    const DType dtype = b_.dtype;
    return num_rows() <= kMostStreamedRows && b_.rows_in_memory && b_.scale == nullptr && bits(dtype) > 8;
  }
  void stream(const MatmulBlock& block, bool add, const MatmulScratch<float>& s) const {
    switch (b_.dtype) {
      case DType::f32:
        return stream_block(a_, static_cast<const float*>(b_.data), b_.row, block, add, s);
      case DType::f16:
        return stream_block(a_, static_cast<const f16_t*>(b_.data), b_.row, block, add, s);
      default:
        return stream_block(a_, static_cast<const bf16_t*>(b_.data), b_.row, block, add, s);
    }
  }

  /// Whether masks and depth leave anything to sum.
  bool sum(std::byte* memory) const {
    if (!streams() && uses_pairs(p_, config_)) return sum_pairs(memory);
    const auto s = carve<float>(memory);
    if (streams()) return sum(s, [&](const MatmulBlock& block, bool add) { stream(block, add, s); });
    return sum(s, [&](const MatmulBlock& block, bool add) { multiply_block<float>(nullptr, a_, b_, block, add, s); });
  }
  bool sum_pairs(std::byte* memory) const {
    const MatrixUnit* unit = config_.bf16_dot == 2 ? matrix_unit() : nullptr;
    const MatrixUnitScope uses_unit(unit);
    const auto s = carve<Pair>(memory);
    return sum(s, [&](const MatmulBlock& block, bool add) { multiply_block(unit, a_, b_, block, add, s); });
  }

  /// Calls multiply(block, add) for the parts of the depth that masks leave; false when there are none.
  template <class E, class Multiply>
  bool sum(const MatmulScratch<E>& s, Multiply multiply) const {
    bool add = false;
    if (p_.out_mask.selects(at_.group, at_.rows.begin, at_.columns.begin)) {
      const int64_t cut = Cuts(p_).depth;
      for (int64_t k = depth_.begin; k < depth_.end;) {
        const bool is_selected = selects(k);
        int64_t end = k;
        do end = cut == 0 ? depth_.end : std::min((end / cut + 1) * cut, depth_.end);
        while (end < depth_.end && selects(end) == is_selected);
        if (is_selected) {
          multiply(MatmulBlock{.row = at_.rows.begin,
                               .rows = num_rows(),
                               .column = at_.columns.begin,
                               .columns = num_columns(),
                               .depth = k,
                               .count = end - k},
                   add);
          add = true;
        }
        k = end;
      }
    }
    if (!add) clear(s);
    return add;
  }
  bool selects(int64_t k) const {
    return p_.a.mask.selects(at_.group, at_.rows.begin, k) && p_.b.mask.selects(at_.group, k, at_.columns.begin);
  }
  template <class E>
  void clear(const MatmulScratch<E>& s) const {
    for (int64_t r = 0; r < num_rows(); ++r) std::fill_n(s.c + r * s.c_stride, num_columns(), 0.0f);
  }

  void scale(const MatmulScratch<float>& s) const {
    const Scale &of_a = p_.a.scale, &of_b = p_.b.scale;
    for (int64_t r = 0; r < num_rows(); ++r) {
      float* row = s.c + r * s.c_stride;
      const float factor = scales_a_at_end_ ? of_a.data[of_a.offset(at_.group, at_.rows.begin + r, 0)] : 1.0f;
      for (int64_t c = 0; c < num_columns(); ++c) row[c] *= factor;
      if (!scales_b_at_end_) continue;
      const float* first = of_b.data + of_b.offset(at_.group, 0, at_.columns.begin);
      for (int64_t c = 0; c < num_columns(); ++c) row[c] *= first[c * of_b.column];
    }
  }

  void store(const MatmulScratch<float>& s) const {
    const Matrix& out = p_.out;
    if (out.column == 1 || p_.columns == 1) {
      for (int64_t r = 0; r < num_rows(); ++r) {
        float* row = s.c + r * s.c_stride;
        add_existing(r, s.turned, row);
        store_row(row, 1, num_columns(), out.data, out.dtype,
                  out.offset(at_.batch, at_.group, at_.rows.begin + r, at_.columns.begin));
      }
      return;
    }
    const int64_t stride = padded(config_.block_rows);
    for (int64_t c = 0; c < num_columns(); c += kMaxLanes) {
      const int64_t count = std::min(kMaxLanes, num_columns() - c);
      transpose(s.c + c, s.c_stride, num_rows(), count, s.turned, stride);
      for (int64_t i = 0; i < count; ++i)
        store_row(s.turned + i * stride, 1, num_rows(), out.data, out.dtype,
                  out.offset(at_.batch, at_.group, at_.rows.begin, at_.columns.begin + c + i));
    }
  }
  void add_existing(int64_t r, float* memory, float* row) const {
    const Matrix& existing = p_.existing;
    if (existing.data == nullptr) return;
    const int64_t at = existing.offset(at_.batch, at_.group, at_.rows.begin + r, at_.columns.begin);
    load_row(existing.data, existing.dtype, at, num_columns(), memory);
    for (int64_t c = 0; c < num_columns(); ++c) row[c] += memory[c];
  }

  const Product& p_;
  const CpuConfig& config_;
  TaskMap::Tile at_;
  const Product::Range depth_;
  const bool scales_a_at_end_, scales_b_at_end_;
  const Factor a_, b_;
};

void run_task(const Product& p, const CpuConfig& config, const TaskMap& map, int64_t task, std::byte* memory) {
  const TaskMap::Tile at = map.find(task);
  const Tile tile(p, config, map.offsets(), at);
  at.is_owned ? tile.run(memory) : tile.run_gap(memory);
}

}  // namespace
}  // namespace ejk::gmm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::gmm {
namespace {

HWY_EXPORT(run_task);

size_t scratch_bytes(const CpuConfig& config) {
  cpu::Carver floats, pairs;
  cpu::MatmulScratch<float>::carve(floats, config.block_rows, config.block_columns);
  cpu::MatmulScratch<cpu::Pair>::carve(pairs, config.block_rows, config.block_columns);
  return std::max(floats.used(), pairs.used());
}

}  // namespace

size_t cpu_workspace(const Product& p, const CpuConfig& config, const DeviceProperties& device) {
  cpu::Carver map;
  map.take<int64_t>(p.num_offsets());
  map.take<int64_t>(p.num_groups + 1);
  const int64_t workers =
      std::min<int64_t>(TaskMap::most_tasks(p, config), std::max(device.num_units, cpu::num_threads()));
  return map.used() + static_cast<size_t>(std::max<int64_t>(workers, 1)) * scratch_bytes(config);
}

void multiply_cpu(const Product& p, const CpuConfig& planned, const RunContext& context) {
  CpuConfig config = planned;
  cpu::Carver carver(context.workspace.data());
  int64_t* offsets = carver.take<int64_t>(p.num_offsets());
  const TaskMap map(p, config, offsets, carver.take<int64_t>(p.num_groups + 1), context.status);
  if (!p.is_wanted) return;
  if (uses_pairs(p, config) && is_tiny(p)) config.bf16_dot = 0;
  const size_t scratch = scratch_bytes(config);
  std::byte* memory = context.workspace.data() + carver.used();
  cpu::parallel_for(
      map.num_tasks(),
      [&](int64_t task, int worker) {
        HWY_DYNAMIC_DISPATCH(run_task)(p, config, map, task, memory + static_cast<size_t>(worker) * scratch);
      },
      static_cast<int>((context.workspace.size() - carver.used()) / scratch));
}

}  // namespace ejk::gmm

namespace ejk {
namespace {

/// An operation of one product.
template <class Op>
struct MatmulCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = gmm::CpuConfig;

  static Support supports(const Call<Op>& call, const DeviceProperties&) {
    const gmm::Product p = gmm::out_product(call);
    return gmm::supports_cpu(p.a.matrix.dtype, p.b.matrix.dtype, p.out.dtype);
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return gmm::runs_here(config); }
  static Config heuristic(const Call<Op>& call, const DeviceProperties& device) {
    return gmm::cpu_heuristic(gmm::out_product(call), device);
  }
  static std::vector<Config> candidates(const Call<Op>& call, const DeviceProperties&) {
    return gmm::cpu_candidates(gmm::out_product(call));
  }
  static Cost cost(const Call<Op>& call, const Config& config, const DeviceProperties&) {
    return gmm::cpu_cost(gmm::out_product(call), config);
  }
  static size_t workspace_bytes(const Call<Op>& call, const Config& config, const DeviceProperties& device) {
    return gmm::cpu_workspace(gmm::out_product(call), config, device);
  }
  static void run(const Call<Op>& call, const Config& config, const RunContext& context) {
    gmm::multiply_cpu(gmm::out_product(call), config, context);
  }
};

/// Two products, and a copy for existing_out.
struct BackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = gmm::CpuConfig;
  using BackwardCall = Call<GroupedMatmulBackward>;

  static std::array<gmm::Product, 3> products(const BackwardCall& call) {
    return {gmm::lhs_product(call), gmm::rhs_product(call), gmm::existing_out_product(call)};
  }
  static Support supports(const BackwardCall& call, const DeviceProperties&) {
    return gmm::supports_cpu(call.inputs.lhs.dtype, call.inputs.d_out.dtype, call.inputs.rhs.dtype);
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return gmm::runs_here(config); }
  static Config heuristic(const BackwardCall& call, const DeviceProperties& device) {
    return gmm::cpu_heuristic(gmm::lhs_product(call), device);
  }
  static std::vector<Config> candidates(const BackwardCall& call, const DeviceProperties&) {
    return gmm::cpu_candidates(gmm::lhs_product(call));
  }
  static Cost cost(const BackwardCall& call, const Config& config, const DeviceProperties&) {
    return gmm::cpu_cost(gmm::lhs_product(call), config);
  }
  static size_t workspace_bytes(const BackwardCall& call, const Config& config, const DeviceProperties& device) {
    size_t bytes = 0;
    for (const gmm::Product& p : products(call)) bytes = std::max(bytes, gmm::cpu_workspace(p, config, device));
    return bytes;
  }
  static void run(const BackwardCall& call, const Config& config, const RunContext& context) {
    for (const gmm::Product& p : products(call)) gmm::multiply_cpu(p, config, context);
  }
};

}  // namespace

const KernelInfo& grouped_matmul_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<GroupedMatmul, MatmulCpu<GroupedMatmul>>();
  return kernel;
}

const KernelInfo& grouped_matmul_kernels::transposed_cpu() {
  static const KernelInfo kernel = make_kernel<TransposedGroupedMatmul, MatmulCpu<TransposedGroupedMatmul>>();
  return kernel;
}

const KernelInfo& grouped_matmul_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<GroupedMatmulBackward, BackwardCpu>();
  return kernel;
}

}  // namespace ejk
#endif
