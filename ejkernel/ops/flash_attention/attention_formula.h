// The formula of softmax attention and of its gradient, one query row at a time, in plain loops. The reference kernels
// run it in double; the test oracle runs it in float as well, in other orders, to learn what honest rounding costs
// (reliability A6). `Arithmetic` says in what precision, in which order, and how P and dS are rounded:
//
//   struct Arithmetic { using Real; int64_t order(int64_t position, int64_t count) const; Real round(Real) const; };
//
// One that also says `bool wants(int64_t key) const` leaves the other keys out: a gradient's sums over rows can be had
// for a few keys alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "ejkernel/ops/flash_attention/attention_problem.h"

namespace ejk::attn {

template <class T>
inline double to_double(T x) {
  if constexpr (requires { x.bits; })
    return to_float(x);
  else
    return static_cast<double>(x);
}

/// Calls f.operator()<T>() with the storage type of a `number` dtype.
template <class F>
decltype(auto) dispatch_number(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::f16:
      return f.template operator()<f16_t>();
    case DType::bf16:
      return f.template operator()<bf16_t>();
    case DType::e4m3:
      return f.template operator()<e4m3_t>();
    case DType::e5m2:
      return f.template operator()<e5m2_t>();
    default:
      return f.template operator()<int8_t>();
  }
}

/// In place of a storage type: elements are loaded by their tensor's dtype, whatever it is.
struct AnyStored {};

/// Row of `count` elements, to double: elements of type T from `offset` on.
template <class T>
class StoredRow {
 public:
  StoredRow(const Tensor& t, int64_t offset) : row_(t.as<const T>() + offset) {}
  double operator[](int64_t d) const { return to_double(row_[d]); }

 private:
  const T* row_;
};
template <>
class StoredRow<AnyStored> {
 public:
  StoredRow(const Tensor& t, int64_t offset) : tensor_(t), offset_(offset) {}
  double operator[](int64_t d) const { return load_as_double(tensor_.data, tensor_.dtype, offset_ + d); }

 private:
  const Tensor& tensor_;
  int64_t offset_;
};

/// Double throughout, keys and rows in their own order.
struct DoubleArithmetic {
  using Real = double;
  static int64_t order(int64_t position, int64_t) { return position; }
  static double round(double x) { return x; }
};

/// What one row needs to remember: the keys it sees (logits above -inf) and a value of each.
template <class Real>
struct Row {
  // Arrays of at least the longest sequence's keys, and of head_dim and value_dim elements.
  int64_t* keys;
  Real* logits;   ///< after cap; later probabilities
  Real* slopes;   ///< d logit / d (scaled product): 1 - (s / c)^2, or 1
  Real* q;        ///< [head_dim], scaled by q_scale
  Real* acc;      ///< [max(head_dim, value_dim)]
  int64_t count;  ///< visible keys

  static size_t bytes(const Problem& p) {
    const auto keys = static_cast<size_t>(p.k_rows);
    const auto dims = static_cast<size_t>(2 * std::max(p.head_dim, p.value_dim));
    return keys * (sizeof(int64_t) + 2 * sizeof(Real)) + (dims + 8) * sizeof(Real);
  }
  static Row carve(const Problem& p, std::byte* memory) {
    Row row;
    const auto keys = static_cast<size_t>(p.k_rows);
    row.keys = reinterpret_cast<int64_t*>(memory);
    row.logits = reinterpret_cast<Real*>(row.keys + keys);
    row.slopes = row.logits + keys;
    row.q = row.slopes + keys;
    row.acc = row.q + std::max(p.head_dim, p.value_dim);
    row.count = 0;
    return row;
  }
};

/// Element type T of the query, K of key and value; `A` is the arithmetic.
template <class T, class A, class K = T>
class Formula {
 public:
  using Real = typename A::Real;

  Formula(const Problem& p, A arithmetic) : p_(p), a_(std::move(arithmetic)) {}

  /// Logits of the keys that row i of head h sees, in the arithmetic's order of keys.
  void gather(const Sequence& s, int64_t h, int64_t i, Row<Real>& row) const {
    const int64_t b = p_.batch_of(s), g = p_.kv_head(h);
    const T* q = p_.query.as<const T>() + p_.q.offset(b, s.q_begin + i, h);
    const auto q_scale = static_cast<Real>(Problem::scale_at(p_.q_scale, b, i, h));
    for (int64_t d = 0; d < p_.head_dim; ++d) row.q[d] = static_cast<Real>(to_double(q[d])) * q_scale;

    const auto cap = static_cast<Real>(p_.soft_cap), scale = static_cast<Real>(p_.scale);
    row.count = 0;
    for (int64_t position = 0; position < s.k_len; ++position) {
      const int64_t j = a_.order(position, s.k_len);
      if constexpr (requires { a_.wants(j); })
        if (!a_.wants(j)) continue;
      if (!p_.visible(s, h, i, j)) continue;
      Real logit = scale * product(s, j, g, row.q);
      if (p_.bias.present()) logit += static_cast<Real>(p_.bias_at(b, h, i, j));
      Real slope = 1;
      if (cap > 0) {
        const Real t = std::tanh(logit / cap);
        logit = cap * t;
        slope = 1 - t * t;
      }
      if (logit == -std::numeric_limits<Real>::infinity())
        continue;  // its probability is 0 whatever else the row holds
      row.keys[row.count] = j;
      row.logits[row.count] = logit;
      row.slopes[row.count++] = slope;
    }
  }

  struct Softmax {
    Real max;  ///< of the visible logits
    Real lse;  ///< sinks included
  };
  Softmax softmax(int64_t h, const Row<Real>& row) const {
    constexpr Real kNone = -std::numeric_limits<Real>::infinity();
    if (row.count == 0) return {kNone, static_cast<Real>(p_.sinks_lse(h))};
    Real max = row.logits[0];
    for (int64_t n = 1; n < row.count; ++n)
      max = row.logits[n] > max || std::isnan(row.logits[n]) ? row.logits[n] : max;
    Real shift = max;
    for (int64_t a = 0; a < p_.num_sinks; ++a) shift = std::max(shift, static_cast<Real>(p_.sink_at(h, a)));
    if (std::isnan(max)) shift = max;
    Real sum = 0;
    for (int64_t n = 0; n < row.count; ++n) sum += std::exp(row.logits[n] - shift);
    for (int64_t a = 0; a < p_.num_sinks; ++a) sum += std::exp(static_cast<Real>(p_.sink_at(h, a)) - shift);
    return {max, shift + std::log(sum)};
  }

  /// Leaves the row's output in row.acc and what multiplies V in row.logits.
  Softmax forward(const Sequence& s, int64_t h, int64_t i, Row<Real>& row) const {
    gather(s, h, i, row);
    const Softmax result = softmax(h, row);
    const int64_t b = p_.batch_of(s), g = p_.kv_head(h);
    std::fill_n(row.acc, p_.value_dim, Real{0});
    for (int64_t n = 0; n < row.count; ++n) {
      const int64_t j = row.keys[n];
      const Real shift = p_.normalize ? result.lse : result.max;
      const Real weight = std::exp(row.logits[n] - shift) * static_cast<Real>(p_.dropout_factor(s, h, i, j));
      row.logits[n] = weight;
      const StoredRow<K> v(p_.value, p_.key_offset(p_.v, s, j, g));
      if (p_.pages.present) {
        for (int64_t d = 0; d < p_.value_dim; ++d)
          row.acc[d] +=
              a_.round(weight) * static_cast<Real>(v[d] * p_.page_scale_at(p_.v_scale, s, j, g, d, p_.value_dim));
        continue;
      }
      const Real rounded = a_.round(weight) * static_cast<Real>(Problem::scale_at(p_.v_scale, b, j, g));
      for (int64_t d = 0; d < p_.value_dim; ++d) row.acc[d] += rounded * static_cast<Real>(v[d]);
    }
    return result;
  }

  /// Where one row's gradients go: sums over rows, so the caller owns them for as long as there are rows.
  struct Sinks {
    Real* d_query;  ///< [head_dim] of this row, overwritten
    Real* d_key;    ///< [k_rows of the sequence's batch][kv head][head_dim], or null
    Real* d_value;  ///< likewise with value_dim
    Real* d_bias;   ///< like the bias tensor, contiguous, or null
    Real* d_sinks;  ///< [num_sinks] of this head, or null
  };
  struct Cotangent {
    const Real* out;    ///< the forward's output, [value_dim]
    const Real* d_out;  ///< [value_dim]
    Real lse;
    Real d_lse;
    const Real* d_weights = nullptr;  ///< cotangents of the probabilities themselves, by key; only `attention` has them
  };

  /// Adds the gradients of row i. A row without a visible key gives nothing but its sinks' share of d_lse (rule 9).
  void backward(const Sequence& s, int64_t h, int64_t i, const Cotangent& c, Row<Real>& row, const Sinks& to) const {
    gather(s, h, i, row);
    std::fill_n(to.d_query, p_.head_dim, Real{0});
    if (c.lse == -std::numeric_limits<Real>::infinity()) return;
    Real delta = row.count == 0 ? -c.d_lse : row_delta(s, h, i, c, row);
    if (to.d_sinks != nullptr)
      for (int64_t a = 0; a < p_.num_sinks; ++a)
        to.d_sinks[a] -= std::exp(static_cast<Real>(p_.sink_at(h, a)) - c.lse) * delta;

    const int64_t b = p_.batch_of(s), g = p_.kv_head(h);
    const auto scale = static_cast<Real>(p_.scale);
    for (int64_t n = 0; n < row.count; ++n) {
      const int64_t j = row.keys[n], key_row = s.k_begin + j;
      const T* k = p_.key.as<const T>() + p_.k.offset(b, key_row, g);
      const T* v = p_.value.as<const T>() + p_.v.offset(b, key_row, g);
      const Real keep = static_cast<Real>(p_.dropout_factor(s, h, i, j));
      const Real probability = std::exp(row.logits[n] - c.lse);
      Real d_probability = 0;
      for (int64_t d = 0; d < p_.value_dim; ++d) d_probability += c.d_out[d] * static_cast<Real>(to_double(v[d]));
      if (c.d_weights != nullptr) d_probability += c.d_weights[j];
      const Real d_logit = probability * (d_probability * keep - delta) * row.slopes[n];
      if (to.d_bias != nullptr) to.d_bias[bias_index(b, h, i, j)] += d_logit;

      const Real rounded = a_.round(d_logit);
      const int64_t kv = key_row * p_.num_kv_heads + g;
      for (int64_t d = 0; d < p_.head_dim; ++d) to.d_query[d] += scale * rounded * static_cast<Real>(to_double(k[d]));
      if (to.d_key != nullptr)
        for (int64_t d = 0; d < p_.head_dim; ++d) to.d_key[kv * p_.head_dim + d] += scale * rounded * row.q[d];
      if (to.d_value != nullptr) {
        const Real weight = a_.round(probability * keep);
        for (int64_t d = 0; d < p_.value_dim; ++d) to.d_value[kv * p_.value_dim + d] += weight * c.d_out[d];
      }
    }
  }

 private:
  /// The product of a query and key j, whose codes are scaled.
  Real product(const Sequence& s, int64_t j, int64_t g, const Real* q) const {
    const StoredRow<K> k(p_.key, p_.key_offset(p_.k, s, j, g));
    Real dot = 0;
    if (p_.pages.present) {
      for (int64_t d = 0; d < p_.head_dim; ++d)
        dot += q[d] * static_cast<Real>(k[d] * p_.page_scale_at(p_.k_scale, s, j, g, d, p_.head_dim));
      return dot;
    }
    for (int64_t d = 0; d < p_.head_dim; ++d) dot += q[d] * static_cast<Real>(k[d]);
    return dot * static_cast<Real>(Problem::scale_at(p_.k_scale, p_.batch_of(s), j, g));
  }

  /// delta = sum over d of d_out * out - d_lse; with cotangents of the weights, their part of it as well.
  Real row_delta(const Sequence& s, int64_t h, int64_t i, const Cotangent& c, const Row<Real>& row) const {
    Real delta = -c.d_lse;
    for (int64_t d = 0; d < p_.value_dim; ++d) delta += c.d_out[d] * c.out[d];
    if (c.d_weights != nullptr)
      for (int64_t n = 0; n < row.count; ++n)
        delta += std::exp(row.logits[n] - c.lse) * static_cast<Real>(p_.dropout_factor(s, h, i, row.keys[n])) *
                 c.d_weights[row.keys[n]];
    return delta;
  }

  /// Index of a contiguous tensor with the bias's broadcast shape.
  int64_t bias_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Shape& shape = p_.bias.shape;
    const int64_t bb = shape[0] == 1 ? 0 : b, hh = shape[1] == 1 ? 0 : h, ii = shape[2] == 1 ? 0 : i;
    return ((bb * shape[1] + hh) * shape[2] + ii) * shape[3] + j;
  }

  const Problem& p_;
  A a_;
};

}  // namespace ejk::attn
