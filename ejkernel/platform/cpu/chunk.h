// The algebra of linear recurrences over a chunk of tokens: what is the same for every instruction set. chunk-inl.h
// computes it.
//
// A state S [keys, values] decays and takes up an outer product with every token t, and is read after that:
//
//   S = (a_t ⊗ b_t) ∘ S + k_t ⊗ v_t,   o_t = q_t S          a_t [keys], b_t [values]: decays, products of all gates
//
// With Λa(j→i) = a_{j+1} ∘ … ∘ a_i, and likewise Λb, a chunk of tokens 1 … C that finds S and leaves S' is
//
//   o_i = Λb(0→i) ∘ (Λa(0→i) ∘ q_i) S  +  Σ_{j≤i} A_ij Λb(j→i) ∘ v_j,      A_ij = Σ_k q_ik Λa(j→i)_k k_jk
//   S'  = (Λa(0→C) ⊗ Λb(0→C)) ∘ S  +  Σ_j (Λa(j→C) ∘ k_j) ⊗ (Λb(j→C) ∘ v_j)
//
// and the cotangent E of its state runs through it backwards by the second formula with q, do in place of k, v and 0→i
// in place of j→C. The gradient of the gate of token t, log a_t, is what passes that token, with
// M_ij = Σ_v do_iv Λb(j→i)_v v_jv:
//
//   Λa(0→C) ∘ Σ_v Λb(0→C)_v S_v E_v  +  Σ_{i≥t} q_i ∘ dq_i(S)  +  Σ_{j<t} k_j ∘ dk_j(E)  +  Σ_{j<t≤i} q_i ∘ Λa(j→i) ∘
//   k_j M_ij
//
// where dq(S) and dk(E) are the parts of those gradients that come through the chunk's ends. No term of it is the
// difference of others: a decay of 0 has the gradient 0.
//
// Decays are never divided and never taken back to logarithms. Every Λ is a product of decays between two tokens of one
// chunk, all of them at most 1 for gates at most 0: nothing overflows, and a decay of 0 (a gate of -inf) is just that.
//
// A chunk has 16 tokens. Arithmetic inside the chunk grows with its length while that on the state does not depend on
// it, and 16 rows reuse what a block of products loads from the state well enough.
#pragma once

#include <cstdint>

#include "ejkernel/platform/cpu/layout.h"

namespace ejk::cpu {

/// Tokens of a chunk. The last chunk of a sequence is completed by tokens of zeros that do not decay anything.
inline constexpr int64_t kChunk = 16;

/// A matrix with a row for each token of a chunk, or for each token a number for every token of it (then the stride is
/// kChunk). Rows are aligned and padded to whole vectors.
struct ChunkRows {
  float* data = nullptr;
  int64_t columns = 0, stride = 0;

  static ChunkRows take(Carver& carver, int64_t columns) {
    return {.data = carver.take<float>(kChunk * padded(columns)), .columns = columns, .stride = padded(columns)};
  }
  float* row(int64_t i) const { return data + i * stride; }
  bool present() const { return data != nullptr; }
};

/// S: a row of values for each key, aligned and padded to whole vectors.
struct ChunkState {
  float* data = nullptr;
  int64_t keys = 0, values = 0, stride = 0;

  static int64_t size(int64_t keys, int64_t values) { return keys * padded(values); }
  /// Floats of scratch in which a chunk's rows of values and of keys stand as columns.
  static int64_t turned_size(int64_t keys, int64_t values) { return kChunk * (padded(keys) + padded(values)); }
  static ChunkState at(float* data, int64_t keys, int64_t values) {
    return {.data = data, .keys = keys, .values = values, .stride = padded(values)};
  }
};

}  // namespace ejk::cpu
