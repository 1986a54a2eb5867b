// The gradient's formula in double, row after row; dK, dV, dbias and dsinks are summed in double in the workspace and
// rounded once at the end.
#include <algorithm>

#include "ejkernel/ops/flash_attention/attention_formula.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"

namespace ejk {
namespace {

using attention::Formula;
using attention::Problem;
using attention::Row;
using attention::Sequence;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// The workspace, cut into the sums that live across rows and what one row needs.
struct Sums {
  size_t key = 0, value = 0, bias = 0, sinks = 0;  // doubles
  size_t row_bytes = 0, row_vectors = 0;

  explicit Sums(const Problem& p) {
    const auto rows = static_cast<size_t>(p.key.num_elements() / std::max<int64_t>(1, p.head_dim));
    key = rows * static_cast<size_t>(p.head_dim);
    value = rows * static_cast<size_t>(p.value_dim);
    bias = p.bias.present() ? static_cast<size_t>(p.bias.num_elements()) : 0;
    sinks = static_cast<size_t>(p.num_sinks * p.num_q_heads);
    row_bytes = aligned(Row<double>::bytes(p));
    row_vectors = static_cast<size_t>(p.head_dim + 2 * p.value_dim);
  }
  size_t doubles() const { return key + value + bias + sinks; }
  size_t bytes() const { return row_bytes + (row_vectors + doubles()) * sizeof(double); }
};

struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<FlashAttentionBackward>& call, const NoConfig&, const DeviceProperties&) {
    return Sums(attention::make_problem(call.inputs, call.params)).bytes();
  }

  static void run(const Call<FlashAttentionBackward>& call, const RunContext& context) {
    const Problem p = attention::make_problem(call.inputs, call.params);
    attention::dispatch_number(p.query.dtype, [&]<class T>() { differentiate<T>(p, call, context); });
  }

  template <class T>
  static void differentiate(const Problem& p, const Call<FlashAttentionBackward>& call, const RunContext& context) {
    const auto& in = call.inputs;
    const auto& to = call.outputs;
    const Sums sums(p);
    Row<double> row = Row<double>::carve(p, context.workspace.data());
    double* out = reinterpret_cast<double*>(context.workspace.data() + sums.row_bytes);
    double* d_out = out + p.value_dim;
    double* d_query = d_out + p.value_dim;
    double* d_key = d_query + p.head_dim;
    double* d_value = d_key + sums.key;
    double* d_bias = d_value + sums.value;
    double* d_sinks = d_bias + sums.bias;
    std::fill_n(d_key, sums.doubles(), 0.0);
    if (to.query.present())
      for (int64_t n = 0; n < to.query.num_elements(); ++n) set(to.query, n, 0);

    const Formula<T, attention::DoubleArithmetic> formula(p, {});
    const int64_t per_batch = p.k_rows * p.num_kv_heads;
    auto one_row = [&](const Sequence& s, int64_t h, int64_t r, int64_t i) {
      const int64_t b = p.batch_of(s);
      const int64_t flat = (b * p.q_rows + r) * p.num_q_heads + h, lse_at = (b * p.num_q_heads + h) * p.q_rows + r;
      for (int64_t d = 0; d < p.value_dim; ++d) {
        out[d] = get(in.out, flat * p.value_dim + d);
        d_out[d] = get(in.d_out, flat * p.value_dim + d);
      }
      formula.backward(s, h, i,
                       {.out = out,
                        .d_out = d_out,
                        .lse = get(in.lse, lse_at),
                        .d_lse = in.d_lse.present() ? get(in.d_lse, lse_at) : 0},
                       row,
                       {.d_query = d_query,
                        .d_key = d_key + b * per_batch * p.head_dim,
                        .d_value = d_value + b * per_batch * p.value_dim,
                        .d_bias = p.bias.present() ? d_bias : nullptr,
                        .d_sinks = d_sinks + h * p.num_sinks});
      if (to.query.present())
        for (int64_t d = 0; d < p.head_dim; ++d) set(to.query, flat * p.head_dim + d, d_query[d]);
    };
    for_each_row(p, context.status, one_row);
    add_unowned_rows(p, in, context, d_sinks);
    store(p, to, d_key, d_value, d_bias, d_sinks);
  }

  template <class F>
  static void for_each_row(const Problem& p, uint32_t* status, F&& f) {
    for (int64_t n = 0; n < p.num_sequences; ++n) {
      const Sequence s = p.sequence(n, status);
      for (int64_t h = 0; h < p.num_q_heads; ++h)
        for (int64_t i = 0; i < s.q_len; ++i) f(s, h, s.q_begin + i, i);
    }
  }

  /// Rows of no sequence see no key, so their lse is the sinks' own and its cotangent reaches the sinks (rules 9, 10).
  static void add_unowned_rows(const Problem& p, const FlashAttentionBackward::Inputs& in, const RunContext&,
                               double* d_sinks) {
    if (p.num_sinks == 0 || !in.d_lse.present()) return;
    const int64_t batches = p.packed ? 1 : p.num_sequences;
    for (int64_t b = 0; b < batches; ++b)
      for (int64_t r = 0; r < p.q_rows; ++r) {
        if (is_owned(p, b, r)) continue;
        for (int64_t h = 0; h < p.num_q_heads; ++h) {
          const int64_t lse_at = (b * p.num_q_heads + h) * p.q_rows + r;
          const double lse = get(in.lse, lse_at);
          if (lse == -std::numeric_limits<double>::infinity()) continue;
          for (int64_t a = 0; a < p.num_sinks; ++a)
            d_sinks[h * p.num_sinks + a] += std::exp(p.sink_at(h, a) - lse) * get(in.d_lse, lse_at);
        }
      }
  }

  static bool is_owned(const Problem& p, int64_t b, int64_t row) {
    const int64_t first = p.packed ? 0 : b, past = p.packed ? p.num_sequences : b + 1;
    for (int64_t n = first; n < past; ++n) {
      const Sequence s = p.sequence(n, nullptr);
      if (row >= s.q_begin && row < s.q_begin + s.q_len) return true;
    }
    return false;
  }

  static void store(const Problem& p, const FlashAttentionBackward::Outputs& to, const double* d_key,
                    const double* d_value, const double* d_bias, const double* d_sinks) {
    auto copy = [](const Tensor& t, const double* from) {
      if (!t.present()) return;
      for (int64_t n = 0; n < t.num_elements(); ++n) set(t, n, from[n]);
    };
    copy(to.key, d_key);
    copy(to.value, d_value);
    copy(to.bias, d_bias);
    if (!to.softmax_aux.present()) return;
    if (to.softmax_aux.rank() == 2) return copy(to.softmax_aux, d_sinks);
    for (int64_t a = 0; a < p.num_sinks; ++a) {
      double sum = 0;
      for (int64_t h = 0; h < p.num_q_heads; ++h) sum += d_sinks[h * p.num_sinks + a];
      set(to.softmax_aux, a, sum);
    }
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
