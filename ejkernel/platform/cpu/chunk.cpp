// The algebra of chunk.h in vectors. What each function computes stands in chunk-inl.h.
#include <algorithm>

#include "ejkernel/platform/cpu/chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/chunk.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/gemm-inl.h"
// And after that:
#include "ejkernel/platform/cpu/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

// ---- rows into columns ----

namespace {

#if !HWY_HAVE_SCALABLE
/// Stores the 128-bit blocks of v, one below the other.
template <int kBlock>
HWY_INLINE void store_blocks(FloatV v, float* to, int64_t stride) {
  if constexpr (kBlock * 4 < HWY_MAX_LANES_D(FloatTag)) {
    const hn::CappedTag<float, 4> d4;
    hn::StoreU(hn::ExtractBlock<kBlock>(v), d4, to + 4 * kBlock * stride);
    store_blocks<kBlock + 1>(v, to, stride);
  }
}
#endif

/// to[c][r] = from[r][c]. Rows and columns beyond those are read and written as well, up to whole vectors.
void turn(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
#if HWY_HAVE_SCALABLE
  transpose(from, from_stride, rows, columns, to, to_stride);
#else
  const FloatTag d;
  const hn::Repartition<double, FloatTag> pairs;
  for (int64_t r = 0; r < rows; r += 4)
    for (int64_t c = 0; c < columns; c += lanes()) {
      const float* at = from + r * from_stride + c;
      const FloatV x0 = hn::Load(d, at), x1 = hn::Load(d, at + from_stride), x2 = hn::Load(d, at + 2 * from_stride),
                   x3 = hn::Load(d, at + 3 * from_stride);
      // In each block of four columns, four by four.
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, x0, x1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, x2, x3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, x0, x1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, x2, x3));
      float* column = to + c * to_stride + r;
      const int64_t next = to_stride;
      store_blocks<0>(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), column, next);
      store_blocks<0>(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), column + next, next);
      store_blocks<0>(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), column + 2 * next, next);
      store_blocks<0>(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), column + 3 * next, next);
    }
#endif
}

}  // namespace

// ---- decays between a token and an end of the chunk ----

void decay_from_start(const ChunkRows& decay, const ChunkRows& x, const ChunkRows& y) {
  const FloatTag d;
  for (int64_t c = 0; c < x.columns; c += lanes()) {
    FloatV factor = hn::Set(d, 1.0f);
    for (int64_t i = 0; i < kChunk; ++i) {
      factor = hn::Mul(factor, hn::Load(d, decay.row(i) + c));
      hn::Store(hn::Mul(factor, hn::Load(d, x.row(i) + c)), d, y.row(i) + c);
    }
  }
}

void decay_to_end(const ChunkRows& decay, const ChunkRows& x, const ChunkRows& y, float* whole) {
  const FloatTag d;
  for (int64_t c = 0; c < x.columns; c += lanes()) {
    FloatV factor = hn::Set(d, 1.0f);
    for (int64_t j = kChunk - 1; j >= 0; --j) {
      hn::Store(hn::Mul(factor, hn::Load(d, x.row(j) + c)), d, y.row(j) + c);
      factor = hn::Mul(factor, hn::Load(d, decay.row(j) + c));
    }
    hn::Store(factor, d, whole + c);
  }
}

// ---- pairs of tokens ----

void decay_table(const ChunkRows& decay, const ChunkRows& table) {
  std::fill_n(table.data, kChunk * kChunk, 0.0f);
  for (int64_t i = 0; i < kChunk; ++i) {
    for (int64_t j = 0; j < i; ++j) table.row(i)[j] = table.row(i - 1)[j] * *decay.row(i);
    table.row(i)[i] = 1;
  }
}

namespace {

/// Rows whose sums over the summed dimension stand in registers at once.
constexpr int64_t kRowsTogether = 4;

template <int64_t kRow>
HWY_INLINE void step(const float* x, const float* decay, FloatMask earlier, FloatV& y, FloatV& sum) {
  const FloatTag d;
  y = hn::MaskedMulOr(y, earlier, y, hn::Set(d, *decay));
  sum = hn::MulAdd(hn::Set(d, *x), y, sum);
}

/// kRowsTogether rows of scores times one vector of columns from `lane` on. `panel` [column of y][token] holds
/// Λ(j→i) ∘ y_j for the row i before these, and for the last of these in the end.
void score_rows(const ChunkRows& x, const ChunkRows& decay, int64_t i, int64_t lane, float* panel,
                const ChunkRows& scores) {
  const FloatTag d;
  const FloatV token = hn::Iota(d, static_cast<float>(lane));
  const FloatV r0 = hn::Set(d, static_cast<float>(i)), r1 = hn::Set(d, static_cast<float>(i + 1)),
               r2 = hn::Set(d, static_cast<float>(i + 2)), r3 = hn::Set(d, static_cast<float>(i + 3));
  const FloatMask m0 = hn::Lt(token, r0), m1 = hn::Lt(token, r1), m2 = hn::Lt(token, r2), m3 = hn::Lt(token, r3);
  FloatV s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  const float *x0 = x.row(i), *decay0 = decay.row(i);
  for (int64_t k = 0; k < x.columns; ++k) {
    FloatV y = hn::Load(d, panel + k * kChunk + lane);
    step<0>(x0 + k, decay0 + k, m0, y, s0);
    step<1>(x0 + x.stride + k, decay0 + decay.stride + k, m1, y, s1);
    step<2>(x0 + 2 * x.stride + k, decay0 + 2 * decay.stride + k, m2, y, s2);
    step<3>(x0 + 3 * x.stride + k, decay0 + 3 * decay.stride + k, m3, y, s3);
    hn::Store(y, d, panel + k * kChunk + lane);
  }
  hn::Store(hn::IfThenElseZero(hn::Le(token, r0), s0), d, scores.row(i) + lane);
  hn::Store(hn::IfThenElseZero(hn::Le(token, r1), s1), d, scores.row(i + 1) + lane);
  hn::Store(hn::IfThenElseZero(hn::Le(token, r2), s2), d, scores.row(i + 2) + lane);
  hn::Store(hn::IfThenElseZero(hn::Le(token, r3), s3), d, scores.row(i + 3) + lane);
}

}  // namespace

void decayed_scores(const ChunkRows& x, const ChunkRows& y, const ChunkRows& decay, float* panel,
                    const ChunkRows& scores) {
  turn(y.data, y.stride, kChunk, y.columns, panel, kChunk);
  for (int64_t i = 0; i < kChunk; i += kRowsTogether)
    for (int64_t lane = 0; lane < kChunk; lane += lanes())
      if (lane < i + kRowsTogether)
        score_rows(x, decay, i, lane, panel, scores);
      else
        for (int64_t r = 0; r < kRowsTogether; ++r)
          hn::Store(hn::Zero(FloatTag()), FloatTag(), scores.row(i + r) + lane);
}

void plain_scores(const ChunkRows& x, const ChunkRows& y, const ChunkRows& table, float* panel,
                  const ChunkRows& scores) {
  const FloatTag d;
  turn(y.data, y.stride, kChunk, y.columns, panel, kChunk);
  gemm<Left::kRows, false>(Gemm<float>{.m = kChunk,
                                       .n = kChunk,
                                       .k = x.columns,
                                       .a = x.data,
                                       .a_stride = x.stride,
                                       .b = panel,
                                       .b_stride = kChunk,
                                       .c = scores.data,
                                       .c_stride = kChunk});
  for (int64_t i = 0; i < kChunk; ++i)
    for (int64_t lane = 0; lane < kChunk; lane += lanes()) {
      const FloatV score = hn::Load(d, scores.row(i) + lane);
      const FloatV factor = table.present() ? hn::Load(d, table.row(i) + lane) : hn::Set(d, 1.0f);
      const FloatV token = hn::Iota(d, static_cast<float>(lane));
      const FloatMask seen = hn::Le(token, hn::Set(d, static_cast<float>(i)));
      hn::Store(hn::IfThenElseZero(seen, hn::Mul(score, factor)), d, scores.row(i) + lane);
    }
}

namespace {

Gemm<float> product_of_rows(const ChunkRows& weights, const ChunkRows& x, const ChunkRows& out) {
  return {.m = kChunk,
          .n = x.columns,
          .k = kChunk,
          .a = weights.data,
          .a_stride = weights.stride,
          .b = x.data,
          .b_stride = x.stride,
          .c = out.data,
          .c_stride = out.stride};
}

}  // namespace

template <bool kAdd>
void weighted_sums(const ChunkRows& weights, const ChunkRows& y, const ChunkRows& out) {
  gemm<Left::kRows, kAdd>(product_of_rows(weights, y, out));
}

template void weighted_sums<false>(const ChunkRows& weights, const ChunkRows& y, const ChunkRows& out);
template void weighted_sums<true>(const ChunkRows& weights, const ChunkRows& y, const ChunkRows& out);

void decayed_sums(const ChunkRows& weights, const ChunkRows& y, const ChunkRows& decay, const ChunkRows& out) {
  const FloatTag d;
  HWY_ALIGN float decayed[kChunk * kMaxLanes];
  for (int64_t c = 0; c < y.columns; c += lanes())
    for (int64_t i = 0; i < kChunk; ++i) {
      const FloatV factor = hn::Load(d, decay.row(i) + c), own = hn::Load(d, y.row(i) + c);
      FloatV sum = hn::Mul(hn::Set(d, weights.row(i)[i]), own);
      for (int64_t j = 0; j < i; ++j) {
        const FloatV one = hn::Mul(factor, hn::Load(d, decayed + j * kMaxLanes));
        hn::Store(one, d, decayed + j * kMaxLanes);
        sum = hn::MulAdd(hn::Set(d, weights.row(i)[j]), one, sum);
      }
      hn::Store(own, d, decayed + i * kMaxLanes);
      hn::Store(sum, d, out.row(i) + c);
    }
}

// ---- the state ----

namespace {

template <int kRow, int kNumRows, int kVectors>
HWY_INLINE void begin(const float* state, int64_t stride, const float* key_decay, FloatV v0, FloatV v1, FloatV& c0,
                      FloatV& c1) {
  if constexpr (kRow < kNumRows) {
    const FloatTag d;
    const FloatV factor = hn::Set(d, key_decay[kRow]);
    c0 = hn::Mul(hn::Load(d, state + kRow * stride), hn::Mul(factor, v0));
    if constexpr (kVectors == 2) c1 = hn::Mul(hn::Load(d, state + kRow * stride + lanes()), hn::Mul(factor, v1));
  }
}

template <int kRow, int kNumRows, int kVectors>
HWY_INLINE void add_token(const float* key, FloatV v0, FloatV v1, FloatV& c0, FloatV& c1) {
  if constexpr (kRow < kNumRows) {
    const FloatV k = hn::Set(FloatTag(), key[kRow]);
    c0 = hn::MulAdd(k, v0, c0);
    if constexpr (kVectors == 2) c1 = hn::MulAdd(k, v1, c1);
  }
}

/// kNumRows rows of the state times kVectors vectors. Vectors of scalable size cannot stand in arrays: hence the names.
template <int kNumRows, int kVectors>
HWY_INLINE void update_block(const float* from, const ChunkState& s, int64_t row, int64_t column,
                             const float* key_decay, const float* value_decay, const ChunkRows& keys,
                             const ChunkRows& values) {
  const FloatTag d;
  const FloatV one = hn::Set(d, 1.0f);
  const int64_t second = kVectors == 2 ? lanes() : 0;
  const FloatV v0 = value_decay == nullptr ? one : hn::Load(d, value_decay + column);
  const FloatV v1 = value_decay == nullptr ? one : hn::Load(d, value_decay + column + second);
  from += row * s.stride + column;
  float* to = s.data + row * s.stride + column;
  const float* decay = key_decay + row;
  FloatV c00 = one, c01 = one, c10 = one, c11 = one, c20 = one, c21 = one, c30 = one, c31 = one;
  FloatV c40 = one, c41 = one, c50 = one, c51 = one, c60 = one, c61 = one, c70 = one, c71 = one;
  begin<0, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c00, c01);
  begin<1, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c10, c11);
  begin<2, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c20, c21);
  begin<3, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c30, c31);
  begin<4, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c40, c41);
  begin<5, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c50, c51);
  begin<6, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c60, c61);
  begin<7, kNumRows, kVectors>(from, s.stride, decay, v0, v1, c70, c71);
  const float *key = keys.data + row, *value = values.data + column;
  for (int64_t j = 0; j < kChunk; ++j, key += keys.stride, value += values.stride) {
    const FloatV x0 = hn::Load(d, value), x1 = hn::Load(d, value + second);
    add_token<0, kNumRows, kVectors>(key, x0, x1, c00, c01);
    add_token<1, kNumRows, kVectors>(key, x0, x1, c10, c11);
    add_token<2, kNumRows, kVectors>(key, x0, x1, c20, c21);
    add_token<3, kNumRows, kVectors>(key, x0, x1, c30, c31);
    add_token<4, kNumRows, kVectors>(key, x0, x1, c40, c41);
    add_token<5, kNumRows, kVectors>(key, x0, x1, c50, c51);
    add_token<6, kNumRows, kVectors>(key, x0, x1, c60, c61);
    add_token<7, kNumRows, kVectors>(key, x0, x1, c70, c71);
  }
  gemm_detail::finish<0, kNumRows, kVectors, false>(to, s.stride, c00, c01);
  gemm_detail::finish<1, kNumRows, kVectors, false>(to, s.stride, c10, c11);
  gemm_detail::finish<2, kNumRows, kVectors, false>(to, s.stride, c20, c21);
  gemm_detail::finish<3, kNumRows, kVectors, false>(to, s.stride, c30, c31);
  gemm_detail::finish<4, kNumRows, kVectors, false>(to, s.stride, c40, c41);
  gemm_detail::finish<5, kNumRows, kVectors, false>(to, s.stride, c50, c51);
  gemm_detail::finish<6, kNumRows, kVectors, false>(to, s.stride, c60, c61);
  gemm_detail::finish<7, kNumRows, kVectors, false>(to, s.stride, c70, c71);
}

/// All rows of kVectors vectors of columns.
template <int kVectors>
HWY_INLINE void update_columns(const float* from, const ChunkState& s, int64_t column, const float* key_decay,
                               const float* value_decay, const ChunkRows& keys, const ChunkRows& values,
                               FunctionRef<void()> between) {
  constexpr int kRows = gemm_detail::kRows;
  int64_t row = 0;
  for (; row + kRows <= s.keys; row += kRows) {
    between();
    update_block<kRows, kVectors>(from, s, row, column, key_decay, value_decay, keys, values);
  }
  for (; row < s.keys; ++row) update_block<1, kVectors>(from, s, row, column, key_decay, value_decay, keys, values);
}

}  // namespace

void update_state(const float* from, const ChunkState& to, const float* key_decay, const float* value_decay,
                  const ChunkRows& keys, const ChunkRows& values, FunctionRef<void()> between) {
  int64_t column = 0;
  for (; column + lanes() < to.values; column += 2 * lanes())
    update_columns<2>(from, to, column, key_decay, value_decay, keys, values, between);
  if (column < to.values) update_columns<1>(from, to, column, key_decay, value_decay, keys, values, between);
}
void update_state(const float* from, const ChunkState& to, const float* key_decay, const float* value_decay,
                  const ChunkRows& keys, const ChunkRows& values) {
  update_state(from, to, key_decay, value_decay, keys, values, [] {});
}
int64_t update_block_size() { return gemm_detail::kRows * 2 * lanes(); }

template <bool kAdd>
void read_state(const ChunkState& s, const ChunkRows& x, const ChunkRows& out) {
  gemm<Left::kRows, kAdd>(Gemm<float>{.m = kChunk,
                                      .n = s.values,
                                      .k = s.keys,
                                      .a = x.data,
                                      .a_stride = x.stride,
                                      .b = s.data,
                                      .b_stride = s.stride,
                                      .c = out.data,
                                      .c_stride = out.stride});
}

template void read_state<false>(const ChunkState& s, const ChunkRows& x, const ChunkRows& out);
template void read_state<true>(const ChunkState& s, const ChunkRows& x, const ChunkRows& out);

void read_state_across(const ChunkState& s, const ChunkRows& x, float* turned, const ChunkRows& out) {
  float* sums = turned + kChunk * s.stride;
  turn(x.data, x.stride, kChunk, s.values, turned, kChunk);
  gemm<Left::kRows, false>(Gemm<float>{.m = s.keys,
                                       .n = kChunk,
                                       .k = s.values,
                                       .a = s.data,
                                       .a_stride = s.stride,
                                       .b = turned,
                                       .b_stride = kChunk,
                                       .c = sums,
                                       .c_stride = kChunk});
  turn(sums, kChunk, s.keys, kChunk, out.data, out.stride);
  for (int64_t i = 0; i < kChunk; ++i) std::fill(out.row(i) + out.columns, out.row(i) + out.stride, 0.0f);
}

void add_rows(const ChunkRows& from, const ChunkRows& to) {
  const FloatTag d;
  for (int64_t i = 0; i < kChunk; ++i)
    for (int64_t c = 0; c < from.columns; c += lanes())
      hn::Store(hn::Add(hn::Load(d, from.row(i) + c), hn::Load(d, to.row(i) + c)), d, to.row(i) + c);
}

void scale_rows(float factor, const ChunkRows& rows) {
  const FloatTag d;
  const FloatV factors = hn::Set(d, factor);
  for (int64_t n = 0; n < kChunk * rows.stride; n += lanes())
    hn::Store(hn::Mul(factors, hn::Load(d, rows.data + n)), d, rows.data + n);
}

float sum_row(const ChunkRows& rows, int64_t i) {
  const FloatTag d;
  FloatV sum = hn::Zero(d);
  for (int64_t c = 0; c < rows.columns; c += lanes()) sum = hn::Add(sum, hn::Load(d, rows.row(i) + c));
  return hn::ReduceSum(d, sum);
}

// ---- gradients ----

void multiply_tables(const ChunkRows& a, const ChunkRows& b, const ChunkRows& to) {
  const FloatTag d;
  for (int64_t n = 0; n < kChunk * kChunk; n += lanes())
    hn::Store(hn::Mul(hn::Load(d, a.data + n), hn::Load(d, b.data + n)), d, to.data + n);
}

void add_pair_gradients(const ChunkRows& weights, const ChunkRows& x, const ChunkRows& y, const ChunkRows& decay,
                        const ChunkRows& dx, const ChunkRows& dy, const ChunkRows& d_gate) {
  const FloatTag d;
  HWY_ALIGN float between[kChunk * kMaxLanes];  // Λ(j→i) for each j
  for (int64_t c = 0; c < x.columns; c += lanes())
    for (int64_t i = 0; i < kChunk; ++i) {
      const FloatV factor = hn::Load(d, decay.row(i) + c), xi = hn::Load(d, x.row(i) + c);
      FloatV from_earlier = hn::Zero(d);  // what y_0 … y_j give dx_i
      for (int64_t j = 0; j < i; ++j) {
        const FloatV lambda = hn::Mul(factor, hn::Load(d, between + j * kMaxLanes));
        hn::Store(lambda, d, between + j * kMaxLanes);
        const FloatV weight = hn::Mul(lambda, hn::Set(d, weights.row(i)[j]));
        from_earlier = hn::MulAdd(weight, hn::Load(d, y.row(j) + c), from_earlier);
        hn::Store(hn::MulAdd(weight, xi, hn::Load(d, dy.row(j) + c)), d, dy.row(j) + c);
        float* gate = d_gate.row(j + 1) + c;
        hn::Store(hn::MulAdd(xi, from_earlier, hn::Load(d, gate)), d, gate);
      }
      hn::Store(hn::Set(d, 1.0f), d, between + i * kMaxLanes);
      const FloatV own = hn::Set(d, weights.row(i)[i]);
      hn::Store(hn::MulAdd(own, xi, hn::Load(d, dy.row(i) + c)), d, dy.row(i) + c);
      from_earlier = hn::MulAdd(own, hn::Load(d, y.row(i) + c), from_earlier);
      hn::Store(hn::Add(from_earlier, hn::Load(d, dx.row(i) + c)), d, dx.row(i) + c);
    }
}

void add_sums_down(const ChunkRows& weights, const ChunkRows& x, const ChunkRows& out) {
  gemm<Left::kTransposed, true>(product_of_rows(weights, x, out));
}

void add_pair_products(const ChunkRows& a, const ChunkRows& b, float* to) {
  for (int64_t i = 1; i < kChunk; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < i; ++j) {
      sum += a.row(i)[j] * b.row(i)[j];
      to[j + 1] += sum;
    }
  }
}

void find_end_gradients(const float* ends, const ChunkRows& x, const ChunkRows& dx, const ChunkRows& y,
                        const ChunkRows& dy, const ChunkRows& gate) {
  const FloatTag d;
  for (int64_t c = 0; c < x.columns; c += lanes()) {
    FloatV later = hn::Load(d, ends + c), earlier = hn::Zero(d);
    for (int64_t t = kChunk - 1; t >= 0; --t) {
      later = hn::MulAdd(hn::Load(d, x.row(t) + c), hn::Load(d, dx.row(t) + c), later);
      hn::Store(later, d, gate.row(t) + c);
    }
    for (int64_t t = 0; t < kChunk; ++t) {
      hn::Store(hn::Add(earlier, hn::Load(d, gate.row(t) + c)), d, gate.row(t) + c);
      earlier = hn::MulAdd(hn::Load(d, y.row(t) + c), hn::Load(d, dy.row(t) + c), earlier);
    }
  }
}

void sum_state_products(const ChunkState& s, const ChunkState& e, const float* key_decay, const float* value_decay,
                        float* per_key, float* per_value) {
  const FloatTag d;
  if (per_key != nullptr) std::fill(per_key + s.keys, per_key + padded(s.keys), 0.0f);
  if (per_value != nullptr) std::fill_n(per_value, s.stride, 0.0f);
  for (int64_t k = 0; k < s.keys; ++k) {
    FloatV sum = hn::Zero(d);
    const FloatV key_factor = hn::Set(d, key_decay[k]);
    for (int64_t c = 0; c < s.values; c += lanes()) {
      FloatV term = hn::Mul(hn::Load(d, s.data + k * s.stride + c), key_factor);
      if (value_decay != nullptr) term = hn::Mul(term, hn::Load(d, value_decay + c));
      term = hn::Mul(term, hn::Load(d, e.data + k * e.stride + c));
      sum = hn::Add(sum, term);
      if (per_value != nullptr) hn::Store(hn::Add(term, hn::Load(d, per_value + c)), d, per_value + c);
    }
    if (per_key != nullptr) per_key[k] = hn::ReduceSum(d, sum);
  }
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
