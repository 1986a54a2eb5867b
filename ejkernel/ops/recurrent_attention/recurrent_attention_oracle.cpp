// recurrent_attention and its gradient, as the harness sees them: answers from the words of operations §11, not from
// kernels.
//
// S of an element is the square root of the sum of its squared terms, every sum expanded to products of inputs. That
// sum is the same recurrence on squared numbers (and doubled gates), so one text computes the answer, S, and the
// float32 runs of the error rule. (All but that of g_gamma, where what one token gives another is one term, many times
// over.) In two of those sums over rows and columns of the state are taken in another order,
// and in one the gates are differences of sums over up to 64 tokens, which is what chunked kernels know of them.
//
// Rows and columns of a state depend on each other nowhere: of a large problem some are judged, over all tokens.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"

namespace ejk::testing {
namespace {

using Places = std::vector<size_t>;

/// One output while it is made: element after element.
class Collector {
 public:
  void add(int64_t at, const std::array<double, 5>& runs) {
    at_.push_back(at);
    for (size_t r = 0; r < runs.size(); ++r) runs_[r].push_back(runs[r]);
  }

  /// Elements that nobody added are zero when the answer is complete, and not judged when it is not.
  Expected expected(const Tensor& like, DType dtype, DType query, bool complete) {
    if (!like.present()) return {};
    const bool narrower = unit_roundoff(dtype) > unit_roundoff(query);
    Expected e = {.present = true, .tolerance = tolerance_of(narrower ? dtype : query)};
    if (complete) {
      std::array<std::vector<double>, 5> all;
      for (size_t r = 0; r < all.size(); ++r) {
        all[r].resize(static_cast<size_t>(like.shape.num_elements()));
        for (size_t n = 0; n < at_.size(); ++n) all[r][static_cast<size_t>(at_[n])] = runs_[r][n];
      }
      runs_ = std::move(all);
    } else {
      e.at = std::move(at_);
    }
    e.ref = std::move(runs_[0]);
    for (const double square : runs_[1]) e.spread.push_back(std::sqrt(square));
    for (size_t r = 2; r < runs_.size(); ++r) add_baseline(e, runs_[r], dtype);
    return e;
  }

 private:
  std::vector<int64_t> at_;
  std::array<std::vector<double>, 5> runs_;  ///< the answer, S squared, and three float32 runs
};
constexpr size_t kSquares = 1;  ///< S squared, of those

/// What one query head of one sequence reads, tokens in the order in which the recurrence takes them.
struct Head {
  size_t length = 0, key_dim = 0, value_dim = 0;
  double scale = 1, gamma = 0;
  std::vector<double> query, key, value, g, gk, gv;  ///< [length, dim]; absent gates are zeros
  std::vector<double> initial, d_out, d_final;       ///< zeros when absent

  Head squared() const {
    Head s = *this;
    s.scale *= s.scale, s.gamma *= 2;
    for (auto* numbers : {&s.query, &s.key, &s.value, &s.initial, &s.d_out, &s.d_final})
      for (double& x : *numbers) x *= x;
    for (auto* logs : {&s.g, &s.gk, &s.gv})
      for (double& x : *logs) x *= 2;
    return s;
  }
};

/// Rows and columns of the state that a run computes, in the order in which it adds them up.
struct Part {
  Places keys, values;
};

/// Gates as they are, or as differences of sums over chunks.
enum class Gates : uint8_t { direct, from_sums };

/// A run over some of the state, in Real. Results hold all rows and columns; only those of the part are set.
template <class Real>
class Run {
 public:
  Run(const Head& head, const Part& part, Gates gates)
      : h_(head), part_(part), log_row_(head.length * head.key_dim), log_column_(head.length * head.value_dim) {
    for (size_t k = 0; k < h_.key_dim; ++k)
      sum_gates(gates, log_row_, k, h_.key_dim,
                [&](size_t i) { return Real(h_.g[i]) + Real(h_.gamma) + Real(h_.gk[i * h_.key_dim + k]); });
    for (size_t v = 0; v < h_.value_dim; ++v)
      sum_gates(gates, log_column_, v, h_.value_dim, [&](size_t i) { return Real(h_.gv[i * h_.value_dim + v]); });
    state = to_real(h_.initial);
  }

  std::vector<Real> state;                                ///< [key_dim, value_dim], after the last token
  std::vector<Real> out;                                  ///< [length, value_dim]
  std::vector<Real> query, key, value, g, gk, gv, first;  ///< gradients; first: of the initial state

  void forward() {
    out.resize(h_.length * h_.value_dim);
    for (size_t i = 0; i < h_.length; ++i) {
      step(i);
      for (const size_t v : part_.values) {
        Real sum = 0;
        for (const size_t k : part_.keys) sum += Real(h_.query[i * h_.key_dim + k]) * state[k * h_.value_dim + v];
        out[i * h_.value_dim + v] = Real(h_.scale) * sum;
      }
    }
  }

  void backward() {
    const size_t size = part_.keys.size() * part_.values.size();
    std::vector<Real> before(h_.length * size);  // the state before each token
    for (size_t i = 0; i < h_.length; ++i) {
      Real* to = before.data() + i * size;
      for_each([&](size_t, size_t, size_t n) { *to++ = state[n]; });
      step(i);
    }
    first = to_real(h_.d_final);
    for (auto* rows : {&query, &key, &gk}) rows->resize(h_.length * h_.key_dim);
    for (auto* columns : {&value, &gv}) columns->resize(h_.length * h_.value_dim);
    g.resize(h_.length);
    for (size_t i = h_.length; i-- > 0;) step_back(i, before.data() + i * size);
  }

  /// Of the run on squared numbers: the squares of g_gamma's terms. What token s gives token i passes i - s decays and
  /// is in g_gamma so many times: one term, (i - s) times as large. With (i - s)^2 the sum of 2 (t - s) - 1 over the
  /// tokens t between, each t adds what it reads, weighted by age.
  Real squares_of_gamma() const {
    std::vector<Real> now = to_real(h_.initial), aged(now.size()), weights;
    weights.reserve(h_.length * part_.keys.size() * part_.values.size());
    for (size_t i = 0; i < h_.length; ++i)
      for_each_decay(i, [&](size_t k, size_t v, size_t n, Real decay) {
        aged[n] = decay * (aged[n] + now[n]);
        now[n] *= decay;
        weights.push_back(2 * aged[n] - now[n]);
        now[n] += Real(h_.key[i * h_.key_dim + k]) * Real(h_.value[i * h_.value_dim + v]);
      });
    std::vector<Real> later = to_real(h_.d_final);
    Real sum = 0;
    for (size_t i = h_.length; i-- > 0;) {
      const Real* weight = weights.data() + i * (weights.size() / h_.length);
      for_each_decay(i, [&](size_t k, size_t v, size_t n, Real decay) {
        later[n] += Real(h_.query[i * h_.key_dim + k]) * Real(h_.scale) * Real(h_.d_out[i * h_.value_dim + v]);
        sum += *weight++ * later[n];
        later[n] *= decay;
      });
    }
    return sum;
  }

 private:
  static constexpr size_t kChunk = 64;
  /// exp of it is 0 in float32.
  static constexpr double kNothing = -104;

  static std::vector<Real> to_real(const std::vector<double>& numbers) { return {numbers.begin(), numbers.end()}; }

  template <class Gate>
  void sum_gates(Gates gates, std::vector<Real>& to, size_t at, size_t stride, Gate gate) const {
    Real sum = 0;
    for (size_t i = 0; i < h_.length; ++i) {
      if (i % kChunk == 0) sum = 0;
      const Real before = sum;
      sum += std::max(gate(i), Real(kNothing));
      to[i * stride + at] = gates == Gates::from_sums ? sum - before : gate(i);
    }
  }

  template <class Visit>
  void for_each(Visit visit) const {
    for (const size_t k : part_.keys)
      for (const size_t v : part_.values) visit(k, v, k * h_.value_dim + v);
  }
  /// visit(k, v, place in the state, decay)
  template <class Visit>
  void for_each_decay(size_t i, Visit visit) const {
    for (const size_t k : part_.keys) {
      const Real row = log_row_[i * h_.key_dim + k], of_row = std::exp(row);
      for (const size_t v : part_.values) {
        const Real column = log_column_[i * h_.value_dim + v];
        visit(k, v, k * h_.value_dim + v, column == 0 ? of_row : std::exp(row + column));
      }
    }
  }

  void step(size_t i) {
    for_each_decay(i, [&](size_t k, size_t v, size_t n, Real decay) {
      state[n] = decay * state[n] + Real(h_.key[i * h_.key_dim + k]) * Real(h_.value[i * h_.value_dim + v]);
    });
  }

  void step_back(size_t i, const Real* before) {
    const size_t rows = i * h_.key_dim, columns = i * h_.value_dim;
    for_each_decay(i, [&](size_t k, size_t v, size_t n, Real decay) {
      const Real d_out = Real(h_.scale) * Real(h_.d_out[columns + v]), decayed = decay * *before++;
      const Real after = decayed + Real(h_.key[rows + k]) * Real(h_.value[columns + v]);
      first[n] += Real(h_.query[rows + k]) * d_out;
      query[rows + k] += after * d_out;
      key[rows + k] += first[n] * Real(h_.value[columns + v]);
      value[columns + v] += first[n] * Real(h_.key[rows + k]);
      const Real d_log = decayed * first[n];
      g[i] += d_log, gk[rows + k] += d_log, gv[columns + v] += d_log;
      first[n] *= decay;
    });
  }

  const Head& h_;
  const Part& part_;
  std::vector<Real> log_row_, log_column_;
};

/// A call's tensors read by the letters of §11.
class Words {
 public:
  Words(const RecurrentAttention::Inputs& in, const RecurrentAttention::Params& params)
      : in(in), runs(token_runs(in.query, in.cu_seqlens)), reverse_(params.reverse) {
    num_rows = in.query.shape[-3], q_heads = in.query.shape[-2], kv_heads = in.key.shape[-2];
    key_dim = in.query.shape[-1], value_dim = in.value.shape[-1];
    scale_ = params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(key_dim)));
  }

  const RecurrentAttention::Inputs& in;
  const TokenRuns runs;
  int64_t num_rows, q_heads, kv_heads, key_dim, value_dim;

  int64_t group() const { return q_heads / kv_heads; }
  /// Elements of states that the call updates, one for each token.
  double updates() const {
    double tokens = 0;
    for (const TokenRun& run : runs.all) tokens += static_cast<double>(run.length);
    return tokens * static_cast<double>(q_heads) * static_cast<double>(key_dim * value_dim);
  }
  /// Flat place of token `i` of a sequence in [batch, row, head, dim].
  int64_t at(const TokenRun& s, int64_t i, int64_t head, int64_t heads, int64_t dim) const {
    const int64_t row = reverse_ ? s.begin + s.length - 1 - i : s.begin + i;
    return ((s.batch * num_rows + row) * heads + head) * dim;
  }
  int64_t state_at(size_t sequence, int64_t head) const {
    return (static_cast<int64_t>(sequence) * q_heads + head) * key_dim * value_dim;
  }

  Head head(size_t sequence, int64_t h, const Tensor& d_out, const Tensor& d_final) const {
    const TokenRun& s = runs.all[sequence];
    Head to;
    to.length = static_cast<size_t>(s.length);
    to.key_dim = static_cast<size_t>(key_dim), to.value_dim = static_cast<size_t>(value_dim);
    to.scale = scale_;
    if (in.g_gamma.present()) to.gamma = get(in.g_gamma, h);
    const auto tokens = [&](const Tensor& t, int64_t head, int64_t heads, int64_t dim) {
      std::vector<double> numbers;
      for (int64_t i = 0; i < s.length; ++i)
        for (int64_t d = 0; d < dim; ++d) numbers.push_back(t.present() ? get(t, at(s, i, head, heads, dim) + d) : 0);
      return numbers;
    };
    const auto state = [&](const Tensor& t) {
      std::vector<double> numbers;
      for (int64_t n = 0; n < key_dim * value_dim; ++n)
        numbers.push_back(t.present() ? get(t, state_at(sequence, h) + n) : 0);
      return numbers;
    };
    to.query = tokens(in.query, h, q_heads, key_dim);
    to.key = tokens(in.key, h / group(), kv_heads, key_dim);
    to.value = tokens(in.value, h / group(), kv_heads, value_dim);
    to.g = tokens(in.g, h, q_heads, 1);
    to.gk = tokens(in.gk, h, q_heads, key_dim);
    to.gv = tokens(in.gv, h, q_heads, value_dim);
    to.d_out = tokens(d_out, h, q_heads, value_dim);
    to.initial = state(in.initial_state), to.d_final = state(d_final);
    return to;
  }

 private:
  bool reverse_;
  double scale_;
};

Places all_places(int64_t count) {
  Places all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

/// All of them with a share of 1; else some, at times none unless there must be one.
Places some_places(int64_t count, double share, bool at_least_one, Random& random) {
  Places some = all_places(count);
  if (share == 1) return some;
  std::erase_if(some, [&](size_t) { return !random.chance(share); });
  if (some.empty() && at_least_one) some.push_back(static_cast<size_t>(random.below(count)));
  return some;
}

/// The one of (sequence, head) that is judged in any case.
int64_t sure_one(const TokenRuns& runs, int64_t heads, Random& random) {
  const int64_t count = static_cast<int64_t>(runs.all.size()) * heads;
  return count > 0 ? random.below(count) : 0;
}

/// The answer, S squared, and three float32 runs (of float64 problems: in double, in the same orders). Results go as
/// doubles to use(run number, run).
template <class Compute, class Use>
void run_all(const Head& head, const Part& part, DType dtype, uint64_t seed, Compute compute, Use use) {
  const auto one = [&]<class Real>(size_t number, const Head& h, const Part& p, Gates gates, Real) {
    Run<Real> run(h, p, gates);
    compute(run);
    use(number, run);
  };
  one(0, head, part, Gates::direct, double{});
  one(kSquares, head.squared(), part, Gates::direct, double{});
  Part reversed = part, shuffled = part;
  std::reverse(reversed.keys.begin(), reversed.keys.end());
  std::reverse(reversed.values.begin(), reversed.values.end());
  Random random(seed ^ 0x4F524452u);
  random.shuffle(shuffled.keys), random.shuffle(shuffled.values);
  if (dtype == DType::f64) {
    one(2, head, part, Gates::direct, double{}), one(3, head, reversed, Gates::direct, double{}),
        one(4, head, shuffled, Gates::direct, double{});
  } else {
    one(2, head, part, Gates::direct, float{}), one(3, head, reversed, Gates::from_sums, float{});
    one(4, head, shuffled, Gates::direct, float{});
  }
}

/// Numbers that five runs give, each added to what is there.
struct FiveRuns {
  std::array<std::vector<double>, 5> runs = {};

  template <class Real>
  void add(size_t run, const std::vector<Real>& numbers) {
    runs[run].resize(numbers.size());
    for (size_t n = 0; n < numbers.size(); ++n) runs[run][n] += static_cast<double>(numbers[n]);
  }
  std::array<double, 5> at(size_t n) const { return {runs[0][n], runs[1][n], runs[2][n], runs[3][n], runs[4][n]}; }
};

/// The part of a large problem that `budget` multiply-adds are enough for, when an update of an element costs `each`.
double share_of(const Words& words, double budget, double each) {
  const double work = 5 * each * words.updates();
  return work > budget ? budget / work : 1;
}

DType state_dtype(const RecurrentAttention::Inputs& in, const RecurrentAttention::Params& params) {
  return params.state_dtype.value_or(in.query.dtype == DType::f64 ? DType::f64 : DType::f32);
}

/// A tensor of this shape, for its extents alone.
Tensor shaped(const Shape& shape) { return Tensor(nullptr, DType::f32, shape); }

}  // namespace

Answer recurrence_answer(const RecurrentAttention::Inputs& in, const RecurrentAttention::Params& params, double budget,
                         uint64_t seed) {
  const Words words(in, params);
  const double share = share_of(words, budget, 4);
  Random random(seed ^ 0x464F5257u);
  const int64_t sure = sure_one(words.runs, words.q_heads, random);
  Collector out, final_state;
  for (size_t s = 0; s < words.runs.all.size(); ++s)
    for (int64_t h = 0; h < words.q_heads; ++h) {
      const bool is_sure = static_cast<int64_t>(s) * words.q_heads + h == sure;
      const Part part = {all_places(words.key_dim), some_places(words.value_dim, share, is_sure, random)};
      if (part.values.empty()) continue;
      const Head head = words.head(s, h, {}, {});
      FiveRuns outs, states;
      run_all(
          head, part, in.query.dtype, seed, [](auto& run) { run.forward(); },
          [&](size_t number, const auto& run) { outs.add(number, run.out), states.add(number, run.state); });
      for (const size_t v : part.values) {
        for (size_t i = 0; i < head.length; ++i)
          out.add(words.at(words.runs.all[s], static_cast<int64_t>(i), h, words.q_heads, words.value_dim) +
                      static_cast<int64_t>(v),
                  outs.at(i * head.value_dim + v));
        for (size_t k = 0; k < head.key_dim; ++k)
          final_state.add(words.state_at(s, h) + static_cast<int64_t>(k * head.value_dim + v),
                          states.at(k * head.value_dim + v));
      }
    }
  Shape outs = in.query.shape;
  outs[-1] = words.value_dim;
  const Shape states = {static_cast<int64_t>(words.runs.all.size()), words.q_heads, words.key_dim, words.value_dim};
  const bool complete = share == 1;
  Answer answer = {.status = words.runs.status, .complete = complete && !words.runs.overlapping};
  answer.outputs = {out.expected(shaped(outs), in.query.dtype, in.query.dtype, complete),
                    final_state.expected(shaped(states), state_dtype(in, params), in.query.dtype, complete)};
  if (words.runs.overlapping) answer.outputs[0] = {};
  return answer;
}

namespace {

/// The gradients while they are made.
struct Gradients {
  Collector query, key, value, g, g_gamma, gk, gv, initial_state;
};

/// The query heads of one kv head, in one sequence.
class Group {
 public:
  Group(const Words& words, const RecurrentAttentionBackward::Inputs& in, size_t sequence, int64_t kv_head,
        uint64_t seed)
      : w_(words), in_(in), sequence_(sequence), run_(words.runs.all[sequence]), kv_head_(kv_head), seed_(seed) {}

  /// `rows`: gradients that belong to rows of the state (query, key, gk); `columns`: to its columns (value, gv, and the
  /// initial state); g only with all of the state. Sums over tokens go to `gammas`, one per query head.
  void add(const Part& part, bool rows, bool columns, Gradients& to, std::vector<FiveRuns>& gammas) const {
    if (part.keys.empty() || part.values.empty()) return;
    FiveRuns keys, values;
    for (int64_t h = kv_head_ * w_.group(); h < (kv_head_ + 1) * w_.group(); ++h) {
      const Head head = w_.head(sequence_, h, in_.d_out, in_.d_final_state);
      FiveRuns query, g, gk, gv, initial;
      run_all(
          head, part, in_.query.dtype, seed_, [](auto& run) { run.backward(); },
          [&](size_t number, const auto& run) {
            query.add(number, run.query), gk.add(number, run.gk), gv.add(number, run.gv), g.add(number, run.g);
            initial.add(number, run.first), keys.add(number, run.key), values.add(number, run.value);
            const double gamma = number == kSquares ? static_cast<double>(run.squares_of_gamma()) : sum_of(run.g);
            gammas[static_cast<size_t>(h)].add(number, std::vector<double>{gamma});
          });
      if (rows) add_tokens(to.query, query, h, w_.q_heads, part.keys, w_.key_dim);
      if (rows) add_tokens(to.gk, gk, h, w_.q_heads, part.keys, w_.key_dim);
      if (columns) add_tokens(to.gv, gv, h, w_.q_heads, part.values, w_.value_dim);
      if (rows && columns) add_tokens(to.g, g, h, w_.q_heads, {0}, 1);
      for (const size_t k : part.keys)
        for (const size_t v : part.values) {
          const size_t n = k * head.value_dim + v;
          if (columns) to.initial_state.add(w_.state_at(sequence_, h) + static_cast<int64_t>(n), initial.at(n));
        }
    }
    if (rows) add_tokens(to.key, keys, kv_head_, w_.kv_heads, part.keys, w_.key_dim);
    if (columns) add_tokens(to.value, values, kv_head_, w_.kv_heads, part.values, w_.value_dim);
  }

 private:
  template <class Real>
  static double sum_of(const std::vector<Real>& g) {
    return static_cast<double>(std::accumulate(g.begin(), g.end(), Real(0)));
  }
  void add_tokens(Collector& to, const FiveRuns& from, int64_t head, int64_t heads, const Places& places,
                  int64_t dim) const {
    for (int64_t i = 0; i < run_.length; ++i)
      for (const size_t d : places)
        to.add(w_.at(run_, i, head, heads, dim) + static_cast<int64_t>(d), from.at(static_cast<size_t>(i * dim) + d));
  }

  const Words& w_;
  const RecurrentAttentionBackward::Inputs& in_;
  size_t sequence_;
  const TokenRun& run_;
  int64_t kv_head_;
  uint64_t seed_;
};

}  // namespace

Answer recurrence_backward_answer(const RecurrentAttentionBackward::Inputs& in,
                                  const RecurrentAttention::Params& params, double budget, uint64_t seed) {
  const Words words(in, params);
  const double share = share_of(words, budget, 16);
  Random random(seed ^ 0x42414357u);
  const int64_t sure = sure_one(words.runs, words.kv_heads, random);
  Gradients to;
  std::vector<FiveRuns> gammas(static_cast<size_t>(words.q_heads));
  const Places all_keys = all_places(words.key_dim), all_values = all_places(words.value_dim);
  for (size_t s = 0; s < words.runs.all.size(); ++s)
    for (int64_t h = 0; h < words.kv_heads; ++h) {
      const Group group(words, in, s, h, seed);
      const bool is_sure = static_cast<int64_t>(s) * words.kv_heads + h == sure;
      if (share == 1) {
        group.add({all_keys, all_values}, true, true, to, gammas);
      } else {
        group.add({some_places(words.key_dim, share / 2, is_sure, random), all_values}, true, false, to, gammas);
        group.add({all_keys, some_places(words.value_dim, share / 2, is_sure, random)}, false, true, to, gammas);
      }
    }
  for (size_t h = 0; h < gammas.size() && !words.runs.all.empty(); ++h)
    if (share == 1) to.g_gamma.add(static_cast<int64_t>(h), gammas[h].at(0));

  const bool complete = share == 1;
  Answer answer = {.status = words.runs.status, .complete = complete && !words.runs.overlapping};
  const auto expected = [&](Collector& c, const Tensor& t) { return c.expected(t, t.dtype, in.query.dtype, complete); };
  answer.outputs = {expected(to.query, in.query),     expected(to.key, in.key),
                    expected(to.value, in.value),     expected(to.g, in.g),
                    expected(to.g_gamma, in.g_gamma), expected(to.gk, in.gk),
                    expected(to.gv, in.gv),           expected(to.initial_state, in.initial_state)};
  constexpr size_t kG = 3, kGamma = 4;  // sums over all of a state
  if (!complete) answer.outputs[kG] = answer.outputs[kGamma] = {};
  if (words.runs.overlapping) answer.outputs.assign(answer.outputs.size(), {});
  return answer;
}

// ---- what the harness gets ----

namespace {

double rounded_to(DType dtype, double x) {
  alignas(8) std::byte storage[8];
  store_from_double(storage, dtype, 0, x);
  return load_as_double(storage, dtype, 0);
}

Answer forward_oracle(const Problem& problem, double budget) {
  return recurrence_answer(to_struct<RecurrentAttention::Inputs>(problem.views()),
                           problem.params.as<RecurrentAttention::Params>(), budget, problem.seed);
}

Answer backward_oracle(const Problem& problem, double budget) {
  return recurrence_backward_answer(to_struct<RecurrentAttentionBackward::Inputs>(problem.views()),
                                    problem.params.as<RecurrentAttention::Params>(), budget, problem.seed);
}

constexpr double kEverything = std::numeric_limits<double>::infinity();

template <bool kBackward>
ExactProblem exact_problem(uint64_t seed) {
  const RecurrenceCase c = exact_recurrence_case(seed, kBackward);
  Problem problem = kBackward ? make_recurrence_backward_problem(c) : make_recurrence_problem(c);
  Answer answer = kBackward ? backward_oracle(problem, kEverything) : forward_oracle(problem, kEverything);
  // Gates and states are float32 in these problems, and so is what belongs to them.
  const size_t num_narrow = kBackward ? 3 : 1;
  for (size_t o = 0; o < answer.outputs.size(); ++o) {
    answer.outputs[o].exact = true;
    for (double& ref : answer.outputs[o].ref)
      ref = rounded_to(o < num_narrow ? problem.inputs[0].view.dtype : DType::f32, ref);
  }
  problem.replay = "--exact --seed=" + std::to_string(seed);
  return {std::move(problem), std::move(answer)};
}

template <Problem (*kMake)(const RecurrenceCase&)>
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const RecurrenceCase& c : recurrence_cases())
    cases.push_back({.name = c.name, .tags = c.tags, .make = [=] {
                       Problem problem = kMake(c);
                       problem.replay = "--case=" + c.name;
                       return problem;
                     }});
  return cases;
}

template <Problem (*kMake)(const RecurrenceCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_recurrence_case(request));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& recurrent_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<RecurrentAttention>()};
    t.cases = cases<make_recurrence_problem>();
    t.random = random_problem<make_recurrence_problem>;
    t.oracle = forward_oracle;
    t.exact = exact_problem<false>;
    t.relations = recurrence_relations();
    return t;
  }();
  return tests;
}

const TestOperation& recurrent_attention_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<RecurrentAttentionBackward>()};
    t.cases = cases<make_recurrence_backward_problem>();
    t.random = random_problem<make_recurrence_backward_problem>;
    t.oracle = backward_oracle;
    t.exact = exact_problem<true>;
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
