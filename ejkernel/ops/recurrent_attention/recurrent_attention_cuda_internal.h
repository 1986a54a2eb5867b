// What the host half of recurrent_attention's CUDA kernels and its tests share.
#pragma once

#include <cmath>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_formula.cuh"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_internal.h"

namespace ejk::recurrence {

/// The call as device code gets it, with its memory; null: to say how much it needs.
cuda::RecurrenceProblem cuda_problem(const Call<RecurrentAttention>& call, std::byte* memory, uint32_t* status);
cuda::RecurrenceProblem cuda_problem(const Call<RecurrentAttentionBackward>& call, std::byte* memory, uint32_t* status);

/// Bytes of that memory.
size_t cuda_memory_bytes(const Call<RecurrentAttention>& call);
size_t cuda_memory_bytes(const Call<RecurrentAttentionBackward>& call);

}  // namespace ejk::recurrence
