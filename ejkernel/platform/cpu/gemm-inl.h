// Small matrix products of tiles that lie in cache (gemm.h): the arithmetic of attention kernels. By vectors, or, where
// a kernel hands one on, by the processor's matrix unit. Included once per instruction set, after simd-inl.h.

#include <type_traits>

#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

/// Where element (m, k) of the left factor is: a[m * stride + k], or a[k * stride + m] for a transposed one.
enum class Left { kRows, kTransposed };

namespace gemm_detail {

/// Rows of c that are summed in registers at once, times two vectors. AVX2 and SSE have 16 registers, the others 32.
inline constexpr int kRows = (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3) ? 4 : 8;

HWY_INLINE FloatV broadcast(const float* x) { return hn::Set(FloatTag(), *x); }
HWY_INLINE WordV broadcast(const Pair* x) { return hn::Set(WordTag(), x->bits); }

HWY_INLINE FloatV load(const float* x) { return hn::Load(FloatTag(), x); }
HWY_INLINE WordV load(const Pair* x) { return hn::Load(WordTag(), &x->bits); }

HWY_INLINE FloatV multiply_add(FloatV x, FloatV y, FloatV sum) { return hn::MulAdd(x, y, sum); }

/// sum + x.low * y.low + x.high * y.high
HWY_INLINE FloatV multiply_add(WordV x, WordV y, FloatV sum) {
  const FloatTag d;
#if HWY_NATIVE_DOT_BF16
  const hn::Repartition<hwy::bfloat16_t, FloatTag> pairs;
  FloatV unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(pairs, x), hn::BitCast(pairs, y), sum, unused);
#else
  const WordTag dw;
  const auto low = [&](WordV pair) HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<16>(pair)); };
  const auto high = [&](WordV pair) HWY_ATTR { return hn::BitCast(d, hn::And(pair, hn::Set(dw, 0xffff0000u))); };
  return hn::MulAdd(high(x), high(y), hn::MulAdd(low(x), low(y), sum));
#endif
}

template <Left kLeft, int kRow, int kNumRows, int kVectors, class E, class V>
HWY_INLINE void multiply(const E* a, int64_t a_stride, V b0, V b1, FloatV& c0, FloatV& c1) {
  if constexpr (kRow < kNumRows) {
    const V x = broadcast(kLeft == Left::kRows ? a + kRow * a_stride : a + kRow);
    c0 = multiply_add(x, b0, c0);
    if constexpr (kVectors == 2) c1 = multiply_add(x, b1, c1);
  }
}

template <int kRow, int kNumRows, int kVectors, bool kAdd>
HWY_INLINE void finish(float* c, int64_t stride, FloatV c0, FloatV c1) {
  if constexpr (kRow < kNumRows) {
    const FloatTag d;
    float* row = c + kRow * stride;
    hn::Store(kAdd ? hn::Add(hn::Load(d, row), c0) : c0, d, row);
    if constexpr (kVectors == 2) {
      row += hn::Lanes(d);
      hn::Store(kAdd ? hn::Add(hn::Load(d, row), c1) : c1, d, row);
    }
  }
}

/// kNumRows rows x kVectors vectors of c. Vectors of scalable size cannot stand in arrays: hence the sixteen names.
template <Left kLeft, int kNumRows, int kVectors, bool kAdd, class E>
HWY_INLINE void block(const Gemm<E>& g, const E* a, const E* b, float* c) {
  const FloatTag d;
  FloatV c00 = hn::Zero(d), c01 = c00, c10 = c00, c11 = c00, c20 = c00, c21 = c00, c30 = c00, c31 = c00;
  FloatV c40 = c00, c41 = c00, c50 = c00, c51 = c00, c60 = c00, c61 = c00, c70 = c00, c71 = c00;
  const int64_t stride = g.a_stride, a_step = kLeft == Left::kRows ? 1 : stride;
  for (int64_t k = 0; k < g.k; ++k, a += a_step, b += g.b_stride) {
    const auto b0 = load(b);
    const auto b1 = kVectors == 2 ? load(b + hn::Lanes(d)) : b0;
    multiply<kLeft, 0, kNumRows, kVectors>(a, stride, b0, b1, c00, c01);
    multiply<kLeft, 1, kNumRows, kVectors>(a, stride, b0, b1, c10, c11);
    multiply<kLeft, 2, kNumRows, kVectors>(a, stride, b0, b1, c20, c21);
    multiply<kLeft, 3, kNumRows, kVectors>(a, stride, b0, b1, c30, c31);
    multiply<kLeft, 4, kNumRows, kVectors>(a, stride, b0, b1, c40, c41);
    multiply<kLeft, 5, kNumRows, kVectors>(a, stride, b0, b1, c50, c51);
    multiply<kLeft, 6, kNumRows, kVectors>(a, stride, b0, b1, c60, c61);
    multiply<kLeft, 7, kNumRows, kVectors>(a, stride, b0, b1, c70, c71);
  }
  finish<0, kNumRows, kVectors, kAdd>(c, g.c_stride, c00, c01);
  finish<1, kNumRows, kVectors, kAdd>(c, g.c_stride, c10, c11);
  finish<2, kNumRows, kVectors, kAdd>(c, g.c_stride, c20, c21);
  finish<3, kNumRows, kVectors, kAdd>(c, g.c_stride, c30, c31);
  finish<4, kNumRows, kVectors, kAdd>(c, g.c_stride, c40, c41);
  finish<5, kNumRows, kVectors, kAdd>(c, g.c_stride, c50, c51);
  finish<6, kNumRows, kVectors, kAdd>(c, g.c_stride, c60, c61);
  finish<7, kNumRows, kVectors, kAdd>(c, g.c_stride, c70, c71);
}

/// All rows of one column of blocks, the last ones in smaller blocks.
template <Left kLeft, int kVectors, bool kAdd, class E>
HWY_INLINE void column(const Gemm<E>& g, int64_t n) {
  const E* b = g.b + n;
  int64_t m = 0;
  const auto rows = [&]<int kNumRows>() HWY_ATTR {
    block<kLeft, kNumRows, kVectors, kAdd>(g, g.a + (kLeft == Left::kRows ? m * g.a_stride : m), b,
                                           g.c + m * g.c_stride + n);
    m += kNumRows;
  };
  while (m + kRows <= g.m) rows.template operator()<kRows>();
  if (kRows > 4 && m + 4 <= g.m) rows.template operator()<4>();
  if (m + 2 <= g.m) rows.template operator()<2>();
  if (m < g.m) rows.template operator()<1>();
}

}  // namespace gemm_detail

/// c = a * b, or c += a * b. The order of each sum depends on nothing but k. b and c are aligned to a vector.
template <Left kLeft, bool kAdd, class E>
HWY_NOINLINE void gemm(const Gemm<E>& g) {
  int64_t n = 0;
  for (; n + lanes() < g.n; n += 2 * lanes()) gemm_detail::column<kLeft, 2, kAdd>(g, n);
  if (n < g.n) gemm_detail::column<kLeft, 1, kAdd>(g, n);
}

/// The same, on the matrix unit where there is one to use: it takes pairs, and rows as the left factor.
template <Left kLeft, bool kAdd, class E>
HWY_INLINE void gemm(const MatrixUnit* unit, const Gemm<E>& g) {
  if constexpr (std::is_same_v<E, Pair> && kLeft == Left::kRows)
    if (unit != nullptr) return unit->multiply(g, kAdd);
  gemm<kLeft, kAdd>(g);
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
