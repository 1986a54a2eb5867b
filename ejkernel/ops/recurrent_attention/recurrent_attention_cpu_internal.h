// The CPU kernels of linear recurrences as functions of a recurrent_attention call, for every operation that comes down
// to one, and how they split their work: the part that is the same for every instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ejkernel/core/operation.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_internal.h"
#include "ejkernel/platform/cpu/chunk.h"

namespace ejk::recurrence {

/// How many tokens a state takes up together, and what a task owns. Changes speed; `chunk` also results, by rounding.
struct CpuConfig {
  int chunk = static_cast<int>(cpu::kChunk);
  int block_v = 512;
  int block_h = 1;

  static constexpr auto fields() {
    return std::array{config_field<&CpuConfig::chunk, 1, static_cast<int>(cpu::kChunk)>(
                          "chunk", "tokens that a state takes up together; 1: the step form"),
                      config_field<&CpuConfig::block_v, 16, 32, 64, 128, 256, 512>(
                          "block_v", "columns of the state that a task owns"),
                      config_field<&CpuConfig::block_h, 1, 2, 4, 8>(
                          "block_h", "query heads of which a task takes a chunk each in turn")};
  }
};

/// Of a backward: how many chunks lie between states that are kept for the way back.
struct CpuBackwardConfig {
  int segment = 16;

  static constexpr auto fields() {
    return std::array{config_field<&CpuBackwardConfig::segment, 4, 8, 16, 32, 64>(
        "segment", "chunks from one state that is kept to the next")};
  }
};

/// Sequences of so few tokens take them one by one whatever the config says.
inline constexpr int64_t kMostSteps = 4;

Support supports_cpu(const RecurrentAttention::Inputs& in);

CpuConfig cpu_heuristic(const Call<RecurrentAttention>& call, const DeviceProperties& device);
std::vector<CpuConfig> cpu_candidates(const Call<RecurrentAttention>& call);
Cost cpu_cost(const Call<RecurrentAttention>& call, const CpuConfig& config);
/// Scratch for each of the threads that could run. Tensors of the call need no data.
size_t forward_cpu_workspace(const Call<RecurrentAttention>& call, const CpuConfig& config,
                             const DeviceProperties& device);
/// out and final_state; an absent one is not computed.
void forward_cpu(const Call<RecurrentAttention>& call, const CpuConfig& config, const RunContext& context);

CpuBackwardConfig cpu_heuristic(const Call<RecurrentAttentionBackward>& call, const DeviceProperties& device);
std::vector<CpuBackwardConfig> cpu_candidates(const Call<RecurrentAttentionBackward>& call);
Cost cpu_cost(const Call<RecurrentAttentionBackward>& call, const CpuBackwardConfig& config);
/// Per thread that could run: scratch, and for each query head of a kv head a state for each segment of the longest
/// sequence there can be.
size_t backward_cpu_workspace(const Call<RecurrentAttentionBackward>& call, const CpuBackwardConfig& config,
                              const DeviceProperties& device);
/// The gradients wanted; an absent one is not computed.
void backward_cpu(const Call<RecurrentAttentionBackward>& call, const CpuBackwardConfig& config,
                  const RunContext& context);

/// What a task of either direction owns: columns [column, column + columns) of the state of one query head of one
/// sequence.
struct HeadPart {
  const Problem& p;
  Sequence sequence;
  int64_t index;  ///< of the sequence
  int64_t q_head;
  int64_t column, columns;

  int64_t kv_head() const { return q_head / p.heads_per_kv_head(); }
};

/// Where the rows of a head's tokens are in a tensor that has one for each: element offsets.
struct TokenRows {
  int64_t first, step;

  TokenRows(const HeadPart& part, const Tensor& t, int64_t head) {
    const Rows rows = part.p.rows_of(t);
    first = rows.offset(part.sequence.batch, part.p.row(part.sequence, 0), head);
    step = part.p.reverse ? -rows.row : rows.row;
  }
  int64_t offset(int64_t token) const { return first + token * step; }
};

/// Raises the status bit of damaged offsets; true when two sequences may claim the same rows. Then they must be taken
/// one after the other: the last one's result stays.
bool survey_sequences(const Problem& p, uint32_t* status);

/// Zeros in the rows of a [row, head] or [row, head, dim] tensor that no sequence owns, or, of overlapping sequences,
/// in all rows. Only packed tensors have such rows.
void clear_gaps(const Problem& p, bool overlapping, const Tensor& t);

}  // namespace ejk::recurrence
