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
      &operation<PageAttention>(),
      &operation<PageAppend>(),
      &operation<RaggedDecodeAttention>(),
      &operation<RaggedPageAttention>(),
      &operation<RaggedPageAttentionV3>(),
      &operation<MeanPooling>(),
      &operation<MeanPoolingBackward>(),
      &operation<RecurrentAttention>(),
      &operation<RecurrentAttentionBackward>(),
      &operation<GlaAttention>(),
      &operation<GlaAttentionBackward>(),
      &operation<LightningAttention>(),
      &operation<LightningAttentionBackward>(),
      &operation<GroupedMatmul>(),
      &operation<GroupedMatmulBackward>(),
      &operation<TransposedGroupedMatmul>(),
      &operation<Rnn>(),
      &operation<RnnBackward>(),
  };
  return list;
}

}  // namespace ejk
