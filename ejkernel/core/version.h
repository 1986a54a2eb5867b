// The library's version; CMakeLists.txt reads it here.
#pragma once

#include <string_view>

namespace ejk {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace ejk
