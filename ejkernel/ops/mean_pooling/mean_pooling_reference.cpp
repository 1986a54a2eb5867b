// The formula in double, one group of rows after the other. Any dtype, any strides; the fallback that never refuses.
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_formula_internal.h"

namespace ejk {
namespace {

using pooling::DoubleArithmetic;
using pooling::Formula;
using pooling::Group;
using pooling::Layout;
using pooling::Problem;
using pooling::Sequence;

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<MeanPooling>& call, const NoConfig&, const DeviceProperties&) {
    return static_cast<size_t>(call.inputs.x.shape[-1]) * sizeof(double);
  }

  static void run(const Call<MeanPooling>& call, const RunContext& context) {
    const Problem p = pooling::make_problem(call.inputs, call.params);
    const Formula<DoubleArithmetic> formula(p, {});
    const Tensor &out = call.outputs.out, &offsets = call.outputs.chunk_offsets;
    double* mean = reinterpret_cast<double*>(context.workspace.data());
    for (int64_t n = 0; n < out.num_elements(); ++n) set(out, n, 0);  // rows past the last chunk stay so
    auto pool = [&](const Group& g, int64_t h) {
      if (!out.present()) return;
      formula.forward(call.inputs.x, g, h, mean);
      const int64_t at = p.means_of(out).offset(g.batch, g.mean, h);
      for (int64_t d = 0; d < p.dim; ++d) store_from_double(out.data, out.dtype, at + d, mean[d]);
    };
    auto note_offset = [&](int64_t sequence, int64_t first_mean) {
      if (offsets.present()) set(offsets, sequence, static_cast<double>(first_mean));
    };
    for_each_mean(p, context.status, pool, note_offset);
  }
};

/// Row blocks are gathered from every sequence that claims them: what several sequences claim is summed in double.
struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;
  static constexpr int64_t kBlockRows = 64;

  static size_t workspace_bytes(const Call<MeanPoolingBackward>& call, const NoConfig&, const DeviceProperties&) {
    const Problem p = pooling::make_problem(call.inputs, call.params);
    return static_cast<size_t>(kBlockRows * p.dim) * sizeof(double);
  }

  static void run(const Call<MeanPoolingBackward>& call, const RunContext& context) {
    const Problem p = pooling::make_problem(call.inputs, call.params);
    for (int64_t n = 0; n < p.num_sequences; ++n)
      p.sequence(n, 0, context.status);  // faults, even if nothing is wanted
    if (call.outputs.x.num_elements() == 0) return;
    double* block = reinterpret_cast<double*>(context.workspace.data());
    for (int64_t b = 0; b < p.num_batches; ++b) {
      const int64_t masked = p.mask.present() ? p.count({.batch = b, .length = p.num_tokens}) : 0;
      for (int64_t h = 0; h < p.num_heads; ++h)
        for (int64_t row = 0; row < p.num_tokens; row += kBlockRows) {
          const int64_t past = std::min(row + kBlockRows, p.num_tokens);
          std::fill_n(block, kBlockRows * p.dim, 0.0);
          const Rows rows = {.b = b, .h = h, .row = row, .past = past, .masked = masked};
          gather(p, call.inputs.d_out, rows, block);
          store(p, call.outputs.x, rows, block);
        }
    }
  }

  /// Rows [row, past) of head h, and the rows that a mask selects in their batch entry (0 without one).
  struct Rows {
    int64_t b, h, row, past, masked;
  };

  /// Adds every sequence's share to a block of rows.
  static void gather(const Problem& p, const Tensor& d_out, const Rows& rows, double* block) {
    const Formula<DoubleArithmetic> formula(p, {});
    const int64_t first = p.packed() ? 0 : rows.b, last = p.packed() ? p.num_sequences : rows.b + 1;
    int64_t first_mean = 0;
    for (int64_t n = first; n < last; ++n) {
      const Sequence s = p.sequence(n, first_mean, nullptr);
      first_mean = p.mean_after(s);
      for (int64_t r = std::max(rows.row, s.begin); r < std::min(rows.past, s.begin + s.length); ++r) {
        const Group g = p.group_of_row(s, r - s.begin);
        if (g.mean >= p.num_means || !p.selected(rows.b, r)) continue;
        const int64_t count = rows.masked > 0 ? rows.masked : g.length;
        formula.backward(d_out, g, rows.h, count, block + (r - rows.row) * p.dim);
      }
    }
  }

  static void store(const Problem& p, const Tensor& d_x, const Rows& rows, const double* block) {
    const Layout layout = p.rows_of(d_x);
    for (int64_t r = rows.row; r < rows.past; ++r)
      for (int64_t d = 0; d < p.dim; ++d)
        store_from_double(d_x.data, d_x.dtype, layout.offset(rows.b, r, rows.h) + d, block[(r - rows.row) * p.dim + d]);
  }
};

}  // namespace

const KernelInfo& mean_pooling_kernels::reference() {
  static const KernelInfo kernel = make_kernel<MeanPooling, Reference>();
  return kernel;
}

const KernelInfo& mean_pooling_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<MeanPoolingBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
