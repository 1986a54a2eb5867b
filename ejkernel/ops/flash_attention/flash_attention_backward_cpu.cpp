// Gradient of flash_attention on the CPU. Every sum has one owner that adds in a fixed order, so results do not depend
// on the number of threads:
//
//   delta   one task per tile of query rows
//   keys    one task per part of the keys of a (sequence, kv head): dK and dV of its keys, and its share of dQ
//   rows    one task per tile of query rows: adds the shares of dQ
//   bias    one task per tile of the bias's gradient: over everything the bias is broadcast to
//   sinks   one task per query head, from delta
//
// A task of keys goes through its blocks of keys and, for each, through the tiles of query rows: it recomputes P from
// lse and dS panel by panel (attention_gradient_tiles-inl.h), then multiplies whole tiles: five products in all. Memory
// is O(q_len + kv_len): dQ in float32 is the largest part of it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/flash_attention/flash_attention_backward_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And after that:
#include "ejkernel/ops/flash_attention/attention_gradient_tiles-inl.h"
// And last:
#include "ejkernel/ops/flash_attention/attention_key_gradient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

// ---- delta ----

struct DeltaScratch : GradientScratch<float> {
  float* outs;     ///< panel of O
  float* d_outs;   ///< panel of dO
  float* queries;  ///< panel
  float* keys;     ///< rows of a block

  static DeltaScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    DeltaScratch s;
    s.GradientScratch::carve(p, config, carver);
    s.outs = carver.take<float>(p.value_dim * panel_rows());
    s.d_outs = carver.take<float>(p.value_dim * panel_rows());
    s.queries = carver.take<float>(p.head_dim * panel_rows());
    s.keys = carver.take<float>(config.block_k * padded(p.head_dim));
    return s;
  }
};

/// delta = dO * O - dlse. Summed in the order of dO V^T: where a row sees one key the two cancel as they should.
void find_delta(const BackwardCall& call, const Panel& t, const DeltaScratch& s) {
  const FloatTag d;
  load_panel(call.given.out, strides_of(call.given.out), t, s.rows, s.outs);
  load_d_out_panel(call, t, s.rows, s.d_outs);
  for (int64_t r = 0; r < t.width(); r += lanes()) {
    FloatV sum = hn::Zero(d);
    for (int64_t at = r; at < call.problem.value_dim * panel_rows(); at += panel_rows())
      sum = hn::MulAdd(hn::Load(d, s.outs + at), hn::Load(d, s.d_outs + at), sum);
    hn::Store(sum, d, s.delta + r);
  }
  for (int64_t r = 0; r < t.count; ++r) {
    const int64_t row = t.sequence.q_begin + t.i[r];
    call.delta_of(t.batch, t.h[r], row) = s.delta[r] - call.d_lse_of(t.batch, t.h[r], row);
  }
}

/// delta += sum over keys of weight * dweight. Where no weight is, its cotangent may hold anything.
void add_weights_to_delta(const BackwardCall& call, const Panel& t, const DeltaScratch& s) {
  const FloatTag d;
  const Problem& p = call.problem;
  GradientTile<float> tile(call, t, s, {.probabilities = true, .d_scores = false});
  load_panel(p.query, p.q, t, s.rows, s.queries);
  std::fill_n(s.delta, panel_rows(), 0.0f);
  for_each_key_block({&t, 1}, call.config.block_k, [&](int64_t first, int64_t count) {
    KeyBlock block;
    block.first = first, block.count = count;
    load_key_rows(p.key, p.k, t, first, count, s.keys);
    if (!tile.compute(block, s.keys, nullptr, s.queries, nullptr)) return;
    load_d_weights(call.given.d_weights, t, block, s.d_scores, panel_rows());
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      FloatV sum = hn::Load(d, s.delta + r);
      for (int64_t at = r; at < block.count * panel_rows(); at += panel_rows()) {
        const FloatV weight = hn::Load(d, s.scores + at);
        const FloatV term = hn::Mul(weight, hn::Load(d, s.d_scores + at));
        sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), term));
      }
      hn::Store(sum, d, s.delta + r);
    }
  });
  for (int64_t r = 0; r < t.count; ++r) call.delta_of(t.batch, t.h[r], t.sequence.q_begin + t.i[r]) += s.delta[r];
}

void delta_task(const BackwardCall& call, const BlockMap::Place& place, std::byte* memory) {
  const Problem& p = call.problem;
  cpu::Carver carver(memory);
  const DeltaScratch s = DeltaScratch::carve(p, call.config, carver);
  const Sequence sequence = p.sequence(place.sequence, nullptr);
  const int64_t first = place.block * call.config.block_q;
  const int64_t past = std::min(first + call.config.block_q, sequence.q_len * p.group());
  for (int64_t row = first; row < past; row += panel_rows()) {
    Panel t;
    set_rows(call, sequence, place.kv_head, row, std::min(panel_rows(), past - row), t);
    find_delta(call, t, s);
    if (call.given.d_weights.present()) add_weights_to_delta(call, t, s);
  }
}

// ---- keys: dK, dV and shares of dQ ----

void key_task(const BackwardCall& call, const KeyParts::Task& task, std::byte* memory) {
  if (uses_pairs(call.problem, call.config)) return run_key_task<Pair>(call, task, memory);
  run_key_task<float>(call, task, memory);
}

// ---- rows: dQ ----

/// dQ = scale times its shares, 0 for a row that sees nothing; such a row keeps its lse's cotangent alone (rule 9).
void row_task(const BackwardCall& call, const BlockMap::Place& place, std::byte* memory) {
  const Problem& p = call.problem;
  const Tensor& to = call.wanted.query;
  const Sequence s = p.sequence(place.sequence, nullptr);
  const int64_t b = p.batch_of(s), heads = p.group(), stride = padded(p.head_dim);
  const int64_t first = place.block * call.config.block_q;
  const int64_t past = std::min(first + call.config.block_q, s.q_len * heads);
  cpu::Carver carver(memory);
  float* sum = carver.take<float>(stride);
  for (int64_t n = first; n < past; ++n) {
    const int64_t row = s.q_begin + n / heads, h = place.kv_head * heads + n % heads;
    bool sees = false;
    std::fill_n(sum, p.head_dim, 0.0f);
    for (int64_t part = 0; part < call.parts.count(s.index); ++part) {
      const int64_t at = call.parts.first_row(s, place.kv_head, part) + n;
      if (!call.sees[at]) continue;
      sees = true;
      if (!to.present()) continue;
      for (int64_t i = 0; i < p.head_dim; ++i) sum[i] += call.d_query[at * stride + i];
    }
    if (!sees) call.delta_of(b, h, row) = -call.d_lse_of(b, h, row);
    if (to.present())
      store_row(sum, static_cast<float>(p.scale), p.head_dim, to.data, to.dtype, strides_of(to).offset(b, row, h));
  }
}

// ---- bias ----

struct BiasScratch : GradientScratch<float> {
  float* queries;  ///< panel
  float* d_outs;   ///< panel
  float* keys;     ///< rows of a block
  float* values;   ///< rows of a block
  float* sums;     ///< of each panel: [block_k][lane]
  float* by_row;   ///< [lane][block_k]

  static BiasScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    BiasScratch s;
    s.GradientScratch::carve(p, config, carver);
    s.queries = carver.take<float>(p.head_dim * panel_rows());
    s.d_outs = carver.take<float>(p.value_dim * panel_rows());
    s.keys = carver.take<float>(config.block_k * padded(p.head_dim));
    s.values = carver.take<float>(config.block_k * padded(p.value_dim));
    s.sums = carver.take<float>(cpu::ceil_div(config.block_q, panel_rows()) * config.block_k * panel_rows());
    s.by_row = carver.take<float>(panel_rows() * config.block_k);
    return s;
  }
};

/// sums[key][lane] += dS of keys from `offset` on; sums[key][0] += its sum over lanes where the bias is broadcast over
/// queries.
void add_to_d_bias(const Panel& t, int64_t offset, int64_t count, bool over_queries, const float* d_scores,
                   float* sums) {
  const FloatTag d;
  for (int64_t j = 0; j < count; ++j) {
    const float* from = d_scores + j * panel_rows();
    float* to = sums + (offset + j) * panel_rows();
    if (over_queries) {
      float sum = 0;
      for (int64_t r = 0; r < t.count; ++r) sum += from[r];
      to[0] += sum;
    } else {
      for (int64_t r = 0; r < t.width(); r += lanes())
        hn::Store(hn::Add(hn::Load(d, to + r), hn::Load(d, from + r)), d, to + r);
    }
  }
}

/// Adds what rows [first_row, first_row + block_q) of one sequence and query head give to a block of `keys` keys.
void add_head_to_d_bias(const BackwardCall& call, const Sequence& sequence, int64_t h, int64_t first_row,
                        int64_t first_key, int64_t keys, const BiasScratch& s) {
  const Problem& p = call.problem;
  const bool over_queries = call.wanted.bias.shape[2] == 1;
  const int64_t past_row = std::min(first_row + call.config.block_q, sequence.q_len);
  const int64_t count = std::min(keys, sequence.k_len - first_key);
  if (count <= 0) return;
  bool loaded = false;
  for (int64_t row = first_row; row < past_row; row += panel_rows()) {
    Panel t;
    t.set(p, sequence, p.kv_head(h), h, 1, row, std::min(panel_rows(), past_row - row));
    hide_rows_without_lse(call, t);
    KeyBlock block;
    set_visible_part(t, first_key, count, block);
    if (block.count == 0) continue;
    if (!loaded) {
      load_key_rows(p.key, p.k, t, first_key, count, s.keys);
      load_key_rows(p.value, p.v, t, first_key, count, s.values);
      loaded = true;
    }
    load_panel(p.query, p.q, t, s.rows, s.queries);
    load_d_out_panel(call, t, s.rows, s.d_outs);
    const int64_t offset = block.first - first_key;
    GradientTile<float> tile(call, t, s, {.probabilities = false, .d_scores = true});
    if (!tile.compute(block, s.keys + offset * padded(p.head_dim), s.values + offset * padded(p.value_dim), s.queries,
                      s.d_outs))
      continue;
    const int64_t panel = over_queries ? 0 : (row - first_row) / panel_rows();
    add_to_d_bias(t, offset, block.count, over_queries, s.d_scores,
                  s.sums + panel * call.config.block_k * panel_rows());
  }
}

void store_d_bias(const Tensor& to, const BiasTiles::Place& place, const CpuConfig& config, int64_t keys,
                  const BiasScratch& s) {
  const int64_t first_row = place.row_block * config.block_q, first_key = place.key_block * config.block_k;
  const int64_t rows = std::min<int64_t>(config.block_q, to.shape[2] - first_row);
  for (int64_t at = 0; at < rows; at += panel_rows()) {
    const int64_t count = std::min(panel_rows(), rows - at);
    transpose(s.sums + at * config.block_k, panel_rows(), keys, count, s.by_row, int64_t{config.block_k});
    for (int64_t r = 0; r < count; ++r)
      store_row(
          s.by_row + r * config.block_k, 1, keys, to.data, to.dtype,
          place.batch * to.strides[0] + place.head * to.strides[1] + (first_row + at + r) * to.strides[2] + first_key);
  }
}

void bias_task(const BackwardCall& call, const BiasTiles::Place& place, std::byte* memory) {
  const Problem& p = call.problem;
  const Tensor& to = call.wanted.bias;
  cpu::Carver carver(memory);
  const BiasScratch s = BiasScratch::carve(p, call.config, carver);
  const int64_t first_key = place.key_block * call.config.block_k;
  const int64_t keys = std::min<int64_t>(call.config.block_k, to.shape[3] - first_key);
  const int64_t panels = cpu::ceil_div(call.config.block_q, panel_rows());
  std::fill_n(s.sums, panels * call.config.block_k * panel_rows(), 0.0f);

  const auto batches = BiasTiles::stands_for(to.shape[0], p.num_sequences, place.batch);
  const auto heads = BiasTiles::stands_for(to.shape[1], p.num_q_heads, place.head);
  for (int64_t b = batches.begin; b < batches.end; ++b) {
    const Sequence sequence = p.sequence(b, nullptr);
    const int64_t row_blocks = cpu::ceil_div(sequence.q_len, call.config.block_q);
    const auto blocks = BiasTiles::stands_for(to.shape[2], row_blocks, place.row_block);
    for (int64_t h = heads.begin; h < heads.end; ++h)
      for (int64_t n = blocks.begin; n < blocks.end; ++n)
        add_head_to_d_bias(call, sequence, h, n * call.config.block_q, first_key, keys, s);
  }
  store_d_bias(to, place, call.config, keys, s);
}

/// Scratch of whichever task needs the most.
size_t backward_scratch_bytes(const Problem& p, const CpuConfig& config) {
  cpu::Carver delta, keys, bias;
  DeltaScratch::carve(p, config, delta);
  if (uses_pairs(p, config))
    KeyScratch<Pair>::carve(p, config, keys);
  else
    KeyScratch<float>::carve(p, config, keys);
  if (p.bias.present()) BiasScratch::carve(p, config, bias);
  return std::max({delta.used(), keys.used(), bias.used()});
}

}  // namespace
}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attn {
namespace {

HWY_EXPORT(backward_scratch_bytes);
HWY_EXPORT(delta_task);
HWY_EXPORT(key_task);
HWY_EXPORT(row_task);
HWY_EXPORT(bias_task);

/// The part of the workspace that is not scratch.
struct BackwardMemory {
  int64_t* first_row_block;
  int64_t* first_key_block;
  int64_t* key_parts;
  float* delta;
  float* d_query;
  uint8_t* sees;
  double* sinks;  ///< [query head][sink]
  size_t bytes;

  BackwardMemory(const Problem& p, const CpuBackwardConfig& config, std::byte* memory) {
    cpu::Carver carver(memory);
    const int64_t rows = (p.packed ? 1 : p.num_sequences) * p.num_q_heads * p.q_rows;
    const int64_t rows_of_parts = KeyParts::most_rows(p, config.key_parts);
    first_row_block = carver.take<int64_t>(p.num_sequences + 1);
    first_key_block = carver.take<int64_t>(p.num_sequences + 1);
    key_parts = carver.take<int64_t>(KeyParts::numbers(p.num_sequences));
    delta = carver.take<float>(rows);
    d_query = carver.take<float>(rows_of_parts * cpu::padded(p.head_dim));
    sees = carver.take<uint8_t>(rows_of_parts);
    sinks = carver.take<double>(p.num_q_heads * p.num_sinks);
    bytes = carver.used();
  }
};

/// dsink = -sum over rows of e^(sink - lse) * delta, in double and in the order of rows.
void sum_sinks_of_head(const BackwardCall& call, int64_t h, double* sums) {
  const Problem& p = call.problem;
  std::fill_n(sums, p.num_sinks, 0.0);
  const int64_t batches = p.packed ? 1 : p.num_sequences;
  for (int64_t b = 0; b < batches; ++b)
    for (int64_t row = 0; row < p.q_rows; ++row) {
      const double lse = call.lse_of(b, h, row);
      if (lse == -std::numeric_limits<double>::infinity()) continue;
      for (int64_t a = 0; a < p.num_sinks; ++a) sums[a] -= std::exp(p.sink_at(h, a) - lse) * call.delta_of(b, h, row);
    }
}

void store_sinks(const Problem& p, const Tensor& to, const double* sums) {
  for (int64_t a = 0; a < p.num_sinks; ++a) {
    double shared = 0;
    for (int64_t h = 0; h < p.num_q_heads; ++h) {
      const double sum = sums[h * p.num_sinks + a];
      if (to.rank() == 2) store_from_double(to.data, to.dtype, h * to.strides[0] + a * to.strides[1], sum);
      shared += sum;
    }
    if (to.rank() == 1) store_from_double(to.data, to.dtype, a * to.strides[0], shared);
  }
}

/// What the phases share: they run one after the other on the same scratch.
class Backward {
 public:
  Backward(const Problem& p, const Cotangents& given, const FlashAttentionBackward::Outputs& wanted,
           const CpuBackwardConfig& config, const RunContext& context)
      : config_(config),
        memory_(p, config, context.workspace.data()),
        call_{.problem = p, .given = given, .wanted = wanted, .config = config_},
        scratch_(context.workspace.data() + memory_.bytes),
        scratch_bytes_(HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p, config)),
        workers_(static_cast<int>((context.workspace.size() - memory_.bytes) / scratch_bytes_)) {
    if (wanted.query.present() || wanted.key.present() || wanted.bias.present() || wanted.softmax_aux.present())
      call_.delta = memory_.delta;
    if (wanted.query.present()) call_.d_query = memory_.d_query;
    call_.sees = memory_.sees;
    rows_.build(p, BlockMap::Side::kQueries, p.group(), config.block_q, memory_.first_row_block, context.status);
    keys_.build(p, BlockMap::Side::kKeys, 1, config.block_k, memory_.first_key_block, nullptr);
  }

  void run() {
    fill_gaps();
    const FlashAttentionBackward::Outputs& wanted = call_.wanted;
    // Sequences that claim the same rows go one after the other: the last one's result stays.
    const int64_t all = call_.problem.num_sequences, step = rows_.overlapping() || keys_.overlapping() ? 1 : all;
    for (int64_t n = 0; n < all; n += step) run_sequences(n, n + step);
    if (wanted.bias.present()) {
      const BiasTiles tiles(wanted.bias.shape, call_.config);
      run_tasks(tiles.count(), [&](int64_t tile, std::byte* scratch) {
        HWY_DYNAMIC_DISPATCH(bias_task)(call_, tiles.find(tile), scratch);
      });
    }
    if (wanted.softmax_aux.present()) differentiate_sinks();
  }

 private:
  void run_sequences(int64_t begin, int64_t end) {
    const FlashAttentionBackward::Outputs& wanted = call_.wanted;
    const int64_t first = rows_.first_block(begin), tiles = rows_.first_block(end) - first;
    if (call_.delta != nullptr)
      run_tasks(tiles, [&](int64_t n, std::byte* scratch) {
        HWY_DYNAMIC_DISPATCH(delta_task)(call_, rows_.find(first + n), scratch);
      });
    const bool wants_rows = wanted.query.present() || wanted.softmax_aux.present();
    if (!wants_rows && !wanted.key.present() && !wanted.value.present()) return;
    call_.parts.build(call_.problem, config_, begin, end, memory_.key_parts);
    run_tasks(call_.parts.num_tasks(), [&](int64_t n, std::byte* scratch) {
      HWY_DYNAMIC_DISPATCH(key_task)(call_, call_.parts.find(n), scratch);
    });
    if (wants_rows)
      run_tasks(tiles, [&](int64_t n, std::byte* scratch) {
        HWY_DYNAMIC_DISPATCH(row_task)(call_, rows_.find(first + n), scratch);
      });
  }

  template <class Task>
  void run_tasks(int64_t count, Task task) {
    cpu::parallel_for(
        count, [&](int64_t n, int worker) { task(n, scratch_ + static_cast<size_t>(worker) * scratch_bytes_); },
        workers_);
  }

  /// Rows of no sequence get zeros; what the sinks get from such queries is their lse's cotangent (rules 9, 10).
  void fill_gaps() {
    const Problem& p = call_.problem;
    const FlashAttentionBackward::Outputs& wanted = call_.wanted;
    for_each_gap(p, BlockMap::Side::kQueries, rows_.overlapping(), [&](int64_t b, int64_t begin, int64_t end) {
      if (wanted.query.present()) clear_rows(wanted.query, b, begin, end);
      if (call_.delta == nullptr) return;
      for (int64_t h = 0; h < p.num_q_heads; ++h)
        for (int64_t row = begin; row < end; ++row) call_.delta_of(b, h, row) = -call_.d_lse_of(b, h, row);
    });
    for_each_gap(p, BlockMap::Side::kKeys, keys_.overlapping(), [&](int64_t b, int64_t begin, int64_t end) {
      if (wanted.key.present()) clear_rows(wanted.key, b, begin, end);
      if (wanted.value.present()) clear_rows(wanted.value, b, begin, end);
    });
  }

  void differentiate_sinks() {
    const Problem& p = call_.problem;
    cpu::parallel_for(p.num_q_heads, [&](int64_t h) { sum_sinks_of_head(call_, h, memory_.sinks + h * p.num_sinks); });
    store_sinks(p, call_.wanted.softmax_aux, memory_.sinks);
  }

  const CpuBackwardConfig config_;
  const BackwardMemory memory_;
  BackwardCall call_;
  std::byte* const scratch_;
  const size_t scratch_bytes_;
  const int workers_;
  BlockMap rows_, keys_;
};

}  // namespace

/// Pairs are of tensors that are all bf16, and none of them tiny.
bool takes_pairs(const Problem& p, const Cotangents& given) {
  if (p.query.dtype != DType::bf16 || is_tiny(p.query) || is_tiny(p.key) || is_tiny(p.value)) return false;
  return !given.d_out.present() || (given.d_out.dtype == DType::bf16 && !is_tiny(given.d_out));
}

size_t backward_cpu_workspace(const Problem& p, const CpuBackwardConfig& config, const DeviceProperties& device) {
  int64_t tasks = std::max(BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q),
                           KeyParts::most_tasks(p, config.key_parts));
  if (p.bias.present()) tasks = std::max(tasks, BiasTiles(p.bias.shape, config).count());
  const int64_t workers = std::min<int64_t>(tasks, std::max(device.num_units, cpu::num_threads()));
  // Floats need the most: they serve whatever the cotangents and the contents turn out to be.
  return BackwardMemory(p, config, nullptr).bytes +
         static_cast<size_t>(workers) * HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p, widened(config));
}

void backward_cpu(const Problem& p, const Cotangents& given, const FlashAttentionBackward::Outputs& wanted,
                  const CpuBackwardConfig& config, const RunContext& context) {
  Backward(p, given, wanted, takes_pairs(p, given) ? config : widened(config), context).run();
}

}  // namespace ejk::attn

namespace ejk {
namespace {

struct FlashAttentionBackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = attn::CpuBackwardConfig;
  using Call = ejk::Call<FlashAttentionBackward>;

  static Support supports(const Call& call, const DeviceProperties&) { return attn::supports_cpu(call.inputs); }
  static Support runs_here(const Config& config, const DeviceProperties&) { return attn::runs_here(config); }
  static Config heuristic(const Call& call, const DeviceProperties& device) {
    return attn::cpu_heuristic<Config>(attn::make_problem(call.inputs, call.params),
                                       attn::basis_of_choice(device, call.params.deterministic));
  }
  static std::vector<Config> candidates(const Call& call, const DeviceProperties&) {
    return attn::cpu_candidates<Config>(attn::make_problem(call.inputs, call.params));
  }
  static Cost cost(const Call& call, const Config& config, const DeviceProperties&) {
    return attn::cpu_cost(attn::make_problem(call.inputs, call.params), config);
  }
  static size_t workspace_bytes(const Call& call, const Config& config, const DeviceProperties& device) {
    return attn::backward_cpu_workspace(attn::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call& call, const Config& config, const RunContext& context) {
    const attn::Cotangents given{
        .out = call.inputs.out, .lse = call.inputs.lse, .d_out = call.inputs.d_out, .d_lse = call.inputs.d_lse};
    attn::backward_cpu(attn::make_problem(call.inputs, call.params), given, call.outputs, config, context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, FlashAttentionBackwardCpu>();
  return kernel;
}

}  // namespace ejk
#endif
