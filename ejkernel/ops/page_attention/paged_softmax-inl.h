// How the products of a row and a block's keys become weights of the block's values. Included once per instruction set,
// after attention_tiles-inl.h and split-inl.h.

#include "ejkernel/ops/page_attention/paged_cpu_internal.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

/// A block's places, whole vectors of them, and the keys that they hold.
struct Places {
  int64_t count = 0;
  const int32_t* key_at = nullptr;       ///< which of the block's keys
  const int32_t* live = nullptr;         ///< 0 where nobody sees it
  const float* key_factors = nullptr;    ///< products are multiplied by
  const float* value_factors = nullptr;  ///< weights are multiplied by
};

/// Which keys of the block a row sees: a range, and those before `sink_end`.
struct SeenKeys {
  Problem::KeyRange range;
  int64_t sink_end = 0;
  bool all = false;
};

/// In paged_softmax_cpu.cpp. Products become weights e^(logit - shift), times their values' factors, in their place and
/// as E, 0 for what the row does not see; its sums follow when the shift moves. False when all weights are 0.
template <class E>
bool add_to_softmax(const Problem& p, const Places& places, const SeenKeys& seen, float* scores, const RowPart& row);

extern template bool add_to_softmax<float>(const Problem& p, const Places& places, const SeenKeys& seen, float* scores,
                                           const RowPart& row);
extern template bool add_to_softmax<Pair>(const Problem& p, const Places& places, const SeenKeys& seen, float* scores,
                                          const RowPart& row);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
