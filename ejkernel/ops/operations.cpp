#include "ejkernel/ops/operations.h"

namespace ejk {

std::span<const Operation* const> builtin_operations() {
  static const Operation* const list[] = {
      &operation<FlashAttention>(),
      &operation<FlashAttentionBackward>(),
  };
  return list;
}

}  // namespace ejk
