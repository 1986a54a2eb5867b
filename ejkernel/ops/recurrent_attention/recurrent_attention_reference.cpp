// The recurrence in double, one token after the other. Any dtype, any strides; the fallback that never refuses.
#include <algorithm>
#include <cmath>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_internal.h"
#include "ejkernel/platform/cpu/layout.h"

namespace ejk {
namespace {

using cpu::Carver;
using recurrence::Problem;
using recurrence::Sequence;

void load(const Tensor& t, int64_t at, int64_t count, double* to) {
  for (int64_t n = 0; n < count; ++n) to[n] = t.present() ? load_as_double(t.data, t.dtype, at + n) : 0;
}

void store(const Tensor& t, int64_t at, int64_t count, const double* from) {
  for (int64_t n = 0; n < count && t.present(); ++n) store_from_double(t.data, t.dtype, at + n, from[n]);
}

/// What the recurrence reads of one token.
struct Token {
  double *query, *key, *value, *gk, *gv, *d_out;
  Token(Carver& carver, const Problem& p)
      : query(carver.take<double>(p.key_dim)),
        key(carver.take<double>(p.key_dim)),
        value(carver.take<double>(p.value_dim)),
        gk(carver.take<double>(p.key_dim)),
        gv(carver.take<double>(p.value_dim)),
        d_out(carver.take<double>(p.value_dim)) {}
};

/// One query head of one sequence. `token` is the one that it took last.
class Head {
 public:
  Head(const Problem& p, int64_t index, const Sequence& s, int64_t h, const Token& token)
      : p_(p), index_(index), s_(s), h_(h), token_(token) {
    load(p.in.g_gamma, p.in.g_gamma.present() ? h * p.in.g_gamma.strides[0] : 0, 1, &gamma_);
  }

  int64_t kv_head() const { return h_ / p_.heads_per_kv_head(); }

  void load_state(const Tensor& t, double* state) const {
    for (int64_t k = 0; k < p_.key_dim; ++k)
      load(t, p_.states_of(t).offset(index_, h_) + k * p_.states_of(t).key, p_.value_dim, state + k * p_.value_dim);
  }
  void store_state(const Tensor& t, const double* state) const {
    for (int64_t k = 0; k < p_.key_dim; ++k)
      store(t, p_.states_of(t).offset(index_, h_) + k * p_.states_of(t).key, p_.value_dim, state + k * p_.value_dim);
  }
  /// `count` numbers of token `i` in a tensor with a row per token.
  void load_row(const Tensor& t, int64_t i, int64_t head, int64_t count, double* to) const {
    load(t, p_.rows_of(t).offset(s_.batch, p_.row(s_, i), head), count, to);
  }
  void store_row(const Tensor& t, int64_t i, int64_t head, int64_t count, const double* from) const {
    store(t, p_.rows_of(t).offset(s_.batch, p_.row(s_, i), head), count, from);
  }

  /// Takes token `i`; its update is the next one.
  void take(int64_t i) {
    load_row(p_.in.query, i, h_, p_.key_dim, token_.query);
    load_row(p_.in.key, i, kv_head(), p_.key_dim, token_.key);
    load_row(p_.in.value, i, kv_head(), p_.value_dim, token_.value);
    load_row(p_.in.gk, i, h_, p_.key_dim, token_.gk);
    load_row(p_.in.gv, i, h_, p_.value_dim, token_.gv);
    load_row(p_.in.g, i, h_, 1, &g_);
  }

  /// What the token multiplies each element of the state by: visit(k, v, decay).
  template <class Visit>
  void for_each_decay(Visit visit) const {
    for (int64_t k = 0; k < p_.key_dim; ++k) {
      const double of_row = g_ + gamma_ + token_.gk[k], decay = std::exp(of_row);
      for (int64_t v = 0; v < p_.value_dim; ++v)
        visit(k, v, p_.in.gv.present() ? std::exp(of_row + token_.gv[v]) : decay);
    }
  }

  /// The state after the token from the one before it; they may be the same.
  void update(const double* before, double* after) const {
    for_each_decay([&](int64_t k, int64_t v, double decay) {
      const int64_t n = k * p_.value_dim + v;
      after[n] = decay * before[n] + token_.key[k] * token_.value[v];
    });
  }

 private:
  const Problem& p_;
  int64_t index_;
  const Sequence& s_;
  int64_t h_;
  const Token& token_;
  double gamma_ = 0, g_ = 0;
};

struct Reference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  struct Scratch {
    Token token;
    double *state, *out;
    Scratch(Carver& carver, const Problem& p)
        : token(carver, p), state(carver.take<double>(p.state_size())), out(carver.take<double>(p.value_dim)) {}
  };

  static size_t workspace_bytes(const Call<RecurrentAttention>& call, const NoConfig&, const DeviceProperties&) {
    Carver carver;
    Scratch(carver, recurrence::make_problem(call.inputs, call.params));
    return carver.used();
  }

  static void run(const Call<RecurrentAttention>& call, const RunContext& context) {
    const Problem p = recurrence::make_problem(call.inputs, call.params);
    Carver carver(context.workspace.data());
    const Scratch scratch(carver, p);
    const Tensor& out = call.outputs.out;
    for (int64_t n = 0; p.packed() && n < out.num_elements(); ++n) set(out, n, 0);  // rows of no sequence stay so
    for (int64_t index = 0; index < p.num_sequences; ++index) {
      const Sequence s = p.sequence(index, context.status);
      for (int64_t h = 0; h < p.num_q_heads; ++h) {
        Head head(p, index, s, h, scratch.token);
        head.load_state(p.in.initial_state, scratch.state);
        for (int64_t i = 0; i < s.length; ++i) {
          head.take(i);
          head.update(scratch.state, scratch.state);
          read(p, scratch);
          head.store_row(out, i, h, p.value_dim, scratch.out);
        }
        head.store_state(call.outputs.final_state, scratch.state);
      }
    }
  }

  /// out = scale * query @ state
  static void read(const Problem& p, const Scratch& scratch) {
    std::fill_n(scratch.out, p.value_dim, 0.0);
    for (int64_t k = 0; k < p.key_dim; ++k)
      for (int64_t v = 0; v < p.value_dim; ++v)
        scratch.out[v] += p.scale * scratch.token.query[k] * scratch.state[k * p.value_dim + v];
  }
};

/// Tokens in reverse, a segment at a time: the first sweep keeps the states that segments begin with, and a segment's
/// own are made again from there.
struct BackwardReference {
  static constexpr std::string_view kName = "reference";
  static constexpr Platform kPlatform = Platform::reference;

  /// Tokens of a segment: as many states as there are segments.
  static int64_t segment_length(const Problem& p) {
    return std::max<int64_t>(static_cast<int64_t>(std::sqrt(static_cast<double>(p.num_rows))), 1);
  }

  struct Scratch {
    Token token;
    double* first_states;     ///< that segments begin with
    double* states;           ///< before each token of a segment, and after its last
    double* d_state;          ///< D of the spec: what the loss changes by with the state
    double *query, *gk, *gv;  ///< gradients for a token
    double *key, *value;      ///< of a sequence's tokens, summed over the query heads of a kv head
    double* g_gamma;
    Scratch(Carver& carver, const Problem& p) : token(carver, p) {
      const int64_t segment = segment_length(p);
      first_states = carver.take<double>(cpu::ceil_div(p.num_rows, segment) * p.state_size());
      states = carver.take<double>((segment + 1) * p.state_size());
      d_state = carver.take<double>(p.state_size());
      query = carver.take<double>(p.key_dim);
      gk = carver.take<double>(p.key_dim);
      gv = carver.take<double>(p.value_dim);
      key = carver.take<double>(p.num_rows * p.key_dim);
      value = carver.take<double>(p.num_rows * p.value_dim);
      g_gamma = carver.take<double>(p.num_q_heads);
    }
  };

  static size_t workspace_bytes(const Call<RecurrentAttentionBackward>& call, const NoConfig&,
                                const DeviceProperties&) {
    Carver carver;
    Scratch(carver, recurrence::make_problem(call.inputs, call.params));
    return carver.used();
  }

  static void run(const Call<RecurrentAttentionBackward>& call, const RunContext& context) {
    const Problem p = recurrence::make_problem(call.inputs, call.params);
    Carver carver(context.workspace.data());
    const Scratch scratch(carver, p);
    const auto& to = call.outputs;
    for (const Tensor& t : {to.query, to.key, to.value, to.g, to.gk, to.gv})  // rows of no sequence stay zero
      for (int64_t n = 0; p.packed() && n < t.num_elements(); ++n) set(t, n, 0);
    std::fill_n(scratch.g_gamma, p.num_q_heads, 0.0);
    for (int64_t index = 0; index < p.num_sequences; ++index) {
      const Sequence s = p.sequence(index, context.status);
      for (int64_t h = 0; h < p.num_q_heads; ++h) {
        Head head(p, index, s, h, scratch.token);
        if (h % p.heads_per_kv_head() == 0) {
          std::fill_n(scratch.key, s.length * p.key_dim, 0.0);
          std::fill_n(scratch.value, s.length * p.value_dim, 0.0);
        }
        sweep_forward(p, s, head, scratch);
        sweep_backward(p, s, h, head, call, scratch);
        if ((h + 1) % p.heads_per_kv_head() == 0) store_key_and_value(p, s, head, call, scratch);
      }
    }
    for (int64_t h = 0; h < p.num_q_heads && to.g_gamma.present(); ++h) set(to.g_gamma, h, scratch.g_gamma[h]);
  }

  /// The states that segments begin with.
  static void sweep_forward(const Problem& p, const Sequence& s, Head& head, const Scratch& scratch) {
    const int64_t segment = segment_length(p);
    head.load_state(p.in.initial_state, scratch.states);
    for (int64_t i = 0; i < s.length; ++i) {
      if (i % segment == 0)
        std::copy_n(scratch.states, p.state_size(), scratch.first_states + i / segment * p.state_size());
      head.take(i);
      head.update(scratch.states, scratch.states);
    }
  }

  static void sweep_backward(const Problem& p, const Sequence& s, int64_t h, Head& head,
                             const Call<RecurrentAttentionBackward>& call, const Scratch& scratch) {
    const int64_t segment = segment_length(p), size = p.state_size();
    head.load_state(call.inputs.d_final_state, scratch.d_state);
    for (int64_t first = (cpu::ceil_div(s.length, segment) - 1) * segment; first >= 0; first -= segment) {
      const int64_t past = std::min(first + segment, s.length);
      std::copy_n(scratch.first_states + first / segment * size, size, scratch.states);
      for (int64_t i = first; i < past; ++i) {
        head.take(i);
        head.update(scratch.states + (i - first) * size, scratch.states + (i - first + 1) * size);
      }
      for (int64_t i = past - 1; i >= first; --i) {
        head.take(i);
        head.load_row(call.inputs.d_out, i, h, p.value_dim, scratch.token.d_out);
        take_back(p, i, scratch.states + (i - first) * size, h, head, call.outputs, scratch);
      }
    }
    head.store_state(call.outputs.initial_state, scratch.d_state);
  }

  /// The gradients of token `i`, whose update made after = before + p.state_size() from `before`. d_state becomes what
  /// the loss changes by with `before`.
  static void take_back(const Problem& p, int64_t i, const double* before, int64_t h, const Head& head,
                        const RecurrentAttentionBackward::Outputs& to, const Scratch& scratch) {
    const Token& token = scratch.token;
    const double* after = before + p.state_size();
    double *key = scratch.key + i * p.key_dim, *value = scratch.value + i * p.value_dim, g = 0;
    std::fill_n(scratch.query, p.key_dim, 0.0);
    std::fill_n(scratch.gk, p.key_dim, 0.0);
    std::fill_n(scratch.gv, p.value_dim, 0.0);
    head.for_each_decay([&](int64_t k, int64_t v, double decay) {
      const int64_t n = k * p.value_dim + v;
      double& d = scratch.d_state[n];
      d += p.scale * token.query[k] * token.d_out[v];
      scratch.query[k] += p.scale * after[n] * token.d_out[v];
      key[k] += d * token.value[v];
      value[v] += d * token.key[k];
      d *= decay;
      const double d_log = d * before[n];
      g += d_log;
      scratch.gk[k] += d_log;
      scratch.gv[v] += d_log;
    });
    scratch.g_gamma[h] += g;
    head.store_row(to.query, i, h, p.key_dim, scratch.query);
    head.store_row(to.g, i, h, 1, &g);
    head.store_row(to.gk, i, h, p.key_dim, scratch.gk);
    head.store_row(to.gv, i, h, p.value_dim, scratch.gv);
  }

  static void store_key_and_value(const Problem& p, const Sequence& s, const Head& head,
                                  const Call<RecurrentAttentionBackward>& call, const Scratch& scratch) {
    for (int64_t i = 0; i < s.length; ++i) {
      head.store_row(call.outputs.key, i, head.kv_head(), p.key_dim, scratch.key + i * p.key_dim);
      head.store_row(call.outputs.value, i, head.kv_head(), p.value_dim, scratch.value + i * p.value_dim);
    }
  }
};

}  // namespace

const KernelInfo& recurrent_attention_kernels::reference() {
  static const KernelInfo kernel = make_kernel<RecurrentAttention, Reference>();
  return kernel;
}

const KernelInfo& recurrent_attention_kernels::backward_reference() {
  static const KernelInfo kernel = make_kernel<RecurrentAttentionBackward, BackwardReference>();
  return kernel;
}

}  // namespace ejk
