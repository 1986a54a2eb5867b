#include "ejkernel/testing/operations.h"

#include <array>
#include <string>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"

namespace ejk::testing {

std::span<const TestOperation* const> test_operations() {
  static const std::array list = {
      &flash_attention_tests(),
      &flash_attention_backward_tests(),
      &mean_pooling_tests(),
      &mean_pooling_backward_tests(),
  };
  return list;
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
