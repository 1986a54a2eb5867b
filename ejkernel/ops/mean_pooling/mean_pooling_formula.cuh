// mean_pooling and its gradient in double, every dtype and any strides: a block per row of the result, a thread per
// column. The host compiles the same text with blocks of its own threads, which is how tests compare it.
#pragma once

#include "ejkernel/ops/mean_pooling/mean_pooling_survey.cuh"

namespace ejk::cuda {

/// Means `first`, `first + stride`, … of [batch, mean, head].
template <class Block>
EJK_DEVICE void pool_rows(const PoolingProblem& p, int64 first, int64 stride, const Block& block) {
  for (int64 n = first; n < p.num_batches * p.num_means * p.num_heads; n += stride) {
    const int64 h = n % p.num_heads, mean = n / p.num_heads % p.num_means, b = n / p.num_heads / p.num_means;
    const PoolingGroup g = p.group_of_mean(b, mean);
    for (int64 d = block.thread(); d < p.dim; d += block.threads()) {
      double sum = 0;
      for (int64 row = g.begin; row < g.begin + g.length; ++row)
        if (p.selected(b, row)) sum += p.x.at(b, row, h, d);
      p.out.set(b, mean, h, d, sum / p.divisor(g));
    }
  }
}

/// Rows `first`, `first + stride`, … of [batch, row, head].
template <class Block>
EJK_DEVICE void spread_means(const PoolingProblem& p, int64 first, int64 stride, const Block& block) {
  for (int64 n = first; n < p.num_batches * p.num_tokens * p.num_heads; n += stride) {
    const int64 h = n % p.num_heads, row = n / p.num_heads % p.num_tokens, b = n / p.num_heads / p.num_tokens;
    for (int64 d = block.thread(); d < p.dim; d += block.threads()) {
      double sum = 0;
      p.for_each_group_of_row(b, row, [&](const PoolingGroup& g) { sum += p.out.at(b, g.mean, h, d) / p.divisor(g); });
      p.x.set(b, row, h, d, sum);
    }
  }
}

}  // namespace ejk::cuda
