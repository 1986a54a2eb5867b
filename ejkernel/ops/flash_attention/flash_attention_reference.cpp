// The formula in double, one query row after the other: every option, any dtype, any head size. The oracle of every
// other kernel, and the fallback that never refuses. Needs memory for one row of logits.
#include "ejkernel/ops/flash_attention/attention_formula.h"
#include "ejkernel/ops/flash_attention/attention_reference_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"

namespace ejk {
namespace attn {
namespace {

int64_t lse_index(const Problem& p, int64_t b, int64_t h, int64_t row) {
  return (b * p.num_q_heads + h) * p.q_rows + row;
}

/// Rows that no sequence owns count as rows that see no key (rule 10).
void fill_empty_rows(const Problem& p, const ForwardResults& to) {
  for (const Tensor* t : {&to.out, &to.weights})
    for (int64_t n = 0; n < t->num_elements(); ++n) set(*t, n, 0);
  if (!to.lse.present()) return;
  const int64_t batches = p.packed ? 1 : p.num_sequences;
  for (int64_t b = 0; b < batches; ++b)
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      for (int64_t r = 0; r < p.q_rows; ++r) set(to.lse, lse_index(p, b, h, r), p.sinks_lse(h));
}

/// T: the storage type of query, K of key and value.
template <class T, class K>
void attend(const Problem& p, const ForwardResults& to, const RunContext& context) {
  const Formula<T, DoubleArithmetic, K> formula(p, {});
  Row<double> row = Row<double>::carve(p, context.workspace.data());
  for (int64_t n = 0, used = p.sequences_in_use(context.status); n < used; ++n) {
    const Sequence s = p.sequence(n, context.status);
    p.report_pages(s, context.status);
    const int64_t b = p.batch_of(s);
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      for (int64_t i = 0; i < s.q_len; ++i) {
        const auto softmax = formula.forward(s, h, i, row);
        const int64_t r = s.q_begin + i;
        if (to.lse.present()) set(to.lse, lse_index(p, b, h, r), softmax.lse);
        if (to.out.present())
          for (int64_t d = 0; d < p.value_dim; ++d)
            set(to.out, ((b * p.q_rows + r) * p.num_q_heads + h) * p.value_dim + d, row.acc[d]);
        if (to.weights.present())
          for (int64_t k = 0; k < row.count; ++k)
            set(to.weights, lse_index(p, b, h, r) * p.k_rows + row.keys[k], row.logits[k]);
      }
  }
}

}  // namespace

size_t reference_workspace(const Problem& p) { return Row<double>::bytes(p); }

void run_reference(const Problem& p, const ForwardResults& to, const RunContext& context) {
  fill_empty_rows(p, to);
  dispatch_number(p.query.dtype, [&]<class T>() {
    p.pages.present ? attend<T, AnyStored>(p, to, context) : attend<T, T>(p, to, context);
  });
}

}  // namespace attn

namespace {

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  static size_t workspace_bytes(const Call<FlashAttention>& call, const NoConfig&, const DeviceProperties&) {
    return attn::reference_workspace(attn::make_problem(call.inputs, call.params));
  }
  static void run(const Call<FlashAttention>& call, const RunContext& context) {
    attn::run_reference(attn::make_problem(call.inputs, call.params),
                        {.out = call.outputs.out, .lse = call.outputs.lse}, context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<FlashAttention, Reference>();
  return kernel;
}

}  // namespace ejk
