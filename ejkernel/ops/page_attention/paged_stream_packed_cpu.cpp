// Keys and values as factors of a matrix unit, for paged_stream_cpu.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/page_attention/paged_stream_packed_cpu.cpp"
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

void pack_keys(const StoredRows& keys, int64_t head, int64_t count, int64_t dims, Pair* to) {
  with_type<Pair>(keys, [&]<class T>() HWY_ATTR { pack_keys(keys.of_head<T>(head), count, dims, to); });
}

void pack_values(const StoredRows& values, int64_t head, int64_t count, int64_t dims, Pair* to) {
  with_type<Pair>(values, [&]<class T>() HWY_ATTR { pack_values(values.of_head<T>(head), count, dims, to); });
}

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
