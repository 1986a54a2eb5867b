// The gradient of recurrent_attention on the CPU: a task owns one kv head of one sequence and the query heads that read
// it. Every sum has one owner that adds in a fixed order, so results do not depend on the number of threads.
//
// Chunk by chunk, by the algebra of chunk.h, it goes through the sequence twice:
//
//   on the way there   states only; the first one of each segment of `segment` chunks is kept
//   on the way back    segment by segment, last one first. The segment's states are made again from the one that was
//                      kept, then its chunks' gradients, last one first, while the state's cotangent passes by
//
// A chunk takes four products with a state or its cotangent: for dq, dk, dv and the cotangent before the chunk. What
// query heads give their common key and value meets in scratch, a segment at a time, and is rounded once. Gradients of
// gates are sums without differences (chunk.h): where nothing passes, they are 0.
#include <algorithm>

#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/recurrent_attention/recurrent_attention_backward_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h:
#include "ejkernel/platform/cpu/chunk-inl.h"
// After that:
#include "ejkernel/ops/recurrent_attention/recurrent_attention_chunk-inl.h"

#ifndef EJK_RECURRENT_ATTENTION_BACKWARD_CPU_ONCE
#define EJK_RECURRENT_ATTENTION_BACKWARD_CPU_ONCE
namespace ejk::recurrence {
namespace {

/// Where the segments of a sequence begin and end, in chunks and in tokens.
struct Segments {
  int64_t length, chunks_each;

  int64_t tokens_each() const { return chunks_each * cpu::kChunk; }
  int64_t count() const { return cpu::ceil_div(length, tokens_each()); }
  int64_t begin(int64_t segment) const { return segment * tokens_each(); }
  int64_t num_chunks(int64_t segment) const {
    return cpu::ceil_div(std::min(length - begin(segment), tokens_each()), cpu::kChunk);
  }
};

/// What a task works in.
struct BackwardScratch {
  // Rows of a chunk. "To start" and "to end": decayed from the chunk's start up to the token, and from there to the
  // end.
  cpu::ChunkRows query, key, key_decay, query_to_start, key_to_end, d_query, d_key, key_gate;
  cpu::ChunkRows value, d_out, value_decay, d_out_to_start, value_to_end, d_value, out, value_gate;
  cpu::ChunkRows key_scores, value_scores, table, weights;
  float *panel, *whole_key_decay, *whole_value_decay, *key_ends, *value_ends;
  float* turned;             ///< of read_state_across
  float* kept;               ///< [query head][segment]: the state that the segment begins with
  float* states;             ///< [chunk of a segment]: likewise
  float* cotangents;         ///< [query head]: of the state after the chunk
  float *d_keys, *d_values;  ///< [token of a segment]: sums over query heads; null for a single one

  static BackwardScratch carve(const Problem& p, int64_t segment, cpu::Carver& carver) {
    using cpu::ChunkRows;
    BackwardScratch s;
    for (ChunkRows* rows :
         {&s.query, &s.key, &s.key_decay, &s.query_to_start, &s.key_to_end, &s.d_query, &s.d_key, &s.key_gate})
      *rows = ChunkRows::take(carver, p.key_dim);
    for (ChunkRows* rows :
         {&s.value, &s.d_out, &s.value_decay, &s.d_out_to_start, &s.value_to_end, &s.d_value, &s.out, &s.value_gate})
      *rows = ChunkRows::take(carver, p.value_dim);
    for (ChunkRows* rows : {&s.key_scores, &s.value_scores, &s.table, &s.weights})
      *rows = ChunkRows::take(carver, cpu::kChunk);
    s.panel = carver.take<float>(cpu::kChunk * cpu::padded(std::max(p.key_dim, p.value_dim)));
    s.whole_key_decay = carver.take<float>(cpu::padded(p.key_dim));
    s.whole_value_decay = carver.take<float>(cpu::padded(p.value_dim));
    s.key_ends = carver.take<float>(cpu::padded(p.key_dim));
    s.value_ends = carver.take<float>(cpu::padded(p.value_dim));
    s.turned = carver.take<float>(cpu::ChunkState::turned_size(p.key_dim, p.value_dim));
    const int64_t heads = p.heads_per_kv_head(), state = cpu::ChunkState::size(p.key_dim, p.value_dim);
    s.kept = carver.take<float>(heads * Segments{p.num_rows, segment}.count() * state);
    s.states = carver.take<float>(std::min(segment, cpu::ceil_div(p.num_rows, cpu::kChunk)) * state);
    s.cotangents = carver.take<float>(heads * state);
    const int64_t tokens = heads == 1 ? 0 : segment * cpu::kChunk;
    s.d_keys = carver.take<float>(tokens * cpu::padded(p.key_dim));
    s.d_values = carver.take<float>(tokens * cpu::padded(p.value_dim));
    return s;
  }
  static size_t bytes(const Problem& p, int64_t segment) {
    cpu::Carver carver;
    carve(p, segment, carver);
    return carver.used();
  }
};

/// What all tasks share.
struct BackwardCall {
  const Problem& p;
  const RecurrentAttentionBackward::Inputs& in;
  const RecurrentAttentionBackward::Outputs& wanted;
  int64_t segment;
  double* d_gamma;  ///< [sequence][query head]

  bool wants_key_gates() const { return wanted.g.present() || wanted.g_gamma.present() || wanted.gk.present(); }
};

}  // namespace
}  // namespace ejk::recurrence
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::recurrence::HWY_NAMESPACE {
namespace {

/// The task of one kv head of one sequence.
class BackwardTask {
 public:
  BackwardTask(const BackwardCall& call, int64_t index, int64_t kv_head, const BackwardScratch& scratch)
      : call_(call),
        p_(call.p),
        s_(scratch),
        heads_(p_.heads_per_kv_head()),
        part_{.p = p_,
              .sequence = p_.sequence(index, nullptr),
              .index = index,
              .q_head = kv_head * heads_,
              .column = 0,
              .columns = p_.value_dim},
        segments_{part_.sequence.length, call.segment} {}

  void run() {
    const int64_t first = part_.q_head;
    for (int64_t r = 0; r < heads_; ++r) {
      part_.q_head = first + r;
      load_state(part_, call_.in.d_final_state, cotangent(r));
      call_.d_gamma[part_.index * p_.num_q_heads + part_.q_head] = 0;
      keep_states(r);
    }
    for (int64_t segment = segments_.count() - 1; segment >= 0; --segment) {
      for (int64_t r = 0; r < heads_; ++r) {
        part_.q_head = first + r;
        find_states(r, segment);
        for (int64_t chunk = segments_.num_chunks(segment) - 1; chunk >= 0; --chunk) run_chunk(r, segment, chunk);
      }
      if (heads_ > 1) store_shared(segment);
    }
    for (int64_t r = 0; r < heads_; ++r) {
      part_.q_head = first + r;
      store_state(part_, cotangent(r), call_.wanted.initial_state);
    }
  }

 private:
  bool has_key_rows() const { return p_.in.gk.present(); }
  bool has_value_rows() const { return p_.in.gv.present(); }
  const float* whole_value_decay() const { return has_value_rows() ? s_.whole_value_decay : nullptr; }

  ChunkState state_at(float* states, int64_t n) const {
    return ChunkState::at(states + n * ChunkState::size(p_.key_dim, p_.value_dim), p_.key_dim, p_.value_dim);
  }
  ChunkState kept(int64_t r, int64_t segment) const { return state_at(s_.kept, r * segments_.count() + segment); }
  ChunkState cotangent(int64_t r) const { return state_at(s_.cotangents, r); }
  ChunkTokens tokens_of(int64_t segment, int64_t chunk) const {
    const int64_t first = segments_.begin(segment) + chunk * kChunk;
    return {.first = first, .count = std::min(kChunk, segments_.length - first)};
  }

  // ---- states ----

  /// Loads what changes a state, and decays it to the end of the chunk.
  void load_update(const ChunkTokens& tokens) {
    load_rows(part_, p_.in.key, part_.kv_head(), 0, tokens, s_.key);
    load_rows(part_, p_.in.value, part_.kv_head(), 0, tokens, s_.value);
    load_key_decays(part_, tokens, s_.key_decay);
    decay_to_end(s_.key_decay, s_.key, s_.key_to_end, s_.whole_key_decay);
    if (!has_value_rows()) return;
    load_value_decays(part_, tokens, s_.value_decay);
    decay_to_end(s_.value_decay, s_.value, s_.value_to_end, s_.whole_value_decay);
  }
  void update(const ChunkTokens& tokens, const ChunkState& from, const ChunkState& to, ChunkPrefetch next) {
    load_update(tokens);
    update_state_and_fetch(from.data, to, s_.whole_key_decay, whole_value_decay(), s_.key_to_end, values_to_end(),
                           next);
  }
  /// What load_update() reads.
  ChunkPrefetch rows_of_update(const ChunkTokens& tokens) const {
    ChunkPrefetch rows(part_, tokens);
    rows.add(p_.in.key, part_.kv_head(), 0, p_.key_dim);
    rows.add(p_.in.value, part_.kv_head(), 0, p_.value_dim);
    rows.add(p_.in.gk, part_.q_head, 0, p_.key_dim);
    rows.add(p_.in.gv, part_.q_head, 0, p_.value_dim);
    return rows;
  }
  /// What load_chunk() reads.
  ChunkPrefetch rows_of_chunk(const ChunkTokens& tokens) const {
    ChunkPrefetch rows = rows_of_update(tokens);
    rows.add(p_.in.query, part_.q_head, 0, p_.key_dim);
    rows.add(call_.in.d_out, part_.q_head, 0, p_.value_dim);
    return rows;
  }
  /// What run_chunk() writes.
  ChunkPrefetch rows_of_gradients(const ChunkTokens& tokens) const {
    ChunkPrefetch rows(part_, tokens);
    rows.add(call_.wanted.query, part_.q_head, 0, p_.key_dim);
    rows.add(call_.wanted.gk, part_.q_head, 0, p_.key_dim);
    rows.add(call_.wanted.gv, part_.q_head, 0, p_.value_dim);
    if (heads_ > 1) return rows;
    rows.add(call_.wanted.key, part_.kv_head(), 0, p_.key_dim);
    rows.add(call_.wanted.value, part_.kv_head(), 0, p_.value_dim);
    return rows;
  }
  const ChunkRows& values_to_end() const { return has_value_rows() ? s_.value_to_end : s_.value; }

  void keep_states(int64_t r) {
    if (segments_.count() == 0) return;
    load_state(part_, p_.in.initial_state, kept(r, 0));
    for (int64_t segment = 0; segment + 1 < segments_.count(); ++segment)
      for (int64_t chunk = 0; chunk < segments_.chunks_each; ++chunk)
        update(tokens_of(segment, chunk), kept(r, chunk == 0 ? segment : segment + 1), kept(r, segment + 1),
               rows_of_update(tokens_of(segment, chunk + 1)));
  }

  /// The state before chunk `chunk` of the segment at hand.
  ChunkState state_before(int64_t r, int64_t segment, int64_t chunk) const {
    return chunk == 0 ? kept(r, segment) : state_at(s_.states, chunk);
  }
  void find_states(int64_t r, int64_t segment) {
    for (int64_t chunk = 0; chunk + 1 < segments_.num_chunks(segment); ++chunk)
      update(tokens_of(segment, chunk), state_before(r, segment, chunk), state_at(s_.states, chunk + 1),
             rows_of_chunk(tokens_of(segment, chunk + 1)));
  }

  // ---- gradients ----

  void run_chunk(int64_t r, int64_t segment, int64_t chunk) {
    const ChunkTokens tokens = tokens_of(segment, chunk);
    const ChunkState before = state_before(r, segment, chunk), after = cotangent(r);
    load_chunk(tokens);
    find_scores();
    read_ends(before, after);
    add_pairs();
    update_state_and_fetch(after.data, after, s_.whole_key_decay, whole_value_decay(), s_.query_to_start,
                           d_outs_to_start(), rows_of_gradients(tokens_of(segment, chunk - 1)));
    store_rows(part_, s_.d_query, 1, part_.q_head, 0, tokens, call_.wanted.query);
    store_gates(tokens);
    if (heads_ > 1) return share(r, chunk);
    store_rows(part_, s_.d_key, 1, part_.kv_head(), 0, tokens, call_.wanted.key);
    store_rows(part_, s_.d_value, 1, part_.kv_head(), 0, tokens, call_.wanted.value);
  }

  void load_chunk(const ChunkTokens& tokens) {
    load_update(tokens);
    load_rows(part_, p_.in.query, part_.q_head, 0, tokens, s_.query);
    load_rows(part_, call_.in.d_out, part_.q_head, 0, tokens, s_.d_out);
    scale_rows(static_cast<float>(p_.scale), s_.d_out);
    decay_from_start(s_.key_decay, s_.query, s_.query_to_start);
    if (has_value_rows()) decay_from_start(s_.value_decay, s_.d_out, s_.d_out_to_start);
  }
  const ChunkRows& d_outs_to_start() const { return has_value_rows() ? s_.d_out_to_start : s_.d_out; }

  /// key_scores: A of chunk.h, decayed by keys' decays; value_scores: M, decayed by values'.
  void find_scores() {
    if (has_key_rows()) {
      decayed_scores(s_.query, s_.key, s_.key_decay, s_.panel, s_.key_scores);
    } else {
      if (have_token_decays(p_)) decay_table(s_.key_decay, s_.table);
      plain_scores(s_.query, s_.key, have_token_decays(p_) ? s_.table : ChunkRows(), s_.panel, s_.key_scores);
    }
    if (has_value_rows())
      decayed_scores(s_.d_out, s_.value, s_.value_decay, s_.panel, s_.value_scores);
    else
      plain_scores(s_.d_out, s_.value, ChunkRows(), s_.panel, s_.value_scores);
  }

  /// Gradients through the state before the chunk and through the one after it.
  void read_ends(const ChunkState& before, const ChunkState& after) {
    read_state_across(before, d_outs_to_start(), s_.turned, s_.d_query);
    decay_from_start(s_.key_decay, s_.d_query, s_.d_query);
    read_state_across(after, values_to_end(), s_.turned, s_.d_key);
    decay_to_end(s_.key_decay, s_.d_key, s_.d_key, s_.whole_key_decay);
    read_state<false>(after, s_.key_to_end, s_.d_value);
    if (has_value_rows()) decay_to_end(s_.value_decay, s_.d_value, s_.d_value, s_.whole_value_decay);

    const bool wants_keys = call_.wants_key_gates(), wants_values = call_.wanted.gv.present();
    if (wants_keys || wants_values)
      sum_state_products(before, after, s_.whole_key_decay, whole_value_decay(), wants_keys ? s_.key_ends : nullptr,
                         wants_values ? s_.value_ends : nullptr);
    if (wants_keys) find_end_gradients(s_.key_ends, s_.query, s_.d_query, s_.key, s_.d_key, s_.key_gate);
    if (wants_values) {
      read_state<false>(before, s_.query_to_start, s_.out);
      decay_from_start(s_.value_decay, s_.out, s_.out);
      find_end_gradients(s_.value_ends, s_.d_out, s_.out, s_.value, s_.d_value, s_.value_gate);
    }
  }

  /// What tokens of the chunk give each other.
  void add_pairs() {
    if (has_key_rows()) {
      add_pair_gradients(s_.value_scores, s_.query, s_.key, s_.key_decay, s_.d_query, s_.d_key, s_.key_gate);
    } else {
      if (have_token_decays(p_)) multiply_tables(s_.value_scores, s_.table, s_.weights);
      const ChunkRows& weights = have_token_decays(p_) ? s_.weights : s_.value_scores;
      weighted_sums<true>(weights, s_.key, s_.d_query);
      add_sums_down(weights, s_.query, s_.d_key);
    }
    if (has_value_rows())
      add_pair_gradients(s_.key_scores, s_.d_out, s_.value, s_.value_decay, s_.out, s_.d_value, s_.value_gate);
    else
      add_sums_down(s_.key_scores, s_.d_out, s_.d_value);
  }

  void store_gates(const ChunkTokens& tokens) {
    const RecurrentAttentionBackward::Outputs& wanted = call_.wanted;
    store_rows(part_, s_.value_gate, 1, part_.q_head, 0, tokens, wanted.gv);
    store_rows(part_, s_.key_gate, 1, part_.q_head, 0, tokens, wanted.gk);
    if (!wanted.g.present() && !wanted.g_gamma.present()) return;
    float gates[kChunk];
    for (int64_t t = 0; t < kChunk; ++t) gates[t] = sum_row(s_.key_gate, t);
    if (!has_key_rows()) add_pair_products(s_.key_scores, s_.value_scores, gates);
    const TokenRows rows(part_, wanted.g, part_.q_head);
    for (int64_t t = 0; t < tokens.count && wanted.g.present(); ++t)
      store_row(gates + t, 1, 1, wanted.g.data, wanted.g.dtype, rows.offset(tokens.first + t));
    double& d_gamma = call_.d_gamma[part_.index * p_.num_q_heads + part_.q_head];
    for (int64_t t = tokens.count - 1; t >= 0; --t) d_gamma += static_cast<double>(gates[t]);
  }

  // ---- sums over query heads ----

  ChunkRows shared(float* rows, const ChunkRows& like, int64_t chunk) const {
    return {.data = rows + chunk * kChunk * like.stride, .columns = like.columns, .stride = like.stride};
  }
  void share(int64_t r, int64_t chunk) {
    for (const auto& [rows, sums] : {std::pair{s_.d_key, s_.d_keys}, {s_.d_value, s_.d_values}}) {
      const ChunkRows to = shared(sums, rows, chunk);
      if (r == 0)
        std::copy_n(rows.data, kChunk * rows.stride, to.data);
      else
        add_rows(rows, to);
    }
  }
  void store_shared(int64_t segment) {
    for (int64_t chunk = 0; chunk < segments_.num_chunks(segment); ++chunk) {
      const ChunkTokens tokens = tokens_of(segment, chunk);
      store_rows(part_, shared(s_.d_keys, s_.d_key, chunk), 1, part_.kv_head(), 0, tokens, call_.wanted.key);
      store_rows(part_, shared(s_.d_values, s_.d_value, chunk), 1, part_.kv_head(), 0, tokens, call_.wanted.value);
    }
  }

  const BackwardCall& call_;
  const Problem& p_;
  const BackwardScratch s_;
  const int64_t heads_;
  HeadPart part_;  ///< its query head is the one at hand
  const Segments segments_;
};

void backward_task(const BackwardCall& call, int64_t index, int64_t kv_head, std::byte* memory) {
  cpu::Carver carver(memory);
  BackwardTask(call, index, kv_head, BackwardScratch::carve(call.p, call.segment, carver)).run();
}

}  // namespace
}  // namespace ejk::recurrence::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::recurrence {
namespace {

HWY_EXPORT(backward_task);

double* take_gamma(const Problem& p, cpu::Carver& carver) {
  return carver.take<double>(p.num_sequences * p.num_q_heads);
}

void store_gamma(const BackwardCall& call) {
  const Problem& p = call.p;
  const Tensor& to = call.wanted.g_gamma;
  for (int64_t h = 0; h < p.num_q_heads && to.present(); ++h) {
    double sum = 0;
    for (int64_t n = 0; n < p.num_sequences; ++n) sum += call.d_gamma[n * p.num_q_heads + h];
    set(to, h, sum);
  }
}

}  // namespace

size_t backward_cpu_workspace(const Call<RecurrentAttentionBackward>& call, const CpuBackwardConfig& config,
                              const DeviceProperties& device) {
  const Problem p = make_problem(call.inputs, call.params);
  const int64_t tasks = p.num_sequences * p.num_kv_heads;
  const int64_t workers = std::min<int64_t>(tasks, std::max(device.num_units, cpu::num_threads()));
  cpu::Carver carver;
  take_gamma(p, carver);
  return carver.used() + static_cast<size_t>(workers) * BackwardScratch::bytes(p, config.segment);
}

void backward_cpu(const Call<RecurrentAttentionBackward>& call, const CpuBackwardConfig& config,
                  const RunContext& context) {
  const Problem p = make_problem(call.inputs, call.params);
  cpu::Carver carver(context.workspace.data());
  const BackwardCall shared{
      .p = p, .in = call.inputs, .wanted = call.outputs, .segment = config.segment, .d_gamma = take_gamma(p, carver)};
  const bool overlapping = survey_sequences(p, context.status);
  const RecurrentAttentionBackward::Outputs& to = call.outputs;
  for (const Tensor* t : {&to.query, &to.key, &to.value, &to.g, &to.gk, &to.gv}) clear_gaps(p, overlapping, *t);
  const size_t scratch = BackwardScratch::bytes(p, config.segment);
  std::byte* memory = context.workspace.data() + carver.used();
  cpu::parallel_for(
      p.num_sequences * p.num_kv_heads,
      [&](int64_t task, int worker) {
        HWY_DYNAMIC_DISPATCH(backward_task)
        (shared, task / p.num_kv_heads, task % p.num_kv_heads, memory + static_cast<size_t>(worker) * scratch);
      },
      overlapping ? 1 : static_cast<int>((context.workspace.size() - carver.used()) / scratch));
  store_gamma(shared);
}

}  // namespace ejk::recurrence

namespace ejk {
namespace {

struct RecurrentAttentionBackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = recurrence::CpuBackwardConfig;
  using Call = ejk::Call<RecurrentAttentionBackward>;

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
    return recurrence::backward_cpu_workspace(call, config, device);
  }
  static void run(const Call& call, const Config& config, const RunContext& context) {
    recurrence::backward_cpu(call, config, context);
  }
};

}  // namespace

const KernelInfo& recurrent_attention_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<RecurrentAttentionBackward, RecurrentAttentionBackwardCpu>();
  return kernel;
}

}  // namespace ejk
#endif
