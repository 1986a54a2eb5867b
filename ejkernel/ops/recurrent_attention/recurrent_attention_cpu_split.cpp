// How the CPU kernels of recurrent_attention choose their configs, and what they know about sequences.
#include <algorithm>
#include <cstring>
#include <string>

#include "ejkernel/ops/recurrent_attention/recurrent_attention_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"

namespace ejk::recurrence {

Support supports_cpu(const RecurrentAttention::Inputs& in) {
  if (in.query.dtype != DType::f64) return Support::yes();
  return Support::no("query dtype must be f32, f16 or bf16, got f64: this kernel's state is float32");
}

namespace {

/// Tokens of a sequence, on average.
int64_t typical_length(const Problem& p) {
  return p.packed() ? cpu::ceil_div(p.num_rows, std::max<int64_t>(p.num_sequences, 1)) : p.num_rows;
}

double num_states(const Problem& p) {
  return static_cast<double>(std::max<int64_t>(p.num_sequences, 1) * p.num_q_heads);
}

}  // namespace

CpuConfig cpu_heuristic(const Call<RecurrentAttention>& call, const DeviceProperties& device) {
  const Problem p = make_problem(call.inputs, call.params);
  CpuConfig config;
  if (typical_length(p) <= kMostSteps) config.chunk = 1;
  while (config.block_v > 16 && config.block_v / 2 >= p.value_dim) config.block_v /= 2;
  // Blocks of columns repeat what tokens do to each other inside a chunk: only where threads would have nothing to do.
  const int64_t states = p.num_sequences * p.num_q_heads;
  while (config.block_v > 16 && states * cpu::ceil_div(p.value_dim, config.block_v) < device.num_units)
    config.block_v /= 2;
  // Rows of neighbouring heads lie side by side: as many together as make equal tasks, one for every thread, or several
  // where sequences may differ in length.
  const int64_t wanted = (p.num_sequences > 1 ? 4 : 1) * device.num_units;
  const int64_t tasks = states * cpu::ceil_div(p.value_dim, config.block_v);
  const auto makes_equal_tasks = [&](int64_t heads) { return p.num_q_heads % heads == 0 && tasks / heads >= wanted; };
  while (config.chunk > 1 && config.block_h < 8 && makes_equal_tasks(2 * config.block_h)) config.block_h *= 2;
  return config;
}

std::vector<CpuConfig> cpu_candidates(const Call<RecurrentAttention>& call) {
  const Problem p = make_problem(call.inputs, call.params);
  std::vector<CpuConfig> all;
  for (const int chunk : {1, static_cast<int>(cpu::kChunk)})
    for (const int block_v : {16, 32, 64, 128, 256, 512})
      for (const int block_h : {1, 2, 4, 8})
        if ((block_v == 16 || block_v / 2 < p.value_dim) && (block_h == 1 || block_h <= p.num_q_heads))
          all.push_back({.chunk = chunk, .block_v = block_v, .block_h = block_h});
  return all;
}

Cost cpu_cost(const Call<RecurrentAttention>& call, const CpuConfig& config) {
  const Problem p = make_problem(call.inputs, call.params);
  const int64_t blocks = cpu::ceil_div(p.value_dim, config.block_v);
  const double keys = static_cast<double>(p.key_dim),
               values = static_cast<double>(p.value_dim) / static_cast<double>(blocks);
  const double pairs = config.chunk == 1 ? 0 : 2.0 * config.chunk * (keys + values);
  const double heads = std::min(config.block_h, static_cast<int>(p.num_q_heads));
  return {.tasks = num_states(p) * static_cast<double>(blocks) / heads,
          .task_flops = heads * static_cast<double>(typical_length(p)) * (4 * keys * values + pairs)};
}

CpuBackwardConfig cpu_heuristic(const Call<RecurrentAttentionBackward>& call, const DeviceProperties&) {
  CpuBackwardConfig config;
  // The states of a segment stay in the second-level cache.
  const double state_bytes =
      4.0 * static_cast<double>(call.inputs.query.shape[-1]) * static_cast<double>(call.inputs.value.shape[-1]);
  while (config.segment > 4 && config.segment * state_bytes > 512 * 1024) config.segment /= 2;
  return config;
}

std::vector<CpuBackwardConfig> cpu_candidates(const Call<RecurrentAttentionBackward>&) {
  return {{.segment = 4}, {.segment = 8}, {.segment = 16}, {.segment = 32}, {.segment = 64}};
}

Cost cpu_cost(const Call<RecurrentAttentionBackward>& call, const CpuBackwardConfig&) {
  const Problem p = make_problem(call.inputs, call.params);
  const double keys = static_cast<double>(p.key_dim), values = static_cast<double>(p.value_dim);
  const double heads = static_cast<double>(p.heads_per_kv_head());
  const double a_head = 12 * keys * values + 10.0 * static_cast<double>(cpu::kChunk) * (keys + values);
  return {.tasks = num_states(p) / heads, .task_flops = heads * static_cast<double>(typical_length(p)) * a_head};
}

bool survey_sequences(const Problem& p, uint32_t* status) {
  bool overlapping = false;
  int64_t past = 0;
  for (int64_t n = 0; n < p.num_sequences && p.packed(); ++n) {
    const Sequence s = p.sequence(n, status);
    if (s.length == 0) continue;
    overlapping = overlapping || s.begin < past;
    past = s.begin + s.length;
  }
  return overlapping;
}

void clear_gaps(const Problem& p, bool overlapping, const Tensor& t) {
  if (!p.packed() || t.num_elements() == 0) return;
  const Rows rows = p.rows_of(t);
  const int64_t width = t.rank() == 3 ? t.shape[2] : 1;
  const auto clear = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t h = 0; h < t.shape[1]; ++h) {
        const size_t bytes = static_cast<size_t>(bits(t.dtype) / 8);
        std::memset(t.as<std::byte>() + rows.offset(0, row, h) * static_cast<int64_t>(bytes), 0,
                    static_cast<size_t>(width) * bytes);
      }
  };
  if (overlapping) return clear(0, p.num_rows);
  int64_t owned = 0;
  for (int64_t n = 0; n < p.num_sequences; ++n) {
    const Sequence s = p.sequence(n, nullptr);
    if (s.length == 0) continue;
    clear(owned, s.begin);
    owned = s.begin + s.length;
  }
  clear(owned, p.num_rows);
}

}  // namespace ejk::recurrence
