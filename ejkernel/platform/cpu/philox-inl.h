// Philox4x32-10 (core/philox.h) for one counter per lane.
// Included once per instruction set, after simd-inl.h.

#include "ejkernel/core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::cpu::HWY_NAMESPACE {

/// Replaces the counters' words by ten rounds of them: four words of random bits per lane.
HWY_INLINE void philox4x32(WordV& c0, WordV& c1, WordV& c2, WordV& c3, uint32_t key0, uint32_t key1) {
  const WordTag d;
  const WordV multiplier0 = hn::Set(d, 0xD2511F53u), multiplier1 = hn::Set(d, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const WordV high0 = hn::MulHigh(c0, multiplier0), low0 = hn::Mul(c0, multiplier0);
    const WordV high1 = hn::MulHigh(c2, multiplier1), low1 = hn::Mul(c2, multiplier1);
    c0 = hn::Xor3(high1, c1, hn::Set(d, key0));
    c2 = hn::Xor3(high0, c3, hn::Set(d, key1));
    c1 = low1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace ejk::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
