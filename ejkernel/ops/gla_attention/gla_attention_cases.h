// Problems of gla_attention: recurrent_attention's descriptions without the gates that this operation has not.
#pragma once

#include <vector>

#include "ejkernel/ops/gla_attention/gla_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"

namespace ejk::testing {

Problem make_gla_problem(const RecurrenceCase& description);
RecurrenceCase random_gla_case(const RandomRequest& request);

std::vector<Relation> gla_relations();

const TestOperation& gla_attention_tests();
const TestOperation& gla_attention_backward_tests();

}  // namespace ejk::testing
