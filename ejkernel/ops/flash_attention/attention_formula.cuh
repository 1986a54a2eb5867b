// The formula of softmax attention and of its gradient, one row per block and in double: every option, any dtype, any
// head size. A warp takes a (query, key) pair and its lanes the dims; then a thread takes a pair; then a thread takes
// a dim. Sums are made in a fixed order, so results are bit-equal run to run.
//
// The host compiles the same text with blocks of its own threads, which is how tests compare it with the reference.
#pragma once

#include "ejkernel/ops/flash_attention/attention_cuda_problem.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"

namespace ejk::cuda {

constexpr int kMaxHeadDim = 512;

/// Sum of e^(logit - max) over some logits. A NaN or infinity among them makes the sum NaN.
struct LogSumExp {
  double max, sum;

  static EJK_DEVICE LogSumExp of_none() { return {-infinity(), 0}; }
  static EJK_DEVICE LogSumExp of(double logit) {
    return logit == -infinity() ? of_none() : LogSumExp{logit, 1 + (logit - logit)};
  }
  static EJK_DEVICE LogSumExp merge(const LogSumExp& a, const LogSumExp& b) {
    if (b.max == -infinity()) return a;
    if (a.max == -infinity()) return b;
    if (b.max > a.max) return {b.max, b.sum + a.sum * exp(a.max - b.max)};
    return {a.max, a.sum + b.sum * exp(b.max - a.max)};
  }
  EJK_DEVICE double lse() const { return max == -infinity() ? max : max + log(sum); }
};

/// What a block shares: one entry per (query, key) pair of a tile, and sums per dim.
template <int kThreads>
struct AttentionShared {
  double logits[kThreads];           ///< after the cap; -infinity: not seen
  double slopes[kThreads];           ///< d logit / d (scaled product): 1 - (logit / cap)^2, or 1
  double d_probabilities[kThreads];  ///< d_out * value + d_weights
  double weights[kThreads];          ///< what multiplies the value, or d_out
  double d_logits[kThreads];
  double key_sums[kMaxHeadDim], value_sums[kMaxHeadDim];
  LogSumExp log_sum_exps[kThreads];
  double sums[kThreads];
  int64 indices[kThreads];
};

/// The first sequence after `after` for which owns(sequence) holds; num_sequences when there is none. `memory` holds
/// one value per thread.
template <class Problem, class Block, class Owns>
EJK_DEVICE_CALL int64 next_sequence(const Problem& p, const Block& block, int64* memory, int64 after, Owns owns) {
  int64 mine = after + 1 + block.thread();
  while (mine < p.num_sequences && !owns(p.sequence(mine))) mine += block.threads();
  return reduce(block, memory, min<int64>(mine, p.num_sequences),
                [](int64 one, int64 other) { return min<int64>(one, other); });
}

/// `kNumber` is the dtype of the query, and of key and value unless they are paged.
template <Number kNumber, class Block, int kThreads, class Problem = AttentionProblem,
          class Shared = AttentionShared<kThreads>>
class AttentionFormula {
 public:
  EJK_DEVICE AttentionFormula(const Problem& p, Block block, Shared& shared) : p_(p), block_(block), shared_(shared) {}

  // A kernel's blocks share its items: this one does `first`, `first + stride`, …

  EJK_DEVICE void raise_faults() const { raise_sequence_faults(p_, block_); }

  /// Results of the query rows.
  EJK_DEVICE void forward(const AttentionResults& to, int64 first, int64 stride) const {
    for (int64 n = first; n < num_rows(); n += stride) forward_row(to, row_at(n));
  }

  /// Gradients. The rows' step comes first: the others need what it leaves in the workspace.
  EJK_DEVICE void backward(const AttentionGradients& g, AttentionStep step, int64 first, int64 stride) const {
    switch (step) {
      case AttentionStep::rows:
        return backward_rows(g, first, stride);
      case AttentionStep::keys:
        return backward_keys(g, first, stride);
      case AttentionStep::bias:
        return backward_bias(g, first, stride);
      case AttentionStep::sinks:
        return backward_sinks(g, first, stride);
    }
  }

 private:
  /// Row r of batch entry b, at query head or kv head h.
  struct RowAt {
    int64 b, h, r;
  };
  /// Query i and key j of a sequence.
  struct Pair {
    int64 i, j;
  };
  /// A tile's: one query with keys that follow each other, or one key with such queries.
  struct Pairs {
    Pair first;
    bool along_keys;
    EJK_DEVICE Pair at(int m) const { return along_keys ? Pair{first.i, first.j + m} : Pair{first.i + m, first.j}; }
  };

  // ---- who owns what, who does what ----

  EJK_DEVICE int64 num_rows() const { return p_.num_batches() * p_.num_q_heads * p_.q_rows; }
  EJK_DEVICE RowAt row_at(int64 n) const {
    return {n / (p_.num_q_heads * p_.q_rows), n / p_.q_rows % p_.num_q_heads, n % p_.q_rows};
  }

  /// The first sequence after `after` that owns a row; num_sequences when none does.
  template <class Owns>
  EJK_DEVICE int64 next_owner(const RowAt& at, int64 after, Owns owns) const {
    if (p_.packed()) return next_sequence(p_, block_, shared_.indices, after, owns);
    const int64 only = p_.only_owner(at.b, at.r);
    return after < only && owns(p_.sequence(only)) ? only : p_.num_sequences;
  }
  EJK_DEVICE int64 next_owner_of_row(const RowAt& at, int64 after) const {
    return next_owner(at, after, [&](const AttentionSequence& s) { return s.has_row(at.r); });
  }
  EJK_DEVICE int64 next_owner_of_key(const RowAt& at, int64 after) const {
    return next_owner(at, after, [&](const AttentionSequence& s) { return s.has_key(at.r); });
  }

  /// The threads of the block share 0 … count - 1.
  template <class F>
  EJK_DEVICE void for_each(int64 count, F f) const {
    for (int64 n = block_.thread(); n < count; n += block_.threads()) f(n);
  }
  /// The lanes of a warp share the terms 0 … count - 1.
  template <class F>
  EJK_DEVICE double warp_sum(int64 count, F term) const {
    double sum = 0;
    for (int64 d = block_.lane(); d < count; d += block_.lanes()) sum += term(d);
    return block_.warp_sum(sum);
  }
  EJK_DEVICE int tile_size(int64 begin, int64 end) const {
    return static_cast<int>(min<int64>(block_.threads(), end - begin));
  }

  static EJK_DEVICE double number(const TensorRef& t, int64 index) { return load(t.data, kNumber, index); }
  /// Of key j + n, which is seen; looking a page up once is enough.
  EJK_DEVICE KeyPlace tile_place(const AttentionSequence& s, int64 j, int n) const {
    if constexpr (Problem::kPaged)
      return shared_.places[n];
    else
      return p_.place(s, j + n);
  }
  EJK_DEVICE bool is_seen(int m) const { return shared_.logits[m] != -infinity(); }

  // ---- logits ----

  /// The logit of a pair and its slope, into entry m; false when the masks hide the key. For one warp.
  EJK_DEVICE bool score(const AttentionSequence& s, int64 h, Pair at, int m) const {
    const bool visible = p_.visible(s, h, at.i, at.j);
    double logit = -infinity(), slope = 0;
    if (visible) {
      const int64 b = p_.batch_of(s), g = h / p_.group();
      const int64 q = p_.query.offset(b, s.q_begin + at.i, h, 0);
      const KeyPlace key = p_.place(s, at.j);
      const double dot = warp_sum(
          p_.head_dim, [&](int64 d) { return number(p_.query, q + d) * p_.template key_at<kNumber>(key, g, d); });
      const double codes = p_.scale_at(p_.q_scale, b, at.i, h) * p_.key_scale(s, at.j, g);
      logit = p_.scale * (dot * codes);
      if (p_.bias.present()) logit += p_.bias.at(b, h, at.i, at.j);
      slope = 1;
      if (p_.soft_cap > 0) {
        const double t = tanh(logit / p_.soft_cap);
        logit = p_.soft_cap * t;
        slope = 1 - t * t;
      }
    }
    if (block_.lane() == 0) {
      shared_.logits[m] = logit;
      shared_.slopes[m] = slope;
    }
    return visible;
  }

  /// Logits of row i and the keys from j on.
  EJK_DEVICE_CALL void score_keys(const AttentionSequence& s, int64 h, int64 i, int64 j, int count) const {
    for (int m = block_.warp(); m < count; m += block_.warps()) score(s, h, {i, j + m}, m);
    block_.sync();
  }

  EJK_DEVICE_CALL LogSumExp log_sum_exp(const AttentionSequence& s, int64 h, int64 i) const {
    const KeyRange keys = p_.keys(s, i);
    LogSumExp mine = LogSumExp::of_none();
    for (int64 j = keys.begin; j < keys.end; j += block_.threads()) {
      const int count = tile_size(j, keys.end), m = block_.thread();
      score_keys(s, h, i, j, count);
      if (m < count) mine = LogSumExp::merge(mine, LogSumExp::of(shared_.logits[m]));
      block_.sync();
    }
    return reduce(block_, shared_.log_sum_exps, mine,
                  [](const LogSumExp& one, const LogSumExp& other) { return LogSumExp::merge(one, other); });
  }
  EJK_DEVICE double lse_with_sinks(LogSumExp row, int64 h) const {
    for (int64 a = 0; a < p_.num_sinks; ++a) row = LogSumExp::merge(row, LogSumExp::of(p_.sink(h, a)));
    return row.lse();
  }

  // ---- forward ----

  EJK_DEVICE void forward_row(const AttentionResults& to, const RowAt& at) const {
    int64 owner = next_owner_of_row(at, -1);
    if (owner == p_.num_sequences) attend(to, {}, at);  // like a row that sees no key
    for (; owner < p_.num_sequences; owner = next_owner_of_row(at, owner)) attend(to, p_.sequence(owner), at);
  }

  EJK_DEVICE void attend(const AttentionResults& to, const AttentionSequence& s, const RowAt& at) const {
    const int64 i = at.r - s.q_begin, g = at.h / p_.group();
    for_each(p_.value_dim, [&](int64 d) { shared_.value_sums[d] = 0; });
    if (to.weights.present()) for_each(p_.k_rows, [&](int64 j) { to.weights.set(at.b, at.h, at.r, j, 0); });

    const LogSumExp row = log_sum_exp(s, at.h, i);
    const double lse = lse_with_sinks(row, at.h), shift = p_.normalize ? lse : row.max;
    const KeyRange keys = p_.keys(s, i);
    for (int64 j = keys.begin; j < keys.end; j += block_.threads()) {
      const int count = tile_size(j, keys.end), m = block_.thread();
      score_keys(s, at.h, i, j, count);
      if (m < count && is_seen(m)) {
        const double weight = exp(shared_.logits[m] - shift) * p_.dropout_factor(s, at.h, i, j + m);
        if (to.weights.present()) to.weights.set(at.b, at.h, at.r, j + m, weight);
        shared_.weights[m] = weight * p_.value_scale(s, j + m, g);
        if constexpr (Problem::kPaged) shared_.places[m] = p_.place(s, j + m);
      }
      block_.sync();
      for_each(p_.value_dim, [&](int64 d) {
        double sum = shared_.value_sums[d];
        for (int n = 0; n < count; ++n)
          if (is_seen(n)) sum += shared_.weights[n] * p_.template value_at<kNumber>(tile_place(s, j, n), g, d);
        shared_.value_sums[d] = sum;
      });
      block_.sync();
    }
    if (to.out.present())
      for_each(p_.value_dim, [&](int64 d) { to.out.set(at.b, at.r, at.h, d, shared_.value_sums[d]); });
    if (to.lse.present() && block_.thread() == 0) to.lse.set(at.r, at.b, at.h, 0, lse);
  }

  // ---- backward ----

  EJK_DEVICE void backward_rows(const AttentionGradients& g, int64 first, int64 stride) const {
    for (int64 n = first; n < num_rows(); n += stride) backward_row(g, row_at(n));
  }

  EJK_DEVICE void backward_keys(const AttentionGradients& g, int64 first, int64 stride) const {
    const int64 heads = p_.num_kv_heads, rows = p_.k_rows;
    for (int64 n = first; n < p_.num_batches() * heads * rows; n += stride)
      backward_key(g, {n / (heads * rows), n / rows % heads, n % rows});
  }

  /// In tiles of one key per thread.
  EJK_DEVICE void backward_bias(const AttentionGradients& g, int64 first, int64 stride) const {
    const int64 tiles = (p_.k_rows + block_.threads() - 1) / block_.threads();
    for (int64 n = first; n < g.bias_batches * g.bias_heads * g.bias_rows * tiles; n += stride) {
      const int64 row = n / tiles;
      backward_bias_tile(g, {row / (g.bias_heads * g.bias_rows), row / g.bias_rows % g.bias_heads, row % g.bias_rows},
                         n % tiles * block_.threads());
    }
  }

  EJK_DEVICE void backward_sinks(const AttentionGradients& g, int64 first, int64 stride) const {
    for (int64 n = first; n < g.sink_heads * p_.num_sinks; n += stride)
      backward_sink(g, n / p_.num_sinks, n % p_.num_sinks);
  }

  /// What the cotangents ask of a pair's weight, into entry m. For one warp.
  EJK_DEVICE void score_cotangent(const AttentionGradients& g, const AttentionSequence& s, int64 h, Pair at,
                                  int m) const {
    const int64 b = p_.batch_of(s), r = s.q_begin + at.i;
    const int64 v = p_.value.offset(b, s.k_begin + at.j, h / p_.group(), 0);
    double sum = g.d_weights.present() ? g.d_weights.at(b, h, r, at.j) : 0;
    if (g.d_out.present())
      sum += warp_sum(p_.value_dim, [&](int64 d) { return g.d_out.at(b, r, h, d) * number(p_.value, v + d); });
    if (block_.lane() == 0) shared_.d_probabilities[m] = sum;
  }

  /// Weights and gradients of the logits of `count` pairs, where the key is seen.
  EJK_DEVICE_CALL void differentiate(const AttentionGradients& g, const AttentionSequence& s, int64 h, Pairs pairs,
                                     int count) const {
    for (int m = block_.warp(); m < count; m += block_.warps())
      if (score(s, h, pairs.at(m), m)) score_cotangent(g, s, h, pairs.at(m), m);
    block_.sync();
    if (const int m = block_.thread(); m < count && is_seen(m)) {
      const Pair pair = pairs.at(m);
      const AttentionRow& row = g.row(p_, p_.batch_of(s), h, s.q_begin + pair.i);
      if (row.lse == -infinity()) shared_.logits[m] = row.lse;  // the forward saw nothing: gradients are 0 (rule 9)
      const double probability = exp(shared_.logits[m] - row.lse), keep = p_.dropout_factor(s, h, pair.i, pair.j);
      shared_.weights[m] = probability * keep;
      shared_.d_logits[m] = probability * (shared_.d_probabilities[m] * keep - row.delta) * shared_.slopes[m];
    }
    block_.sync();
  }

  EJK_DEVICE void backward_row(const AttentionGradients& g, const RowAt& at) const {
    AttentionRow& row = g.row(p_, at.b, at.h, at.r);
    int64 owner = next_owner_of_row(at, -1);
    const double d_lse = g.d_lse.present() ? g.d_lse.at(at.r, at.b, at.h, 0) : 0;
    if (g.lse.present())
      remember(row, g.lse.at(at.r, at.b, at.h, 0), output_cotangent(g, at) - d_lse);
    else
      recompute(g, owner, at, row);

    // A row that several sequences claim holds the last one's gradient, as its output does; the sinks hear of all.
    for_each(p_.head_dim, [&](int64 d) { shared_.key_sums[d] = 0; });
    double sink_delta = owner == p_.num_sequences ? -d_lse : 0;
    for (; owner < p_.num_sequences; owner = next_owner_of_row(at, owner))
      sink_delta += differentiate_query(g, p_.sequence(owner), at) ? row.delta : -d_lse;
    if (block_.thread() == 0) row.sink_delta = sink_delta;
    if (g.query.present())
      for_each(p_.head_dim, [&](int64 d) { g.query.set(at.b, at.r, at.h, d, shared_.key_sums[d]); });
  }

  EJK_DEVICE void remember(AttentionRow& row, double lse, double delta) const {
    if (block_.thread() == 0) row = {lse, delta, 0};
    block_.sync();
  }

  /// Sum over d of d_out * out.
  EJK_DEVICE double output_cotangent(const AttentionGradients& g, const RowAt& at) const {
    if (!g.d_out.present()) return 0;
    return warp_sum(p_.value_dim,
                    [&](int64 d) { return g.d_out.at(at.b, at.r, at.h, d) * g.out.at(at.b, at.r, at.h, d); });
  }

  /// lse from the logits, and delta as the sum of probability * d_probability.
  EJK_DEVICE void recompute(const AttentionGradients& g, int64 owner, const RowAt& at, AttentionRow& row) const {
    const AttentionSequence s = owner < p_.num_sequences ? p_.sequence(owner) : AttentionSequence{};
    const int64 i = at.r - s.q_begin;
    const double lse = lse_with_sinks(log_sum_exp(s, at.h, i), at.h);
    remember(row, lse, 0);
    const KeyRange keys = p_.keys(s, i);
    double mine = 0;
    for (int64 j = keys.begin; j < keys.end; j += block_.threads()) {
      const int count = tile_size(j, keys.end), m = block_.thread();
      differentiate(g, s, at.h, {{i, j}, true}, count);
      if (m < count && is_seen(m)) mine += shared_.weights[m] * shared_.d_probabilities[m];
      block_.sync();
    }
    const double delta = reduce(block_, shared_.sums, mine, [](double one, double other) { return one + other; });
    remember(row, lse, delta);
  }

  /// Leaves the gradient of the row's query in the key sums; true when the row sees a key of the sequence.
  EJK_DEVICE bool differentiate_query(const AttentionGradients& g, const AttentionSequence& s, const RowAt& at) const {
    const int64 i = at.r - s.q_begin;
    const KeyRange keys = p_.keys(s, i);
    bool sees = false;
    for_each(p_.head_dim, [&](int64 d) { shared_.key_sums[d] = 0; });
    for (int64 j = keys.begin; j < keys.end; j += block_.threads()) {
      const int count = tile_size(j, keys.end);
      differentiate(g, s, at.h, {{i, j}, true}, count);
      for (int m = 0; m < count && !sees; ++m) sees = is_seen(m);
      for_each(p_.head_dim, [&](int64 d) {
        const int64 k = p_.key.offset(at.b, s.k_begin + j, at.h / p_.group(), d);
        double sum = 0;
        for (int m = 0; m < count; ++m)
          if (is_seen(m)) sum += shared_.d_logits[m] * number(p_.key, k + m * p_.key.strides[1]);
        shared_.key_sums[d] += p_.scale * sum;
      });
      block_.sync();
    }
    return sees;
  }

  EJK_DEVICE void backward_key(const AttentionGradients& g, const RowAt& at) const {
    for_each(p_.head_dim, [&](int64 d) { shared_.key_sums[d] = 0; });
    for_each(p_.value_dim, [&](int64 d) { shared_.value_sums[d] = 0; });
    for (int64 owner = next_owner_of_key(at, -1); owner < p_.num_sequences; owner = next_owner_of_key(at, owner)) {
      const AttentionSequence s = p_.sequence(owner);
      for (int64 h = at.h * p_.group(); h < (at.h + 1) * p_.group(); ++h) differentiate_key(g, s, at, h);
    }
    if (g.key.present()) for_each(p_.head_dim, [&](int64 d) { g.key.set(at.b, at.r, at.h, d, shared_.key_sums[d]); });
    if (g.value.present())
      for_each(p_.value_dim, [&](int64 d) { g.value.set(at.b, at.r, at.h, d, shared_.value_sums[d]); });
  }

  /// Adds what the queries of head h in a sequence give to one key and its value.
  EJK_DEVICE void differentiate_key(const AttentionGradients& g, const AttentionSequence& s, const RowAt& at,
                                    int64 h) const {
    const int64 j = at.r - s.k_begin;
    const int64 first = p_.causal ? max<int64>(0, j - s.offset) : 0;  // queries before it do not see the key
    for (int64 i = first; i < s.q_len; i += block_.threads()) {
      const int count = tile_size(i, s.q_len);
      differentiate(g, s, h, {{i, j}, false}, count);
      for_each(p_.head_dim, [&](int64 d) {
        const int64 q = p_.query.offset(at.b, s.q_begin + i, h, d);
        double sum = 0;
        for (int m = 0; m < count; ++m)
          if (is_seen(m)) sum += shared_.d_logits[m] * number(p_.query, q + m * p_.query.strides[1]);
        shared_.key_sums[d] += p_.scale * sum;
      });
      if (g.d_out.present())
        for_each(p_.value_dim, [&](int64 d) {
          double sum = 0;
          for (int m = 0; m < count; ++m)
            if (is_seen(m)) sum += shared_.weights[m] * g.d_out.at(at.b, s.q_begin + i + m, h, d);
          shared_.value_sums[d] += sum;
        });
      block_.sync();
    }
  }

  /// Sums over the axes that the bias is broadcast along; thread m owns key j + m.
  EJK_DEVICE void backward_bias_tile(const AttentionGradients& g, const RowAt& at, int64 j) const {
    // A broadcast axis gives all of its extent, which may be 0; another one only its own place.
    const auto past = [](int64 bias_extent, int64 extent, int64 own) {
      return bias_extent < extent ? extent : min<int64>(own + 1, extent);
    };
    double sum = 0;
    const int m = block_.thread();
    for (int64 b = at.b; b < past(g.bias_batches, p_.num_sequences, at.b); ++b) {
      const AttentionSequence s = p_.sequence(b);
      const int count = tile_size(min<int64>(j, s.k_len), s.k_len);
      for (int64 h = at.h; h < past(g.bias_heads, p_.num_q_heads, at.h); ++h)
        for (int64 i = at.r; i < min<int64>(s.q_len, past(g.bias_rows, p_.q_rows, at.r)); ++i) {
          differentiate(g, s, h, {{i, j}, true}, count);
          if (m < count && is_seen(m)) sum += shared_.d_logits[m];
          block_.sync();
        }
    }
    if (j + m < p_.k_rows) g.bias.set(at.b, at.h, at.r, j + m, sum);
  }

  /// d_sink = -(sum over rows of e^(sink - lse) * delta).
  EJK_DEVICE void backward_sink(const AttentionGradients& g, int64 sink_head, int64 a) const {
    const int64 first = g.sink_heads == 1 ? 0 : sink_head, past = g.sink_heads == 1 ? p_.num_q_heads : sink_head + 1;
    double mine = 0;
    for (int64 b = 0; b < p_.num_batches(); ++b)
      for (int64 h = first; h < past; ++h)
        for_each(p_.q_rows, [&](int64 r) {
          const AttentionRow& row = g.row(p_, b, h, r);
          if (row.lse != -infinity()) mine -= exp(p_.sink(h, a) - row.lse) * row.sink_delta;
        });
    const double sum = reduce(block_, shared_.sums, mine, [](double one, double other) { return one + other; });
    if (block_.thread() == 0) g.sinks.set(0, 0, sink_head, a, sum);
  }

  const Problem& p_;
  Block block_;
  Shared& shared_;
};

}  // namespace ejk::cuda
