// The gradient's formula in double, row after row; dK, dV, dbias and dsinks are summed in double in the workspace and
// rounded once at the end.
#include <algorithm>
#include <utility>

#include "ejkernel/ops/flash_attention/attention_formula.h"
#include "ejkernel/ops/flash_attention/attention_reference_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"

namespace ejk {
namespace attn {
namespace {

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Byte offsets of what the workspace holds: what one row needs, then the sums that live across rows.
struct Layout {
  size_t out, d_out, d_weights, d_query;
  size_t d_key, d_value, d_bias, d_sinks;
  size_t bytes;

  explicit Layout(const Problem& p) {
    bytes = aligned(Row<double>::bytes(p));
    auto take = [this](int64_t doubles) {
      return std::exchange(bytes, bytes + static_cast<size_t>(doubles) * sizeof(double));
    };
    out = take(p.value_dim);
    d_out = take(p.value_dim);
    d_weights = take(p.k_rows);
    d_query = take(p.head_dim);
    const int64_t key_rows = (p.packed ? 1 : p.num_sequences) * p.k_rows * p.num_kv_heads;
    d_key = take(key_rows * p.head_dim);
    d_value = take(key_rows * p.value_dim);
    d_bias = take(p.bias.num_elements());
    d_sinks = take(p.num_sinks * p.num_q_heads);
  }
  size_t num_sums() const { return (bytes - d_key) / sizeof(double); }
};

/// The workspace by its parts.
struct Memory {
  Row<double> row;
  double *out, *d_out, *d_weights, *d_query;
  double *d_key, *d_value, *d_bias, *d_sinks;

  Memory(const Problem& p, const Layout& layout, std::byte* memory) : row(Row<double>::carve(p, memory)) {
    auto at = [memory](size_t offset) { return reinterpret_cast<double*>(memory + offset); };
    out = at(layout.out), d_out = at(layout.d_out), d_weights = at(layout.d_weights), d_query = at(layout.d_query);
    d_key = at(layout.d_key), d_value = at(layout.d_value), d_bias = at(layout.d_bias), d_sinks = at(layout.d_sinks);
    std::fill_n(d_key, layout.num_sums(), 0.0);
  }
};

template <class T>
class Backward {
 public:
  Backward(const Problem& p, const BackwardInputs& in, const FlashAttentionBackward::Outputs& to,
           const RunContext& context)
      : p_(p), in_(in), to_(to), status_(context.status), m_(p, Layout(p), context.workspace.data()), formula_(p, {}) {}

  void run() {
    for (int64_t n = 0; n < to_.query.num_elements(); ++n) set(to_.query, n, 0);  // rows of no sequence stay so
    for (int64_t n = 0; n < p_.num_sequences; ++n) {
      const Sequence s = p_.sequence(n, status_);
      for (int64_t h = 0; h < p_.num_q_heads; ++h)
        for (int64_t i = 0; i < s.q_len; ++i) differentiate(s, h, i);
    }
    add_unowned_rows();
    store(to_.key, m_.d_key);
    store(to_.value, m_.d_value);
    store(to_.bias, m_.d_bias);
    store_sinks();
  }

 private:
  int64_t row_index(int64_t b, int64_t h, int64_t row) const { return (b * p_.num_q_heads + h) * p_.q_rows + row; }

  void differentiate(const Sequence& s, int64_t h, int64_t i) {
    const int64_t b = p_.batch_of(s), r = s.q_begin + i, at = row_index(b, h, r);
    const int64_t flat = (b * p_.q_rows + r) * p_.num_q_heads + h;
    double lse = 0;
    if (in_.lse.present()) {
      lse = get(in_.lse, at);
      load(in_.out, flat * p_.value_dim, p_.value_dim, m_.out);
    } else {
      lse = formula_.forward(s, h, i, m_.row).lse;
      std::copy_n(m_.row.acc, p_.value_dim, m_.out);
    }
    load(in_.d_out, flat * p_.value_dim, p_.value_dim, m_.d_out);
    if (in_.d_weights.present()) load(in_.d_weights, at * p_.k_rows, p_.k_rows, m_.d_weights);

    const int64_t first_key = b * p_.k_rows * p_.num_kv_heads;
    formula_.backward(s, h, i,
                      {.out = m_.out,
                       .d_out = m_.d_out,
                       .lse = lse,
                       .d_lse = in_.d_lse.present() ? get(in_.d_lse, at) : 0,
                       .d_weights = in_.d_weights.present() ? m_.d_weights : nullptr},
                      m_.row,
                      {.d_query = m_.d_query,
                       .d_key = m_.d_key + first_key * p_.head_dim,
                       .d_value = m_.d_value + first_key * p_.value_dim,
                       .d_bias = p_.bias.present() ? m_.d_bias : nullptr,
                       .d_sinks = m_.d_sinks + h * p_.num_sinks});
    if (!to_.query.present()) return;
    for (int64_t d = 0; d < p_.head_dim; ++d) set(to_.query, flat * p_.head_dim + d, m_.d_query[d]);
  }

  /// An absent cotangent is zero.
  static void load(const Tensor& from, int64_t begin, int64_t count, double* to) {
    for (int64_t n = 0; n < count; ++n) to[n] = from.present() ? get(from, begin + n) : 0;
  }

  /// Rows of no sequence see no key, so their lse is the sinks' own and its cotangent reaches the sinks (rules 9, 10).
  void add_unowned_rows() {
    if (p_.num_sinks == 0 || !in_.d_lse.present()) return;
    const int64_t batches = p_.packed ? 1 : p_.num_sequences;
    for (int64_t b = 0; b < batches; ++b)
      for (int64_t r = 0; r < p_.q_rows; ++r)
        for (int64_t h = 0; h < p_.num_q_heads && !is_owned(b, r); ++h) {
          const double lse = get(in_.lse, row_index(b, h, r));
          if (lse == kNoKey) continue;
          for (int64_t a = 0; a < p_.num_sinks; ++a)
            m_.d_sinks[h * p_.num_sinks + a] += std::exp(p_.sink_at(h, a) - lse) * get(in_.d_lse, row_index(b, h, r));
        }
  }

  bool is_owned(int64_t b, int64_t row) const {
    const int64_t first = p_.packed ? 0 : b, past = p_.packed ? p_.num_sequences : b + 1;
    for (int64_t n = first; n < past; ++n) {
      const Sequence s = p_.sequence(n, nullptr);
      if (row >= s.q_begin && row < s.q_begin + s.q_len) return true;
    }
    return false;
  }

  static void store(const Tensor& t, const double* from) {
    for (int64_t n = 0; n < t.num_elements(); ++n) set(t, n, from[n]);
  }

  void store_sinks() const {
    if (to_.softmax_aux.rank() == 2) return store(to_.softmax_aux, m_.d_sinks);
    for (int64_t a = 0; a < to_.softmax_aux.num_elements(); ++a) {  // rank 1: shared by all heads
      double sum = 0;
      for (int64_t h = 0; h < p_.num_q_heads; ++h) sum += m_.d_sinks[h * p_.num_sinks + a];
      set(to_.softmax_aux, a, sum);
    }
  }

  const Problem& p_;
  const BackwardInputs& in_;
  const FlashAttentionBackward::Outputs& to_;
  uint32_t* status_;
  Memory m_;
  Formula<T, DoubleArithmetic> formula_;
};

}  // namespace

size_t backward_reference_workspace(const Problem& p) { return Layout(p).bytes; }

void run_backward_reference(const Problem& p, const BackwardInputs& in, const FlashAttentionBackward::Outputs& to,
                            const RunContext& context) {
  dispatch_number(p.query.dtype, [&]<class T>() { Backward<T>(p, in, to, context).run(); });
}

}  // namespace attn

namespace {

struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<FlashAttentionBackward>& call, const NoConfig&, const DeviceProperties&) {
    return attn::backward_reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<FlashAttentionBackward>& call, const RunContext& context) {
    const auto& in = call.inputs;
    attn::run_backward_reference(attn::make_problem(in, call.params),
                                 {.out = in.out, .lse = in.lse, .d_out = in.d_out, .d_lse = in.d_lse}, call.outputs,
                                 context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
