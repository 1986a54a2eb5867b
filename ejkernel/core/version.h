// The library's version, which CMakeLists.txt reads here, and what compiled the file that includes this one.
#pragma once

#include <string_view>

namespace ejk {

inline constexpr std::string_view kVersion = "0.1.0";

#ifdef __clang__
inline constexpr std::string_view kCompiler = "clang " __clang_version__;
#else
inline constexpr std::string_view kCompiler = "g++ " __VERSION__;
#endif

}  // namespace ejk
