// Gradient of flash_attention on the CPU. Every element of a gradient has one owner that sums all of it in a fixed
// order, so results do not depend on the number of threads; the price is that logits are computed once per kind of
// owner:
//
//   rows    one task per tile of query rows: delta and dQ, over blocks of keys
//   keys    one task per block of keys: dK and dV, over tiles of query rows
//   bias    one task per tile of the bias's gradient: over everything the bias is broadcast to
//   sinks   one task per query head, from delta
//
// All four recompute P from lse tile by tile (attention_tiles-inl.h); memory is O(q_len + kv_len).
#include <algorithm>
#include <cmath>
#include <limits>

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
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And after that:
#include "ejkernel/ops/flash_attention/attention_gradient_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attention::HWY_NAMESPACE {
namespace {

size_t backward_scratch_bytes(const Problem& p, const CpuConfig& config) {
  cpu::Carver carver;
  GradientScratch::carve(p, config, carver);
  return carver.used();
}

// ---- rows: delta and dQ ----

/// delta = dO * O - dlse. Summed in the order of dO V^T: where a row's values are equal the two cancel as they should.
void find_delta(const BackwardCall& call, const RowTile& t, const GradientScratch& s) {
  const FloatTag d;
  const int64_t dims = call.problem.value_dim;
  load_tile_rows(call.given.out, strides_of(call.given.out), t, s.rows);
  make_panel(t, s.rows, dims, s.outs, s.stride);
  load_d_out_rows(call, t, s.d_out_rows);
  make_panel(t, s.d_out_rows, dims, s.d_outs, s.stride);
  for (int64_t r = 0; r < t.width(); r += lanes()) {
    FloatV sum = hn::Zero(d);
    for (int64_t v = 0; v < dims; ++v)
      sum = hn::MulAdd(hn::Load(d, s.outs + v * s.stride + r), hn::Load(d, s.d_outs + v * s.stride + r), sum);
    hn::Store(sum, d, s.delta + r);
  }
  for (int64_t r = 0; r < t.count; ++r) {
    const int64_t row = t.sequence.q_begin + t.i[r];
    call.delta_of(t.batch, t.h[r], row) = s.delta[r] - call.d_lse_of(t.batch, t.h[r], row);
  }
}

/// delta += sum over keys of weight * dweight. Where no weight is, its cotangent may hold anything.
void add_weights_to_delta(const BackwardCall& call, const RowTile& t, const GradientScratch& s) {
  const FloatTag d;
  GradientTile tile(call, t, s, {.probabilities = true, .d_scores = false});
  tile.load_rows_of_tile();
  std::fill_n(s.delta, s.stride, 0.0f);
  t.for_each_key_block(call.config.block_k, [&](int64_t first, int64_t count) {
    KeyBlock block;
    block.first = first, block.count = count;
    if (!tile.compute(block)) return;
    load_d_weights(call.given.d_weights, t, block, s.d_scores, s.stride);
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      FloatV sum = hn::Load(d, s.delta + r);
      for (int64_t j = 0; j < block.count; ++j) {
        const FloatV weight = hn::Load(d, s.scores + j * s.stride + r);
        const FloatV term = hn::Mul(weight, hn::Load(d, s.d_scores + j * s.stride + r));
        sum = hn::Add(sum, hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), term));
      }
      hn::Store(sum, d, s.delta + r);
    }
  });
  for (int64_t r = 0; r < t.count; ++r) call.delta_of(t.batch, t.h[r], t.sequence.q_begin + t.i[r]) += s.delta[r];
}

/// dQ^T += K^T dS^T
void add_to_d_query(const BackwardCall& call, const RowTile& t, const KeyBlock& block, const GradientScratch& s) {
  clear_dead_rows(block, call.problem.head_dim, s.keys);
  gemm<Left::kTransposed, true>({.m = call.problem.head_dim,
                                 .n = t.width(),
                                 .k = block.count,
                                 .a = s.keys,
                                 .a_stride = padded(call.problem.head_dim),
                                 .b = s.d_scores,
                                 .b_stride = s.stride,
                                 .c = s.d_queries,
                                 .c_stride = s.stride});
}

void store_d_query(const BackwardCall& call, const RowTile& t, const GradientScratch& s) {
  const Problem& p = call.problem;
  const Tensor& to = call.wanted.query;
  const int64_t stride = padded(p.head_dim);
  transpose(s.d_queries, s.stride, p.head_dim, t.count, s.rows, stride);
  for (int64_t r = 0; r < t.count; ++r) {
    float* row = s.rows + r * stride;
    if (s.row_sees[r] == 0) std::fill_n(row, p.head_dim, 0.0f);
    store_row(row, static_cast<float>(p.scale), p.head_dim, to.data, to.dtype,
              strides_of(to).offset(t.batch, t.sequence.q_begin + t.i[r], t.h[r]));
  }
}

void row_task(const BackwardCall& call, const BlockMap::Place& place, std::byte* memory) {
  const Problem& p = call.problem;
  cpu::Carver carver(memory);
  const GradientScratch s = GradientScratch::carve(p, call.config, carver);
  RowTile t;
  // The last rows of a causal sequence see the most keys: they go first, so that threads finish together.
  set_row_block(call, p.sequence(place.sequence, nullptr), place.kv_head, place.num_blocks - 1 - place.block, t);
  find_delta(call, t, s);
  if (call.given.d_weights.present()) add_weights_to_delta(call, t, s);
  if (!call.wanted.query.present() && !call.wanted.softmax_aux.present()) return;

  GradientTile tile(call, t, s, {.probabilities = false, .d_scores = true});
  tile.load_rows_of_tile();
  std::fill_n(s.d_queries, p.head_dim * s.stride, 0.0f);
  t.for_each_key_block(call.config.block_k, [&](int64_t first, int64_t count) {
    KeyBlock block;
    block.first = first, block.count = count;
    if (tile.compute(block) && call.wanted.query.present()) add_to_d_query(call, t, block, s);
  });
  // A row that sees nothing keeps its lse's cotangent alone (rule 9).
  for (int64_t r = 0; r < t.count; ++r) {
    const int64_t row = t.sequence.q_begin + t.i[r];
    if (s.row_sees[r] == 0) call.delta_of(t.batch, t.h[r], row) = -call.d_lse_of(t.batch, t.h[r], row);
  }
  if (call.wanted.query.present()) store_d_query(call, t, s);
}

// ---- keys: dK and dV ----

/// sums[key][d] += tile[key][lane] * rows[lane][d]
void add_product(const KeyBlock& block, const RowTile& t, const float* tile, int64_t tile_stride, const float* rows,
                 int64_t dims, float* sums) {
  gemm<Left::kRows, true>({.m = block.count,
                           .n = dims,
                           .k = t.count,
                           .a = tile,
                           .a_stride = tile_stride,
                           .b = rows,
                           .b_stride = padded(dims),
                           .c = sums,
                           .c_stride = padded(dims)});
}

void store_keys(const Tensor& to, const Sequence& s, const BackwardCall& call, const BlockMap::Place& place,
                const KeyBlock& block, const float* sums, double factor) {
  if (!to.present()) return;
  const int64_t dims = to.shape[-1], b = call.problem.batch_of(s);
  for (int64_t j = 0; j < block.count; ++j)
    store_row(sums + j * padded(dims), static_cast<float>(factor), dims, to.data, to.dtype,
              strides_of(to).offset(b, s.k_begin + block.first + j, place.kv_head));
}

void key_task(const BackwardCall& call, const BlockMap::Place& place, std::byte* memory) {
  const Problem& p = call.problem;
  cpu::Carver carver(memory);
  const GradientScratch s = GradientScratch::carve(p, call.config, carver);
  const Sequence sequence = p.sequence(place.sequence, nullptr);
  KeyBlock block;
  block.first = place.block * call.config.block_k;
  block.count = std::min<int64_t>(call.config.block_k, sequence.k_len - block.first);
  const bool wants_key = call.wanted.key.present(), wants_value = call.wanted.value.present();
  std::fill_n(s.d_keys, block.count * padded(p.head_dim), 0.0f);
  std::fill_n(s.d_values, block.count * padded(p.value_dim), 0.0f);

  const int64_t num_tiles = cpu::ceil_div(sequence.q_len * p.group(), call.config.block_q);
  for (int64_t n = 0; n < num_tiles; ++n) {
    RowTile t;
    set_row_block(call, sequence, place.kv_head, n, t);
    if (!t.may_see(block.first, block.first + block.count)) continue;
    GradientTile tile(call, t, s, {.probabilities = wants_value, .d_scores = wants_key});
    tile.load_rows_of_tile();
    if (!tile.compute(block)) continue;
    tile.clear_rows_that_see_nothing();
    if (wants_key) add_product(block, t, s.d_scores, s.stride, s.query_rows, p.head_dim, s.d_keys);
    if (wants_value) add_product(block, t, s.scores, s.stride, s.d_out_rows, p.value_dim, s.d_values);
  }
  store_keys(call.wanted.key, sequence, call, place, block, s.d_keys, p.scale);
  store_keys(call.wanted.value, sequence, call, place, block, s.d_values, 1);
}

// ---- bias ----

/// sums[key][lane] += dS; sums[key][0] += its sum over lanes where the bias is broadcast over queries.
void add_to_d_bias(const KeyBlock& block, const RowTile& t, const GradientScratch& s, bool over_queries) {
  const FloatTag d;
  for (int64_t j = 0; j < block.count; ++j) {
    const float* from = s.d_scores + j * s.stride;
    float* to = s.bias_sums + j * s.stride;
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
                        int64_t first_key, int64_t keys, const GradientScratch& s) {
  const Problem& p = call.problem;
  KeyBlock block;
  block.first = first_key, block.count = std::min(keys, sequence.k_len - first_key);
  const int64_t rows = std::min<int64_t>(call.config.block_q, sequence.q_len - first_row);
  if (rows <= 0 || block.count <= 0) return;
  RowTile t;
  t.set(p, sequence, p.kv_head(h), h, 1, first_row, rows);
  hide_rows_without_lse(call, t);
  if (!t.may_see(block.first, block.first + block.count)) return;
  GradientTile tile(call, t, s, {.probabilities = false, .d_scores = true});
  tile.load_rows_of_tile();
  if (tile.compute(block)) add_to_d_bias(block, t, s, call.wanted.bias.shape[2] == 1);
}

void store_d_bias(const Tensor& to, const BiasTiles::Place& place, const CpuConfig& config, int64_t keys,
                  const GradientScratch& s) {
  const int64_t first_row = place.row_block * config.block_q, first_key = place.key_block * config.block_k;
  const int64_t rows = std::min<int64_t>(config.block_q, to.shape[2] - first_row);
  float* by_row = s.scores;  // [row][key], free by now and as large
  transpose(s.bias_sums, s.stride, keys, rows, by_row, config.block_k);
  for (int64_t r = 0; r < rows; ++r)
    store_row(by_row + r * config.block_k, 1, keys, to.data, to.dtype,
              place.batch * to.strides[0] + place.head * to.strides[1] + (first_row + r) * to.strides[2] + first_key);
}

void bias_task(const BackwardCall& call, const BiasTiles::Place& place, std::byte* memory) {
  const Problem& p = call.problem;
  const Tensor& to = call.wanted.bias;
  cpu::Carver carver(memory);
  const GradientScratch s = GradientScratch::carve(p, call.config, carver);
  const int64_t first_key = place.key_block * call.config.block_k;
  const int64_t keys = std::min<int64_t>(call.config.block_k, to.shape[3] - first_key);
  std::fill_n(s.bias_sums, call.config.block_k * s.stride, 0.0f);

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

}  // namespace
}  // namespace ejk::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attention {
namespace {

HWY_EXPORT(backward_scratch_bytes);
HWY_EXPORT(row_task);
HWY_EXPORT(key_task);
HWY_EXPORT(bias_task);

/// The part of the workspace that is not scratch.
struct BackwardMemory {
  int64_t* first_row_block;
  int64_t* first_key_block;
  float* delta;
  double* sinks;  ///< [query head][sink]
  size_t bytes;

  BackwardMemory(const Problem& p, std::byte* memory) {
    cpu::Carver carver(memory);
    first_row_block = carver.take<int64_t>(p.num_sequences + 1);
    first_key_block = carver.take<int64_t>(p.num_sequences + 1);
    delta = carver.take<float>((p.packed ? 1 : p.num_sequences) * p.num_q_heads * p.q_rows);
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
           const CpuConfig& config, const RunContext& context)
      : memory_(p, context.workspace.data()),
        call_{.problem = p, .given = given, .wanted = wanted, .config = config, .delta = nullptr},
        scratch_(context.workspace.data() + memory_.bytes),
        scratch_bytes_(HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p, config)),
        workers_(static_cast<int>((context.workspace.size() - memory_.bytes) / scratch_bytes_)) {
    if (wanted.query.present() || wanted.key.present() || wanted.bias.present() || wanted.softmax_aux.present())
      call_.delta = memory_.delta;
    rows_.build(p, BlockMap::Side::kQueries, p.group(), config.block_q, memory_.first_row_block, context.status);
    keys_.build(p, BlockMap::Side::kKeys, 1, config.block_k, memory_.first_key_block, nullptr);
  }

  void run() {
    fill_gaps();
    const FlashAttentionBackward::Outputs& wanted = call_.wanted;
    const int in_order = 1;
    if (call_.delta != nullptr)
      run_tasks(rows_.num_blocks(), rows_.overlapping() ? in_order : workers_, [&](int64_t block, std::byte* scratch) {
        HWY_DYNAMIC_DISPATCH(row_task)(call_, rows_.find(block), scratch);
      });
    if (wanted.key.present() || wanted.value.present())
      run_tasks(keys_.num_blocks(), keys_.overlapping() ? in_order : workers_, [&](int64_t block, std::byte* scratch) {
        HWY_DYNAMIC_DISPATCH(key_task)(call_, keys_.find(block), scratch);
      });
    if (wanted.bias.present()) {
      const BiasTiles tiles(wanted.bias.shape, call_.config);
      run_tasks(tiles.count(), workers_, [&](int64_t tile, std::byte* scratch) {
        HWY_DYNAMIC_DISPATCH(bias_task)(call_, tiles.find(tile), scratch);
      });
    }
    if (wanted.softmax_aux.present()) differentiate_sinks();
  }

 private:
  template <class Task>
  void run_tasks(int64_t count, int workers, Task task) {
    cpu::parallel_for(
        count, [&](int64_t n, int worker) { task(n, scratch_ + static_cast<size_t>(worker) * scratch_bytes_); },
        workers);
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

  const BackwardMemory memory_;
  BackwardCall call_;
  std::byte* const scratch_;
  const size_t scratch_bytes_;
  const int workers_;
  BlockMap rows_, keys_;
};

}  // namespace

size_t backward_cpu_workspace(const Problem& p, const CpuConfig& config, const DeviceProperties& device) {
  int64_t tasks = std::max(BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q),
                           BlockMap::most_blocks(p, BlockMap::Side::kKeys, 1, config.block_k));
  if (p.bias.present()) tasks = std::max(tasks, BiasTiles(p.bias.shape, config).count());
  const int64_t workers = std::min<int64_t>(tasks, std::max(device.num_units, cpu::num_threads()));
  return BackwardMemory(p, nullptr).bytes +
         static_cast<size_t>(workers) * HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p, config);
}

void backward_cpu(const Problem& p, const Cotangents& given, const FlashAttentionBackward::Outputs& wanted,
                  const CpuConfig& config, const RunContext& context) {
  Backward(p, given, wanted, config, context).run();
}

}  // namespace ejk::attention

namespace ejk {
namespace {

struct FlashAttentionBackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = attention::CpuConfig;
  using Call = ejk::Call<FlashAttentionBackward>;

  static Support supports(const Call& call, const DeviceProperties&) { return attention::supports_cpu(call.inputs); }
  static Config heuristic(const Call& call, const DeviceProperties&) {
    return attention::cpu_heuristic(attention::make_problem(call.inputs, call.params));
  }
  static std::vector<Config> candidates(const Call&, const DeviceProperties&) { return attention::cpu_candidates(); }
  static size_t workspace_bytes(const Call& call, const Config& config, const DeviceProperties& device) {
    return attention::backward_cpu_workspace(attention::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call& call, const Config& config, const RunContext& context) {
    const attention::Cotangents given{
        .out = call.inputs.out, .lse = call.inputs.lse, .d_out = call.inputs.d_out, .d_lse = call.inputs.d_lse};
    attention::backward_cpu(attention::make_problem(call.inputs, call.params), given, call.outputs, config, context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, FlashAttentionBackwardCpu>();
  return kernel;
}

}  // namespace ejk
#endif
