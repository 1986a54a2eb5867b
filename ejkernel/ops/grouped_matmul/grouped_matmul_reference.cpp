// Products in double, some rows of the result after the other. Any dtype, any strides; the fallback that never refuses.
#include <algorithm>

#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_internal.h"

namespace ejk {
namespace {

using gmm::Matrix;
using gmm::Operand;
using gmm::Product;
using gmm::Ragged;

double value_at(const Operand& x, int64_t b, int64_t g, int64_t r, int64_t c) {
  return x.scale.at(g, r, c) * load_as_double(x.matrix.data, x.matrix.dtype, x.matrix.offset(b, g, r, c));
}

/// One product, in memory of the caller: where groups lie, the sums of some rows, and a row of b.
class ReferenceProduct {
 public:
  static constexpr int64_t kRows = 16;  ///< of the result, summed side by side: so often is a row of b used once read

  static size_t workspace_bytes(const Product& p) {
    return static_cast<size_t>(p.num_offsets()) * sizeof(int64_t) +
           static_cast<size_t>((kRows + 1) * p.columns) * sizeof(double);
  }

  ReferenceProduct(const Product& p, const RunContext& context)
      : p_(p),
        offsets_(reinterpret_cast<int64_t*>(context.workspace.data())),
        sums_(reinterpret_cast<double*>(context.workspace.data() +
                                        static_cast<size_t>(p.num_offsets()) * sizeof(int64_t))),
        row_of_b_(sums_ + kRows * p.columns) {
    p.find_groups(offsets_, context.status);
  }

  void run() const {
    if (!p_.is_wanted) return;
    for (int64_t b = 0; b < p_.num_batches; ++b)
      for (int64_t g = 0; g < p_.num_groups; ++g) {
        const Product::Range rows = p_.rows_of(offsets_, g);
        for (int64_t row = rows.begin; row < rows.end; row += kRows) {
          const Product::Range some = {row, std::min(row + kRows, rows.end)};
          sum_rows(b, g, some);
          store_rows(b, g, some);
        }
      }
    if (p_.ragged != Ragged::rows) return;
    std::fill_n(sums_, p_.columns, 0.0);
    for (int64_t row = 0; row < offsets_[0]; ++row) store_rows(0, 0, {row, row + 1});
    for (int64_t row = offsets_[p_.num_groups]; row < p_.rows; ++row) store_rows(0, 0, {row, row + 1});
  }

 private:
  void sum_rows(int64_t b, int64_t g, Product::Range rows) const {
    std::fill_n(sums_, kRows * p_.columns, 0.0);
    const Product::Range depth = p_.depth_of(offsets_, g);
    for (int64_t k = depth.begin; k < depth.end; ++k) {
      for (int64_t column = 0; column < p_.columns; ++column) row_of_b_[column] = value_at(p_.b, b, g, k, column);
      for (int64_t row = rows.begin; row < rows.end; ++row)
        if (p_.a.mask.selects(g, row, k))
          add_row(g, k, value_at(p_.a, b, g, row, k), sums_ + (row - rows.begin) * p_.columns);
    }
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t column = 0; column < p_.columns; ++column)
        if (!p_.out_mask.selects(g, row, column)) sums_[(row - rows.begin) * p_.columns + column] = 0;
  }

  /// A row of b, but for what its mask takes away, times a factor.
  void add_row(int64_t g, int64_t k, double factor, double* sums) const {
    if (p_.b.mask.data == nullptr)
      for (int64_t column = 0; column < p_.columns; ++column) sums[column] += factor * row_of_b_[column];
    else
      for (int64_t column = 0; column < p_.columns; ++column)
        if (p_.b.mask.selects(g, k, column)) sums[column] += factor * row_of_b_[column];
  }

  void store_rows(int64_t b, int64_t g, Product::Range rows) const {
    const Matrix &existing = p_.existing, &out = p_.out;
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t column = 0; column < p_.columns; ++column) {
        double sum = sums_[(row - rows.begin) * p_.columns + column];
        if (existing.data != nullptr)
          sum += load_as_double(existing.data, existing.dtype, existing.offset(b, g, row, column));
        store_from_double(out.data, out.dtype, out.offset(b, g, row, column), sum);
      }
  }

  const Product& p_;
  int64_t* offsets_;
  double *sums_, *row_of_b_;
};

/// An operation of one product.
template <class Op>
struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return ReferenceProduct::workspace_bytes(gmm::out_product(call));
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const Product p = gmm::out_product(call);
    ReferenceProduct(p, context).run();
  }
};

struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  using BackwardCall = Call<GroupedMatmulBackward>;

  static size_t workspace_bytes(const BackwardCall& call, const NoConfig&, const DeviceProperties&) {
    return std::max({ReferenceProduct::workspace_bytes(gmm::lhs_product(call)),
                     ReferenceProduct::workspace_bytes(gmm::rhs_product(call)),
                     ReferenceProduct::workspace_bytes(gmm::existing_out_product(call))});
  }
  static void run(const BackwardCall& call, const RunContext& context) {
    for (const Product& p : {gmm::lhs_product(call), gmm::rhs_product(call), gmm::existing_out_product(call)})
      ReferenceProduct(p, context).run();
  }
};

}  // namespace

const KernelInfo& grouped_matmul_kernels::reference() {
  static const KernelInfo kernel = make_kernel<GroupedMatmul, Reference<GroupedMatmul>>();
  return kernel;
}

const KernelInfo& grouped_matmul_kernels::transposed_reference() {
  static const KernelInfo kernel = make_kernel<TransposedGroupedMatmul, Reference<TransposedGroupedMatmul>>();
  return kernel;
}

const KernelInfo& grouped_matmul_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<GroupedMatmulBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
