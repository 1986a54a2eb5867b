// The library's version, repeated by CMakeLists.txt (a test compares them).
#pragma once

#include <string_view>

namespace ejk {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace ejk
