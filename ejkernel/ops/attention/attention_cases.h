// Problems of attention: flash_attention's descriptions without what this operation has not.
#pragma once

#include <vector>

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// True when attention can be asked the question, and its weights fit into a test.
bool is_weights_case(const AttentionCase& description);
/// Forward problem of such a description.
Problem make_weights_problem(const AttentionCase& description);
AttentionCase random_weights_case(const RandomRequest& request);

std::vector<Relation> weights_relations();

const TestOperation& attention_tests();
const TestOperation& attention_backward_tests();

}  // namespace ejk::testing
