// The rows of a chunk of tokens on their way between tensors and scratch, for the CPU kernels of recurrent_attention.
// Included once per instruction set, after simd-inl.h.

#include <algorithm>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cpu_internal.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::recurrence::HWY_NAMESPACE {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary
using cpu::ChunkRows;
using cpu::ChunkState;
using cpu::kChunk;
using cpu::padded;

/// Tokens [first, first + count) of a sequence; at most kChunk.
struct ChunkTokens {
  int64_t first, count;
};

/// Numbers [column, column + to.columns) of the tokens' rows; 0 in rows of no token and in padding. An absent tensor is
/// all 0.
HWY_FLATTEN inline void load_rows(const HeadPart& part, const Tensor& t, int64_t head, int64_t column,
                                  const ChunkTokens& tokens, const ChunkRows& to) {
  const int64_t count = t.present() ? tokens.count : 0;
  const TokenRows rows(part, t, head);
  for (int64_t i = 0; i < count; ++i) {
    load_row(t.data, t.dtype, rows.offset(tokens.first + i) + column, to.columns, to.row(i));
    std::fill(to.row(i) + to.columns, to.row(i) + to.stride, 0.0f);
  }
  std::fill(to.row(count), to.row(kChunk), 0.0f);
}

/// Asks memory for a chunk's rows that will be loaded or stored soon, a few lines at a time: so many at once would make
/// the processor wait. A head's rows lie far apart, where processors do not look ahead by themselves.
class ChunkPrefetch {
 public:
  /// Tokens before the first and past the last are none.
  ChunkPrefetch(const HeadPart& part, const ChunkTokens& tokens) : part_(part), tokens_(tokens) {}

  /// Numbers [column, column + columns) of the tokens' rows.
  void add(const Tensor& t, int64_t head, int64_t column, int64_t columns) {
    if (!t.present() || tokens_.first < 0 || tokens_.count <= 0) return;
    const TokenRows rows(part_, t, head);
    const int64_t size = bits(t.dtype) / 8;
    runs_[num_runs_] = {.first = t.as<const std::byte>() + (rows.offset(tokens_.first) + column) * size,
                        .step = rows.step * size,
                        .lines = cpu::ceil_div(columns * size, kLine)};
    lines_ += runs_[num_runs_++].lines * tokens_.count;
  }

  /// Asks for the next part of `parts` that are about equal.
  void advance(int64_t parts) {
    int64_t lines = cpu::ceil_div(lines_, parts);
    for (; lines > 0 && run_ < num_runs_; --lines) {
      const Run& run = runs_[run_];
      prefetch_far(run.first + token_ * run.step + line_ * kLine);
      if (++line_ < run.lines) continue;
      line_ = 0;
      if (++token_ < tokens_.count) continue;
      token_ = 0, ++run_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  struct Run {
    const std::byte* first;
    int64_t step, lines;
  };

  const HeadPart& part_;
  const ChunkTokens tokens_;
  Run runs_[9];
  int num_runs_ = 0, run_ = 0;
  int64_t lines_ = 0, token_ = 0, line_ = 0;
};

/// update_state(), and meanwhile memory is asked for `next`.
inline void update_state_and_fetch(const float* from, const ChunkState& to, const float* key_decay,
                                   const float* value_decay, const ChunkRows& keys, const ChunkRows& values,
                                   ChunkPrefetch next) {
  const int64_t blocks = cpu::ceil_div(to.keys * to.stride, update_block_size());
  update_state(from, to, key_decay, value_decay, keys, values, [&] { next.advance(blocks); });
}

inline void store_rows(const HeadPart& part, const ChunkRows& from, float factor, int64_t head, int64_t column,
                       const ChunkTokens& tokens, const Tensor& t) {
  if (!t.present()) return;
  const TokenRows rows(part, t, head);
  for (int64_t i = 0; i < tokens.count; ++i)
    store_row(from.row(i), factor, from.columns, t.data, t.dtype, rows.offset(tokens.first + i) + column);
}

/// Gates that are one number for a whole token are added to those of keys, or of values where there are those alone:
/// rounded by itself, one and the same decay of every token would be off by the same factor every time.
inline bool keys_take_token_gates(const Problem& p) { return p.in.gk.present() || !p.in.gv.present(); }
inline bool have_token_decays(const Problem& p) {
  return (p.in.g.present() || p.in.g_gamma.present()) && keys_take_token_gates(p);
}

/// The sums of those gates.
inline void load_token_gates(const HeadPart& part, const ChunkTokens& tokens, float* gates) {
  const RecurrentAttention::Inputs& in = part.p.in;
  float of_head = 0;
  if (in.g_gamma.present())
    load_row(in.g_gamma.data, in.g_gamma.dtype, part.q_head * in.g_gamma.strides[0], 1, &of_head);
  const TokenRows rows(part, in.g, part.q_head);
  for (int64_t i = 0; i < tokens.count; ++i) {
    float of_token = 0;
    if (in.g.present()) load_row(in.g.data, in.g.dtype, rows.offset(tokens.first + i), 1, &of_token);
    gates[i] = of_head + of_token;
  }
}

/// row = e^(row + gate), padding included.
inline void exponentiate(float gate, int64_t count, float* row) {
  const FloatTag d;
  const FloatV gates = hn::Set(d, gate);
  for (int64_t c = 0; c < count; c += lanes()) hn::Store(exp_any(hn::Add(hn::Load(d, row + c), gates)), d, row + c);
}

/// Decays of keys, 1 in rows of no token.
inline void load_key_decays(const HeadPart& part, const ChunkTokens& tokens, const ChunkRows& decay) {
  HWY_ALIGN float gates[kChunk] = {};
  if (keys_take_token_gates(part.p)) load_token_gates(part, tokens, gates);
  if (part.p.in.gk.present()) {
    load_rows(part, part.p.in.gk, part.q_head, 0, tokens, decay);
    for (int64_t i = 0; i < tokens.count; ++i) exponentiate(gates[i], decay.stride, decay.row(i));
  } else {
    exponentiate(0, kChunk, gates);
    for (int64_t i = 0; i < tokens.count; ++i) std::fill_n(decay.row(i), decay.stride, gates[i]);
  }
  std::fill(decay.row(tokens.count), decay.row(kChunk), 1.0f);
}

/// Decays of values.
inline void load_value_decays(const HeadPart& part, const ChunkTokens& tokens, const ChunkRows& decay) {
  HWY_ALIGN float gates[kChunk] = {};
  if (!keys_take_token_gates(part.p)) load_token_gates(part, tokens, gates);
  load_rows(part, part.p.in.gv, part.q_head, part.column, tokens, decay);
  for (int64_t i = 0; i < kChunk; ++i) exponentiate(gates[i], decay.stride, decay.row(i));
}

/// A part's columns of a tensor of states; an absent one is all 0.
inline void load_state(const HeadPart& part, const Tensor& t, const ChunkState& to) {
  if (!t.present()) {
    std::fill_n(to.data, to.keys * to.stride, 0.0f);
    return;
  }
  const States states = part.p.states_of(t);
  for (int64_t k = 0; k < to.keys; ++k) {
    float* row = to.data + k * to.stride;
    const int64_t offset = states.offset(part.index, part.q_head) + k * states.key + part.column;
    load_row(t.data, t.dtype, offset, to.values, row);
    std::fill(row + to.values, row + to.stride, 0.0f);
  }
}

inline void store_state(const HeadPart& part, const ChunkState& from, const Tensor& t) {
  if (!t.present()) return;
  const States states = part.p.states_of(t);
  for (int64_t k = 0; k < from.keys; ++k) {
    const int64_t offset = states.offset(part.index, part.q_head) + k * states.key + part.column;
    store_row(from.data + k * from.stride, 1, from.values, t.data, t.dtype, offset);
  }
}

}  // namespace ejk::recurrence::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
