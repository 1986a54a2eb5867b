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
inline void load_rows(const HeadPart& part, const Tensor& t, int64_t head, int64_t column, const ChunkTokens& tokens,
                      const ChunkRows& to) {
  const int64_t count = t.present() ? tokens.count : 0;
  const TokenRows rows(part, t, head);
  for (int64_t i = 0; i < count; ++i) {
    load_row(t.data, t.dtype, rows.offset(tokens.first + i) + column, to.columns, to.row(i));
    std::fill(to.row(i) + to.columns, to.row(i) + to.stride, 0.0f);
  }
  std::fill(to.row(count), to.row(kChunk), 0.0f);
}

/// Asks memory for rows that will be loaded or stored soon. A head's rows lie far apart, where processors do not look
/// ahead by themselves.
inline void prefetch_rows(const HeadPart& part, const Tensor& t, int64_t head, int64_t column, int64_t columns,
                          const ChunkTokens& tokens) {
  if (!t.present()) return;
  const TokenRows rows(part, t, head);
  const int64_t size = bits(t.dtype) / 8;
  for (int64_t i = 0; i < tokens.count; ++i)
    for (int64_t at = 0; at < columns * size; at += 64)
      prefetch(t.data, (rows.offset(tokens.first + i) + column) * size + at);
}

inline void store_rows(const HeadPart& part, const ChunkRows& from, float factor, int64_t head, int64_t column,
                       const ChunkTokens& tokens, const Tensor& t) {
  if (!t.present()) return;
  const TokenRows rows(part, t, head);
  for (int64_t i = 0; i < tokens.count; ++i)
    store_row(from.row(i), factor, from.columns, t.data, t.dtype, rows.offset(tokens.first + i) + column);
}

/// The sums of the gates that are one number for a whole token.
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

/// Decays of keys: every gate but gv. 1 in rows of no token.
inline void load_key_decays(const HeadPart& part, const ChunkTokens& tokens, const ChunkRows& decay) {
  HWY_ALIGN float gates[kChunk] = {};
  load_token_gates(part, tokens, gates);
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
  load_rows(part, part.p.in.gv, part.q_head, part.column, tokens, decay);
  for (int64_t i = 0; i < kChunk; ++i) exponentiate(0, decay.stride, decay.row(i));
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
