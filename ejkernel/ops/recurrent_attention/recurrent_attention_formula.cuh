// recurrent_attention and its gradient in double, every dtype and any strides. The host compiles the same text with
// blocks of its own threads, which is how tests compare it.
//
// Columns of a state do not depend on each other: forward, a thread takes one column of one head through all tokens.
// Backward, a block takes the query heads of one kv head through a sequence, and its threads share rows and columns of
// their states; it keeps one state per segment of tokens, and computes those inside a segment again.
#pragma once

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cuda_problem.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"

namespace ejk::cuda {

/// Of packed sequences: zeros in every row, as it stays where no sequence owns it, and the faults of cu_seqlens. Items
/// `first`, `first + stride`, ….
EJK_DEVICE void clear_rows(const RecurrenceProblem& p, bool backward, int64 first, int64 stride) {
  for (int64 n = first; n < p.num_sequences; n += stride) {
    uint32 faults = 0;
    packed_span(p.cu_seqlens, n, p.num_rows, faults);
    raise(p.status, faults);
  }
  const auto clear = [&](const TensorRef& t, int64 heads, int64 dim) {
    for (int64 n = first; n < p.num_rows * heads * dim && t.present(); n += stride)
      write(t, 0, n / dim / heads, n / dim % heads, n % dim, 0);
  };
  if (!backward) return clear(p.out, p.num_q_heads, p.value_dim);
  clear(p.d_query, p.num_q_heads, p.key_dim);
  clear(p.d_key, p.num_kv_heads, p.key_dim);
  clear(p.d_value, p.num_kv_heads, p.value_dim);
  clear(p.d_g, p.num_q_heads, 1);
  clear(p.d_gk, p.num_q_heads, p.key_dim);
  clear(p.d_gv, p.num_q_heads, p.value_dim);
}

/// Columns `first`, `first + stride`, … of [sequence, head, value].
EJK_DEVICE void recur(const RecurrenceProblem& p, int64 first, int64 stride) {
  for (int64 n = first; n < p.num_sequences * p.num_q_heads * p.value_dim; n += stride) {
    const int64 v = n % p.value_dim, h = n / p.value_dim % p.num_q_heads, kv_head = h / p.heads_per_kv_head();
    const RecurrenceSequence s = recurrence_sequence(p, n / p.value_dim / p.num_q_heads);
    double* state = p.memory + n / p.value_dim * p.state_size() + v;  // its element k lies k * value_dim further
    for (int64 k = 0; k < p.key_dim; ++k) state[k * p.value_dim] = read(p.initial_state, s.index, h, k, v);
    for (int64 i = 0; i < s.rows.length; ++i) {
      const int64 row = row_of(p, s, i);
      const double value = read(p.value, s.batch, row, kv_head, v);
      double out = 0;
      for (int64 k = 0; k < p.key_dim; ++k) {
        double& element = state[k * p.value_dim];
        element = decay_at(p, s.batch, row, h, k, v) * element + read(p.key, s.batch, row, kv_head, k) * value;
        out += p.scale * read(p.query, s.batch, row, h, k) * element;
      }
      if (is_owner(p, s, row)) write(p.out, s.batch, row, h, v, out);
    }
    for (int64 k = 0; k < p.key_dim; ++k) write(p.final_state, s.index, h, k, v, state[k * p.value_dim]);
  }
}

/// What the backward keeps, all of it in p.memory: sums of the gradient of g over each (sequence, query head), then for
/// each block the states of its query heads.
struct RecurrenceMemory {
  int64 num_segments, state_size, block_size;
  double* memory;

  EJK_DEVICE explicit RecurrenceMemory(const RecurrenceProblem& p)
      : num_segments((p.num_rows + p.segment - 1) / p.segment),
        state_size(p.state_size()),
        block_size((num_segments + p.segment + 2) * p.heads_per_kv_head() * p.state_size()),
        memory(p.memory) {}

  EJK_DEVICE static int64 size(const RecurrenceProblem& p) {
    return p.num_sequences * p.num_q_heads + p.num_blocks * RecurrenceMemory(p).block_size;
  }
};

template <class Block>
class RecurrenceBackward {
 public:
  /// `sums` holds one number per thread.
  EJK_DEVICE RecurrenceBackward(const RecurrenceProblem& p, int64 index, Block block, double* sums)
      : p_(p), memory_(p), block_(block), sums_(sums) {
    double* mine = p.memory + p.num_sequences * p.num_q_heads + index * memory_.block_size;
    const int64 heads = p.heads_per_kv_head() * memory_.state_size;
    first_states_ = mine;
    states_ = first_states_ + memory_.num_segments * heads;
    d_states_ = states_ + (p.segment + 1) * heads;
  }

  /// Item n of [sequence, kv head].
  EJK_DEVICE void run(int64 n) {
    s_ = recurrence_sequence(p_, n / p_.num_kv_heads);
    first_head_ = n % p_.num_kv_heads * p_.heads_per_kv_head();
    for_each_element([&](int64 h, int64 k, int64 v, int64 e) {
      states_[e] = read(p_.initial_state, s_.index, h, k, v);
      d_states_[e] = read(p_.final_state, s_.index, h, k, v);
    });
    if (block_.thread() == 0)
      for (int64 h = 0; h < p_.heads_per_kv_head(); ++h) sum_of_g(first_head_ + h) = 0;
    for (int64 i = 0; i < s_.rows.length; ++i) {
      if (i % p_.segment == 0) copy(states_, first_states_ + i / p_.segment * all_states());
      update(i, states_, states_);
    }
    block_.sync();
    for (int64 past = s_.rows.length; past > 0;) {
      const int64 first = (past - 1) / p_.segment * p_.segment;
      copy(first_states_ + first / p_.segment * all_states(), states_);
      for (int64 i = first; i < past; ++i)
        update(i, states_ + (i - first) * all_states(), states_ + (i - first + 1) * all_states());
      block_.sync();
      for (int64 i = past - 1; i >= first; --i) take_back(i, states_ + (i - first) * all_states());
      past = first;
    }
    for_each_element(
        [&](int64 h, int64 k, int64 v, int64 e) { write(p_.d_initial_state, s_.index, h, k, v, d_states_[e]); });
    block_.sync();
  }

 private:
  EJK_DEVICE int64 all_states() const { return p_.heads_per_kv_head() * memory_.state_size; }
  EJK_DEVICE double& sum_of_g(int64 h) const { return p_.memory[s_.index * p_.num_q_heads + h]; }

  /// This thread's elements of the states, the same ones every time: visit(head, k, v, place).
  template <class Visit>
  EJK_DEVICE void for_each_element(Visit visit) const {
    for (int64 e = block_.thread(); e < all_states(); e += block_.threads())
      visit(first_head_ + e / memory_.state_size, e % memory_.state_size / p_.value_dim, e % p_.value_dim, e);
  }
  EJK_DEVICE void copy(const double* from, double* to) const {
    for_each_element([&](int64, int64, int64, int64 e) { to[e] = from[e]; });
  }
  EJK_DEVICE void update(int64 i, const double* before, double* after) const {
    const int64 row = row_of(p_, s_, i), kv_head = first_head_ / p_.heads_per_kv_head();
    for_each_element([&](int64 h, int64 k, int64 v, int64 e) {
      after[e] = decay_at(p_, s_.batch, row, h, k, v) * before[e] +
                 read(p_.key, s_.batch, row, kv_head, k) * read(p_.value, s_.batch, row, kv_head, v);
    });
  }

  /// The gradients of token `i`, whose update made what follows `before` from it. d_states_ becomes what the loss
  /// changes by with `before`.
  EJK_DEVICE void take_back(int64 i, const double* before) {
    const int64 row = row_of(p_, s_, i), kv_head = first_head_ / p_.heads_per_kv_head();
    const bool writes = is_owner(p_, s_, row);
    for_each_element([&](int64 h, int64 k, int64 v, int64 e) {
      d_states_[e] += p_.scale * read(p_.query, s_.batch, row, h, k) * read(p_.out, s_.batch, row, h, v);
    });
    block_.sync();
    if (writes) {
      for_each_line(p_.key_dim, p_.d_key, row, kv_head, [&](int64 h, int64 k) {
        return sum(p_.value_dim, [&](int64 v) { return d_states_[place(h, k, v)] * value(row, kv_head, v); });
      });
      for_each_line(p_.value_dim, p_.d_value, row, kv_head, [&](int64 h, int64 v) {
        return sum(p_.key_dim, [&](int64 k) { return d_states_[place(h, k, v)] * key(row, kv_head, k); });
      });
      const double* after = before + all_states();
      for_each_line_of_head(p_.key_dim, p_.d_query, row, [&](int64 h, int64 k) {
        return sum(p_.value_dim,
                   [&](int64 v) { return p_.scale * after[place(h, k, v)] * read(p_.out, s_.batch, row, h, v); });
      });
    }
    block_.sync();
    for_each_element([&](int64 h, int64 k, int64 v, int64 e) { d_states_[e] *= decay_at(p_, s_.batch, row, h, k, v); });
    block_.sync();
    const auto of_log = [&](int64 h, int64 k, int64 v) { return d_states_[place(h, k, v)] * before[place(h, k, v)]; };
    if (writes) {
      for_each_line_of_head(p_.key_dim, p_.d_gk, row, [&](int64 h, int64 k) {
        return sum(p_.value_dim, [&](int64 v) { return of_log(h, k, v); });
      });
      for_each_line_of_head(p_.value_dim, p_.d_gv, row, [&](int64 h, int64 v) {
        return sum(p_.key_dim, [&](int64 k) { return of_log(h, k, v); });
      });
    }
    if (p_.d_g.present() || p_.d_g_gamma.present())
      for (int64 h = first_head_; h < first_head_ + p_.heads_per_kv_head(); ++h) {
        double mine = 0;
        for (int64 n = block_.thread(); n < memory_.state_size; n += block_.threads())
          mine += of_log(h, n / p_.value_dim, n % p_.value_dim);
        const double all = reduce(block_, sums_, mine, [](double one, double other) { return one + other; });
        if (block_.thread() != 0) continue;
        if (writes) write(p_.d_g, s_.batch, row, h, 0, all);
        sum_of_g(h) += all;
      }
    block_.sync();
  }

  EJK_DEVICE int64 place(int64 h, int64 k, int64 v) const {
    return (h - first_head_) * memory_.state_size + k * p_.value_dim + v;
  }
  EJK_DEVICE double key(int64 row, int64 head, int64 k) const { return read(p_.key, s_.batch, row, head, k); }
  EJK_DEVICE double value(int64 row, int64 head, int64 v) const { return read(p_.value, s_.batch, row, head, v); }

  template <class Term>
  EJK_DEVICE static double sum(int64 count, Term term) {
    double sum = 0;
    for (int64 n = 0; n < count; ++n) sum += term(n);
    return sum;
  }

  /// A gradient that all query heads add to: element d is the sum of of_head(h, d).
  template <class OfHead>
  EJK_DEVICE void for_each_line(int64 dim, const TensorRef& to, int64 row, int64 kv_head, OfHead of_head) const {
    for (int64 d = block_.thread(); d < dim && to.present(); d += block_.threads())
      write(to, s_.batch, row, kv_head, d,
            sum(p_.heads_per_kv_head(), [&](int64 h) { return of_head(first_head_ + h, d); }));
  }
  /// A gradient that each query head has.
  template <class OfHead>
  EJK_DEVICE void for_each_line_of_head(int64 dim, const TensorRef& to, int64 row, OfHead of_head) const {
    for (int64 n = block_.thread(); n < dim * p_.heads_per_kv_head() && to.present(); n += block_.threads())
      write(to, s_.batch, row, first_head_ + n / dim, n % dim, of_head(first_head_ + n / dim, n % dim));
  }

  const RecurrenceProblem& p_;
  const RecurrenceMemory memory_;
  Block block_;
  double* sums_;
  double *first_states_, *states_, *d_states_;  // [query head of the kv head, key, value] each
  RecurrenceSequence s_ = {};
  int64 first_head_ = 0;
};

/// The last launch, when the gradient of g_gamma is wanted: heads `first`, `first + stride`, ….
EJK_DEVICE void sum_g_gamma(const RecurrenceProblem& p, int64 first, int64 stride) {
  for (int64 h = first; h < p.num_q_heads; h += stride) {
    double sum = 0;
    for (int64 s = 0; s < p.num_sequences; ++s) sum += p.memory[s * p.num_q_heads + h];
    write(p.d_g_gamma, 0, 0, 0, h, sum);
  }
}

}  // namespace ejk::cuda
