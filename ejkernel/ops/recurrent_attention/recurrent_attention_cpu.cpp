// recurrent_attention on the CPU: a task owns some columns of the states of a few neighbouring query heads of one
// sequence, and takes its tokens in order. Neither columns nor heads know of each other, so results depend neither on
// how they are cut nor on the number of threads.
//
//   chunked   16 tokens at a time by the algebra of chunk.h: products of blocks, in which the state takes part twice.
//             All heads of the task take these before any takes the next ones: their rows lie side by side in memory
//   step      one pass over the state for each token; the state of a single token goes from the initial to the final
//             one without a stop in between, at the speed of memory
//
// The state is float32 whatever the tensors are.
#include <hwy/cache_control.h>

#include <algorithm>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/recurrent_attention/recurrent_attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/chunk-inl.h"
// After that, in this order:
#include "ejkernel/ops/recurrent_attention/recurrent_attention_chunk-inl.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_step-inl.h"

#ifndef EJK_RECURRENT_ATTENTION_CPU_ONCE
#define EJK_RECURRENT_ATTENTION_CPU_ONCE
namespace ejk::recurrence {
namespace {

/// What a task works in.
struct ForwardScratch {
  cpu::ChunkRows query, key, value, out, key_decay, value_decay, from_state;
  cpu::ChunkRows scores, table;
  float *panel, *whole_key_decay, *whole_value_decay;
  float* states;  ///< of each head

  static ForwardScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    const int64_t columns = std::min<int64_t>(config.block_v, p.value_dim);
    ForwardScratch s;
    s.query = cpu::ChunkRows::take(carver, p.key_dim);
    s.key = cpu::ChunkRows::take(carver, p.key_dim);
    s.key_decay = cpu::ChunkRows::take(carver, p.key_dim);
    s.value = cpu::ChunkRows::take(carver, columns);
    s.out = cpu::ChunkRows::take(carver, columns);
    s.value_decay = cpu::ChunkRows::take(carver, columns);
    s.from_state = cpu::ChunkRows::take(carver, columns);
    s.scores = cpu::ChunkRows::take(carver, cpu::kChunk);
    s.table = cpu::ChunkRows::take(carver, cpu::kChunk);
    s.panel = carver.take<float>(cpu::kChunk * cpu::padded(p.key_dim));
    s.whole_key_decay = carver.take<float>(cpu::padded(p.key_dim));
    s.whole_value_decay = carver.take<float>(cpu::padded(columns));
    s.states = carver.take<float>(config.block_h * cpu::ChunkState::size(p.key_dim, columns));
    return s;
  }
  static size_t bytes(const Problem& p, const CpuConfig& config) {
    cpu::Carver carver;
    carve(p, config, carver);
    return carver.used();
  }
};

}  // namespace
}  // namespace ejk::recurrence
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::recurrence::HWY_NAMESPACE {
namespace {

/// One head's part of a task; `state` keeps its state from one chunk to the next.
class ForwardPart {
 public:
  ForwardPart(const HeadPart& part, const RecurrentAttention::Outputs& to, ForwardScratch scratch, float* state,
              bool streams)
      : part_(part),
        p_(part.p),
        to_(to),
        s_(scratch),
        state_(ChunkState::at(state, p_.key_dim, part.columns)),
        streams_(streams) {
    for (ChunkRows* rows : {&s_.value, &s_.out, &s_.value_decay, &s_.from_state})
      rows->columns = part.columns, rows->stride = padded(part.columns);
  }

  void begin() { load_state(part_, p_.in.initial_state, state_); }
  void end() { store_state(part_, state_, to_.final_state); }

  /// Meanwhile memory is asked for those tokens of a part that will be computed next.
  void run_chunk(const ChunkTokens& tokens, const HeadPart& next_part, const ChunkTokens& next_tokens) {
    load(tokens);
    if (to_.out.present()) {
      read_chunk();
      store_out(tokens);
    }
    decay_to_end(s_.key_decay, s_.key, s_.key, s_.whole_key_decay);
    if (has_value_gates()) decay_to_end(s_.value_decay, s_.value, s_.value, s_.whole_value_decay);
    update_state_and_fetch(state_.data, state_, s_.whole_key_decay, has_value_gates() ? s_.whole_value_decay : nullptr,
                           s_.key, s_.value, rows_of(next_part, next_tokens));
  }

  void run_steps() {
    const int64_t length = part_.sequence.length;
    if (length == 1 && (step_between<float>(DType::f32) || step_between<bf16_t>(DType::bf16))) return;
    begin();
    for (int64_t i = 0; i < length; i += kChunk) {
      const ChunkTokens tokens{.first = i, .count = std::min(kChunk, length - i)};
      load(tokens);
      for (int64_t r = 0; r < tokens.count; ++r)
        step_state(token(r), state_.values, state_.data, state_.stride, state_.data, state_.stride);
      store_out(tokens);
    }
    end();
  }

 private:
  bool has_value_gates() const { return p_.in.gv.present(); }

  void load(const ChunkTokens& tokens) {
    load_rows(part_, p_.in.key, part_.kv_head(), 0, tokens, s_.key);
    load_rows(part_, p_.in.value, part_.kv_head(), part_.column, tokens, s_.value);
    load_rows(part_, p_.in.query, part_.q_head, 0, tokens, s_.query);
    load_key_decays(part_, tokens, s_.key_decay);
    if (has_value_gates()) load_value_decays(part_, tokens, s_.value_decay);
  }

  void store_out(const ChunkTokens& tokens) {
    store_rows(part_, s_.out, static_cast<float>(p_.scale), part_.q_head, part_.column, tokens, to_.out);
  }

  /// What the chunk's tokens read from the state that it finds and from each other.
  void read_chunk() {
    if (p_.in.gk.present()) {
      decayed_scores(s_.query, s_.key, s_.key_decay, s_.panel, s_.scores);
    } else {
      if (have_token_decays(p_)) decay_table(s_.key_decay, s_.table);
      plain_scores(s_.query, s_.key, have_token_decays(p_) ? s_.table : ChunkRows(), s_.panel, s_.scores);
    }
    decay_from_start(s_.key_decay, s_.query, s_.query);
    if (!has_value_gates()) {
      weighted_sums<false>(s_.scores, s_.value, s_.out);
      return read_state<true>(state_, s_.query, s_.out);
    }
    decayed_sums(s_.scores, s_.value, s_.value_decay, s_.out);
    read_state<false>(state_, s_.query, s_.from_state);
    decay_from_start(s_.value_decay, s_.from_state, s_.from_state);
    add_rows(s_.from_state, s_.out);
  }

  /// Everything that a chunk of a part loads and stores.
  ChunkPrefetch rows_of(const HeadPart& part, const ChunkTokens& tokens) const {
    ChunkPrefetch rows(part, tokens);
    rows.add(p_.in.key, part.kv_head(), 0, p_.key_dim);
    rows.add(p_.in.value, part.kv_head(), part.column, part.columns);
    rows.add(p_.in.query, part.q_head, 0, p_.key_dim);
    rows.add(p_.in.gk, part.q_head, 0, p_.key_dim);
    rows.add(p_.in.gv, part.q_head, part.column, part.columns);
    rows.add(to_.out, part.q_head, part.column, part.columns);
    return rows;
  }

  StepToken token(int64_t i) const {
    return {.keys = p_.key_dim,
            .query = s_.query.row(i),
            .key = s_.key.row(i),
            .key_decay = s_.key_decay.row(i),
            .value = s_.value.row(i),
            .value_decay = has_value_gates() ? s_.value_decay.row(i) : nullptr,
            .out = s_.out.row(i)};
  }

  /// The only token, when both states are there, of this type and whole vectors wide.
  template <class T>
  bool step_between(DType dtype) {
    const Tensor &from = p_.in.initial_state, &to = to_.final_state;
    if (!from.present() || !to.present() || from.dtype != dtype || to.dtype != dtype) return false;
    if (part_.columns % lanes() != 0) return false;
    const ChunkTokens tokens{.first = 0, .count = 1};
    load(tokens);
    const States from_states = p_.states_of(from), to_states = p_.states_of(to);
    const T* before = from.as<const T>() + from_states.offset(part_.index, part_.q_head) + part_.column;
    T* after = to.as<T>() + to_states.offset(part_.index, part_.q_head) + part_.column;
    if (streams_ && is_aligned(after) && to_states.key % lanes() == 0) {
      step_state(token(0), part_.columns, reinterpret_cast<const Streamed<T>*>(before), from_states.key,
                 reinterpret_cast<Streamed<T>*>(after), to_states.key);
      hwy::FlushStream();  // whoever waits for this task shall see them
    } else {
      step_state(token(0), part_.columns, before, from_states.key, after, to_states.key);
    }
    store_out(tokens);
    return true;
  }
  template <class T>
  static bool is_aligned(const T* to) {
    return reinterpret_cast<uintptr_t>(to) % (static_cast<size_t>(lanes()) * sizeof(T)) == 0;
  }

  const HeadPart part_;
  const Problem& p_;
  const RecurrentAttention::Outputs& to_;
  ForwardScratch s_;
  const ChunkState state_;
  const bool streams_;  ///< states are larger than the caches
};

/// The task of `heads` parts: `first` and the same of the heads after it.
void forward_parts(const HeadPart& first, int64_t heads, const RecurrentAttention::Outputs& to, const CpuConfig& config,
                   bool streams, std::byte* memory) {
  cpu::Carver carver(memory);
  const ForwardScratch scratch = ForwardScratch::carve(first.p, config, carver);
  const auto head_part = [&](int64_t h) {
    HeadPart part = first;
    part.q_head += h;
    return part;
  };
  const auto task_of = [&](int64_t h) {
    float* state = scratch.states + h * ChunkState::size(first.p.key_dim, first.columns);
    return ForwardPart(head_part(h), to, scratch, state, streams);
  };
  const int64_t length = first.sequence.length;
  const auto chunk_from = [&](int64_t i) { return ChunkTokens{.first = i, .count = std::min(kChunk, length - i)}; };
  if (config.chunk == 1 || length <= kMostSteps) {
    for (int64_t h = 0; h < heads; ++h) task_of(h).run_steps();
    return;
  }
  for (int64_t h = 0; h < heads; ++h) task_of(h).begin();
  for (int64_t i = 0; i < length; i += kChunk)
    for (int64_t h = 0; h < heads; ++h) {
      const bool is_last = h + 1 == heads;
      task_of(h).run_chunk(chunk_from(i), head_part(is_last ? 0 : h + 1), chunk_from(is_last ? i + kChunk : i));
    }
  for (int64_t h = 0; h < heads; ++h) task_of(h).end();
}

}  // namespace
}  // namespace ejk::recurrence::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::recurrence {
namespace {

HWY_EXPORT(forward_parts);

/// States that a last-level cache of today does not hold twice.
constexpr double kStreamedBytes = 16e6;

int64_t num_tasks(const Problem& p, const CpuConfig& config) {
  return p.num_sequences * cpu::ceil_div(p.num_q_heads, config.block_h) * cpu::ceil_div(p.value_dim, config.block_v);
}

}  // namespace

size_t forward_cpu_workspace(const Call<RecurrentAttention>& call, const CpuConfig& config,
                             const DeviceProperties& device) {
  const Problem p = make_problem(call.inputs, call.params);
  const int64_t workers = std::min<int64_t>(num_tasks(p, config), std::max(device.num_units, cpu::num_threads()));
  return static_cast<size_t>(workers) * ForwardScratch::bytes(p, config);
}

void forward_cpu(const Call<RecurrentAttention>& call, const CpuConfig& config, const RunContext& context) {
  const Problem p = make_problem(call.inputs, call.params);
  const bool overlapping = survey_sequences(p, context.status);
  clear_gaps(p, overlapping, call.outputs.out);
  const size_t scratch = ForwardScratch::bytes(p, config);
  const int64_t blocks = cpu::ceil_div(p.value_dim, config.block_v);
  const int64_t groups = cpu::ceil_div(p.num_q_heads, config.block_h);
  const bool streams = bytes_of({&call.outputs.final_state, 1}) > kStreamedBytes;
  cpu::parallel_for(
      num_tasks(p, config),
      [&](int64_t task, int worker) {
        const int64_t column = task % blocks * config.block_v, index = task / blocks / groups;
        const int64_t q_head = task / blocks % groups * config.block_h;
        const HeadPart part{.p = p,
                            .sequence = p.sequence(index, nullptr),
                            .index = index,
                            .q_head = q_head,
                            .column = column,
                            .columns = std::min<int64_t>(config.block_v, p.value_dim - column)};
        HWY_DYNAMIC_DISPATCH(forward_parts)
        (part, std::min<int64_t>(config.block_h, p.num_q_heads - q_head), call.outputs, config, streams,
         context.workspace.data() + static_cast<size_t>(worker) * scratch);
      },
      overlapping ? 1 : static_cast<int>(context.workspace.size() / scratch));
}

}  // namespace ejk::recurrence

namespace ejk {
namespace {

struct RecurrentAttentionCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = recurrence::CpuConfig;
  using Call = ejk::Call<RecurrentAttention>;

  static Support supports(const Call& call, const DeviceProperties&) { return recurrence::supports_cpu(call.inputs); }
  static Config heuristic(const Call& call, const DeviceProperties& device) {
    return recurrence::cpu_heuristic(call, device);
  }
  static std::vector<Config> candidates(const Call& call, const DeviceProperties&) {
    return recurrence::cpu_candidates(call);
  }
  static Cost cost(const Call& call, const Config& config, const DeviceProperties&) {
    return recurrence::cpu_cost(call, config);
  }
  static size_t workspace_bytes(const Call& call, const Config& config, const DeviceProperties& device) {
    return recurrence::forward_cpu_workspace(call, config, device);
  }
  static void run(const Call& call, const Config& config, const RunContext& context) {
    recurrence::forward_cpu(call, config, context);
  }
};

}  // namespace

const KernelInfo& recurrent_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<RecurrentAttention, RecurrentAttentionCpu>();
  return kernel;
}

}  // namespace ejk
#endif
