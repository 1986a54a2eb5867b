// grouped_matmul, its gradient, and the gradient of its weights as an operation of its own: products of matrices that
// belong together in groups, as the experts of a mixture do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/operation.h"
#include "ejkernel/runtime/api.h"

namespace ejk {

struct GroupedMatmulBackward;

/// out = lhs @ rhs[g] for the rows of each group g. Ragged: group_sizes cuts the rows of lhs. Batched: every group has
/// a matrix of its own on both sides. One group is an ordinary matrix product.
struct GroupedMatmul {
  static constexpr std::string_view kName = "grouped_matmul";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "Products of groups of rows with a matrix per group: ragged, batched, block-sparse, 8-bit.";
  static constexpr std::string_view kSource = "Gale et al., MegaBlocks (arXiv:2211.15841), section 3";
  static constexpr std::string_view kGradient = "grouped_matmul_backward";
  using Gradient = GroupedMatmulBackward;

  /// `transpose_rhs` changes which dimension is which axis of rhs, so it makes a form.
  enum Form { kRagged, kRaggedTransposed, kBatched, kBatchedTransposed };
  static constexpr std::array<std::string_view, 4> kForms = {"ragged", "ragged transposed", "batched",
                                                             "batched transposed"};

  struct Inputs {
    Tensor lhs = {}, rhs = {}, group_sizes = {}, existing_out = {};
    Tensor lhs_scale = {}, rhs_scale = {}, rhs_mask = {}, out_mask = {};
  };

  struct Params {
    bool transpose_rhs = false;
    int64_t group_offset = 0;
    std::optional<DType> out_dtype = {};
    std::optional<int64_t> block_m = {}, block_k = {}, block_n = {};
  };

  template <class T>
  struct Out {
    T out = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"lhs",
                    "number[m, k] ; number[m, k] ; number[batch, num_groups, m, k] ; number[batch, num_groups, m, k]",
                    "the rows; ragged: those of group 0, then those of group 1, …. 8-bit ones are codes, scaled by "
                    "lhs_scale"},
        TensorField{"rhs",
                    "number[num_groups, k, n] ; number[num_groups, n, k] ; number[batch, num_groups, k, n] ; "
                    "number[batch, num_groups, n, k]",
                    "a matrix for each group from group_offset on; lhs's dtype, or an 8-bit one (codes, scaled by "
                    "rhs_scale)"},
        TensorField{"group_sizes", "int32[num_all_groups] ; int32[num_all_groups] ; - ; -",
                    "ragged: rows of every group, in order; a negative size counts as 0, and rows end where lhs does"},
        TensorField{"existing_out",
                    "result@lhs?[m, n] ; result@lhs?[m, n] ; result@lhs?[batch, num_groups, m, n] ; "
                    "result@lhs?[batch, num_groups, m, n]",
                    "what the products are added to; absent: 0"},
        TensorField{"lhs_scale",
                    "float32?[] | float32?[m] | float32?[m, num_k_blocks] ; float32?[] | float32?[m] | "
                    "float32?[m, num_k_blocks] ; float32?[] ; float32?[]",
                    "scale of 8-bit rows: one, per row, or per row and block of 128 of k; absent: 1"},
        TensorField{"rhs_scale",
                    "float32?[] | float32?[num_groups, n] | float32?[num_groups, num_k_blocks, num_n_blocks] ; "
                    "float32?[] | float32?[num_groups, n] | float32?[num_groups, num_k_blocks, num_n_blocks] ; "
                    "float32?[] ; float32?[]",
                    "scale of 8-bit matrices: one, per group and column of out, or per block of 128 by 128; absent: 1"},
        TensorField{"rhs_mask",
                    "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; "
                    "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; - ; -",
                    "false: this block of block_k by block_n of rhs counts as 0, whatever it holds"},
        TensorField{"out_mask",
                    "bool?[num_mask_m_blocks, num_mask_n_blocks] ; bool?[num_mask_m_blocks, num_mask_n_blocks] ; - ; -",
                    "false: the product is 0 in this block of block_m by block_n of out, and gives no gradient"}};
  }

  static constexpr auto params() {
    return std::array{
        param<&Params::transpose_rhs>("transpose_rhs", Key::value, "rhs holds [n, k] instead of [k, n]"),
        param<&Params::group_offset>("group_offset", Key::none,
                                     "the group that rhs begins with; rows of groups without a matrix get no product",
                                     at_least(0)),
        param<&Params::out_dtype>("out_dtype", Key::value, "dtype of out; absent: lhs's (bf16 for 8-bit rows)"),
        param<&Params::block_m>("block_m", Key::value, "rows of out_mask's blocks", at_least(1)),
        param<&Params::block_k>("block_k", Key::value, "extent along k of rhs_mask's blocks", at_least(1)),
        param<&Params::block_n>("block_n", Key::value, "extent along n of both masks' blocks", at_least(1))};
  }

  static constexpr auto outputs() {
    return std::array{
        TensorField{"out",
                    "result@lhs[m, n] ; result@lhs[m, n] ; result@lhs[batch, num_groups, m, n] ; "
                    "result@lhs[batch, num_groups, m, n]",
                    "existing_out plus the products; rows that belong to no group with a matrix are existing_out's, "
                    "or 0"}};
  }

  static int form(const Inputs& in, const Params& params) {
    return (in.lhs.rank() == 4 ? kBatched : kRagged) + (params.transpose_rhs ? 1 : 0);
  }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<GroupedMatmul>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out[g] = lhs_g^T @ d_out_g over the rows of each group g: what a matrix of grouped_matmul gets as its gradient.
struct TransposedGroupedMatmul {
  static constexpr std::string_view kName = "transposed_grouped_matmul";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary =
      "A matrix per group: the transposed rows of one tensor times those of another. The gradient of grouped_matmul "
      "for rhs.";
  static constexpr std::string_view kSource = GroupedMatmul::kSource;

  enum Form { kPlain, kTransposed };
  static constexpr std::array<std::string_view, 2> kForms = {"plain", "transposed"};

  struct Inputs {
    Tensor lhs = {}, d_out = {}, group_sizes = {}, rhs_mask = {}, out_mask = {};
  };

  struct Params {
    bool transpose_rhs = false;
    int64_t group_offset = 0;
    std::optional<int64_t> num_groups = {};
    std::optional<DType> out_dtype = {};
    std::optional<int64_t> block_m = {}, block_k = {}, block_n = {};
  };

  template <class T>
  struct Out {
    T out = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"lhs", "float[m, k]", "the rows of grouped_matmul's lhs"},
        TensorField{"d_out", "float[m, n]", "as many rows of another tensor: the cotangent of grouped_matmul's out"},
        TensorField{"group_sizes", "int32[num_all_groups]",
                    "rows of every group, in order; a negative size counts as 0, and rows end where lhs does"},
        TensorField{"rhs_mask", "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks]",
                    "false: this block of block_k by block_n of a group's matrix is 0"},
        TensorField{"out_mask", "bool?[num_mask_m_blocks, num_mask_n_blocks]",
                    "false: this block of block_m by block_n of d_out counts as 0, whatever it holds"}};
  }

  static constexpr auto params() {
    return std::array{
        param<&Params::transpose_rhs>("transpose_rhs", Key::value, "out holds [n, k] instead of [k, n]"),
        param<&Params::group_offset>("group_offset", Key::none, "the group that out begins with", at_least(0)),
        param<&Params::num_groups>("num_groups", Key::bucket,
                                   "groups that get a matrix; absent: rhs_mask's, or all from group_offset on",
                                   at_least(0)),
        param<&Params::out_dtype>("out_dtype", Key::value, "dtype of out; absent: lhs's"),
        param<&Params::block_m>("block_m", Key::value, "rows of out_mask's blocks", at_least(1)),
        param<&Params::block_k>("block_k", Key::value, "extent along k of rhs_mask's blocks", at_least(1)),
        param<&Params::block_n>("block_n", Key::value, "extent along n of both masks' blocks", at_least(1))};
  }

  static constexpr auto outputs() {
    return std::array{TensorField{"out", "result@lhs[num_groups, k, n] ; result@lhs[num_groups, n, k]",
                                  "a matrix per group; 0 for a group without rows"}};
  }

  static int form(const Inputs&, const Params& params) { return params.transpose_rhs ? kTransposed : kPlain; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<TransposedGroupedMatmul>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// Gradients of grouped_matmul from its output's cotangent, of float operands.
struct GroupedMatmulBackward {
  static constexpr std::string_view kName = "grouped_matmul_backward";
  static constexpr int kRevision = 1;
  static constexpr std::string_view kSummary = "Gradient of grouped_matmul for lhs, rhs and existing_out.";
  static constexpr std::string_view kSource = GroupedMatmul::kSource;
  static constexpr auto kForms = GroupedMatmul::kForms;

  struct Inputs {
    Tensor lhs = {}, rhs = {}, group_sizes = {}, existing_out = {}, rhs_mask = {}, out_mask = {}, d_out = {};
  };
  using Params = GroupedMatmul::Params;

  template <class T>
  struct Out {
    T lhs = {}, rhs = {}, existing_out = {};
  };
  using Outputs = Out<Tensor>;
  using Results = Out<Array>;

  static constexpr auto inputs() {
    return std::array{
        TensorField{"lhs",
                    "float[m, k] ; float[m, k] ; float[batch, num_groups, m, k] ; float[batch, num_groups, m, k]",
                    "the forward's lhs: 8-bit codes have no gradient"},
        TensorField{"rhs",
                    "@lhs[num_groups, k, n] ; @lhs[num_groups, n, k] ; @lhs[batch, num_groups, k, n] ; "
                    "@lhs[batch, num_groups, n, k]",
                    "the forward's rhs"},
        TensorField{"group_sizes", "int32[num_all_groups] ; int32[num_all_groups] ; - ; -", "the forward's"},
        TensorField{"existing_out",
                    "result@lhs?[m, n] ; result@lhs?[m, n] ; result@lhs?[batch, num_groups, m, n] ; "
                    "result@lhs?[batch, num_groups, m, n]",
                    "the forward's; its numbers are not read"},
        TensorField{"rhs_mask",
                    "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; "
                    "bool?[num_groups, num_mask_k_blocks, num_mask_n_blocks] ; - ; -",
                    "the forward's"},
        TensorField{"out_mask",
                    "bool?[num_mask_m_blocks, num_mask_n_blocks] ; bool?[num_mask_m_blocks, num_mask_n_blocks] ; - ; -",
                    "the forward's"},
        TensorField{"d_out",
                    "result@lhs[m, n] ; result@lhs[m, n] ; result@lhs[batch, num_groups, m, n] ; "
                    "result@lhs[batch, num_groups, m, n]",
                    "cotangent of out"}};
  }
  static constexpr auto params() { return GroupedMatmul::params(); }
  static constexpr auto outputs() {
    return std::array{
        TensorField{"lhs", "@lhs[m, k] ; @lhs[m, k] ; @lhs[batch, num_groups, m, k] ; @lhs[batch, num_groups, m, k]",
                    "gradient of lhs; 0 in rows that belong to no group with a matrix"},
        TensorField{"rhs",
                    "@rhs[num_groups, k, n] ; @rhs[num_groups, n, k] ; @rhs[batch, num_groups, k, n] ; "
                    "@rhs[batch, num_groups, n, k]",
                    "gradient of rhs; 0 for a group without rows and in blocks that rhs_mask takes for 0"},
        TensorField{"existing_out",
                    "@existing_out?[m, n] ; @existing_out?[m, n] ; @existing_out?[batch, num_groups, m, n] ; "
                    "@existing_out?[batch, num_groups, m, n]",
                    "gradient of existing_out: d_out"}};
  }

  static int form(const Inputs& in, const Params& params) { return GroupedMatmul::form({.lhs = in.lhs}, params); }
  static std::string_view batch_dim(const Params&) { return "batch"; }
  static void check(const Inputs& in, const Params& params, Dims& dims);
  static Work work(const Call<GroupedMatmulBackward>& call);
  static std::span<const KernelInfo* const> kernels();
};

/// out = grouped_matmul(inputs, params)
inline GroupedMatmul::Results grouped_matmul(const GroupedMatmul::Inputs& inputs,
                                             const GroupedMatmul::Params& params = {},
                                             const CallOptions& options = {}) {
  return execute<GroupedMatmul>(inputs, params, options);
}

/// out = transposed_grouped_matmul(inputs, params)
inline TransposedGroupedMatmul::Results transposed_grouped_matmul(const TransposedGroupedMatmul::Inputs& inputs,
                                                                  const TransposedGroupedMatmul::Params& params = {},
                                                                  const CallOptions& options = {}) {
  return execute<TransposedGroupedMatmul>(inputs, params, options);
}

/// The kernels of this folder, for the lists in grouped_matmul.cpp.
namespace grouped_matmul_kernels {
const KernelInfo& cpu();
const KernelInfo& cuda_reference();
const KernelInfo& reference();
const KernelInfo& transposed_cpu();
const KernelInfo& transposed_cuda_reference();
const KernelInfo& transposed_reference();
const KernelInfo& backward_cpu();
const KernelInfo& backward_cuda_reference();
const KernelInfo& backward_reference();
}  // namespace grouped_matmul_kernels

}  // namespace ejk
