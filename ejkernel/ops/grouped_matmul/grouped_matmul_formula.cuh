// Products of groups of matrices in double, every dtype and any strides: a thread per element of the result. The host
// compiles the same text with blocks of its own threads, which is how tests compare it.
#pragma once

#include "ejkernel/ops/grouped_matmul/grouped_matmul_cuda_problem.cuh"
#include "ejkernel/platform/cuda/device/block.cuh"

namespace ejk::cuda {

/// Where groups lie, and the status word, by one block: each thread takes sizes that follow each other.
template <class Block>
EJK_DEVICE void find_groups(const MatmulProblem& p, const Block& block, int64* memory) {
  const int64 extent = p.ragged_extent();
  const int64 each = (p.num_all_groups + block.threads() - 1) / block.threads();
  const int64 begin = min<int64>(each * block.thread(), p.num_all_groups);
  const int64 end = min<int64>(begin + each, p.num_all_groups);

  int64 sum = 0;  // of int32 numbers: far from overflowing
  for (int64 g = begin; g < end; ++g) sum += max<int64>(p.group_sizes[g], 0);
  int64 at = sum_before(block, memory, sum);
  uint32 faults = 0;
  const auto note = [&](int64 g) {
    if (g >= p.group_offset && g <= p.group_offset + p.num_groups) p.offsets[g - p.group_offset] = min(at, extent);
  };
  for (int64 g = begin; g < end; ++g) {
    note(g);
    const int64 size = p.group_sizes[g];
    at += max<int64>(size, 0);
    if (size < 0 || at > extent) faults |= kGroupSizeFault;
  }
  if (block.thread() == block.threads() - 1) note(p.num_all_groups);  // whose groups, if any, are the last ones
  raise(p.status, faults);
}

/// Elements `first`, `first + stride`, … of [batch, group, row, column]; ragged rows are those of all groups.
EJK_DEVICE void multiply(const MatmulProblem& p, int64 first, int64 stride) {
  const bool ragged_rows = p.ragged == RaggedAxis::rows;
  const int64 groups = ragged_rows ? 1 : p.num_groups;
  for (int64 n = first; n < p.num_batches * groups * p.rows * p.columns; n += stride) {
    const int64 column = n % p.columns, row = n / p.columns % p.rows;
    const int64 of_group = n / p.columns / p.rows, b = of_group / groups;
    const int64 g = ragged_rows ? p.group_of_row(row) : of_group % groups;
    const bool by_depth = p.ragged == RaggedAxis::depth;
    const int64 begin = by_depth ? p.offsets[g] : 0, end = by_depth ? p.offsets[g + 1] : p.depth;
    double sum = 0;
    if (g >= 0 && p.out_mask.at(g, row, column, 1) != 0)
      for (int64 k = begin; k < end; ++k)
        if (p.a.selects(g, row, k) && p.b.selects(g, k, column)) sum += p.a.at(b, g, row, k) * p.b.at(b, g, k, column);
    const int64 at_group = max<int64>(g, 0);
    if (p.existing.data != nullptr) sum += p.existing.at(b, at_group, row, column);
    p.out.set(b, at_group, row, column, sum);
  }
}

}  // namespace ejk::cuda
