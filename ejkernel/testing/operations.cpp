#include "ejkernel/testing/operations.h"

#include <array>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/attention/attention_cases.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/gla_attention/gla_attention_cases.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"
#include "ejkernel/ops/lightning_attention/lightning_attention_cases.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"
#include "ejkernel/ops/page_append/page_append_cases.h"
#include "ejkernel/ops/page_attention/page_attention_cases.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention_cases.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention_cases.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3_cases.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"
#include "ejkernel/ops/rnn/rnn_cases.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention_cases.h"

namespace ejk::testing {

std::span<const TestOperation* const> test_operations() {
  static const std::array list = {
      &flash_attention_tests(),
      &flash_attention_backward_tests(),
      &attention_tests(),
      &attention_backward_tests(),
      &scaled_dot_product_attention_tests(),
      &scaled_dot_product_attention_backward_tests(),
      &page_attention_tests(),
      &page_append_tests(),
      &ragged_decode_attention_tests(),
      &ragged_page_attention_tests(),
      &ragged_page_attention_v3_tests(),
      &mean_pooling_tests(),
      &mean_pooling_backward_tests(),
      &recurrent_attention_tests(),
      &recurrent_attention_backward_tests(),
      &gla_attention_tests(),
      &gla_attention_backward_tests(),
      &lightning_attention_tests(),
      &lightning_attention_backward_tests(),
      &grouped_matmul_tests(),
      &grouped_matmul_backward_tests(),
      &transposed_grouped_matmul_tests(),
      &rnn_tests(),
      &rnn_backward_tests(),
  };
  return list;
}

std::string replay_of(const RandomRequest& request) {
  std::string text = "--seed=" + std::to_string(request.seed);
  if (request.size != Size::normal) text += " --size=" + std::string(name(request.size));
  if (request.hostile) text += " --hostile";
  if (request.differentiable) text += " --differentiable";
  if (request.dense) text += " --dense";
  if (request.dtype) text += " --dtype=" + std::string(ejk::name(*request.dtype));
  return text;
}

const TestOperation& find_test_operation(std::string_view name) {
  std::string known;
  for (const TestOperation* tests : test_operations()) {
    if (tests->name() == name) return *tests;
    known += (known.empty() ? "" : ", ") + std::string(tests->name());
  }
  throw_invalid("check", "the operation", "be one that the harness knows", name, "known: " + known);
}

}  // namespace ejk::testing
