// The generated pages of the documentation: what the declarations, the registry and the environment table say.
#pragma once

#include <map>
#include <string>

namespace ejk::tool {

/// The first line of every generated page.
inline constexpr const char* kGeneratedMark =
    "<!-- Written by `ejk docs` from the declarations; edit those instead. -->";

/// Path below docs/ -> contents.
std::map<std::string, std::string> documentation_pages();

}  // namespace ejk::tool
