// Products of few query rows with many keys or values that stream by: head_dim lies across SIMD lanes, every vector of
// a key or value is loaded and widened once for up to four rows. The order of each sum depends on head_dim and the
// keys' positions alone, so a row's result does not depend on the other rows. Included once per instruction set, after
// gemm-inl.h and codes-inl.h.

#include <algorithm>
#include <bit>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary
using cpu::Pair;
using cpu::units;

/// The most rows that are computed together: four, with four keys, fill one vector of 16 lanes with their sums; with
/// two keys one of eight, and AVX2's registers.
inline constexpr int kMaxRows = HWY_MAX_LANES_D(FloatTag) >= 8 ? 4 : 1;

/// Sums of neighbouring lanes: those of a, then those of b.
HWY_INLINE FloatV add_neighbours(FloatV a, FloatV b) {
  const FloatTag d;
  return hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a));
}
/// Of four vectors, down to a quarter of the lanes each.
HWY_INLINE FloatV add_neighbours(FloatV a, FloatV b, FloatV c, FloatV e) {
  return add_neighbours(add_neighbours(a, b), add_neighbours(c, e));
}

/// The same sums, in the same order, of each block of four lanes: [a's, b's, c's, e's] of one block after the other.
HWY_INLINE FloatV add_blocks(FloatV a, FloatV b, FloatV c, FloatV e) {
  const FloatTag d;
  const hn::Repartition<double, FloatTag> twos;
  const auto ab = hn::BitCast(twos, hn::Add(hn::InterleaveEven(d, a, b), hn::InterleaveOdd(d, a, b)));
  const auto ce = hn::BitCast(twos, hn::Add(hn::InterleaveEven(d, c, e), hn::InterleaveOdd(d, c, e)));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(twos, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(twos, ab, ce)));
}

/// Codes of type T, each group of them with a scale of its own.
template <class T>
struct Grouped {};

template <class T>
struct StoredAs {
  using Code = T;
  static constexpr bool kGrouped = false;
};
template <class T>
struct StoredAs<Grouped<T>> {
  using Code = T;
  static constexpr bool kGrouped = true;
};

/// Where a row of keys or values lies, and another that will be needed soon.
template <class T>
struct StoredRow {
  using Code = typename StoredAs<T>::Code;
  const std::byte* codes;
  const std::byte* ahead;
  const float* scales;
  int64_t group_shift;
};

/// Rows of keys or values: all at the same distance from where they are listed; and others, which will be needed soon.
/// Of those as much is asked for as is read, no nearer than the second-level cache.
template <class T>
struct ListedRows {
  const std::byte* const* rows;
  int64_t skip = 0;  ///< bytes
  const std::byte* const* ahead = nullptr;
  int64_t ahead_skip = 0;  ///< bytes
  // Of Grouped codes: scales of a row's groups, and the logarithm of how many codes share one.
  const float* scales = nullptr;
  int64_t groups = 0, group_shift = 0;

  HWY_INLINE StoredRow<T> operator[](int64_t n) const {
    return {rows[n] + skip, ahead[n] + ahead_skip, scales + n * groups, group_shift};
  }
  HWY_INLINE ListedRows from(int64_t n) const {
    return {rows + n, skip, ahead + n, ahead_skip, scales + n * groups, groups, group_shift};
  }
};

/// How many numbers a vector of elements E (floats, or pairs of bf16) holds.
template <class E>
HWY_INLINE int64_t numbers() {
  return std::is_same_v<E, Pair> ? 2 * lanes() : lanes();
}
/// Bytes of `count` codes.
template <class T>
HWY_INLINE int64_t stored_bytes(int64_t count) {
  return count * stored_bits<typename StoredAs<T>::Code>() / 8;
}
/// The vector of E that begins with number `at` of a row.
template <class E, class T>
HWY_INLINE auto load_stored(const StoredRow<T>& row, int64_t at) {
  const auto* from = reinterpret_cast<const typename StoredAs<T>::Code*>(row.codes + stored_bytes<T>(at));
  if constexpr (std::is_same_v<E, Pair>)
    return load_pairs(from);
  else if constexpr (StoredAs<T>::kGrouped)
    return hn::Mul(load_floats(from), hn::Set(FloatTag(), row.scales[at >> row.group_shift]));
  else
    return load_floats(from);
}
/// Whether number `at` begins another 64 bytes of a row, for which memory is asked once.
template <class T>
HWY_INLINE bool begins_line(int64_t at) {
  return stored_bytes<T>(at) % 64 == 0;
}
template <class T>
HWY_INLINE void ask_for(const StoredRow<T>& row, int64_t at) {
  prefetch_far(row.ahead + stored_bytes<T>(at));
}

/// Two vectors of pairs from number `at` on, each of a number of `even` and one of `odd`.
template <class T>
HWY_INLINE void load_side_by_side(const StoredRow<T>& even, const StoredRow<T>& odd, int64_t at, WordV& low,
                                  WordV& high) {
  const WordTag d;
  const hn::Repartition<uint16_t, WordTag> halves;
  if (begins_line<T>(at)) ask_for(even, at), ask_for(odd, at);
  const auto x = hn::BitCast(halves, load_stored<Pair>(even, at));
  const auto y = hn::BitCast(halves, load_stored<Pair>(odd, at));
  low = hn::BitCast(d, hn::InterleaveWholeLower(halves, x, y));
  high = hn::BitCast(d, hn::InterleaveWholeUpper(halves, x, y));
}

/// scores[row * stride + key] = sum over d of keys[key][d] * q[row][d], for four keys and kRows rows.
template <int kRows, class E, class T>
HWY_INLINE void multiply_four_keys(const ListedRows<T> keys, int64_t dims, const E* q, int64_t q_stride, float* scores,
                                   int64_t stride) {
  using cpu::HWY_NAMESPACE::gemm_detail::multiply_add;
  const FloatTag d;
  FloatV c00 = hn::Zero(d), c01 = c00, c02 = c00, c03 = c00, c10 = c00, c11 = c00, c12 = c00, c13 = c00;
  FloatV c20 = c00, c21 = c00, c22 = c00, c23 = c00, c30 = c00, c31 = c00, c32 = c00, c33 = c00;
  const E *q1 = q + q_stride, *q2 = q1 + q_stride, *q3 = q2 + q_stride;
  const auto key0 = keys[0], key1 = keys[1], key2 = keys[2], key3 = keys[3];
  for (int64_t at = 0; at < dims; at += numbers<E>()) {
    if (begins_line<T>(at)) ask_for(key0, at), ask_for(key1, at), ask_for(key2, at), ask_for(key3, at);
    const auto k0 = load_stored<E>(key0, at), k1 = load_stored<E>(key1, at);
    const auto k2 = load_stored<E>(key2, at), k3 = load_stored<E>(key3, at);
    const auto row = [&](const E* of, FloatV& s0, FloatV& s1, FloatV& s2, FloatV& s3) HWY_ATTR {
      const auto x = cpu::HWY_NAMESPACE::gemm_detail::load(of + units<E>(at));
      s0 = multiply_add(k0, x, s0), s1 = multiply_add(k1, x, s1);
      s2 = multiply_add(k2, x, s2), s3 = multiply_add(k3, x, s3);
    };
    row(q, c00, c01, c02, c03);
    if constexpr (kRows >= 2) row(q1, c10, c11, c12, c13);
    if constexpr (kRows >= 3) row(q2, c20, c21, c22, c23);
    if constexpr (kRows == 4) row(q3, c30, c31, c32, c33);
  }
  FloatV sums = add_neighbours(c00, c01, c02, c03);
  if constexpr (kRows >= 2) sums = add_neighbours(sums, add_neighbours(c10, c11, c12, c13));
  if constexpr (kRows >= 3)
    sums = add_neighbours(sums, add_neighbours(add_neighbours(c20, c21, c22, c23), add_neighbours(c30, c31, c32, c33)));
  for (int64_t n = lanes() / (4 * (kRows == 3 ? 4 : kRows)); n > 1; n /= 2) sums = add_neighbours(sums, sums);
  alignas(64) float each[cpu::kMaxLanes];
  hn::Store(sums, d, each);
  for (int64_t r = 0; r < kRows; ++r) std::copy_n(each + 4 * r, 4, scores + r * stride);
}

/// The same for two keys and four rows; each sum has the order that multiply_four_keys gives it.
template <class E, class T>
HWY_INLINE void multiply_two_keys(const ListedRows<T> keys, int64_t dims, const E* q, int64_t q_stride, float* scores,
                                  int64_t stride) {
  using cpu::HWY_NAMESPACE::gemm_detail::multiply_add;
  const FloatTag d;
  FloatV c00 = hn::Zero(d), c01 = c00, c10 = c00, c11 = c00, c20 = c00, c21 = c00, c30 = c00, c31 = c00;
  const E *q1 = q + q_stride, *q2 = q1 + q_stride, *q3 = q2 + q_stride;
  const auto key0 = keys[0], key1 = keys[1];
  for (int64_t at = 0; at < dims; at += numbers<E>()) {
    if (begins_line<T>(at)) ask_for(key0, at), ask_for(key1, at);
    const auto k0 = load_stored<E>(key0, at), k1 = load_stored<E>(key1, at);
    const auto row = [&](const E* of, FloatV& s0, FloatV& s1) HWY_ATTR {
      const auto x = cpu::HWY_NAMESPACE::gemm_detail::load(of + units<E>(at));
      s0 = multiply_add(k0, x, s0), s1 = multiply_add(k1, x, s1);
    };
    row(q, c00, c01), row(q1, c10, c11), row(q2, c20, c21), row(q3, c30, c31);
  }
  const FloatV low = add_blocks(c00, c01, c10, c11), high = add_blocks(c20, c21, c30, c31);
  const FloatV sums = hn::Add(hn::ConcatLowerLower(d, high, low), hn::ConcatUpperUpper(d, high, low));
  alignas(64) float each[cpu::kMaxLanes];
  hn::Store(sums, d, each);
  for (int64_t r = 0; r < 4; ++r) std::copy_n(each + 2 * r, 2, scores + r * stride);
}

// The step of add_weighted: four vectors of sums take one key, or two as pairs. kVectors is 1 (floats alone), 2 or 4.

template <int kVectors, class T>
HWY_INLINE void load_step(const ListedRows<T> values, int64_t j, int64_t at, FloatV& v0, FloatV& v1, FloatV& v2,
                          FloatV& v3) {
  const auto value = values[j];
  if (begins_line<T>(at)) ask_for(value, at);
  if (kVectors == 4 && begins_line<T>(at + 2 * lanes())) ask_for(value, at + 2 * lanes());
  v0 = load_stored<float>(value, at);
  if constexpr (kVectors >= 2) v1 = load_stored<float>(value, at + lanes());
  if constexpr (kVectors == 4)
    v2 = load_stored<float>(value, at + 2 * lanes()), v3 = load_stored<float>(value, at + 3 * lanes());
}
template <int kVectors, class T>
HWY_INLINE void load_step(const ListedRows<T> values, int64_t j, int64_t at, WordV& v0, WordV& v1, WordV& v2,
                          WordV& v3) {
  const auto even = values[2 * j], odd = values[2 * j + 1];
  load_side_by_side(even, odd, at, v0, v1);
  if constexpr (kVectors == 4) load_side_by_side(even, odd, at + 2 * lanes(), v2, v3);
}

// The four vectors of sums of one row, of which kVectors are in use.

template <int kVectors>
HWY_INLINE void load_sums(const float* from, FloatV& s0, FloatV& s1, FloatV& s2, FloatV& s3) {
  const FloatTag d;
  s0 = hn::Load(d, from);
  if constexpr (kVectors >= 2) s1 = hn::Load(d, from + lanes());
  if constexpr (kVectors == 4) s2 = hn::Load(d, from + 2 * lanes()), s3 = hn::Load(d, from + 3 * lanes());
}
template <int kVectors>
HWY_INLINE void store_sums(FloatV s0, FloatV s1, FloatV s2, FloatV s3, float* to) {
  const FloatTag d;
  hn::Store(s0, d, to);
  if constexpr (kVectors >= 2) hn::Store(s1, d, to + lanes());
  if constexpr (kVectors == 4) hn::Store(s2, d, to + 2 * lanes()), hn::Store(s3, d, to + 3 * lanes());
}
template <int kVectors, class V>
HWY_INLINE void add_step(V weight, V v0, V v1, V v2, V v3, FloatV& s0, FloatV& s1, FloatV& s2, FloatV& s3) {
  using cpu::HWY_NAMESPACE::gemm_detail::multiply_add;
  s0 = multiply_add(weight, v0, s0);
  if constexpr (kVectors >= 2) s1 = multiply_add(weight, v1, s1);
  if constexpr (kVectors == 4) s2 = multiply_add(weight, v2, s2), s3 = multiply_add(weight, v3, s3);
}

/// sums[row][at …] += sum over keys of weights[row * stride + key] * values[key][at …], kVectors vectors of it; with
/// pairs, weights of two keys each.
template <int kRows, int kVectors, class E, class T>
HWY_INLINE void add_weighted(const ListedRows<T> values, int64_t count, int64_t at, const E* weights, int64_t stride,
                             float* sums, int64_t sum_stride) {
  using cpu::HWY_NAMESPACE::gemm_detail::broadcast;
  const FloatV zero = hn::Zero(FloatTag());
  FloatV c00 = zero, c01 = zero, c02 = zero, c03 = zero, c10 = zero, c11 = zero, c12 = zero, c13 = zero;
  FloatV c20 = zero, c21 = zero, c22 = zero, c23 = zero, c30 = zero, c31 = zero, c32 = zero, c33 = zero;
  float* to = sums + at;
  load_sums<kVectors>(to, c00, c01, c02, c03);
  if constexpr (kRows >= 2) load_sums<kVectors>(to + sum_stride, c10, c11, c12, c13);
  if constexpr (kRows >= 3) load_sums<kVectors>(to + 2 * sum_stride, c20, c21, c22, c23);
  if constexpr (kRows == 4) load_sums<kVectors>(to + 3 * sum_stride, c30, c31, c32, c33);
  for (int64_t j = 0; j < units<E>(count); ++j) {
    decltype(broadcast(weights)) v0, v1, v2, v3;
    load_step<kVectors>(values, j, at, v0, v1, v2, v3);
    const E* weight = weights + j;
    add_step<kVectors>(broadcast(weight), v0, v1, v2, v3, c00, c01, c02, c03);
    if constexpr (kRows >= 2) add_step<kVectors>(broadcast(weight + stride), v0, v1, v2, v3, c10, c11, c12, c13);
    if constexpr (kRows >= 3) add_step<kVectors>(broadcast(weight + 2 * stride), v0, v1, v2, v3, c20, c21, c22, c23);
    if constexpr (kRows == 4) add_step<kVectors>(broadcast(weight + 3 * stride), v0, v1, v2, v3, c30, c31, c32, c33);
  }
  store_sums<kVectors>(c00, c01, c02, c03, to);
  if constexpr (kRows >= 2) store_sums<kVectors>(c10, c11, c12, c13, to + sum_stride);
  if constexpr (kRows >= 3) store_sums<kVectors>(c20, c21, c22, c23, to + 2 * sum_stride);
  if constexpr (kRows == 4) store_sums<kVectors>(c30, c31, c32, c33, to + 3 * sum_stride);
}

/// Calls f.operator()<kRows>(first row) for groups of 4, 3, 2 and 1 rows; of three with 16 lanes alone, since twelve
/// sums and four keys leave AVX2 no register for a query.
template <class F>
HWY_INLINE void for_each_row_group(int64_t rows, F f) {
  int64_t r = 0;
  if constexpr (kMaxRows == 4) {
    for (; lanes() >= 8 && r + 4 <= rows; r += 4) f.template operator()<4>(r);
    if constexpr (HWY_MAX_LANES_D(FloatTag) >= 16)
      for (; lanes() >= 16 && r + 3 <= rows; r += 3) f.template operator()<3>(r);
    for (; lanes() >= 8 && r + 2 <= rows; r += 2) f.template operator()<2>(r);
  }
  for (; r < rows; ++r) f.template operator()<1>(r);
}

/// scores[row * stride + key] of `rows` rows and `count` keys, a multiple of 4. `dims` is whole vectors of E.
template <class E, class T>
HWY_INLINE void multiply_keys(const ListedRows<T> keys, int64_t count, int64_t dims, const E* q, int64_t q_stride,
                              int64_t rows, float* scores, int64_t stride) {
  for_each_row_group(rows, [&]<int kRows>(int64_t r) HWY_ATTR {
    const E* x = q + r * q_stride;
    float* to = scores + r * stride;
    if (kRows < 4 || lanes() >= 16)
      for (int64_t j = 0; j < count; j += 4) multiply_four_keys<kRows>(keys.from(j), dims, x, q_stride, to + j, stride);
    else
      for (int64_t j = 0; j < count; j += 2) multiply_two_keys(keys.from(j), dims, x, q_stride, to + j, stride);
  });
}

/// sums[row] += weights[row] * values, for `rows` rows and `count` values of `dims` numbers: whole vectors of E. Of an
/// odd number of values, pairs take one more, with a weight of 0.
template <class E, class T>
HWY_INLINE void add_values(const ListedRows<T> values, int64_t count, int64_t dims, const E* weights, int64_t stride,
                           int64_t rows, float* sums, int64_t sum_stride) {
  constexpr int kLeast = std::is_same_v<E, Pair> ? 2 : 1;
  for_each_row_group(rows, [&]<int kRows>(int64_t r) HWY_ATTR {
    const E* weight = weights + r * stride;
    float* sum = sums + r * sum_stride;
    int64_t at = 0;
    if (kRows < 4 || lanes() >= 16)
      for (; at + 4 * lanes() <= dims; at += 4 * lanes())
        add_weighted<kRows, 4>(values, count, at, weight, stride, sum, sum_stride);
    for (; at + 2 * lanes() <= dims; at += 2 * lanes())
      add_weighted<kRows, 2>(values, count, at, weight, stride, sum, sum_stride);
    for (; at < dims; at += kLeast * lanes())
      add_weighted<kRows, kLeast>(values, count, at, weight, stride, sum, sum_stride);
  });
}

// ---- for a matrix unit ----

/// Keys of `dims` numbers, whole vectors of pairs, as rows of pairs: a left factor.
template <class T>
HWY_INLINE void pack_keys(const ListedRows<T> keys, int64_t count, int64_t dims, Pair* to) {
  const WordTag d;
  for (int64_t j = 0; j < count; ++j) {
    const auto key = keys[j];
    for (int64_t at = 0; at < dims; at += 2 * lanes(), to += lanes()) {
      if (begins_line<T>(at)) ask_for(key, at);
      hn::Store(load_stored<Pair>(key, at), d, &to->bits);
    }
  }
}

/// Values, an even number of them, two side by side: a right factor.
template <class T>
HWY_INLINE void pack_values(const ListedRows<T> values, int64_t count, int64_t dims, Pair* to) {
  const WordTag d;
  for (int64_t j = 0; j < count; j += 2) {
    const auto even = values[j], odd = values[j + 1];
    for (int64_t at = 0; at < dims; at += 2 * lanes(), to += 2 * lanes()) {
      WordV low, high;
      load_side_by_side(even, odd, at, low, high);
      hn::Store(low, d, &to->bits);
      hn::Store(high, d, &(to + lanes())->bits);
    }
  }
}

/// The first `rows` columns of products, [count][columns], as rows: 4 by 4, so columns and count are multiples of 4.
HWY_INLINE void transpose_columns(const float* from, int64_t columns, int64_t count, int64_t rows, float* to,
                                  int64_t stride) {
  const hn::CappedTag<float, 4> d;
  for (int64_t r = 0; r < rows; r += 4)
    for (int64_t j = 0; j < count; j += 4) {
      const float* block = from + j * columns + r;
      float* row = to + r * stride + j;
      const auto k0 = hn::LoadU(d, block), k1 = hn::LoadU(d, block + columns);
      const auto k2 = hn::LoadU(d, block + 2 * columns), k3 = hn::LoadU(d, block + 3 * columns);
      const auto even01 = hn::InterleaveLower(d, k0, k2), even23 = hn::InterleaveUpper(d, k0, k2);
      const auto odd01 = hn::InterleaveLower(d, k1, k3), odd23 = hn::InterleaveUpper(d, k1, k3);
      hn::StoreU(hn::InterleaveLower(d, even01, odd01), d, row);
      if (r + 1 < rows) hn::StoreU(hn::InterleaveUpper(d, even01, odd01), d, row + stride);
      if (r + 2 < rows) hn::StoreU(hn::InterleaveLower(d, even23, odd23), d, row + 2 * stride);
      if (r + 3 < rows) hn::StoreU(hn::InterleaveUpper(d, even23, odd23), d, row + 3 * stride);
    }
}

// ---- any dtype ----
//
// The loops above are inlined here: a second call per row of places would cost some per cent of decode.

/// ListedRows of some heads, whose dtype is known at run time.
struct StoredRows {
  DType dtype;
  const std::byte* const* rows;
  int64_t skip;                   ///< bytes
  const std::byte* const* ahead;  ///< what to ask memory for meanwhile
  int64_t ahead_skip;
  int64_t heads = 1, head_bytes = 0;  ///< from a head's rows to the next one's
  const float* scales = nullptr;      ///< of groups of codes; null: none
  int64_t groups = 0, group = 1;      ///< and how many codes share one

  template <class T>
  ListedRows<T> of_head(int64_t n) const {
    const int64_t bytes = n * head_bytes;
    return {
        rows, skip + bytes, ahead, ahead_skip + bytes, scales, groups, std::countr_zero(static_cast<uint64_t>(group))};
  }
};

/// Calls f.operator()<T>() for the rows' type; pairs are of types that are exact in bf16, and have no groups.
template <class E, class F>
void with_type(const StoredRows& rows, F f) {
  constexpr bool kPairs = std::is_same_v<E, Pair>;
  const auto code = [&]<class T>() {
    if constexpr (!kPairs)
      if (rows.scales != nullptr) return f.template operator()<Grouped<T>>();
    return f.template operator()<T>();
  };
  switch (rows.dtype) {
    case DType::bf16:
      return f.template operator()<bf16_t>();
    case DType::i8:
      return code.template operator()<int8_t>();
    case DType::e4m3:
      return code.template operator()<e4m3_t>();
    case DType::e5m2:
      return code.template operator()<e5m2_t>();
    case DType::i4:
      return code.template operator()<Nibbles>();
    default:
      if constexpr (!kPairs)
        return rows.dtype == DType::f16 ? f.template operator()<f16_t>() : f.template operator()<float>();
  }
}

/// Of each head: `rows` rows of q, and of scores, follow those of the head before.
template <class E>
void multiply_keys(const StoredRows& keys, int64_t count, int64_t dims, const E* q, int64_t q_stride, int64_t rows,
                   float* scores, int64_t stride) {
  with_type<E>(keys, [&]<class T>() HWY_ATTR {
    for (int64_t n = 0; n < keys.heads; ++n)
      multiply_keys(keys.of_head<T>(n), count, dims, q + n * rows * q_stride, q_stride, rows,
                    scores + n * rows * stride, stride);
  });
}

/// Of each head: `rows` rows of weights, and of sums, follow those of the head before.
template <class E>
void add_values(const StoredRows& values, int64_t count, int64_t dims, const E* weights, int64_t stride, int64_t rows,
                float* sums, int64_t sum_stride) {
  with_type<E>(values, [&]<class T>() HWY_ATTR {
    for (int64_t n = 0; n < values.heads; ++n)
      add_values(values.of_head<T>(n), count, dims, weights + n * rows * stride, stride, rows,
                 sums + n * rows * sum_stride, sum_stride);
  });
}

// So many loops take a compiler long: they are compiled apart from what calls them and from each other, in
// paged_stream_{float,pair}_{keys,values}_cpu.cpp.
extern template void multiply_keys(const StoredRows& keys, int64_t count, int64_t dims, const float* q,
                                   int64_t q_stride, int64_t rows, float* scores, int64_t stride);
extern template void multiply_keys(const StoredRows& keys, int64_t count, int64_t dims, const Pair* q, int64_t q_stride,
                                   int64_t rows, float* scores, int64_t stride);
extern template void add_values(const StoredRows& values, int64_t count, int64_t dims, const float* weights,
                                int64_t stride, int64_t rows, float* sums, int64_t sum_stride);
extern template void add_values(const StoredRows& values, int64_t count, int64_t dims, const Pair* weights,
                                int64_t stride, int64_t rows, float* sums, int64_t sum_stride);

// In paged_stream_packed_cpu.cpp: of one of the heads.
void pack_keys(const StoredRows& keys, int64_t head, int64_t count, int64_t dims, Pair* to);
void pack_values(const StoredRows& values, int64_t head, int64_t count, int64_t dims, Pair* to);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
