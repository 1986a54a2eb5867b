#include "ejkernel/platform/cpu/peak.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/platform/cpu/peak.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Two units with a latency of four or five steps: ten chains in flight keep them busy, and fit 16 registers.
double multiply_add_impl(int64_t rounds) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kChains = 10, kSteps = 64;
  // Each chain converges to b / (1 - a): never a denormal, an infinity or a value known to the compiler.
  volatile float factor = 0.75f, addend = 1.0f;
  const auto a = hn::Set(d, factor), b = hn::Set(d, addend);
  // Ten reads of a volatile, so that the chains may differ for all the compiler knows and none is merged with another.
  auto x0 = hn::Set(d, addend), x1 = hn::Set(d, addend), x2 = hn::Set(d, addend), x3 = hn::Set(d, addend);
  auto x4 = hn::Set(d, addend), x5 = hn::Set(d, addend), x6 = hn::Set(d, addend), x7 = hn::Set(d, addend);
  auto x8 = hn::Set(d, addend), x9 = hn::Set(d, addend);
  for (int64_t i = 0; i < rounds * kSteps; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
  }
  const auto low = hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), high = hn::Add(hn::Add(x4, x5), hn::Add(x6, x7));
  volatile float sink = hn::GetLane(hn::Add(hn::Add(low, high), hn::Add(x8, x9)));
  static_cast<void>(sink);
  return 2.0 * static_cast<double>(rounds * kSteps * kChains) * static_cast<double>(hn::Lanes(d));
}

double bf16_multiply_add_impl(int64_t rounds) {
#if HWY_NATIVE_DOT_BF16
  const hn::ScalableTag<float> d;
  const hn::Repartition<hwy::bfloat16_t, decltype(d)> dbf16;
  const hn::Repartition<uint16_t, decltype(d)> du16;
  constexpr int64_t kChains = 12, kSteps = 64;  // latencies of up to six steps
  volatile uint16_t factor = 0x3F40;            // 0.75
  volatile float start = 1.0f;
  const auto a = hn::BitCast(dbf16, hn::Set(du16, factor)), b = hn::BitCast(dbf16, hn::Set(du16, factor));
  auto x0 = hn::Set(d, start), x1 = hn::Set(d, start), x2 = hn::Set(d, start), x3 = hn::Set(d, start);
  auto x4 = hn::Set(d, start), x5 = hn::Set(d, start), x6 = hn::Set(d, start), x7 = hn::Set(d, start);
  auto x8 = hn::Set(d, start), x9 = hn::Set(d, start), x10 = hn::Set(d, start), x11 = hn::Set(d, start);
  auto unused = hn::Zero(d);  // where the instruction exists, all sums go to the first accumulator
  for (int64_t i = 0; i < rounds * kSteps; ++i) {
    x0 = hn::ReorderWidenMulAccumulate(d, a, b, x0, unused);
    x1 = hn::ReorderWidenMulAccumulate(d, a, b, x1, unused);
    x2 = hn::ReorderWidenMulAccumulate(d, a, b, x2, unused);
    x3 = hn::ReorderWidenMulAccumulate(d, a, b, x3, unused);
    x4 = hn::ReorderWidenMulAccumulate(d, a, b, x4, unused);
    x5 = hn::ReorderWidenMulAccumulate(d, a, b, x5, unused);
    x6 = hn::ReorderWidenMulAccumulate(d, a, b, x6, unused);
    x7 = hn::ReorderWidenMulAccumulate(d, a, b, x7, unused);
    x8 = hn::ReorderWidenMulAccumulate(d, a, b, x8, unused);
    x9 = hn::ReorderWidenMulAccumulate(d, a, b, x9, unused);
    x10 = hn::ReorderWidenMulAccumulate(d, a, b, x10, unused);
    x11 = hn::ReorderWidenMulAccumulate(d, a, b, x11, unused);
  }
  const auto low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  const auto high = hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11));
  volatile float sink = hn::GetLane(hn::Add(hn::Add(low, high), unused));
  static_cast<void>(sink);
  return 4.0 * static_cast<double>(rounds * kSteps * kChains) * static_cast<double>(hn::Lanes(d));
#else
  static_cast<void>(rounds);
  return 0;
#endif
}

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
HWY_EXPORT(bf16_multiply_add_impl);
HWY_EXPORT(read_words_impl);

}  // namespace

double multiply_add(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(multiply_add_impl)(rounds); }

double bf16_multiply_add(int64_t rounds) { return HWY_DYNAMIC_DISPATCH(bf16_multiply_add_impl)(rounds); }

uint32_t read_words(const uint32_t* words, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(read_words_impl)(words, count);
}

}  // namespace ejk::cpu
#endif
