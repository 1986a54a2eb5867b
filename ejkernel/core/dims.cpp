#include "ejkernel/core/dims.h"

#include <fmt/format.h>

#include "ejkernel/core/error.h"

namespace ejk {

const Dims::Entry* Dims::find(std::string_view name) const {
  for (const Entry& entry : entries())
    if (entry.name == name) return &entry;
  return nullptr;
}

void Dims::bind(std::string_view name, int64_t value, std::string_view bound_by) {
  if (size_ == kMaxDims) throw Internal(fmt::format("a call has more than {} named dimensions", kMaxDims));
  entries_[static_cast<size_t>(size_++)] = {name, value, bound_by};
}

int64_t Dims::operator[](std::string_view name) const {
  const Entry* entry = find(name);
  if (entry == nullptr) throw Internal(fmt::format("dimension {} is not bound by any input", name));
  return entry->value;
}

bool is_bucketed(std::string_view name) {
  return name.starts_with("total_") || name.ends_with("batch") || name.ends_with("_len") || name == "num_seqs" ||
         name == "num_tokens" || name == "num_pages" || name == "m";
}

int64_t bucket(int64_t extent) {
  if (extent <= kExactBuckets) return extent;
  int64_t power = kExactBuckets;
  while (power < extent && power <= INT64_MAX / 4) {
    if (extent <= power + power / 2) return power == extent ? extent : power + power / 2;
    power *= 2;
  }
  return power;
}

}  // namespace ejk
