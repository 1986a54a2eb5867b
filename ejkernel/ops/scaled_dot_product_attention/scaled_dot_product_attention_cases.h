// Problems of scaled_dot_product_attention: flash_attention's descriptions with lengths.
#pragma once

#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

struct SdpaCase {
  AttentionCase base = {};  ///< only what the operation lists
  bool query_lengths = false, key_lengths = false;
};

Problem make_sdpa_problem(const SdpaCase& description);
SdpaCase random_sdpa_case(const RandomRequest& request);
/// Named problems, tagged.
std::vector<SdpaCase> sdpa_cases();

const TestOperation& scaled_dot_product_attention_tests();
const TestOperation& scaled_dot_product_attention_backward_tests();

}  // namespace ejk::testing
