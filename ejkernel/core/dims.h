// The named dimensions of one call, bound while its inputs are checked.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

class EJK_API Dims {
 public:
  static constexpr int kMaxDims = 24;
  struct Entry {
    std::string_view name;
    int64_t value = 0;
    std::string_view bound_by = {};  ///< the input that fixed it; empty when computed
  };

  const Entry* find(std::string_view name) const;
  void bind(std::string_view name, int64_t value, std::string_view bound_by = {});

  /// The value of a dimension that is known to be bound; Internal otherwise.
  int64_t operator[](std::string_view name) const;
  std::span<const Entry> entries() const { return {entries_.data(), static_cast<size_t>(size_)}; }

 private:
  std::array<Entry, kMaxDims> entries_ = {};
  int size_ = 0;
};

/// Lengths, batch, token and page counts enter a tuning key as buckets, every other dimension exactly (runtime §1):
/// names that are or end in `batch`, `_len`, `num_seqs`, `num_tokens`, `num_pages`, or begin with `total_`, and `m`.
EJK_API bool is_bucketed(std::string_view dim_name);
inline constexpr int64_t kExactBuckets = 16;
/// Exact to 16, then the next of 2^k and 1.5 * 2^k upwards; -1 (unbounded) stays.
EJK_API int64_t bucket(int64_t extent);

}  // namespace ejk
