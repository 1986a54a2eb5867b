// Problems of page_append: descriptions are those of every operation over a cache (paged_cases.h).
#pragma once

#include "ejkernel/testing/operation.h"

namespace ejk::testing {

const TestOperation& page_append_tests();

}  // namespace ejk::testing
