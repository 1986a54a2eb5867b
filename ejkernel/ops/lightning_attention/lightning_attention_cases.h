// Problems of lightning_attention: recurrent_attention's descriptions without gates, and a layer.
#pragma once

#include <vector>

#include "ejkernel/ops/lightning_attention/lightning_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"

namespace ejk::testing {

struct LightningCase {
  RecurrenceCase base = {};
  int64_t layer_idx = 0, num_layers = 1;

  LightningAttention::Params params() const;
};

Problem make_lightning_problem(const LightningCase& description);
LightningCase random_lightning_case(const RandomRequest& request);

/// The heads' log decays by the words of operations §11: float32, float64 for float64 queries.
Array lightning_decays(DType query, int64_t num_q_heads, const LightningAttention::Params& params);

std::vector<Relation> lightning_relations();

const TestOperation& lightning_attention_tests();
const TestOperation& lightning_attention_backward_tests();

}  // namespace ejk::testing
