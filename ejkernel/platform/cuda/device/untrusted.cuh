// Contents of index tensors are untrusted (operations, rule 15): a value is clamped to what the tensors hold before it
// reaches an address, and a fault sets its bit of the caller's status word.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// Bits of the caller's status word (core/operation.h, ejk::status).
constexpr uint32 kPageFault = 1, kLengthFault = 2, kOffsetsFault = 4, kGroupSizeFault = 8;

EJK_DEVICE void raise(uint32* status, uint32 faults) {
  if (status == nullptr || faults == 0) return;
#ifdef __CUDACC_RTC__
  atomicOr(status, faults);
#else
  __atomic_fetch_or(status, faults, __ATOMIC_RELAXED);
#endif
}

/// A length that the caller claims, held to what is there.
EJK_DEVICE int64 clamp_length(int64 length, int64 capacity, uint32& faults) {
  if (length < 0 || length > capacity) faults |= kLengthFault;
  return max<int64>(0, min<int64>(length, capacity));
}

/// Rows [begin, begin + length) of a packed tensor.
struct Span {
  int64 begin = 0, length = 0;
};
EJK_DEVICE Span packed_span(const int* cu_seqlens, int64 index, int64 total, uint32& faults) {
  const int64 first = cu_seqlens[index], past = cu_seqlens[index + 1];
  const int64 begin = max<int64>(0, min<int64>(first, total)), end = max<int64>(0, min<int64>(past, total));
  if (first != begin || past != end || past < first) faults |= kOffsetsFault;
  return {begin, max<int64>(end - begin, 0)};
}

}  // namespace ejk::cuda
