// The products of paged_stream_cpu.cpp with values that are of pairs of bf16.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/page_attention/paged_stream_pair_values_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/stored-inl.h"
// After that:
#include "ejkernel/platform/cpu/codes-inl.h"
// And last:
#include "ejkernel/ops/page_attention/paged_stream-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

template void add_values(const StoredRows& values, int64_t count, int64_t dims, const Pair* weights, int64_t stride,
                         int64_t rows, float* sums, int64_t sum_stride);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
