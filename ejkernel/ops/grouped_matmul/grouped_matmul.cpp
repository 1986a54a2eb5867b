#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"

#include <algorithm>
#include <string>

#include "ejkernel/core/untrusted.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_internal.h"

namespace ejk {
namespace {

void require(bool ok, std::string_view op, std::string_view argument, std::string_view expected, const std::string& got,
             std::string_view fix) {
  if (!ok) throw_invalid(op, argument, expected, got, fix);
}

int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

bool is_8_bit(DType dtype) { return (set_of(dtype) & kQuantised8) != 0; }

void check_out_dtype(std::string_view op, const std::optional<DType>& dtype) {
  if (dtype)
    require((set_of(*dtype) & kFloat) != 0, op, "out_dtype", "be f64, f32, f16 or bf16", std::string(name(*dtype)),
            "convert the result yourself");
}

/// A matrix for each of num_groups groups from group_offset on.
void check_groups(std::string_view op, const Dims& dims, int64_t group_offset) {
  const Dims::Entry* all = dims.find("num_all_groups");
  if (all == nullptr) {
    require(group_offset == 0, op, "group_offset", "be 0 in the batched form", std::to_string(group_offset),
            "pass the groups that are to be multiplied");
    return;
  }
  require(group_offset <= all->value - dims["num_groups"], op, "group_offset",
          "be at most num_all_groups - num_groups = " + std::to_string(all->value - dims["num_groups"]),
          std::to_string(group_offset), "group_sizes lists all groups, those without a matrix here too");
}

void check_scale(std::string_view op, std::string_view scale_name, const Tensor& scale, const Tensor& of) {
  if (scale.present())
    require(is_8_bit(of.dtype), op, scale_name, "be left out unless its tensor is 8-bit",
            std::string(name(of.dtype)) + " data", "scale the tensor itself");
}

/// A grid of scales has a number for each 128 of an extent.
void check_scale_blocks(std::string_view op, const Dims& dims, const char* blocks_name, const char* extent_name) {
  const Dims::Entry* blocks = dims.find(blocks_name);
  if (blocks == nullptr) return;
  const int64_t expected = divide_up(dims[extent_name], gmm::kScaleBlock);
  require(blocks->value == expected, op, std::string(blocks->bound_by) + " " + blocks_name,
          "be " + std::to_string(expected) + ", one per 128 of " + extent_name, std::to_string(blocks->value),
          "compute the scales per block of 128");
}

/// One extent of the masks' blocks: given with a mask that it belongs to, and as many blocks as cover the extent.
void check_blocks(std::string_view op, const Dims& dims, const char* block_name, const std::optional<int64_t>& block,
                  const char* blocks_name, const char* extent_name, bool has_mask, std::string_view masks) {
  if (!has_mask) {
    require(!block, op, block_name, "be left out without " + std::string(masks), block ? std::to_string(*block) : "",
            "it says how large a mask's blocks are");
    return;
  }
  require(block.has_value(), op, block_name, "be given with " + std::string(masks), "nothing",
          "say how large the mask's blocks are");
  const int64_t expected = divide_up(dims[extent_name], *block);
  require(dims[blocks_name] == expected, op, blocks_name,
          "be " + std::to_string(expected) + ", one per " + std::to_string(*block) + " of " + extent_name,
          std::to_string(dims[blocks_name]), "give the masks a number for every block, a partial last one too");
}

template <class Params>
void check_masks(std::string_view op, const Dims& dims, const Params& params, const Tensor& rhs_mask,
                 const Tensor& out_mask) {
  const bool rhs = rhs_mask.present(), out = out_mask.present();
  check_blocks(op, dims, "block_m", params.block_m, "num_mask_m_blocks", "m", out, "out_mask");
  check_blocks(op, dims, "block_k", params.block_k, "num_mask_k_blocks", "k", rhs, "rhs_mask");
  check_blocks(op, dims, "block_n", params.block_n, "num_mask_n_blocks", "n", rhs || out, "a mask");
}

/// Multiplications and additions of one product with these operands: ragged rows belong to one group each.
double flops_of(const Tensor& lhs, int64_t n) {
  return 2 * static_cast<double>(lhs.num_elements()) * static_cast<double>(n);
}

int64_t columns_of(const Tensor& rhs, bool transposed) { return rhs.shape[transposed ? -2 : -1]; }

}  // namespace

void GroupedMatmul::check(const Inputs& in, const Params& params, Dims& dims) {
  require(in.rhs.dtype == in.lhs.dtype || is_8_bit(in.rhs.dtype), kName, "rhs dtype",
          "be lhs's " + std::string(name(in.lhs.dtype)) + " or an 8-bit one", std::string(name(in.rhs.dtype)),
          "convert one of them first");
  check_out_dtype(kName, params.out_dtype);
  check_groups(kName, dims, params.group_offset);
  check_scale(kName, "lhs_scale", in.lhs_scale, in.lhs);
  check_scale(kName, "rhs_scale", in.rhs_scale, in.rhs);
  check_scale_blocks(kName, dims, "num_k_blocks", "k");
  check_scale_blocks(kName, dims, "num_n_blocks", "n");
  check_masks(kName, dims, params, in.rhs_mask, in.out_mask);
}

Work GroupedMatmul::work(const Call<GroupedMatmul>& call) {
  return {.flops = flops_of(call.inputs.lhs, columns_of(call.inputs.rhs, call.params.transpose_rhs)),
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> GroupedMatmul::kernels() {
  using namespace grouped_matmul_kernels;
  static const KernelInfo* const list[] = {&cpu(), &cuda_reference(), &reference()};
  return list;
}

void TransposedGroupedMatmul::check(const Inputs& in, const Params& params, Dims& dims) {
  check_out_dtype(kName, params.out_dtype);
  const Dims::Entry* of_mask = dims.find("num_groups");
  const int64_t rest = dims["num_all_groups"] - params.group_offset;
  require(rest >= 0, kName, "group_offset", "be at most num_all_groups " + std::to_string(dims["num_all_groups"]),
          std::to_string(params.group_offset), "count groups from the first of group_sizes");
  const int64_t num_groups = params.num_groups.value_or(of_mask != nullptr ? of_mask->value : rest);
  if (of_mask == nullptr)
    dims.bind("num_groups", num_groups);
  else
    require(of_mask->value == num_groups, kName, "num_groups",
            "equal rhs_mask num_groups " + std::to_string(of_mask->value), std::to_string(num_groups),
            "give the mask one entry per group, or leave num_groups out");
  check_groups(kName, dims, params.group_offset);
  check_masks(kName, dims, params, in.rhs_mask, in.out_mask);
}

Work TransposedGroupedMatmul::work(const Call<TransposedGroupedMatmul>& call) {
  return {.flops = flops_of(call.inputs.lhs, call.inputs.d_out.shape[-1]),
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> TransposedGroupedMatmul::kernels() {
  using namespace grouped_matmul_kernels;
  static const KernelInfo* const list[] = {&transposed_cpu(), &transposed_cuda_reference(), &transposed_reference()};
  return list;
}

void GroupedMatmulBackward::check(const Inputs& in, const Params& params, Dims& dims) {
  check_out_dtype(kName, params.out_dtype);
  check_groups(kName, dims, params.group_offset);
  check_masks(kName, dims, params, in.rhs_mask, in.out_mask);
}

Work GroupedMatmulBackward::work(const Call<GroupedMatmulBackward>& call) {
  return {.flops = 2 * flops_of(call.inputs.lhs, columns_of(call.inputs.rhs, call.params.transpose_rhs)),
          .bytes = bytes_of(to_array(call.inputs)) + bytes_of(to_array(call.outputs))};
}

std::span<const KernelInfo* const> GroupedMatmulBackward::kernels() {
  using namespace grouped_matmul_kernels;
  static const KernelInfo* const list[] = {&backward_cpu(), &backward_cuda_reference(), &backward_reference()};
  return list;
}

namespace gmm {
namespace {

/// A tensor's last axes as a matrix, those before them as groups and batch entries.
Matrix matrix_of(const Tensor& t) {
  Matrix m = {.data = t.data, .dtype = t.dtype};
  if (!t.present()) return m;
  const int rank = t.rank();
  m.column = t.strides[rank - 1];
  m.row = t.strides[rank - 2];
  if (rank > 2) m.group = t.strides[rank - 3];
  if (rank > 3) m.batch = t.strides[rank - 4];
  return m;
}

void transpose(BlockGrid& grid) {
  std::swap(grid.row, grid.column);
  std::swap(grid.block_rows, grid.block_columns);
}

/// [], [m] or [m, blocks of k].
Scale lhs_scale_of(const Tensor& t) {
  Scale scale;
  if (!t.present()) return scale;
  scale.data = t.as<const float>();
  scale.block_columns = kScaleBlock;
  if (t.rank() > 0) scale.row = t.strides[0];
  if (t.rank() > 1) scale.column = t.strides[1];
  return scale;
}

/// [], [groups, n] or [groups, blocks of k, blocks of n].
Scale rhs_scale_of(const Tensor& t) {
  Scale scale;
  if (!t.present()) return scale;
  scale.data = t.as<const float>();
  if (t.rank() > 0) scale.group = t.strides[0], scale.column = t.strides[t.rank() - 1];
  if (t.rank() > 2) scale.row = t.strides[1], scale.block_rows = scale.block_columns = kScaleBlock;
  return scale;
}

Mask mask_of(const Tensor& t, const std::optional<int64_t>& block_rows, const std::optional<int64_t>& block_columns) {
  Mask mask;
  if (!t.present()) return mask;
  mask.data = t.as<const uint8_t>();
  if (t.rank() > 2) mask.group = t.strides[0];
  mask.row = t.strides[t.rank() - 2], mask.column = t.strides[t.rank() - 1];
  mask.block_rows = *block_rows, mask.block_columns = *block_columns;
  return mask;
}

/// rhs as [k, n] in every form.
template <class Inputs>
Operand rhs_operand(const Inputs& in, const GroupedMatmul::Params& params) {
  Operand rhs;
  rhs.matrix = matrix_of(in.rhs);
  if (params.transpose_rhs) std::swap(rhs.matrix.row, rhs.matrix.column);
  rhs.mask = mask_of(in.rhs_mask, params.block_k, params.block_n);
  return rhs;
}

/// Extents of out = lhs @ rhs, and the groups.
template <class Inputs>
Product product_of(const Inputs& in, const GroupedMatmul::Params& params) {
  Product p;
  const int rank = in.lhs.rank();
  p.num_batches = rank == 4 ? in.lhs.shape[0] : 1;
  p.num_groups = in.rhs.shape[rank == 4 ? 1 : 0];
  p.rows = in.lhs.shape[rank - 2], p.depth = in.lhs.shape[rank - 1];
  p.columns = columns_of(in.rhs, params.transpose_rhs);
  p.ragged = rank == 4 ? Ragged::none : Ragged::rows;
  p.group_sizes = in.group_sizes;
  p.group_offset = params.group_offset;
  return p;
}

}  // namespace

Operand Operand::transposed() const {
  Operand t = *this;
  std::swap(t.matrix.row, t.matrix.column);
  transpose(t.scale);
  transpose(t.mask);
  return t;
}

void Product::find_groups(int64_t* offsets, uint32_t* status) const {
  if (ragged == Ragged::none) return;
  const int64_t extent = ragged == Ragged::rows ? rows : depth, num_all = group_sizes.shape[0];
  int64_t at = 0;
  for (int64_t g = 0; g < num_all; ++g) {
    if (g >= group_offset && g <= group_offset + num_groups) offsets[g - group_offset] = at;
    const int64_t size = untrusted::index_at(group_sizes, g);
    if (size < 0 || size > extent - at) untrusted::raise(status, status::kGroupSize);
    at += std::clamp<int64_t>(size, 0, extent - at);
  }
  if (group_offset + num_groups == num_all) offsets[num_groups] = at;
}

Product out_product(const Call<GroupedMatmul>& call) {
  const auto& [in, params, outputs] = call;
  Product p = product_of(in, params);
  p.a = {.matrix = matrix_of(in.lhs), .scale = lhs_scale_of(in.lhs_scale), .mask = {}};
  p.b = rhs_operand(in, params);
  p.b.scale = rhs_scale_of(in.rhs_scale);
  p.existing = matrix_of(in.existing_out);
  p.out = matrix_of(outputs.out);
  p.out_mask = mask_of(in.out_mask, params.block_m, params.block_n);
  p.is_wanted = outputs.out.present();
  return p;
}

Product lhs_product(const Call<GroupedMatmulBackward>& call) {
  const auto& [in, params, outputs] = call;
  Product p = product_of(in, params);
  std::swap(p.depth, p.columns);
  p.a = {.matrix = matrix_of(in.d_out), .scale = {}, .mask = mask_of(in.out_mask, params.block_m, params.block_n)};
  p.b = rhs_operand(in, params).transposed();
  p.out = matrix_of(outputs.lhs);
  p.is_wanted = outputs.lhs.present();
  return p;
}

Product rhs_product(const Call<GroupedMatmulBackward>& call) {
  const auto& [in, params, outputs] = call;
  Product p = product_of(in, params);
  std::swap(p.rows, p.depth);
  if (p.ragged == Ragged::rows) p.ragged = Ragged::depth;
  p.a = Operand{.matrix = matrix_of(in.lhs), .scale = {}, .mask = {}}.transposed();
  p.b = {.matrix = matrix_of(in.d_out), .scale = {}, .mask = mask_of(in.out_mask, params.block_m, params.block_n)};
  p.out = matrix_of(outputs.rhs);
  if (params.transpose_rhs) std::swap(p.out.row, p.out.column);
  p.out_mask = mask_of(in.rhs_mask, params.block_k, params.block_n);
  p.is_wanted = outputs.rhs.present();
  return p;
}

Product existing_out_product(const Call<GroupedMatmulBackward>& call) {
  const auto& [in, params, outputs] = call;
  Product p = product_of(in, params);
  if (p.ragged == Ragged::rows) p.num_groups = 1;  // the same rows, whoever owns them
  p.ragged = Ragged::none;
  p.depth = 0;
  p.existing = matrix_of(in.d_out);
  p.out = matrix_of(outputs.existing_out);
  p.is_wanted = outputs.existing_out.present();
  return p;
}

Product out_product(const Call<TransposedGroupedMatmul>& call) {
  const auto& [in, params, outputs] = call;
  Product p;
  p.num_groups = params.num_groups.value_or(in.rhs_mask.present() ? in.rhs_mask.shape[0]
                                                                  : in.group_sizes.shape[0] - params.group_offset);
  p.rows = in.lhs.shape[1], p.depth = in.lhs.shape[0], p.columns = in.d_out.shape[1];
  p.ragged = Ragged::depth;
  p.group_sizes = in.group_sizes;
  p.group_offset = params.group_offset;
  p.a = Operand{.matrix = matrix_of(in.lhs), .scale = {}, .mask = {}}.transposed();
  p.b = {.matrix = matrix_of(in.d_out), .scale = {}, .mask = mask_of(in.out_mask, params.block_m, params.block_n)};
  p.out = matrix_of(outputs.out);
  if (params.transpose_rhs) std::swap(p.out.row, p.out.column);
  p.out_mask = mask_of(in.rhs_mask, params.block_k, params.block_n);
  p.is_wanted = outputs.out.present();
  return p;
}

}  // namespace gmm
}  // namespace ejk
