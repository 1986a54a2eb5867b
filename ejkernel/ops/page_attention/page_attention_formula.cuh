// The formula of softmax attention over pages.
#pragma once

#include "ejkernel/ops/flash_attention/attention_formula.cuh"
#include "ejkernel/ops/page_attention/paged_cuda_problem.cuh"

namespace ejk::cuda {

template <int kThreads>
struct PagedAttentionShared : AttentionShared<kThreads> {
  KeyPlace places[kThreads];  ///< of the keys that are seen
};

/// `kNumber` is the query's dtype.
template <Number kNumber, class Block, int kThreads>
using PagedAttentionFormula =
    AttentionFormula<kNumber, Block, kThreads, PagedAttentionProblem, PagedAttentionShared<kThreads>>;

}  // namespace ejk::cuda
