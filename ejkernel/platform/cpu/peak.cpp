#include "ejkernel/platform/cpu/peak.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/peak.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// `step` advances one chain: what it returns is the chain's next x. Two units with a latency of up to six steps:
/// twelve chains in flight keep them busy, and with two factors fit 16 registers. Chains start from reads of a
/// volatile, so that they may differ for all the compiler knows and none is merged with another. Returns the number of
/// steps. What a step needs it has by reference: vectors of SVE have no size to be copied by.
template <class D, class Step>
HWY_INLINE double run_chains(D d, hn::TFromD<D> start, int64_t rounds, Step step) {
  constexpr int64_t kChains = 12, kSteps = 64;
  volatile hn::TFromD<D> first = start;
  auto x0 = hn::Set(d, first), x1 = hn::Set(d, first), x2 = hn::Set(d, first), x3 = hn::Set(d, first);
  auto x4 = hn::Set(d, first), x5 = hn::Set(d, first), x6 = hn::Set(d, first), x7 = hn::Set(d, first);
  auto x8 = hn::Set(d, first), x9 = hn::Set(d, first), x10 = hn::Set(d, first), x11 = hn::Set(d, first);
  for (int64_t i = 0; i < rounds * kSteps; ++i) {
    x0 = step(x0);
    x1 = step(x1);
    x2 = step(x2);
    x3 = step(x3);
    x4 = step(x4);
    x5 = step(x5);
    x6 = step(x6);
    x7 = step(x7);
    x8 = step(x8);
    x9 = step(x9);
    x10 = step(x10);
    x11 = step(x11);
  }
  const auto low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  const auto high = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  volatile hn::TFromD<D> sink = hn::GetLane(hn::Add(low, high));
  static_cast<void>(sink);
  return static_cast<double>(rounds * kSteps * kChains);
}

template <class T>
HWY_INLINE double run_multiply_adds(int64_t rounds) {
  const hn::ScalableTag<T> d;
  // Each chain converges to b / (1 - a): never a denormal, an infinity or a value known to the compiler.
  volatile T factor = T(0.75), addend = 1;
  const auto a = hn::Set(d, factor), b = hn::Set(d, addend);
  const double steps = run_chains(d, 1, rounds, [&](auto x) HWY_ATTR { return hn::MulAdd(x, a, b); });
  return 2 * steps * static_cast<double>(hn::Lanes(d));
}

double multiply_add_impl(int64_t rounds) { return run_multiply_adds<float>(rounds); }

double f64_multiply_add_impl([[maybe_unused]] int64_t rounds) {
#if HWY_HAVE_FLOAT64
  return run_multiply_adds<double>(rounds);
#else
  return 0;
#endif
}

double bf16_multiply_add_impl([[maybe_unused]] int64_t rounds) {
#if HWY_NATIVE_DOT_BF16
  const hn::ScalableTag<float> d;
  const hn::Repartition<hwy::bfloat16_t, decltype(d)> dbf16;
  const hn::Repartition<uint16_t, decltype(d)> du16;
  volatile uint16_t factor = 0x3F40;  // 0.75
  const auto a = hn::BitCast(dbf16, hn::Set(du16, factor)), b = hn::BitCast(dbf16, hn::Set(du16, factor));
  const double steps = run_chains(d, 1, rounds, [&](auto x) HWY_ATTR {
    auto unused = hn::Zero(d);  // where the instruction exists, all sums go to the first accumulator
    return hn::ReorderWidenMulAccumulate(d, a, b, x, unused);
  });
  return 4 * steps * static_cast<double>(hn::Lanes(d));
#else
  return 0;
#endif
}

// Elsewhere Highway makes the products of four from several instructions.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL) || HWY_TARGET == HWY_NEON_BF16 || HWY_TARGET_IS_SVE
#define EJK_NATIVE_DOT_I8 1
#else
#define EJK_NATIVE_DOT_I8 0
#endif

double i8_multiply_add_impl([[maybe_unused]] int64_t rounds) {
#if EJK_NATIVE_DOT_I8
  const hn::ScalableTag<int32_t> d;
  // x86 has the instruction for unsigned numbers by signed ones, Arm for two of a kind.
  using Left = std::conditional_t<HWY_ARCH_X86 != 0, uint8_t, int8_t>;
  volatile int8_t factor = 3;
  const auto a = hn::Set(hn::Repartition<Left, decltype(d)>(), static_cast<Left>(factor));
  const auto b = hn::Set(hn::Repartition<int8_t, decltype(d)>(), factor);
  const double steps =
      run_chains(d, 1, rounds, [&](auto x) HWY_ATTR { return hn::SumOfMulQuadAccumulate(d, a, b, x); });
  return 8 * steps * static_cast<double>(hn::Lanes(d));
#else
  return 0;
#endif
}
#undef EJK_NATIVE_DOT_I8

uint32_t read_words_impl(const uint32_t* words, int64_t count) {
  constexpr int64_t kAhead = 2048, kLine = 16;  // in words
  const hn::ScalableTag<uint32_t> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto x0 = hn::Zero(d), x1 = x0, x2 = x0, x3 = x0;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    // By themselves processors do not look beyond a page.
    for (int64_t line = 0; line < 4 * lanes; line += kLine)
      __builtin_prefetch(words + std::min(i + line + kAhead, count - 1));
    x0 = hn::Xor(x0, hn::LoadU(d, words + i));
    x1 = hn::Xor(x1, hn::LoadU(d, words + i + lanes));
    x2 = hn::Xor(x2, hn::LoadU(d, words + i + 2 * lanes));
    x3 = hn::Xor(x3, hn::LoadU(d, words + i + 3 * lanes));
  }
  HWY_ALIGN uint32_t last[hn::MaxLanes(d)];
  hn::Store(hn::Xor(hn::Xor(x0, x1), hn::Xor(x2, x3)), d, last);
  uint32_t mixed = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) mixed ^= last[lane];
  for (; i < count; ++i) mixed ^= words[i];
  return mixed;
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::cpu {
namespace {

HWY_EXPORT(multiply_add_impl);
HWY_EXPORT(f64_multiply_add_impl);
HWY_EXPORT(bf16_multiply_add_impl);
HWY_EXPORT(i8_multiply_add_impl);
HWY_EXPORT(read_words_impl);

}  // namespace

double multiply_add(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(multiply_add_impl)(rounds); }

double f64_multiply_add(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(f64_multiply_add_impl)(rounds); }

double bf16_multiply_add(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(bf16_multiply_add_impl)(rounds); }

double i8_multiply_add(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(i8_multiply_add_impl)(rounds); }

uint32_t read_words(const uint32_t* words, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(read_words_impl)(words, count);
}

}  // namespace ejk::cpu
#endif
