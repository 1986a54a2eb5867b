// 128 bits that stand for any number of bytes: what keys and records are found and checked by.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const Digest&, const Digest&) = default;
};
/// XXH3-128.
EJK_API Digest digest_of(std::string_view bytes);
EJK_API std::string to_string(const Digest& digest);  // 32 hexadecimal digits

}  // namespace ejk
