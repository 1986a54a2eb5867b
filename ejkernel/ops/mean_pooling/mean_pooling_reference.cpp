// The formula in double, one group of rows after the other. Any dtype, any strides; the fallback that never refuses.
#include <algorithm>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_internal.h"

namespace ejk {
namespace {

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
    const Tensor &out = call.outputs.out, &offsets = call.outputs.chunk_offsets;
    double* mean = reinterpret_cast<double*>(context.workspace.data());
    for (int64_t n = 0; n < out.num_elements(); ++n) set(out, n, 0);  // rows past the last mean stay so
    int64_t first_mean = 0;
    for (int64_t n = 0; n < p.num_sequences; ++n) {
      const Sequence s = p.sequence(n, first_mean, context.status);
      if (offsets.present()) set(offsets, n, static_cast<double>(first_mean));
      if (out.num_elements() > 0) pool_sequence(p, call.inputs.x, out, s, mean);
      first_mean = p.mean_after(s);
    }
    if (offsets.present()) set(offsets, p.num_sequences, static_cast<double>(first_mean));
  }

  static void pool_sequence(const Problem& p, const Tensor& x, const Tensor& out, const Sequence& s, double* mean) {
    for (int64_t c = 0; c < p.num_means_of(s.length); ++c) {
      const Group g = p.group(s, c);
      if (g.mean >= p.num_means) return;  // overlapping sequences have more chunks than there are rows
      for (int64_t h = 0; h < p.num_heads; ++h) {
        pool_group(p, x, g, h, mean);
        const int64_t at = p.means_of(out).offset(g.batch, g.mean, h);
        for (int64_t d = 0; d < p.dim; ++d) store_from_double(out.data, out.dtype, at + d, mean[d]);
      }
    }
  }

  /// The mean of head h's columns over a group.
  static void pool_group(const Problem& p, const Tensor& x, const Group& g, int64_t h, double* mean) {
    const Layout rows = p.rows_of(x);
    std::fill_n(mean, p.dim, 0.0);
    for (int64_t row = g.begin; row < g.begin + g.length; ++row) {
      if (!p.selected(g.batch, row)) continue;
      const int64_t at = rows.offset(g.batch, row, h);
      for (int64_t d = 0; d < p.dim; ++d) mean[d] += load_as_double(x.data, x.dtype, at + d);
    }
    const auto count = static_cast<double>(p.count(g));
    for (int64_t d = 0; d < p.dim; ++d) mean[d] /= count;
  }
};

/// Blocks of rows are gathered from every sequence that claims them: what several claim is summed in double.
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
    for (int64_t n = 0; n < p.num_sequences; ++n) p.sequence(n, 0, context.status);  // faults, even if none is wanted
    if (call.outputs.x.num_elements() == 0) return;
    double* sums = reinterpret_cast<double*>(context.workspace.data());
    for (int64_t b = 0; b < p.num_batches; ++b) {
      const int64_t selected =
          p.mask.present() ? p.count({.batch = b, .begin = 0, .length = p.num_tokens, .mean = 0}) : 0;
      for (int64_t h = 0; h < p.num_heads; ++h)
        for (int64_t row = 0; row < p.num_tokens; row += kBlockRows) {
          const Block block = {
              .b = b, .h = h, .begin = row, .end = std::min(row + kBlockRows, p.num_tokens), .selected = selected};
          std::fill_n(sums, kBlockRows * p.dim, 0.0);
          gather(p, call.inputs.d_out, block, sums);
          store(p, call.outputs.x, block, sums);
        }
    }
  }

  /// Rows [begin, end) of head h; `selected` is how many rows a mask selects in their batch entry, 0 without one.
  struct Block {
    int64_t b, h, begin, end, selected;
  };

  /// Adds every sequence's share to a block of rows.
  static void gather(const Problem& p, const Tensor& d_out, const Block& block, double* sums) {
    const Layout means = p.means_of(d_out);
    const int64_t first = p.packed() ? 0 : block.b, past = p.packed() ? p.num_sequences : block.b + 1;
    int64_t first_mean = 0;
    for (int64_t n = first; n < past; ++n) {
      const Sequence s = p.sequence(n, first_mean, nullptr);
      first_mean = p.mean_after(s);
      for (int64_t row = std::max(block.begin, s.begin); row < std::min(block.end, s.begin + s.length); ++row) {
        const Group g = p.group_of_row(s, row - s.begin);
        if (g.mean >= p.num_means || !p.selected(block.b, row)) continue;
        const auto count = static_cast<double>(block.selected > 0 ? block.selected : g.length);
        const int64_t at = means.offset(g.batch, g.mean, block.h);
        for (int64_t d = 0; d < p.dim; ++d)
          sums[(row - block.begin) * p.dim + d] += load_as_double(d_out.data, d_out.dtype, at + d) / count;
      }
    }
  }

  static void store(const Problem& p, const Tensor& d_x, const Block& block, const double* sums) {
    const Layout rows = p.rows_of(d_x);
    for (int64_t row = block.begin; row < block.end; ++row)
      for (int64_t d = 0; d < p.dim; ++d)
        store_from_double(d_x.data, d_x.dtype, rows.offset(block.b, row, block.h) + d,
                          sums[(row - block.begin) * p.dim + d]);
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
