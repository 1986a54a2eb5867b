// The named problems of an operation, which the test harness knows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/ejk/call_flags.h"

namespace ejk::tool {

struct NamedCase {
  std::string name;
  bool primary = false;  ///< from a real model; the others are edge cases
};

/// Empty for an operation that the harness does not know.
std::vector<NamedCase> cases_of(std::string_view operation);
/// InvalidArgument suggests the nearest name.
void require_case(std::string_view operation, const std::string& name);
ToolCall make_case(std::string_view operation, const std::string& name);

}  // namespace ejk::tool
