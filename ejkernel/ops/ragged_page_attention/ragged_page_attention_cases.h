// Problems of ragged_page_attention: descriptions are those of every operation over a cache (paged_cases.h).
#pragma once

#include "ejkernel/testing/operation.h"

namespace ejk::testing {

const TestOperation& ragged_page_attention_tests();

}  // namespace ejk::testing
