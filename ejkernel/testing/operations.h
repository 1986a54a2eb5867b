// The operations that the harness knows. A new one is an include and a line in operations.cpp.
#pragma once

#include <span>
#include <string_view>

#include "ejkernel/testing/operation.h"

namespace ejk::testing {

std::span<const TestOperation* const> test_operations();
/// InvalidArgument lists the known names.
const TestOperation& find_test_operation(std::string_view name);

}  // namespace ejk::testing
