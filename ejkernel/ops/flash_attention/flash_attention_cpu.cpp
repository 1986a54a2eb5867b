// flash_attention on the CPU: online softmax over blocks of keys, float32 throughout.
//
// One task owns one tile of query rows (attention_tiles-inl.h) and writes its rows of out and lse; nothing is shared,
// so results do not depend on the number of threads. Per block of keys: logits (a matrix product), running maximum and
// sum of each lane, probabilities in place, and out^T += V^T P (a matrix product). Scratch is one tile each of queries,
// results and logits per worker, from the workspace: memory is O(q_len + kv_len).
#include <algorithm>
#include <cmath>
#include <limits>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/flash_attention/flash_attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attention::HWY_NAMESPACE {
namespace {

struct ForwardScratch : TileScratch {
  float* queries;  ///< [head_dim][lane]
  float* results;  ///< [value_dim][lane]: sums of probability times value
  float* rows;     ///< of keys, of values, or rows on their way in or out
  // Per lane: largest logit so far, sum of e^(logit - max), and e^(old max - new max).
  float* max;
  float* sum;
  float* decay;

  static ForwardScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    ForwardScratch s;
    s.TileScratch::carve(carver, config);
    const int64_t dims = std::max(p.head_dim, p.value_dim);
    s.queries = carver.take<float>(p.head_dim * s.stride);
    s.results = carver.take<float>(p.value_dim * s.stride);
    s.rows = carver.take<float>(std::max<int64_t>(config.block_k, s.stride) * padded(dims));
    for (float** lanes : {&s.max, &s.sum, &s.decay}) *lanes = carver.take<float>(s.stride);
    return s;
  }
};

size_t forward_scratch_bytes(const Problem& p, const CpuConfig& config) {
  cpu::Carver carver;
  ForwardScratch::carve(p, config, carver);
  return carver.used();
}

/// One tile of query rows, from loading to storing.
class ForwardTile {
 public:
  ForwardTile(const Problem& p, const CpuConfig& config, const RowTile& tile, const ForwardScratch& scratch)
      : p_(p), config_(config), t_(tile), s_(scratch) {}

  void run(const Tensor& out, const Tensor& lse) {
    load_tile_rows(p_.query, p_.q, t_, s_.rows);
    make_panel(t_, s_.rows, p_.head_dim, s_.queries, s_.stride);
    std::fill_n(s_.results, p_.value_dim * s_.stride, 0.0f);
    std::fill_n(s_.max, s_.stride, kNone);
    std::fill_n(s_.sum, s_.stride, 0.0f);
    wants_out_ = out.present();
    t_.for_each_key_block(config_.block_k, [&](int64_t first, int64_t count) { add_key_block(first, count); });
    store(out, lse);
  }

 private:
  void add_key_block(int64_t first, int64_t count) {
    KeyBlock block;
    block.first = first, block.count = count;
    find_visible(p_, t_, block, s_.terms, s_.stride);
    if (!block.any_live()) return;
    load_key_rows(p_.key, p_.k, t_, block, s_.rows);
    compute_logits(p_, t_, block, s_.queries, s_.rows, s_);
    update_softmax(block);
    if (!wants_out_) return;
    if (p_.dropout_threshold > 0) drop(block);
    load_key_rows(p_.value, p_.v, t_, block, s_.rows);
    clear_dead_rows(block, p_.value_dim, s_.rows);
    accumulate(block);
  }

  /// Logits become e^(logit - max); what was summed before is scaled to the new max.
  void update_softmax(const KeyBlock& block) {
    const FloatTag d;
    bool moved = false;
    for (int64_t r = 0; r < t_.width(); r += lanes()) {
      float* scores = s_.scores + r;
      const FloatV old_max = hn::Load(d, s_.max + r);
      FloatV max = old_max;
      for (int64_t j = 0; j < block.count; ++j) max = hn::Max(max, hn::Load(d, scores + j * s_.stride));
      // A NaN may or may not come through Max; it always comes through the exponential and the sum.
      const FloatV shift = hn::IfThenElseZero(hn::Ne(max, minus_infinity()), max);
      const FloatV decay = exp_nonpositive(hn::Sub(old_max, shift));
      FloatV sum = hn::Mul(hn::Load(d, s_.sum + r), decay);
      for (int64_t j = 0; j < block.count; ++j) {
        const FloatV probability = exp_nonpositive(hn::Sub(hn::Load(d, scores + j * s_.stride), shift));
        sum = hn::Add(sum, probability);
        hn::Store(probability, d, scores + j * s_.stride);
      }
      moved = moved || !hn::AllTrue(d, hn::Eq(max, old_max));
      hn::Store(max, d, s_.max + r);
      hn::Store(sum, d, s_.sum + r);
      hn::Store(decay, d, s_.decay + r);
    }
    if (moved && wants_out_) scale_results();
  }

  void scale_results() {
    const FloatTag d;
    for (int64_t v = 0; v < p_.value_dim; ++v)
      for (int64_t r = 0; r < t_.width(); r += lanes()) {
        float* at = s_.results + v * s_.stride + r;
        hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, s_.decay + r)), d, at);
      }
  }

  void drop(const KeyBlock& block) {
    const FloatTag d;
    fill_dropout_factors(p_, t_, block, s_.terms, s_.stride);
    for (int64_t j = 0; j < block.count; ++j)
      for (int64_t r = 0; r < t_.width(); r += lanes()) {
        float* at = s_.scores + j * s_.stride + r;
        hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, s_.terms + j * s_.stride + r)), d, at);
      }
  }

  /// results[d][lane] += sum over keys of values[key][d] * probability[key][lane]
  void accumulate(const KeyBlock& block) {
    gemm<Left::kTransposed, true>({.m = p_.value_dim,
                                   .n = t_.width(),
                                   .k = block.count,
                                   .a = s_.rows,
                                   .a_stride = padded(p_.value_dim),
                                   .b = s_.scores,
                                   .b_stride = s_.stride,
                                   .c = s_.results,
                                   .c_stride = s_.stride});
  }

  void store(const Tensor& out, const Tensor& lse) {
    const int64_t stride = padded(p_.value_dim), begin = t_.sequence.q_begin;
    if (out.present()) transpose(s_.results, s_.stride, p_.value_dim, t_.count, s_.rows, stride);
    for (int64_t r = 0; r < t_.count; ++r) {
      const bool sees_nothing = s_.sum[r] == 0;  // the largest logit adds 1, a NaN adds NaN
      const double row_lse = sees_nothing ? p_.sinks_lse(t_.h[r]) : row_logsumexp(r);
      if (lse.present())
        lse.as<float>()[stat_offset(lse, t_.batch, t_.h[r], begin + t_.i[r])] = static_cast<float>(row_lse);
      if (!out.present()) continue;
      float* row = s_.rows + r * stride;
      if (sees_nothing) std::fill_n(row, p_.value_dim, 0.0f);
      const float factor = sees_nothing || !p_.normalize ? 1 : static_cast<float>(std::exp(s_.max[r] - row_lse));
      store_row(row, factor, p_.value_dim, out.data, out.dtype,
                strides_of(out).offset(t_.batch, begin + t_.i[r], t_.h[r]));
    }
  }

  /// Of the visible logits and the sinks of row r.
  double row_logsumexp(int64_t r) const {
    const double max = s_.max[r];
    double shift = max;
    for (int64_t a = 0; a < p_.num_sinks; ++a) shift = std::max(shift, p_.sink_at(t_.h[r], a));
    double sum = s_.sum[r] * std::exp(max - shift);
    for (int64_t a = 0; a < p_.num_sinks; ++a) sum += std::exp(p_.sink_at(t_.h[r], a) - shift);
    return shift + std::log(sum);
  }

  const Problem& p_;
  const CpuConfig& config_;
  const RowTile& t_;
  const ForwardScratch s_;
  bool wants_out_ = true;
};

void forward_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                  const Tensor& lse, std::byte* memory) {
  const Sequence s = p.sequence(place.sequence, nullptr);
  const int64_t heads = p.group(), rows = s.q_len * heads;
  // The last rows of a causal sequence see the most keys: they go first, so that threads finish together.
  const int64_t first = (place.num_blocks - 1 - place.block) * config.block_q;
  RowTile tile;
  tile.set(p, s, place.kv_head, place.kv_head * heads, heads, first, std::min<int64_t>(config.block_q, rows - first));
  cpu::Carver carver(memory);
  ForwardTile(p, config, tile, ForwardScratch::carve(p, config, carver)).run(out, lse);
}

}  // namespace
}  // namespace ejk::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attention {
namespace {

HWY_EXPORT(forward_tile);
HWY_EXPORT(forward_scratch_bytes);

size_t map_bytes(const Problem& p) {
  cpu::Carver carver;
  carver.take<int64_t>(p.num_sequences + 1);
  return carver.used();
}

/// Rows of no sequence count as rows that see no key (rule 10).
void fill_gaps(const Problem& p, const BlockMap& map, const Tensor& out, const Tensor& lse) {
  for_each_gap(p, BlockMap::Side::kQueries, map.overlapping(), [&](int64_t b, int64_t begin, int64_t end) {
    if (out.present()) clear_rows(out, b, begin, end);
    if (!lse.present()) return;
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      std::fill_n(lse.as<float>() + stat_offset(lse, b, h, begin), end - begin, static_cast<float>(p.sinks_lse(h)));
  });
}

}  // namespace

size_t forward_cpu_workspace(const Problem& p, const CpuConfig& config, const DeviceProperties& device) {
  const int64_t tiles = BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q);
  const int64_t workers = std::min<int64_t>(tiles, std::max(device.num_units, cpu::num_threads()));
  return map_bytes(p) + static_cast<size_t>(workers) * HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p, config);
}

void forward_cpu(const Problem& p, const Tensor& out, const Tensor& lse, const CpuConfig& config,
                 const RunContext& context) {
  cpu::Carver carver(context.workspace.data());
  BlockMap map;
  map.build(p, BlockMap::Side::kQueries, p.group(), config.block_q, carver.take<int64_t>(p.num_sequences + 1),
            context.status);
  fill_gaps(p, map, out, lse);
  const size_t scratch = HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p, config);
  std::byte* memory = context.workspace.data() + carver.used();
  const int workers = map.overlapping() ? 1 : static_cast<int>((context.workspace.size() - carver.used()) / scratch);
  cpu::parallel_for(
      map.num_blocks(),
      [&](int64_t block, int worker) {
        HWY_DYNAMIC_DISPATCH(forward_tile)
        (p, config, map.find(block), out, lse, memory + static_cast<size_t>(worker) * scratch);
      },
      workers);
}

}  // namespace ejk::attention

namespace ejk {
namespace {

struct FlashAttentionCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = attention::CpuConfig;

  static Support supports(const Call<FlashAttention>& call, const DeviceProperties&) {
    return attention::supports_cpu(call.inputs);
  }
  static Config heuristic(const Call<FlashAttention>& call, const DeviceProperties&) {
    return attention::cpu_heuristic(attention::make_problem(call.inputs, call.params));
  }
  static std::vector<Config> candidates(const Call<FlashAttention>&, const DeviceProperties&) {
    return attention::cpu_candidates();
  }
  static size_t workspace_bytes(const Call<FlashAttention>& call, const Config& config,
                                const DeviceProperties& device) {
    return attention::forward_cpu_workspace(attention::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call<FlashAttention>& call, const Config& config, const RunContext& context) {
    attention::forward_cpu(attention::make_problem(call.inputs, call.params), call.outputs.out, call.outputs.lse,
                           config, context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<FlashAttention, FlashAttentionCpu>();
  return kernel;
}

}  // namespace ejk
#endif
