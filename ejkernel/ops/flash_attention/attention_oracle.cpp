#include "ejkernel/ops/flash_attention/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ejkernel/ops/flash_attention/attention_formula.h"
#include "ejkernel/testing/random.h"

namespace ejk::testing {
namespace {

using attn::DoubleArithmetic;
using attn::Formula;
using attn::Row;
using attn::Sequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRuns = 5;  // the reference, its measure, and three baselines

/// The order in which a baseline run visits keys and rows: forward, reversed, shuffled.
int64_t visit(size_t run, int64_t position, int64_t count) {
  if (run == 0) return position;
  if (run == 1) return count - 1 - position;
  int64_t stride = 1 + count * 5 / 8;  // coprime to count, so that every index comes once
  while (std::gcd(stride, count) != 1) ++stride;
  return (position * stride + count / 3) % count;
}

/// The plain formula in `R`, in one of the orders, P and dS rounded to a narrow input dtype.
template <class R>
struct Baseline {
  using Real = R;
  size_t run = 0;
  DType dtype = DType::f64;
  int64_t order(int64_t position, int64_t count) const { return visit(run, position, count); }
  R round(R x) const {
    switch (dtype) {
      case DType::f16:
        return static_cast<R>(to_float(from_float<f16_t>(static_cast<float>(x))));
      case DType::e4m3:
        return static_cast<R>(to_float(from_float<e4m3_t>(static_cast<float>(x))));
      case DType::e5m2:
        return static_cast<R>(to_float(from_float<e5m2_t>(static_cast<float>(x))));
      case DType::bf16:
      case DType::i8:
        return static_cast<R>(to_float(from_float<bf16_t>(static_cast<float>(x))));
      default:
        return x;
    }
  }
};

/// Memory for one row, in one precision.
template <class Real>
struct RowMemory {
  explicit RowMemory(const attn::Problem& p) : bytes((Row<Real>::bytes(p) + 7) / 8), row(carve(p)) {}
  Row<Real> carve(const attn::Problem& p) { return Row<Real>::carve(p, reinterpret_cast<std::byte*>(bytes.data())); }
  std::vector<double> bytes;
  Row<Real> row;
};

Tensor take(std::vector<Array>& copies, const Tensor& t) {
  if (!t.present()) return t;
  copies.push_back(convert(t, DType::f64));
  return copies.back();
}

size_t index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

Expected Sum::expected(DType dtype, const Tolerance& tolerance, Judged at) const {
  Expected e{.present = true, .at = std::move(at), .tolerance = tolerance};
  auto part = [&](const std::vector<double>& all) {
    if (!e.at) return all;
    std::vector<double> some;
    for (int64_t n : *e.at) some.push_back(all[index(n)]);
    return some;
  };
  e.ref = part(ref);
  e.spread = part(squares);
  for (double& s : e.spread) s = std::sqrt(s);
  for (const auto& run : runs) add_baseline(e, part(run), dtype);
  return e;
}

AttentionOracle::AttentionOracle(const FlashAttention::Inputs& inputs, const FlashAttention::Params& params,
                                 double budget, uint64_t seed, const Tensor& used_q)
    : dtype_(inputs.query.dtype), budget_(budget / kRuns), seed_(seed), soft_cap_(params.logits_soft_cap.has_value()) {
  FlashAttention::Inputs doubles = inputs;
  for (Tensor* t : {&doubles.query, &doubles.key, &doubles.value, &doubles.bias, &doubles.softmax_aux})
    *t = take(copies_, *t);
  problem_ = attn::make_problem(doubles, params);
  problem_.used_q = used_q;
}

Tolerance AttentionOracle::tolerance(DType output) const {
  Tolerance t = tolerance_of(dtype_, soft_cap_);
  // A result that is stored more coarsely than its inputs has that rounding in every element.
  t.norm_cap = std::max(t.norm_cap, tolerance_of(output).norm_cap);
  return t;
}

Tolerance AttentionOracle::lse_tolerance() const {
  return tolerance_of(dtype_ == DType::f64 ? DType::f64 : DType::f32);
}

double AttentionOracle::work(const Sequence& s) const {
  return static_cast<double>(s.k_len) * static_cast<double>(problem_.head_dim + problem_.value_dim);
}

/// Rows that are judged, [sequence][head][row in use] in the order of the loops below.
std::vector<bool> AttentionOracle::choose_rows() const {
  const attn::Problem& p = problem_;
  double total = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    total += work(s) * static_cast<double>(p.num_q_heads * s.q_len);
  }
  const double share = total > budget_ ? budget_ / total : 1;
  Random random(seed_ ^ 0x524F5753u);
  std::vector<bool> chosen;
  for (int64_t n = 0; n < p.num_sequences; ++n)
    for (int64_t row = p.num_q_heads * p.sequence(n, nullptr).q_len; row > 0; --row)
      chosen.push_back(share == 1 || random.chance(share));
  return chosen;
}

bool AttentionOracle::Sample::complete() const {
  return share == 1 && std::find(groups.begin(), groups.end(), false) == groups.end();
}
bool AttentionOracle::Sample::has_row(int64_t head, int64_t i) const {
  return share == 1 || Random(seed ^ static_cast<uint64_t>(head << 32 ^ i)).uniform() < share;
}
bool AttentionOracle::Sample::has_key(int64_t j) const {
  return share == 1 || Random(~seed ^ static_cast<uint64_t>(j)).uniform() < share;
}

AttentionOracle::Sample AttentionOracle::choose_groups() const {
  const attn::Problem& p = problem_;
  std::vector<double> of_group;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    of_group.insert(of_group.end(), index(p.num_kv_heads), 2 * work(s) * static_cast<double>(p.group() * s.q_len));
  }
  const double total = std::accumulate(of_group.begin(), of_group.end(), 0.0);
  Sample sample{.groups = std::vector<bool>(of_group.size(), total <= budget_), .seed = seed_ ^ 0x47525053u};
  if (total <= budget_) return sample;
  Random random(sample.seed);
  double spent = 0;
  const auto first = static_cast<size_t>(random.below(static_cast<int64_t>(of_group.size())));
  for (size_t n = 0; n < of_group.size(); ++n) {
    const size_t at = (first + n) % of_group.size();
    if (spent > 0 && spent + of_group[at] > budget_) continue;
    sample.groups[at] = true;
    spent += of_group[at];
  }
  if (spent > budget_) sample.share = budget_ / (2 * spent);
  return sample;
}

namespace {

/// Calls f(sequence, head, row in sequence, counter) for the chosen rows.
template <class F>
void for_rows(const attn::Problem& p, const std::vector<bool>& chosen, F&& f) {
  size_t at = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      for (int64_t i = 0; i < s.q_len; ++i, ++at)
        if (chosen[at]) f(s, h, i);
  }
}

/// Calls f for every row of the chosen (sequence, kv head) groups, rows in the run's order.
template <class F>
void for_groups(const attn::Problem& p, const std::vector<bool>& chosen, size_t run, F&& f) {
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    for (int64_t g = 0; g < p.num_kv_heads; ++g) {
      if (!chosen[index(n * p.num_kv_heads + g)]) continue;
      const int64_t rows = p.group() * s.q_len;
      for (int64_t position = 0; position < rows; ++position) {
        const int64_t row = visit(run, position, rows);
        f(s, g * p.group() + row / s.q_len, row % s.q_len);
      }
    }
  }
}

/// Flat positions of a row in out (times value_dim) and in lse.
struct RowPlace {
  int64_t out, lse;
};
RowPlace place_of(const attn::Problem& p, const Sequence& s, int64_t h, int64_t i) {
  const int64_t b = p.batch_of(s), r = s.q_begin + i;
  return {(b * p.q_rows + r) * p.num_q_heads + h, (b * p.num_q_heads + h) * p.q_rows + r};
}

int64_t num_batches(const attn::Problem& p) { return p.packed ? 1 : p.num_sequences; }

}  // namespace

template <class Real>
void AttentionOracle::run_forward(size_t run, const std::vector<bool>& chosen, Forward& to) const {
  const attn::Problem& p = problem_;
  const Formula<double, Baseline<Real>> formula(p, {.run = run, .dtype = dtype_});
  RowMemory<Real> memory(p);
  for_rows(p, chosen, [&](const Sequence& s, int64_t h, int64_t i) {
    const auto softmax = formula.forward(s, h, i, memory.row);
    const RowPlace at = place_of(p, s, h, i);
    to.lse.runs[run][index(at.lse)] = softmax.lse;
    std::copy_n(memory.row.acc, p.value_dim, to.out.runs[run].begin() + at.out * p.value_dim);
    for (int64_t n = 0; n < memory.row.count && !to.weights.ref.empty(); ++n)
      to.weights.runs[run][index(at.lse * p.k_rows + memory.row.keys[n])] = memory.row.logits[n];
  });
}

/// ref and S. After `forward` the row holds what multiplies V.
void AttentionOracle::measure_forward(const std::vector<bool>& chosen, Forward& to) const {
  const attn::Problem& p = problem_;
  const Formula<double, DoubleArithmetic> formula(p, {});
  RowMemory<double> memory(p);
  Row<double>& row = memory.row;
  std::vector<double> logit_squares;  // of each key's own sum
  for_rows(p, chosen, [&](const Sequence& s, int64_t h, int64_t i) {
    const int64_t b = p.batch_of(s), g = p.kv_head(h);
    const RowPlace at = place_of(p, s, h, i);
    formula.gather(s, h, i, row);
    const auto softmax = formula.softmax(h, row);
    double most_logit_squares = 0, share_squares = 0;
    logit_squares.clear();
    for (int64_t n = 0; n < row.count; ++n) {
      const int64_t j = row.keys[n];
      const double* k = p.key.as<const double>() + p.k.offset(b, s.k_begin + j, g);
      const double scale = p.scale * attn::Problem::scale_at(p.k_scale, b, j, g);
      const double bias = p.bias.present() ? p.bias_at(b, h, i, j) : 0;
      double squares = bias * bias;
      for (int64_t d = 0; d < p.head_dim; ++d) squares += scale * row.q[d] * k[d] * scale * row.q[d] * k[d];
      logit_squares.push_back(squares);
      most_logit_squares = std::max(most_logit_squares, squares);
      const double share = std::exp(row.logits[n] - softmax.lse);
      share_squares += share * share;
    }
    to.lse.ref[index(at.lse)] = softmax.lse;
    to.lse.squares[index(at.lse)] = most_logit_squares + share_squares;

    formula.forward(s, h, i, row);
    std::copy_n(row.acc, p.value_dim, to.out.ref.begin() + at.out * p.value_dim);
    double* squares = to.out.squares.data() + at.out * p.value_dim;
    for (int64_t n = 0; n < row.count; ++n) {
      const int64_t j = row.keys[n];
      const double* v = p.value.as<const double>() + p.v.offset(b, s.k_begin + j, g);
      const double weight = row.logits[n] * attn::Problem::scale_at(p.v_scale, b, j, g);
      for (int64_t d = 0; d < p.value_dim; ++d) squares[d] += weight * v[d] * weight * v[d];
      if (to.weights.ref.empty()) continue;
      const size_t element = index(at.lse * p.k_rows + j);
      to.weights.ref[element] = row.logits[n];
      to.weights.squares[element] = row.logits[n] * row.logits[n] * (1 + logit_squares[index(n)]);
    }
  });
}

AttentionOracle::Forward AttentionOracle::forward(bool with_weights) const {
  const attn::Problem& p = problem_;
  const size_t rows = index(num_batches(p) * p.q_rows * p.num_q_heads);
  Forward to{.out = Sum(rows * index(p.value_dim)), .lse = Sum(rows), .out_at = {}, .lse_at = {}};
  if (with_weights) to.weights = Sum(rows * index(p.k_rows));
  for (int64_t b = 0; b < num_batches(p); ++b)  // rows that nobody owns see no key
    for (int64_t h = 0; h < p.num_q_heads; ++h) {
      const auto at = (b * p.num_q_heads + h) * p.q_rows;
      std::fill_n(to.lse.ref.begin() + at, p.q_rows, p.sinks_lse(h));
      for (auto& run : to.lse.runs) std::fill_n(run.begin() + at, p.q_rows, p.sinks_lse(h));
    }
  const std::vector<bool> chosen = choose_rows();
  measure_forward(chosen, to);
  for (size_t run = 0; run < to.out.runs.size(); ++run)
    dtype_ == DType::f64 ? run_forward<double>(run, chosen, to) : run_forward<float>(run, chosen, to);

  to.complete = std::find(chosen.begin(), chosen.end(), false) == chosen.end();
  if (!to.complete) {
    std::vector<int64_t>&out_at = to.out_at.emplace(), &lse_at = to.lse_at.emplace();
    for_rows(p, chosen, [&](const Sequence& s, int64_t h, int64_t i) {
      const RowPlace at = place_of(p, s, h, i);
      lse_at.push_back(at.lse);
      for (int64_t d = 0; d < p.value_dim; ++d) out_at.push_back(at.out * p.value_dim + d);
    });
  }
  return to;
}

// ---- the gradient ----

namespace {

/// What the backward is given for one row, in some precision.
template <class Real>
struct RowValues {
  const Real *out, *d_out, *d_weights;  // d_weights: by key; null without any
  Real lse, d_lse;
};

template <class Real>
struct RowCotangents {
  RowCotangents(const attn::Problem& p, const AttentionOracle::Cotangents& c)
      : p_(p), c_(c), out(index(p.value_dim)), d_out(out), d_weights(index(c.d_weights.present() ? p.k_rows : 0)) {}

  RowValues<Real> load(const Sequence& s, int64_t h, int64_t i) {
    const RowPlace at = place_of(p_, s, h, i);
    for (int64_t d = 0; d < p_.value_dim; ++d) {
      out[index(d)] = static_cast<Real>(c_.out.as<const double>()[at.out * p_.value_dim + d]);
      d_out[index(d)] =
          static_cast<Real>(c_.d_out.present() ? c_.d_out.as<const double>()[at.out * p_.value_dim + d] : 0);
    }
    for (size_t j = 0; j < d_weights.size(); ++j)
      d_weights[j] = static_cast<Real>(c_.d_weights.as<const double>()[index(at.lse * p_.k_rows) + j]);
    return {out.data(), d_out.data(), d_weights.empty() ? nullptr : d_weights.data(),
            static_cast<Real>(c_.lse.as<const double>()[at.lse]),
            static_cast<Real>(c_.d_lse.present() ? c_.d_lse.as<const double>()[at.lse] : 0)};
  }

  const attn::Problem& p_;
  const AttentionOracle::Cotangents& c_;
  std::vector<Real> out, d_out, d_weights;
};

/// Rows that no sequence owns, by (batch, row): only their lse depends on anything, and only on sinks.
std::vector<bool> unowned_rows(const attn::Problem& p) {
  std::vector<bool> unowned(index(num_batches(p) * p.q_rows), true);
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    for (int64_t i = 0; i < s.q_len; ++i) unowned[index(p.batch_of(s) * p.q_rows + s.q_begin + i)] = false;
  }
  return unowned;
}

/// Calls f(head, flat place in lse) for them.
template <class F>
void for_unowned(const attn::Problem& p, F&& f) {
  const std::vector<bool> unowned = unowned_rows(p);
  for (size_t n = 0; n < unowned.size(); ++n)
    for (int64_t h = 0; h < p.num_q_heads && unowned[n]; ++h) {
      const auto b = static_cast<int64_t>(n) / p.q_rows, r = static_cast<int64_t>(n) % p.q_rows;
      f(h, (b * p.num_q_heads + h) * p.q_rows + r);
    }
}

/// Sinks of rank 1 are shared: their gradient sums over the heads.
std::vector<double> shared_over_heads(const attn::Problem& p, const std::vector<double>& of_heads) {
  if (p.num_sinks == 0 || p.sinks.rank() == 2) return of_heads;
  std::vector<double> shared(index(p.num_sinks));
  for (size_t n = 0; n < of_heads.size(); ++n) shared[n % shared.size()] += of_heads[n];
  return shared;
}

}  // namespace

/// A baseline that can leave keys out.
template <class Real>
struct AttentionOracle::Arithmetic : Baseline<Real> {
  const Sample* sample = nullptr;  // null: all keys
  bool wants(int64_t j) const { return sample == nullptr || sample->has_key(j); }
};

/// One run over what is sampled. Run 3 is the reference itself, in double and in order.
template <class Real>
void AttentionOracle::run_backward(size_t run, Pass pass, const Cotangents& c, const Sample& sample,
                                   Backward& to) const {
  const attn::Problem& p = problem_;
  const bool is_reference = run == 3, rows = pass != Pass::keys, keys = pass != Pass::rows;
  Arithmetic<Real> arithmetic;
  if (!is_reference) arithmetic.run = run, arithmetic.dtype = dtype_;
  if (pass == Pass::keys) arithmetic.sample = &sample;
  const Formula<double, Arithmetic<Real>> formula(p, arithmetic);
  auto target = [&](Sum& sum) -> std::vector<double>& { return is_reference ? sum.ref : sum.runs[run]; };
  std::vector<Real> key(keys ? to.key.ref.size() : 0), value(keys ? to.value.ref.size() : 0), bias(to.bias.ref.size()),
      sinks(index(p.num_sinks * p.num_q_heads)), query(index(p.head_dim));
  RowMemory<Real> memory(p);
  RowCotangents<Real> cotangents(p, c);
  for_groups(p, sample.groups, arithmetic.run, [&](const Sequence& s, int64_t h, int64_t i) {
    if (pass == Pass::rows && !sample.has_row(h, i)) return;
    const int64_t first = p.batch_of(s) * p.k_rows * p.num_kv_heads;
    const RowValues<Real> given = cotangents.load(s, h, i);
    formula.backward(
        s, h, i,
        {.out = given.out, .d_out = given.d_out, .lse = given.lse, .d_lse = given.d_lse, .d_weights = given.d_weights},
        memory.row,
        {.d_query = query.data(),
         .d_key = keys ? key.data() + first * p.head_dim : nullptr,
         .d_value = keys ? value.data() + first * p.value_dim : nullptr,
         .d_bias = bias.empty() ? nullptr : bias.data(),
         .d_sinks = sinks.data() + h * p.num_sinks});
    if (rows) std::copy(query.begin(), query.end(), target(to.query).begin() + place_of(p, s, h, i).out * p.head_dim);
  });
  if (p.num_sinks > 0 && c.d_lse.present())
    for_unowned(p, [&](int64_t h, int64_t at) {
      const double lse = c.lse.as<const double>()[at];
      for (int64_t a = 0; a < p.num_sinks && lse > -kInfinity; ++a)
        sinks[index(h * p.num_sinks + a)] +=
            static_cast<Real>(std::exp(p.sink_at(h, a) - lse) * c.d_lse.as<const double>()[at]);
    });
  if (keys) {
    target(to.key).assign(key.begin(), key.end());
    target(to.value).assign(value.begin(), value.end());
  }
  target(to.bias).assign(bias.begin(), bias.end());
  target(to.sinks) = shared_over_heads(p, {sinks.begin(), sinks.end()});
}

/// S: the same walk with the squares of the terms.
void AttentionOracle::measure_backward(Pass pass, const Cotangents& c, const Sample& sample, Backward& to) const {
  const attn::Problem& p = problem_;
  Arithmetic<double> arithmetic;
  if (pass == Pass::keys) arithmetic.sample = &sample;
  const Formula<double, Arithmetic<double>> formula(p, arithmetic);
  RowMemory<double> memory(p);
  Row<double>& row = memory.row;
  RowCotangents<double> cotangents(p, c);
  std::vector<double> sinks(index(p.num_sinks * p.num_q_heads));
  auto squared = [](double x) { return x * x; };
  for_groups(p, sample.groups, 0, [&](const Sequence& s, int64_t h, int64_t i) {
    if (pass == Pass::rows && !sample.has_row(h, i)) return;
    const RowValues<double> given = cotangents.load(s, h, i);
    if (given.lse == -kInfinity) return;
    const int64_t b = p.batch_of(s), g = p.kv_head(h);
    formula.gather(s, h, i, row);
    double from_out = 0;
    for (int64_t d = 0; d < p.value_dim && row.count > 0; ++d) from_out += squared(given.d_out[d] * given.out[d]);
    for (int64_t n = 0; n < row.count && given.d_weights != nullptr; ++n)
      from_out += squared(std::exp(row.logits[n] - given.lse) * p.dropout_factor(s, h, i, row.keys[n]) *
                          given.d_weights[row.keys[n]]);
    from_out = std::sqrt(from_out) + std::abs(given.d_lse);
    for (int64_t a = 0; a < p.num_sinks; ++a)
      sinks[index(h * p.num_sinks + a)] += squared(std::exp(p.sink_at(h, a) - given.lse) * from_out);
    double* dq = to.query.squares.data() + place_of(p, s, h, i).out * p.head_dim;
    for (int64_t n = 0; n < row.count; ++n) {
      const int64_t j = row.keys[n], kv = (b * p.k_rows + s.k_begin + j) * p.num_kv_heads + g;
      const double* k = p.key.as<const double>() + p.k.offset(b, s.k_begin + j, g);
      const double* v = p.value.as<const double>() + p.v.offset(b, s.k_begin + j, g);
      const double keep = p.dropout_factor(s, h, i, j), probability = std::exp(row.logits[n] - given.lse);
      double from_value = given.d_weights != nullptr ? squared(given.d_weights[j]) : 0;
      for (int64_t d = 0; d < p.value_dim; ++d) from_value += squared(given.d_out[d] * v[d]);
      const double d_logit = probability * (keep * std::sqrt(from_value) + from_out) * std::abs(row.slopes[n]);
      if (!to.bias.squares.empty()) to.bias.squares[index(p.bias_offset(b, h, i, j))] += squared(d_logit);
      for (int64_t d = 0; d < p.head_dim && pass != Pass::keys; ++d) dq[d] += squared(p.scale * d_logit * k[d]);
      if (pass == Pass::rows) continue;
      for (int64_t d = 0; d < p.head_dim; ++d)
        to.key.squares[index(kv * p.head_dim + d)] += squared(p.scale * d_logit * row.q[d]);
      for (int64_t d = 0; d < p.value_dim; ++d)
        to.value.squares[index(kv * p.value_dim + d)] += squared(probability * keep * given.d_out[d]);
    }
  });
  if (p.num_sinks > 0 && c.d_lse.present())
    for_unowned(p, [&](int64_t h, int64_t at) {
      for (int64_t a = 0; a < p.num_sinks; ++a)
        sinks[index(h * p.num_sinks + a)] +=
            squared(std::exp(p.sink_at(h, a) - c.lse.as<const double>()[at]) * c.d_lse.as<const double>()[at]);
    });
  to.sinks.squares = shared_over_heads(p, sinks);
}

AttentionOracle::Backward AttentionOracle::backward(const Cotangents& cotangents) const {
  const attn::Problem& p = problem_;
  Cotangents c = cotangents;
  std::vector<Array> copies;
  for (Tensor* t : {&c.out, &c.lse, &c.d_out, &c.d_lse, &c.d_weights}) *t = take(copies, *t);
  if (!c.lse.present()) add_forward(copies, c);
  auto size = [](const Tensor& t) { return index(t.num_elements()); };
  Backward to{.query = Sum(size(p.query)),
              .key = Sum(size(p.key)),
              .value = Sum(size(p.value)),
              .bias = Sum(size(p.bias)),
              .sinks = Sum(size(p.sinks)),
              .query_at = {},
              .key_at = {},
              .value_at = {}};
  const Sample sample = choose_groups();
  to.complete = sample.complete();
  const std::vector<Pass> passes = sample.share == 1 ? std::vector{Pass::all} : std::vector{Pass::rows, Pass::keys};
  for (const Pass pass : passes) {
    run_backward<double>(3, pass, c, sample, to);
    measure_backward(pass, c, sample, to);
    for (size_t run = 0; run < to.query.runs.size(); ++run)
      dtype_ == DType::f64 ? run_backward<double>(run, pass, c, sample, to)
                           : run_backward<float>(run, pass, c, sample, to);
  }
  if (!to.complete) list_judged(sample, to);
  return to;
}

/// What a gradient that is not given its forward's results computes first.
void AttentionOracle::add_forward(std::vector<Array>& copies, Cotangents& c) const {
  const attn::Problem& p = problem_;
  const Formula<double, DoubleArithmetic> formula(p, {});
  RowMemory<double> memory(p);
  const Array out = Array::zeros(DType::f64, {num_batches(p), p.q_rows, p.num_q_heads, p.value_dim});
  const Array lse = Array::zeros(DType::f64, {num_batches(p), p.num_q_heads, p.q_rows});
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      for (int64_t i = 0; i < s.q_len; ++i) {
        const RowPlace at = place_of(p, s, h, i);
        lse.as<double>()[at.lse] = formula.forward(s, h, i, memory.row).lse;
        std::copy_n(memory.row.acc, p.value_dim, out.as<double>() + at.out * p.value_dim);
      }
  }
  c.out = out, c.lse = lse;
  copies.insert(copies.end(), {out, lse});
}

/// The elements whose sums are whole although not everything was computed.
void AttentionOracle::list_judged(const Sample& sample, Backward& to) const {
  const attn::Problem& p = problem_;
  std::vector<int64_t>&query_at = to.query_at.emplace(), &key_at = to.key_at.emplace(),
  &value_at = to.value_at.emplace();
  for_groups(p, sample.groups, 0, [&](const Sequence& s, int64_t h, int64_t i) {
    if (!sample.has_row(h, i)) return;
    for (int64_t d = 0; d < p.head_dim; ++d) query_at.push_back(place_of(p, s, h, i).out * p.head_dim + d);
  });
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    for (int64_t g = 0; g < p.num_kv_heads; ++g)
      for (int64_t j = 0; j < s.k_len && sample.groups[index(n * p.num_kv_heads + g)]; ++j) {
        if (!sample.has_key(j)) continue;
        const int64_t kv = (p.batch_of(s) * p.k_rows + s.k_begin + j) * p.num_kv_heads + g;
        for (int64_t d = 0; d < p.head_dim; ++d) key_at.push_back(kv * p.head_dim + d);
        for (int64_t d = 0; d < p.value_dim; ++d) value_at.push_back(kv * p.value_dim + d);
      }
  }
}

}  // namespace ejk::testing
