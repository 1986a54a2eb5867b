// The formula of mean pooling and of its gradient, one group at a time, in plain loops. The reference kernels run it in
// double; the test oracle runs it in float as well, in other orders. `Arithmetic` says in what precision and order:
//
//   struct Arithmetic { using Real; int64_t order(int64_t position, int64_t count) const; };
#pragma once

#include <algorithm>
#include <cstdint>

#include "ejkernel/core/dtype.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_internal.h"

namespace ejk::pooling {

/// Double throughout, rows in their own order.
struct DoubleArithmetic {
  using Real = double;
  static int64_t order(int64_t position, int64_t) { return position; }
};

/// Calls f(group, head) for every mean that has a row in out, sequence by sequence, and `on_sequence(index,
/// first_mean)` for each sequence and once past the last.
template <class F, class G>
void for_each_mean(const Problem& p, uint32_t* status, F&& f, G&& on_sequence) {
  int64_t first_mean = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, first_mean, status);
    on_sequence(n, first_mean);
    const int64_t count = p.dim == 0 || p.num_heads == 0 ? 0 : p.num_means_of(s.length);
    for (int64_t c = 0; c < count; ++c) {
      const Group g = p.group(s, c);
      if (g.mean >= p.num_means) break;
      for (int64_t h = 0; h < p.num_heads; ++h) f(g, h);
    }
    first_mean = p.mean_after(s);
  }
  on_sequence(p.num_sequences, first_mean);
}

template <class A>
class Formula {
 public:
  using Real = typename A::Real;

  Formula(const Problem& p, A arithmetic) : p_(p), a_(arithmetic) {}

  /// The mean of head h's columns over a group: `mean` has [dim] elements.
  void forward(const Tensor& x, const Group& g, int64_t h, Real* mean) const {
    const Layout rows = p_.rows_of(x);
    std::fill_n(mean, p_.dim, Real{0});
    for (int64_t position = 0; position < g.length; ++position) {
      const int64_t row = g.begin + a_.order(position, g.length);
      if (!p_.selected(g.batch, row)) continue;
      const int64_t at = rows.offset(g.batch, row, h);
      for (int64_t d = 0; d < p_.dim; ++d) mean[d] += static_cast<Real>(load_as_double(x.data, x.dtype, at + d));
    }
    const auto count = static_cast<Real>(p_.count(g));
    for (int64_t d = 0; d < p_.dim; ++d) mean[d] /= count;
  }

  /// Adds what each selected row of a group gets of the mean's cotangent to `d_row`, [dim].
  void backward(const Tensor& d_out, const Group& g, int64_t h, int64_t count, Real* d_row) const {
    const int64_t at = p_.means_of(d_out).offset(g.batch, g.mean, h);
    for (int64_t d = 0; d < p_.dim; ++d)
      d_row[d] += static_cast<Real>(load_as_double(d_out.data, d_out.dtype, at + d)) / static_cast<Real>(count);
  }

 private:
  const Problem& p_;
  A a_;
};

}  // namespace ejk::pooling
