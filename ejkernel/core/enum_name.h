// Names of enumerators, also for what is none: a cast makes any number into an enumeration's value.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace ejk {

/// For enumerations that count from 0; "?" past their end.
template <class E, size_t kCount>
constexpr std::string_view name_in(const std::array<std::string_view, kCount>& names, E value) {
  const auto index = static_cast<size_t>(value);
  return index < kCount ? names[index] : "?";
}

}  // namespace ejk
