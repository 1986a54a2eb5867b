// Softmax of decode, for paged_softmax-inl.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/page_attention/paged_softmax_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/split-inl.h"
#include "ejkernel/platform/cpu/stored-inl.h"
// After those:
#include "ejkernel/platform/cpu/codes-inl.h"
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
#include "ejkernel/ops/page_attention/paged_stream-inl.h"
// And last:
#include "ejkernel/ops/page_attention/paged_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
/// How far a logit may lie above the shift before the shift follows: weights stay below 2^8.
constexpr float kSlack = 8 / kLog2E;

void move_shift(const RowPart& row, int64_t value_dim, float largest) {
  if (largest <= *row.shift + kSlack) return;
  const float decay = *row.sum == 0 ? 0 : static_cast<float>(std::exp(static_cast<double>(*row.shift) - largest));
  *row.shift = largest;
  *row.sum *= decay;
  const FloatTag d;
  for (int64_t i = 0; i < value_dim; i += lanes())
    hn::Store(hn::Mul(hn::Load(d, row.values + i), hn::Set(d, decay)), d, row.values + i);
}

/// Which of lanes() places from j on hold keys that a row sees.
HWY_INLINE FloatMask seen_at(const Places& places, const SeenKeys& seen, int64_t j) {
  const IntTag di;
  const auto set = [](int64_t x) HWY_ATTR { return hn::Set(IntTag(), static_cast<int32_t>(x)); };
  const auto key = hn::Load(di, places.key_at + j);
  const auto in_range = hn::And(hn::Ge(key, set(seen.range.begin)), hn::Lt(key, set(seen.range.end)));
  const auto mask = hn::Or(in_range, hn::Lt(key, set(seen.sink_end)));
  return hn::RebindMask(FloatTag(), hn::And(mask, hn::Ne(hn::Load(di, places.live + j), hn::Zero(di))));
}

}  // namespace

template <class E>
bool add_to_softmax(const Problem& p, const Places& places, const SeenKeys& seen, float* scores, const RowPart& row) {
  constexpr int kDegree = std::is_same_v<E, Pair> ? 4 : 6;  // pairs are rounded to bf16: exact enough by far
  const FloatTag d;
  const FloatV cap = hn::Set(d, static_cast<float>(p.soft_cap));
  FloatV largest = minus_infinity();
  for (int64_t j = 0; j < places.count; j += lanes()) {
    FloatV x = hn::Mul(hn::Load(d, scores + j), hn::Load(d, places.key_factors + j));
    if (p.soft_cap > 0) {
      FloatV slope = x;
      x = hn::Mul(cap, tanh_any(hn::Div(x, cap), slope));
    }
    if (!seen.all) x = hn::IfThenElse(seen_at(places, seen, j), x, minus_infinity());
    hn::Store(x, d, scores + j);
    largest = hn::Max(largest, x);
  }
  // A NaN may or may not come through Max; it always comes through the exponential and the sum.
  move_shift(row, p.value_dim, hn::ReduceMax(d, largest));
  const FloatV shift = hn::Set(d, *row.shift == kNone ? 0 : *row.shift), to_log2 = hn::Set(d, kLog2E);
  FloatV sum = hn::Zero(d);
  for (int64_t j = 0; j < places.count; j += lanes()) {
    // The difference first: a product of large logits alone would lose what lies between them.
    const FloatV x = exp2_below_128<kDegree>(hn::Mul(hn::Sub(hn::Load(d, scores + j), shift), to_log2));
    store_in_row(hn::Mul(x, hn::Load(d, places.value_factors + j)), reinterpret_cast<E*>(scores), j);
    sum = hn::Add(sum, x);
  }
  const float added = hn::ReduceSum(d, sum);
  *row.sum += added;
  return added != 0;
}

template bool add_to_softmax<float>(const Problem& p, const Places& places, const SeenKeys& seen, float* scores,
                                    const RowPart& row);
template bool add_to_softmax<Pair>(const Problem& p, const Places& places, const SeenKeys& seen, float* scores,
                                   const RowPart& row);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
