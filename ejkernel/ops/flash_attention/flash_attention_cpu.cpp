// flash_attention on the CPU: online softmax over blocks of keys, sums in float32.
//
// One task owns one tile of query rows, cut into panels (attention_tiles-inl.h), and writes its rows of out and lse;
// nothing is shared, so results do not depend on the number of threads. Per block of keys and panel: scores (a matrix
// product), running maximum and sum of each lane, weights in place, and out^T += V^T P (a matrix product). Products are
// of floats, or of pairs of bf16 where the tensors are bf16 and the config says so: then weights are rounded to bf16
// before they multiply values. Scratch is one tile of each per worker, from the workspace: memory is O(q_len + kv_len).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/pages.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/flash_attention/flash_attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/stored-inl.h"
// After that:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And after that:
#include "ejkernel/ops/flash_attention/attention_pages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

template <class E>
struct ForwardScratch : TileScratch {
  int64_t num_panels;
  Panel* panels;
  KeyBlock* blocks;  ///< the part of the current block of keys that each panel sees
  E* keys;           ///< rows [block_k][units(head_dim)], and rows of queries on their way in
  E* values;         ///< row pairs [units(block_k)][value_dim]
  E* value_columns;  ///< those turned, for the matrix unit: [value_dim][units(block_k)]
  uint8_t* live;     ///< [block_k]: key is seen by some panel
  uint8_t* missing;  ///< [block_k]: the key's page does not exist
  E* queries;        ///< of each panel: [units(head_dim)][lane]
  float* scores;     ///< of each panel: [block_k][lane], and in their place weights, row pairs [units(block_k)][lane]
  float* results;    ///< of each panel: [value_dim][lane]: sums of weight times value
  float* rows;       ///< of results on their way out
  // Per lane of each panel: the largest score, the one that exponents are relative to, and the sum of exponentials.
  float* max;
  float* shift;
  float* sum;

  static ForwardScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    ForwardScratch s;
    s.TileScratch::carve(carver, config, false);
    if (std::is_same_v<E, Pair>) s.unit = unit_of(config);
    const int64_t lanes = panel_rows(), block_k = config.block_k, columns = units<E>(p.head_dim);
    const int64_t n = s.num_panels = cpu::ceil_div(config.block_q, lanes);
    s.panels = carver.take<Panel>(n);
    s.blocks = carver.take<KeyBlock>(n);
    s.keys = carver.take<E>(std::max(block_k, lanes) * padded(columns));
    s.values = carver.take<E>(units<E>(block_k) * padded(p.value_dim));
    s.value_columns = s.unit == nullptr ? nullptr : carver.take<E>(p.value_dim * units<E>(block_k));
    s.live = carver.take<uint8_t>(block_k);
    s.missing = carver.take<uint8_t>(block_k);
    s.queries = carver.take<E>(n * columns * lanes);
    s.scores = carver.take<float>(n * block_k * lanes);
    s.results = carver.take<float>(n * p.value_dim * lanes);
    s.rows = carver.take<float>(lanes * padded(p.value_dim));
    s.max = carver.take<float>(n * lanes);
    s.shift = carver.take<float>(n * lanes);
    s.sum = carver.take<float>(n * lanes);
    return s;
  }
};

/// One tile of query rows, from loading to storing.
template <class E>
class ForwardTile {
 public:
  /// `value_scale` is what the codes of values are multiplied by; that of keys is in the problem's scale.
  ForwardTile(const Problem& p, const CpuConfig& config, const ForwardScratch<E>& scratch, double value_scale)
      : p_(p),
        config_(config),
        s_(scratch),
        lanes_(panel_rows()),
        log2_(log2_per_score(p)),
        value_scale_(value_scale) {}

  /// Rows first … first + count of the query heads that share a kv head, counted position by position.
  void run(const Sequence& sequence, int64_t kv_head, int64_t first, int64_t count, const Tensor& out,
           const Tensor& lse) {
    const int64_t heads = p_.group();
    const auto num_panels = static_cast<size_t>(cpu::ceil_div(count, lanes_));
    for (size_t n = 0; n < num_panels; ++n) {
      const int64_t row = static_cast<int64_t>(n) * lanes_;
      Panel& t = s_.panels[n] = Panel();
      t.set(p_, sequence, kv_head, kv_head * heads, heads, first + row, std::min(lanes_, count - row));
      load_panel(p_.query, p_.q, t, s_.keys, queries(n));
    }
    std::fill_n(s_.results, static_cast<int64_t>(num_panels) * p_.value_dim * lanes_, 0.0f);
    std::fill_n(s_.max, static_cast<int64_t>(num_panels) * lanes_, kNone);
    std::fill_n(s_.shift, static_cast<int64_t>(num_panels) * lanes_, kNone);
    std::fill_n(s_.sum, static_cast<int64_t>(num_panels) * lanes_, 0.0f);
    wants_out_ = out.present();
    panels_ = {s_.panels, num_panels};
    for_each_key_block(panels_, config_.block_k, [&](int64_t j, int64_t keys) { add_key_block(j, keys); });
    for (size_t n = 0; n < num_panels; ++n) store(n, out, lse);
  }

 private:
  // What belongs to a panel.
  E* queries(size_t n) const { return s_.queries + static_cast<int64_t>(n) * units<E>(p_.head_dim) * lanes_; }
  float* scores(size_t n) const { return s_.scores + static_cast<int64_t>(n) * config_.block_k * lanes_; }
  float* results(size_t n) const { return s_.results + static_cast<int64_t>(n) * p_.value_dim * lanes_; }
  float* max(size_t n) const { return s_.max + static_cast<int64_t>(n) * lanes_; }
  float* shift(size_t n) const { return s_.shift + static_cast<int64_t>(n) * lanes_; }
  float* sum(size_t n) const { return s_.sum + static_cast<int64_t>(n) * lanes_; }

  void add_key_block(int64_t first, int64_t count) {
    const bool any_missing = load_keys(first, count);
    std::fill_n(s_.live, count, uint8_t{0});
    for (size_t n = 0; n < panels_.size(); ++n) {
      KeyBlock& block = s_.blocks[n];
      set_visible_part(panels_[n], first, count, block);
      const int64_t at = block.first - first;
      const E* keys = s_.keys + at * padded(units<E>(p_.head_dim));
      if (block.count == 0 || !compute_scores(p_, panels_[n], block, queries(n), keys, s_, scores(n)) ||
          (any_missing && !exclude_missing(panels_[n], block, s_.missing + at, scores(n)))) {
        block.count = 0;
        continue;
      }
      for (int64_t j = 0; j < block.count; ++j) s_.live[at + j] |= block.live[j];
      add_to_softmax(n);
    }
    if (!wants_out_) return;
    if (p_.pages.present)
      load_paged_pairs(PagedRows{p_, p_.value, p_.v, p_.v_scale}, panels_[0], first, count, s_.live, s_.values);
    else
      load_key_pairs(p_.value, p_.v, panels_[0], first, count, s_.live, s_.values);
    if (s_.unit != nullptr)
      transpose_elements(s_.values, padded(p_.value_dim), units<E>(count), p_.value_dim, s_.value_columns,
                         units<E>(config_.block_k));
    for (size_t n = 0; n < panels_.size(); ++n)
      if (s_.blocks[n].count > 0) accumulate(n, first);
  }

  /// Returns whether some of the keys do not exist.
  bool load_keys(int64_t first, int64_t count) {
    if (p_.pages.present)
      return load_paged_rows(PagedRows{p_, p_.key, p_.k, p_.k_scale}, panels_[0], first, count, s_.keys, s_.missing);
    load_key_rows(p_.key, p_.k, panels_[0], first, count, s_.keys);
    return false;
  }

  /// Scores become weights e^(logit - shift); what was summed before follows when the shift moves.
  void add_to_softmax(size_t n) {
    const int64_t count = s_.blocks[n].count;
    const bool drops = p_.dropout_threshold > 0 && wants_out_;
    if (drops) fill_dropout_factors(p_, panels_[n], s_.blocks[n], s_.terms, lanes_);
    for (int64_t r = 0; r < panels_[n].width(); r += lanes()) {
      const FloatV shift = move_shift(n, r, count);
      if (drops)
        exponentiate<true>(n, r, count, shift);
      else
        exponentiate<false>(n, r, count, shift);
    }
  }

  /// The shift is the largest score so far, or one that lies below it by no more than a factor of 2^8 of the weights:
  /// it seldom has to move. Returns it, or 0 for rows that saw nothing yet.
  FloatV move_shift(size_t n, int64_t r, int64_t count) {
    const FloatTag d;
    const FloatV slack = hn::Set(d, std::min(8 / log2_, 1e30f));
    const float* column = scores(n) + r;
    const FloatV old_shift = hn::Load(d, shift(n) + r);
    // A NaN may or may not come through Max; it always comes through the exponential and the sum.
    FloatV max0 = hn::Load(d, max(n) + r), max1 = max0;
    int64_t j = 0;
    for (; j + 2 <= count; j += 2, column += 2 * lanes_) {
      max0 = hn::Max(max0, hn::Load(d, column));
      max1 = hn::Max(max1, hn::Load(d, column + lanes_));
    }
    if (j < count) max0 = hn::Max(max0, hn::Load(d, column));
    const FloatV largest = hn::Max(max0, max1);
    hn::Store(largest, d, max(n) + r);
    const auto finite_or_zero = [](FloatV x) HWY_ATTR { return hn::IfThenElseZero(hn::Ne(x, minus_infinity()), x); };
    if (hn::AllFalse(d, hn::Gt(largest, hn::Add(old_shift, slack)))) return finite_or_zero(old_shift);
    const FloatV new_shift = finite_or_zero(largest);
    const FloatV decay = exp2_below_128<6>(hn::Mul(hn::Sub(old_shift, new_shift), hn::Set(d, log2_)));
    hn::Store(largest, d, shift(n) + r);
    hn::Store(hn::Mul(hn::Load(d, sum(n) + r), decay), d, sum(n) + r);
    for (float* at = results(n) + r; at < results(n) + p_.value_dim * lanes_; at += lanes_)
      hn::Store(hn::Mul(hn::Load(d, at), decay), d, at);
    return new_shift;
  }

  /// Weights in place of one vector of scores, times the factors of dropout in `terms`; the sum is without them.
  template <bool kDrops>
  void exponentiate(size_t n, int64_t r, int64_t count, FloatV shift) {
    // Pairs are rounded to bf16: degree 4 is exact enough by far.
    constexpr int kDegree = std::is_same_v<E, Pair> ? 4 : 6;
    const FloatTag d;
    const FloatV to_log2 = hn::Set(d, log2_);
    FloatV total = hn::Load(d, sum(n) + r);
    const float* from = scores(n) + r;
    E* to = reinterpret_cast<E*>(scores(n)) + r;
    const auto weight = [&](int64_t j) HWY_ATTR {
      // The difference first: a product of large scores alone would lose what lies between them.
      const FloatV x = exp2_below_128<kDegree>(hn::Mul(hn::Sub(hn::Load(d, from + j * lanes_), shift), to_log2));
      total = hn::Add(total, x);
      return kDrops ? hn::Mul(x, hn::Load(d, s_.terms + j * lanes_ + r)) : x;
    };
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
      const FloatV first = weight(j), second = weight(j + 1);
      store_two_rows(first, second, to + units<E>(j) * lanes_, lanes_);
    }
    if (j < count) store_last_row(weight(j), to + units<E>(j) * lanes_);
    hn::Store(total, d, sum(n) + r);
  }

  /// results[d][lane] += sum over keys of values[key][d] * weights[key][lane]
  void accumulate(size_t n, int64_t first) {
    const KeyBlock& block = s_.blocks[n];
    const int64_t at = units<E>(block.first - first);
    Gemm<E> product{.m = p_.value_dim,
                    .n = panels_[n].width(),
                    .k = units<E>(block.count),
                    .a = s_.values + at * padded(p_.value_dim),
                    .a_stride = padded(p_.value_dim),
                    .b = reinterpret_cast<const E*>(scores(n)),
                    .b_stride = lanes_,
                    .c = results(n),
                    .c_stride = lanes_};
    if (s_.unit == nullptr) return gemm<Left::kTransposed, true>(product);
    product.a = s_.value_columns + at, product.a_stride = units<E>(config_.block_k);
    gemm<Left::kRows, true>(s_.unit, product);
  }

  void store(size_t n, const Tensor& out, const Tensor& lse) {
    const Panel& t = panels_[n];
    const int64_t stride = padded(p_.value_dim), begin = t.sequence.q_begin;
    if (out.present()) transpose(results(n), lanes_, p_.value_dim, t.count, s_.rows, stride);
    for (int64_t r = 0; r < t.count; ++r) {
      const bool sees_nothing = sum(n)[r] == 0;  // the largest logit adds 1, a NaN adds NaN
      const double logit_shift = shift(n)[r] * logits_per_score(p_);
      const double row_lse = sees_nothing ? p_.sinks_lse(t.h[r]) : row_logsumexp(t.h[r], logit_shift, sum(n)[r]);
      if (lse.present())
        lse.as<float>()[stat_offset(lse, t.batch, t.h[r], begin + t.i[r])] = static_cast<float>(row_lse);
      if (!out.present()) continue;
      float* row = s_.rows + r * stride;
      if (sees_nothing) std::fill_n(row, p_.value_dim, 0.0f);
      const double unit = p_.normalize ? row_lse : max(n)[r] * logits_per_score(p_);
      const float factor = sees_nothing ? 1 : static_cast<float>(std::exp(logit_shift - unit) * value_scale_);
      store_row(row, factor, p_.value_dim, out.data, out.dtype,
                strides_of(out).offset(t.batch, begin + t.i[r], t.h[r]));
    }
  }

  /// Of a row's sinks, and of visible logits whose exponentials relative to `shift` add up to `sum`.
  double row_logsumexp(int64_t h, double shift, double sum) const {
    double max = shift;
    for (int64_t a = 0; a < p_.num_sinks; ++a) max = std::max(max, p_.sink_at(h, a));
    double total = sum * std::exp(shift - max);
    for (int64_t a = 0; a < p_.num_sinks; ++a) total += std::exp(p_.sink_at(h, a) - max);
    return max + std::log(total);
  }

  const Problem& p_;
  const CpuConfig& config_;
  const ForwardScratch<E> s_;
  const int64_t lanes_;
  const float log2_;
  const double value_scale_;
  std::span<const Panel> panels_ = {};
  bool wants_out_ = true;
};

template <class E>
void run_forward_tile(const Problem& p, const CpuConfig& config, double value_scale, const Sequence& s,
                      const BlockMap::Place& place, const Tensor& out, const Tensor& lse, std::byte* memory) {
  // The last rows of a causal sequence see the most keys: they go first, so that threads finish together.
  const int64_t first = (place.num_blocks - 1 - place.block) * config.block_q;
  const int64_t count = std::min<int64_t>(config.block_q, s.q_len * p.group() - first);
  cpu::Carver carver(memory);
  const ForwardScratch<E> scratch = ForwardScratch<E>::carve(p, config, carver);
  const cpu::MatrixUnitScope uses_unit(scratch.unit);
  ForwardTile<E>(p, config, scratch, value_scale).run(s, place.kv_head, first, count, out, lse);
}

/// Scales of a kv head's codes are folded into the logits and the output; those of groups of elements are applied when
/// rows are loaded.
void paged_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                const Tensor& lse, std::byte* memory) {
  const Sequence s = p.sequence(place.sequence, nullptr);
  const auto scale = [&](const Tensor& t) { return t.rank() == 4 ? 1 : Problem::scale_at(t, 0, 0, place.kv_head); };
  Problem scaled = p;
  scaled.scale *= scale(p.q_scale) * scale(p.k_scale);
  if (uses_pairs(p, config) && !has_tiny_values(p, s, place.kv_head, 0, s.k_len))
    return run_forward_tile<Pair>(scaled, config, scale(p.v_scale), s, place, out, lse, memory);
  run_forward_tile<float>(scaled, widened(config), scale(p.v_scale), s, place, out, lse, memory);
}

void forward_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                  const Tensor& lse, std::byte* memory) {
  if (p.pages.present) return paged_tile(p, config, place, out, lse, memory);
  const Sequence s = p.sequence(place.sequence, nullptr);
  if (uses_pairs(p, config)) return run_forward_tile<Pair>(p, config, 1, s, place, out, lse, memory);
  run_forward_tile<float>(p, config, 1, s, place, out, lse, memory);
}

size_t forward_scratch_bytes(const Problem& p, const CpuConfig& config) {
  cpu::Carver carver;
  if (uses_pairs(p, config))
    ForwardScratch<Pair>::carve(p, config, carver);
  else
    ForwardScratch<float>::carve(p, config, carver);
  return carver.used();
}

}  // namespace
}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attn {
namespace {

HWY_EXPORT(forward_tile);
HWY_EXPORT(forward_scratch_bytes);

size_t map_bytes(const Problem& p) {
  cpu::Carver carver;
  carver.take<int64_t>(p.num_sequences + 1);
  return carver.used();
}

}  // namespace

size_t forward_tile_bytes(const Problem& p, const CpuConfig& config) {
  // Floats need the most: they serve whatever the contents turn out to be.
  return HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p, widened(config));
}

void forward_cpu_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                      const Tensor& lse, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(forward_tile)(p, config, place, out, lse, scratch);
}

void fill_gaps(const Problem& p, bool overlapping, const Tensor& out, const Tensor& lse) {
  for_each_gap(p, BlockMap::Side::kQueries, overlapping, [&](int64_t b, int64_t begin, int64_t end) {
    if (out.present()) clear_rows(out, b, begin, end);
    if (!lse.present()) return;
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      for (int64_t row = begin; row < end; ++row)
        lse.as<float>()[stat_offset(lse, b, h, row)] = static_cast<float>(p.sinks_lse(h));
  });
}

int64_t most_forward_workers(const Problem& p, const CpuConfig& config) {
  // A double: where there are no elements, extents may be larger than their product's integer.
  const double heads = static_cast<double>(p.num_sequences) * static_cast<double>(p.num_q_heads);
  const double workers = 0x7p20 * heads / static_cast<double>(forward_tile_bytes(p, config));
  return static_cast<int64_t>(std::clamp(workers, 1.0, 0x1p31));
}

size_t forward_cpu_workspace(const Problem& p, const CpuConfig& config, const DeviceProperties& device) {
  const int64_t tiles = BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q);
  const int64_t threads = std::max(device.num_units, cpu::num_threads());
  const int64_t workers = std::min({tiles, threads, most_forward_workers(p, config)});
  return map_bytes(p) + static_cast<size_t>(workers) * forward_tile_bytes(p, config);
}

void forward_cpu(const Problem& p, const Tensor& out, const Tensor& lse, const CpuConfig& planned,
                 const RunContext& context) {
  const CpuConfig config = uses_pairs(p, planned) && is_tiny(p.value) ? widened(planned) : planned;
  cpu::Carver carver(context.workspace.data());
  BlockMap map;
  map.build(p, BlockMap::Side::kQueries, p.group(), config.block_q, carver.take<int64_t>(p.num_sequences + 1),
            context.status);
  fill_gaps(p, map.overlapping(), out, lse);
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

}  // namespace ejk::attn

namespace ejk {
namespace {

struct FlashAttentionCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = attn::CpuConfig;

  static Support supports(const Call<FlashAttention>& call, const DeviceProperties&) {
    return attn::supports_cpu(call.inputs);
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return attn::runs_here(config); }
  static Config heuristic(const Call<FlashAttention>& call, const DeviceProperties& device) {
    return attn::cpu_heuristic<Config>(attn::make_problem(call.inputs, call.params), device);
  }
  static std::vector<Config> candidates(const Call<FlashAttention>& call, const DeviceProperties&) {
    return attn::cpu_candidates<Config>(attn::make_problem(call.inputs, call.params));
  }
  static Cost cost(const Call<FlashAttention>& call, const Config& config, const DeviceProperties&) {
    return attn::cpu_cost(attn::make_problem(call.inputs, call.params), config);
  }
  static size_t workspace_bytes(const Call<FlashAttention>& call, const Config& config,
                                const DeviceProperties& device) {
    return attn::forward_cpu_workspace(attn::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call<FlashAttention>& call, const Config& config, const RunContext& context) {
    attn::forward_cpu(attn::make_problem(call.inputs, call.params), call.outputs.out, call.outputs.lse, config,
                      context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<FlashAttention, FlashAttentionCpu>();
  return kernel;
}

}  // namespace ejk
#endif
