// Probabilities and dS of a panel and a block of keys (attention_gradient_tiles-inl.h), for every kernel that has a
// gradient of softmax.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/flash_attention/attention_gradient_tiles_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And last:
#include "ejkernel/ops/flash_attention/attention_gradient_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

template bool GradientTile<float>::compute(KeyBlock& block, const float* keys, const float* values,
                                           const float* queries, const float* d_outs);
template bool GradientTile<Pair>::compute(KeyBlock& block, const Pair* keys, const Pair* values, const Pair* queries,
                                          const Pair* d_outs);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
