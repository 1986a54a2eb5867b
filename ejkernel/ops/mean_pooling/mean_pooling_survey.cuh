// What kernels of mean_pooling must know of the index tensors before they start: where each sequence's chunks go, how
// many rows a mask selects, whether sequences overlap. Also the operation's second output, and the status word.
#pragma once

#include "ejkernel/ops/mean_pooling/mean_pooling_cuda_problem.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"

namespace ejk::cuda {

/// Sequences, by one block: each thread takes some that follow each other.
template <class Block>
EJK_DEVICE void survey_sequences(const PoolingProblem& p, const Block& block, int64* memory) {
  const int64 each = (p.num_sequences + block.threads() - 1) / block.threads();
  const int64 begin = min<int64>(each * block.thread(), p.num_sequences);
  const int64 end = min<int64>(begin + each, p.num_sequences);

  // Sums stop at the rows that out has: sequences that overlap may have more chunks than that.
  int64 means = 0, falls = 0;
  uint32 faults = 0;
  for (int64 n = begin; n < end; ++n) {
    means = min<int64>(means + p.num_means_of(p.rows_of_sequence(n, faults).length), p.num_means);
    if (p.cu_seqlens[n + 1] < p.cu_seqlens[n]) falls = 1;
  }
  raise(p.status, faults);
  if (p.overlapping != nullptr) {
    falls = reduce(block, memory, falls, [](int64 one, int64 other) { return one | other; });
    if (block.thread() == 0) *p.overlapping = static_cast<int>(falls);
  }

  if (p.first_means == nullptr) return;
  int64 first_mean = min<int64>(sum_before(block, memory, means), p.num_means);
  const auto note = [&](int64 n) {
    p.first_means[n] = first_mean;
    if (p.chunk_offsets != nullptr) p.chunk_offsets[n] = static_cast<int>(min<int64>(first_mean, 0x7fffffff));
  };
  for (int64 n = begin; n < end; ++n) {
    note(n);
    first_mean = min<int64>(first_mean + p.num_means_of(p.rows_of_sequence(n).length), p.num_means);
  }
  if (block.thread() == block.threads() - 1) note(p.num_sequences);  // whose sequences, if any, are the last ones
}

/// Selected rows of batch entry b, by one block.
template <class Block>
EJK_DEVICE void count_selected_rows(const PoolingProblem& p, int64 b, const Block& block, int64* memory) {
  int64 mine = 0;
  for (int64 row = block.thread(); row < p.num_tokens; row += block.threads()) mine += p.selected(b, row) ? 1 : 0;
  const int64 count = reduce(block, memory, mine, [](int64 one, int64 other) { return one + other; });
  if (block.thread() == 0) p.counts[b] = count;
}

/// Block `index`; there is one for each batch entry of a mask, and one for all sequences.
template <class Block>
EJK_DEVICE void survey(const PoolingProblem& p, int64 index, const Block& block, int64* memory) {
  if (p.packed())
    survey_sequences(p, block, memory);
  else
    count_selected_rows(p, index, block, memory);
}

}  // namespace ejk::cuda
