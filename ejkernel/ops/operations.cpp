#include "ejkernel/ops/operations.h"

namespace ejk {

std::span<const Operation* const> builtin_operations() {
  static const Operation* const list[] = {
      &operation<FlashAttention>(),
      &operation<FlashAttentionBackward>(),
      &operation<Attention>(),
      &operation<AttentionBackward>(),
      &operation<ScaledDotProductAttention>(),
      &operation<ScaledDotProductAttentionBackward>(),
      &operation<MeanPooling>(),
      &operation<MeanPoolingBackward>(),
  };
  return list;
}

}  // namespace ejk
