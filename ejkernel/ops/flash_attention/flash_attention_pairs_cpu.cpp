// The tiles of flash_attention_cpu.cpp whose products are of pairs of bf16.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/pages.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/flash_attention/flash_attention_pairs_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/stored-inl.h"
// After that:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And after that, in this order:
#include "ejkernel/ops/flash_attention/attention_pages-inl.h"
#include "ejkernel/ops/flash_attention/flash_attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

template void run_forward_tile<Pair>(const Problem& p, const CpuConfig& config, double value_scale, const Sequence& s,
                                     const BlockMap::Place& place, const Tensor& out, const Tensor& lse,
                                     std::byte* memory);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
