// Gradient of flash_attention on the CPU. Every sum has one owner that adds in a fixed order, so results do not depend
// on the number of threads:
//
//   delta   one task per tile of query rows
//   keys    one task per kv head of a sequence, or key_parts of them: dK and dV of its keys, and its share of dQ
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

HWY_BEFORE_NAMESPACE();
namespace ejk::attention::HWY_NAMESPACE {
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

template <class E>
struct KeyScratch : GradientScratch<E> {
  int64_t tile_stride;  ///< of tiles with query rows side by side
  // Of a block of keys.
  E* keys;          ///< rows [block_k][units(head_dim)]
  E* values;        ///< rows [block_k][units(value_dim)]
  E* key_pairs;     ///< row pairs [units(block_k)][head_dim], of the keys that are live
  uint8_t* live;    ///< [block_k]: some row of the tiles so far sees the key
  float* d_keys;    ///< [block_k][head_dim]
  float* d_values;  ///< [block_k][value_dim]
  // Of a tile of query rows.
  E* queries;           ///< panel
  E* d_outs;            ///< panel
  E* query_pairs;       ///< row pairs [units(block_q)][head_dim], zeros for rows that see nothing
  E* d_out_pairs;       ///< row pairs [units(block_q)][value_dim], likewise
  E* weights;           ///< P as rows [block_k][units(block_q)]
  E* d_logits;          ///< dS as rows [block_k][units(block_q)]
  E* d_logit_pairs;     ///< dS as row pairs [units(block_k)][block_q]
  uint8_t* sees_block;  ///< [block_q]: row sees a key of the block

  static KeyScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    KeyScratch s;
    s.GradientScratch<E>::carve(p, config, carver);
    const int64_t block_q = config.block_q, block_k = config.block_k;
    const int64_t head_dim = padded(p.head_dim), value_dim = padded(p.value_dim);
    s.tile_stride = units<E>(block_q);
    s.keys = carver.take<E>(block_k * padded(units<E>(p.head_dim)));
    s.values = carver.take<E>(block_k * padded(units<E>(p.value_dim)));
    s.key_pairs = carver.take<E>(units<E>(block_k) * head_dim);
    s.live = carver.take<uint8_t>(block_k);
    s.d_keys = carver.take<float>(block_k * head_dim);
    s.d_values = carver.take<float>(block_k * value_dim);
    s.queries = carver.take<E>(units<E>(p.head_dim) * panel_rows());
    s.d_outs = carver.take<E>(units<E>(p.value_dim) * panel_rows());
    s.query_pairs = carver.take<E>(units<E>(block_q) * head_dim);
    s.d_out_pairs = carver.take<E>(units<E>(block_q) * value_dim);
    s.weights = carver.take<E>(block_k * s.tile_stride);
    s.d_logits = carver.take<E>(block_k * s.tile_stride);
    s.d_logit_pairs = std::is_same_v<E, float> ? s.d_logits : carver.take<E>(units<E>(block_k) * block_q);
    s.sees_block = carver.take<uint8_t>(block_q);
    return s;
  }
};

/// All blocks of keys of one part of one kv head.
template <class E>
class KeyTask {
 public:
  KeyTask(const BackwardCall& call, const Sequence& sequence, int64_t kv_head, int64_t part,
          const KeyScratch<E>& scratch)
      : call_(call),
        p_(call.problem),
        sequence_(sequence),
        kv_head_(kv_head),
        s_(scratch),
        num_rows_(sequence.q_len * call.problem.group()),
        first_row_(call.first_row_of(part, call.problem.batch_of(sequence), kv_head, sequence.q_begin)),
        wants_key_(call.wanted.key.present()),
        wants_value_(call.wanted.value.present()) {}

  /// Blocks `part`, part + key_parts, ...: under a causal mask all parts then have about as much to do.
  void run(int64_t part) {
    std::fill_n(call_.sees + first_row_, num_rows_, uint8_t{0});
    if (call_.d_query != nullptr)
      std::fill_n(call_.d_query + first_row_ * padded(p_.head_dim), num_rows_ * padded(p_.head_dim), 0.0f);
    const int64_t block_k = call_.config.block_k;
    for (int64_t first = part * block_k; first < sequence_.k_len; first += call_.key_parts * block_k)
      add_key_block(first, std::min(block_k, sequence_.k_len - first));
  }

 private:
  void add_key_block(int64_t first, int64_t count) {
    first_ = first, count_ = count;
    std::fill_n(s_.live, count, uint8_t{0});
    std::fill_n(s_.d_keys, count * padded(p_.head_dim), 0.0f);
    std::fill_n(s_.d_values, count * padded(p_.value_dim), 0.0f);
    bool loaded = false;
    for (int64_t row = 0; row < num_rows_; row += call_.config.block_q) {
      const int64_t rows = std::min<int64_t>(call_.config.block_q, num_rows_ - row);
      if (!find_tile(row, rows, loaded)) continue;
      if (wants_key_) multiply(s_.d_logits, rows, p_.query, p_.q, s_.query_pairs, s_.d_keys);
      if (wants_value_ && call_.given.d_out.present())
        multiply(s_.weights, rows, call_.given.d_out, strides_of(call_.given.d_out), s_.d_out_pairs, s_.d_values);
      if (call_.d_query != nullptr) add_to_d_query(row, rows);
    }
    store(call_.wanted.key, s_.d_keys, p_.scale);
    store(call_.wanted.value, s_.d_values, 1);
  }

  /// P and dS of the block for a tile of query rows. False when none of them sees any of the keys.
  bool find_tile(int64_t row, int64_t rows, bool& loaded) {
    bool any = false, newly_live = false;
    std::fill_n(s_.sees_block, rows, uint8_t{0});
    first_tile_row_ = row;
    for (int64_t at = 0; at < rows; at += panel_rows()) {
      Panel& t = panel_;
      set_rows(call_, sequence_, kv_head_, row + at, std::min(panel_rows(), rows - at), t);
      KeyBlock block;
      set_visible_part(t, first_, count_, block);
      if (block.count > 0 && !loaded) load_block(t), loaded = true;
      if (block.count == 0 || !compute(t, block)) {
        fill_tile(at, 0, count_, t.width());
        continue;
      }
      any = true;
      const int64_t offset = block.first - first_;
      fill_tile(at, 0, offset, t.width());
      fill_tile(at, offset + block.count, count_, t.width());
      copy_to_tile(at, offset, block.count, t.width());
      for (int64_t r = 0; r < t.count; ++r) {
        s_.sees_block[at + r] = s_.sees[r] != 0;
        call_.sees[first_row_ + row + at + r] |= s_.sees_block[at + r];
      }
      for (int64_t j = 0; j < block.count; ++j) {
        newly_live = newly_live || (block.live[j] && !s_.live[offset + j]);
        s_.live[offset + j] |= block.live[j];
      }
    }
    if (newly_live && call_.d_query != nullptr)
      load_key_pairs(p_.key, p_.k, panel_, first_, count_, s_.live, s_.key_pairs);
    return any;
  }

  void load_block(const Panel& t) {
    load_key_rows(p_.key, p_.k, t, first_, count_, s_.keys);
    load_key_rows(p_.value, p_.v, t, first_, count_, s_.values);
  }

  bool compute(const Panel& t, KeyBlock& block) {
    load_panel(p_.query, p_.q, t, s_.rows, s_.queries);
    load_d_out_panel(call_, t, s_.rows, s_.d_outs);
    const bool wants_d_scores = wants_key_ || call_.d_query != nullptr;
    GradientTile<E> tile(call_, t, s_, {.probabilities = wants_value_, .d_scores = wants_d_scores});
    const int64_t offset = block.first - first_;
    return tile.compute(block, s_.keys + offset * padded(units<E>(p_.head_dim)),
                        s_.values + offset * padded(units<E>(p_.value_dim)), s_.queries, s_.d_outs);
  }

  /// Zeros for keys [begin, end) of the block and the panel's rows, which begin at row `at` of the tile.
  void fill_tile(int64_t at, int64_t begin, int64_t end, int64_t width) {
    for (int64_t j = begin; j < end; ++j) {
      std::fill_n(s_.weights + j * s_.tile_stride + units<E>(at), units<E>(width), E{});
      std::fill_n(s_.d_logits + j * s_.tile_stride + units<E>(at), units<E>(width), E{});
    }
    if constexpr (!std::is_same_v<E, float>)
      for (int64_t j = units<E>(begin); j < units<E>(end); ++j)
        std::fill_n(s_.d_logit_pairs + j * call_.config.block_q + at, width, E{});
  }

  /// P and dS of a panel, from float tiles to elements of the tile.
  void copy_to_tile(int64_t at, int64_t offset, int64_t count, int64_t width) {
    const FloatTag d;
    for (int64_t j = 0; j < count; ++j)
      for (int64_t r = 0; r < width; r += lanes()) {
        const int64_t row = (offset + j) * s_.tile_stride, from = j * panel_rows() + r;
        if (wants_value_) store_in_row(hn::Load(d, s_.scores + from), s_.weights + row, at + r);
        store_in_row(hn::Load(d, s_.d_scores + from), s_.d_logits + row, at + r);
      }
    if constexpr (std::is_same_v<E, float>) return;
    const int64_t stride = call_.config.block_q;
    for (int64_t r = 0; r < width; r += lanes()) {
      E* to = s_.d_logit_pairs + units<E>(offset) * stride + at + r;
      int64_t j = 0;
      for (; j + 2 <= count; j += 2, to += stride) {
        const float* from = s_.d_scores + j * panel_rows() + r;
        store_two_rows(hn::Load(d, from), hn::Load(d, from + panel_rows()), to, stride);
      }
      if (j < count) store_last_row(hn::Load(d, s_.d_scores + j * panel_rows() + r), to);
    }
  }

  /// sums[key][dim] += tile[key][row] * x[row][dim], over the tile's rows that see something.
  void multiply(const E* tile, int64_t rows, const Tensor& x, const Strides& strides, E* pairs, float* sums) {
    const int64_t dims = x.shape[-1], heads = p_.group(), b = p_.batch_of(sequence_);
    const auto offset_of = [&](int64_t r) {
      const int64_t row = first_tile_row_ + r;
      return s_.sees_block[r] ? strides.offset(b, sequence_.q_begin + row / heads, kv_head_ * heads + row % heads)
                              : kZeros;
    };
    load_row_pairs(x.data, x.dtype, rows, dims, offset_of, pairs, padded(dims));
    gemm<Left::kRows, true>(Gemm<E>{.m = count_,
                                    .n = dims,
                                    .k = units<E>(rows),
                                    .a = tile,
                                    .a_stride = s_.tile_stride,
                                    .b = pairs,
                                    .b_stride = padded(dims),
                                    .c = sums,
                                    .c_stride = padded(dims)});
  }

  /// dQ[row][dim] += dS[key][row] * K[key][dim]
  void add_to_d_query(int64_t row, int64_t rows) {
    const int64_t stride = padded(p_.head_dim);
    gemm<Left::kTransposed, true>(Gemm<E>{.m = rows,
                                          .n = p_.head_dim,
                                          .k = units<E>(count_),
                                          .a = s_.d_logit_pairs,
                                          .a_stride = call_.config.block_q,
                                          .b = s_.key_pairs,
                                          .b_stride = stride,
                                          .c = call_.d_query + (first_row_ + row) * stride,
                                          .c_stride = stride});
  }

  void store(const Tensor& to, const float* sums, double factor) {
    if (!to.present()) return;
    const int64_t dims = to.shape[-1], b = p_.batch_of(sequence_);
    for (int64_t j = 0; j < count_; ++j)
      store_row(sums + j * padded(dims), static_cast<float>(factor), dims, to.data, to.dtype,
                strides_of(to).offset(b, sequence_.k_begin + first_ + j, kv_head_));
  }

  const BackwardCall& call_;
  const Problem& p_;
  const Sequence& sequence_;
  const int64_t kv_head_;
  const KeyScratch<E>& s_;
  const int64_t num_rows_, first_row_;
  const bool wants_key_, wants_value_;
  int64_t first_ = 0, count_ = 0;  ///< the block of keys
  int64_t first_tile_row_ = 0;
  Panel panel_;
};

template <class E>
void run_key_task(const BackwardCall& call, int64_t sequence, int64_t kv_head, int64_t part, std::byte* memory) {
  cpu::Carver carver(memory);
  const KeyScratch<E> scratch = KeyScratch<E>::carve(call.problem, call.config, carver);
  const Sequence s = call.problem.sequence(sequence, nullptr);
  KeyTask<E>(call, s, kv_head, part, scratch).run(part);
}

void key_task(const BackwardCall& call, int64_t sequence, int64_t kv_head, int64_t part, std::byte* memory) {
  if (uses_pairs(call.problem, call.config, call.given.d_out))
    return run_key_task<Pair>(call, sequence, kv_head, part, memory);
  run_key_task<float>(call, sequence, kv_head, part, memory);
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
    for (int64_t part = 0; part < call.key_parts; ++part) {
      const int64_t at = call.first_row_of(part, b, place.kv_head, s.q_begin) + n;
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
size_t backward_scratch_bytes(const Problem& p, const CpuConfig& config, const Tensor& d_out) {
  cpu::Carver delta, keys, bias;
  DeltaScratch::carve(p, config, delta);
  if (uses_pairs(p, config, d_out))
    KeyScratch<Pair>::carve(p, config, keys);
  else
    KeyScratch<float>::carve(p, config, keys);
  if (p.bias.present()) BiasScratch::carve(p, config, bias);
  return std::max({delta.used(), keys.used(), bias.used()});
}

}  // namespace
}  // namespace ejk::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attention {
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
  float* delta;
  float* d_query;
  uint8_t* sees;
  double* sinks;  ///< [query head][sink]
  size_t bytes;

  BackwardMemory(const Problem& p, int64_t key_parts, std::byte* memory) {
    cpu::Carver carver(memory);
    const int64_t rows = (p.packed ? 1 : p.num_sequences) * p.num_q_heads * p.q_rows;
    first_row_block = carver.take<int64_t>(p.num_sequences + 1);
    first_key_block = carver.take<int64_t>(p.num_sequences + 1);
    delta = carver.take<float>(rows);
    d_query = carver.take<float>(key_parts * rows * cpu::padded(p.head_dim));
    sees = carver.take<uint8_t>(key_parts * rows);
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
      : memory_(p, config.key_parts, context.workspace.data()),
        call_{.problem = p, .given = given, .wanted = wanted, .config = config, .key_parts = config.key_parts},
        scratch_(context.workspace.data() + memory_.bytes),
        scratch_bytes_(HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p, config, given.d_out)),
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
    const int64_t heads = call_.problem.num_kv_heads, parts = call_.key_parts;
    run_tasks((end - begin) * heads * parts, [&](int64_t n, std::byte* scratch) {
      HWY_DYNAMIC_DISPATCH(key_task)(call_, begin + n / parts / heads, n / parts % heads, n % parts, scratch);
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

  const BackwardMemory memory_;
  BackwardCall call_;
  std::byte* const scratch_;
  const size_t scratch_bytes_;
  const int workers_;
  BlockMap rows_, keys_;
};

}  // namespace

size_t backward_cpu_workspace(const Problem& p, const CpuBackwardConfig& config, const DeviceProperties& device) {
  int64_t tasks = std::max(BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q),
                           p.num_sequences * p.num_kv_heads * config.key_parts);
  if (p.bias.present()) tasks = std::max(tasks, BiasTiles(p.bias.shape, config).count());
  const int64_t workers = std::min<int64_t>(tasks, std::max(device.num_units, cpu::num_threads()));
  // Without the cotangents it is not known whether products are of pairs: floats need more.
  CpuConfig widened = config;
  widened.bf16_dot = 0;
  return BackwardMemory(p, config.key_parts, nullptr).bytes +
         static_cast<size_t>(workers) * HWY_DYNAMIC_DISPATCH(backward_scratch_bytes)(p, widened, {});
}

void backward_cpu(const Problem& p, const Cotangents& given, const FlashAttentionBackward::Outputs& wanted,
                  const CpuBackwardConfig& config, const RunContext& context) {
  Backward(p, given, wanted, config, context).run();
}

}  // namespace ejk::attention

namespace ejk {
namespace {

struct FlashAttentionBackwardCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = attention::CpuBackwardConfig;
  using Call = ejk::Call<FlashAttentionBackward>;

  static Support supports(const Call& call, const DeviceProperties&) { return attention::supports_cpu(call.inputs); }
  static Config heuristic(const Call& call, const DeviceProperties& device) {
    return attention::cpu_heuristic<Config>(attention::make_problem(call.inputs, call.params), device);
  }
  static std::vector<Config> candidates(const Call& call, const DeviceProperties&) {
    return attention::cpu_candidates<Config>(attention::make_problem(call.inputs, call.params));
  }
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
