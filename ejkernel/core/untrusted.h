// Contents of index tensors are untrusted (operations §0.15): a value is clamped to what the tensors hold before it
// reaches an address, and a fault sets its bit of the caller's status word.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "ejkernel/core/operation.h"

namespace ejk::untrusted {

inline void raise(uint32_t* status_word, uint32_t bit) {
  if (status_word != nullptr) std::atomic_ref<uint32_t>(*status_word).fetch_or(bit, std::memory_order_relaxed);
}

/// Element i of a rank 1 int32 tensor.
inline int32_t index_at(const Tensor& t, int64_t i) { return t.as<const int32_t>()[i * t.strides[0]]; }

/// A length that the caller's tensor claims, held to what is there.
inline int64_t clamp_length(int64_t length, int64_t capacity, uint32_t* status_word) {
  if (length < 0 || length > capacity) raise(status_word, status::kLength);
  return std::clamp<int64_t>(length, 0, capacity);
}

/// Rows [begin, begin + length) of a packed tensor.
struct Span {
  int64_t begin = 0, length = 0;
};

/// The rows of sequence `index`: offsets clamped to [0, total], an end before its start means empty.
inline Span packed_span(const Tensor& cu_seqlens, int64_t index, int64_t total, uint32_t* status_word) {
  const int64_t first = index_at(cu_seqlens, index), past = index_at(cu_seqlens, index + 1);
  const int64_t begin = std::clamp<int64_t>(first, 0, total), end = std::clamp<int64_t>(past, 0, total);
  if (first != begin || past != end || past < first) raise(status_word, status::kOffsets);
  return {begin, std::max<int64_t>(end - begin, 0)};
}

}  // namespace ejk::untrusted
