// What every CPU attention kernel computes: logits of a block of keys for a panel of query rows.
//
// Query rows lie across SIMD lanes, keys down the rows of a tile: scores[key][lane]. So the softmax of a query runs
// down a lane and needs no step across lanes, and keys and values are read one broadcast element at a time; only the
// queries are transposed, once. A panel is two vectors of rows: its scores stay in the first-level cache. A kernel
// computes several panels per block of keys that it loads, and for each of them only the keys that some row of it may
// see. The rows of a panel are those of all query heads that share a kv head, position by position, so grouped heads
// share keys.
//
// Keys that a query must not see are excluded by selection: their logit is -inf. Rows of keys that no query of a tile
// sees are replaced by zeros before they are multiplied by probabilities, because 0 * NaN is NaN. Included once per
// instruction set, after gemm-inl.h, tiles-inl.h and philox-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary
using cpu::Gemm;
using cpu::padded;
using cpu::Pair;
using cpu::units;

inline constexpr float kNone = -std::numeric_limits<float>::infinity();

/// Rows of a panel: two vectors of lanes.
inline int64_t panel_rows() { return 2 * lanes(); }
inline constexpr int64_t kMaxPanelRows = 2 * cpu::kMaxLanes;

/// Query rows: row r is lane r, position i[r] of its sequence and query head h[r].
struct Panel {
  Sequence sequence;
  int64_t batch = 0, kv_head = 0, count = 0;
  alignas(64) int32_t segment[kMaxPanelRows];
  alignas(64) uint32_t position_word[kMaxPanelRows], head_word[kMaxPanelRows];  ///< as the dropout counter has them
  int64_t i[kMaxPanelRows], h[kMaxPanelRows];
  // Keys that ranges leave to each row: [begin, end) and [0, sink_end).
  int64_t begin[kMaxPanelRows], end[kMaxPanelRows], sink_end[kMaxPanelRows];
  // Over the rows that see anything: where the keys begin and end, and which keys all rows see.
  int64_t first_begin = 0, last_end = 0, last_sink_end = 0, last_begin = 0, first_end = 0;

  /// Vectors of lanes that hold rows.
  int64_t width() const { return cpu::round_up(count, lanes()); }

  /// Rows `first` … `first + count` of the `heads` query heads from head0 on, counted position by position.
  void set(const Problem& p, const Sequence& s, int64_t kv, int64_t head0, int64_t heads, int64_t first, int64_t rows) {
    sequence = s, batch = p.batch_of(s), kv_head = kv, count = rows;
    for (int64_t r = 0; r < rows; ++r) {
      i[r] = (first + r) / heads;
      h[r] = head0 + (first + r) % heads;
      position_word[r] = static_cast<uint32_t>(i[r]);
      head_word[r] = static_cast<uint32_t>(h[r]);
      const Problem::KeyRange range = p.key_range(s, i[r]);
      begin[r] = range.begin, end[r] = range.end, sink_end[r] = p.sink_end(s, i[r]);
      segment[r] = 0;
      if (!p.q_segments.present()) continue;
      segment[r] = p.q_segments.as<const int32_t>()[s.index * p.q_segments.strides[0] + i[r]];
      if (segment[r] < 0) hide(r);
    }
    for (int64_t r = rows; r < width(); ++r) segment[r] = 0, position_word[r] = head_word[r] = 0, hide(r);
    find_bounds();
  }

  /// From now on row r sees no key; find_bounds() after the last one.
  void hide(int64_t r) { begin[r] = end[r] = sink_end[r] = 0; }

  void find_bounds() {
    first_begin = INT64_MAX, last_end = last_sink_end = last_begin = 0, first_end = INT64_MAX;
    for (int64_t r = 0; r < count; ++r) {
      first_begin = begin[r] < end[r] ? std::min(first_begin, begin[r]) : first_begin;
      last_begin = std::max(last_begin, begin[r]);
      first_end = std::min(first_end, end[r]);
      last_end = std::max(last_end, end[r]);
      last_sink_end = std::max(last_sink_end, sink_end[r]);
    }
    first_begin = std::min(first_begin, last_end);
  }

  bool may_see(int64_t first_key, int64_t past_key) const {
    return first_key < last_sink_end || (first_key < last_end && past_key > first_begin);
  }

  /// The key after the last one that a row may see.
  int64_t past() const { return std::max(last_end, last_sink_end); }
};

/// Consecutive keys, and which of them somebody sees.
struct KeyBlock {
  int64_t first = 0, count = 0;
  int64_t full_begin = 0, full_end = 0;  ///< of the block's keys: every row of the panel sees them, by ranges alone
  uint8_t live[kMaxBlockK];              ///< key is seen by some row

  bool any_live() const { return std::find(live, live + count, 1) != live + count; }
  bool all_full() const { return full_begin == 0 && full_end == count; }
};

/// Calls f(first key, number of keys) for the blocks that some panel may see, in rising order. Blocks begin at
/// multiples of block_k.
template <class F>
void for_each_key_block(std::span<const Panel> panels, int64_t block_k, F f) {
  int64_t first_begin = INT64_MAX, past = 0, last_sink_end = 0;
  for (const Panel& t : panels) {
    if (t.last_end > 0) first_begin = std::min(first_begin, t.first_begin);
    past = std::max(past, t.past());
    last_sink_end = std::max(last_sink_end, t.last_sink_end);
  }
  for (int64_t j = 0; j < past; j += block_k) {
    if (j >= last_sink_end && j + block_k <= first_begin) j = first_begin / block_k * block_k;  // on to the windows
    f(j, std::min(block_k, panels.front().sequence.k_len - j));
  }
}

/// The part of keys [first, first + count) that rows of the panel may see. It begins at a multiple of 32 keys, because
/// dropout draws for 32 keys at once.
inline void set_visible_part(const Panel& t, int64_t first, int64_t count, KeyBlock& part) {
  part.first = first, part.count = 0;
  if (!t.may_see(first, first + count)) return;
  if (first >= t.last_sink_end) part.first = std::max(first, t.first_begin / 32 * 32);
  part.count = std::min(first + count, t.past()) - part.first;
}

/// Scratch of one panel and block of keys. Tiles have rows of panel_rows() floats.
struct TileScratch {
  float* terms;                           ///< [block_k]: bias or -inf before the logits, factors of dropout after them
  float* slopes;                          ///< [block_k]: d logit / d (what was capped); null: not asked for
  const cpu::MatrixUnit* unit = nullptr;  ///< what multiplies pairs; null: vectors

  void carve(cpu::Carver& carver, const CpuConfig& config, bool wants_slopes) {
    terms = carver.take<float>(config.block_k * panel_rows());
    slopes = wants_slopes ? carver.take<float>(config.block_k * panel_rows()) : nullptr;
  }
};

// ---- loading ----

/// The panel's rows of a [batch, row, head, dim] tensor, one after the other; lanes without a row are 0. Rows are
/// padded(units<E>(dims)) elements apart.
template <class E>
inline void load_panel_rows(const Tensor& x, const Strides& strides, const Panel& t, E* rows) {
  const int64_t dims = x.shape[-1], stride = padded(units<E>(dims));
  for (int64_t r = 0; r < t.count; ++r)
    load_elements(x.data, x.dtype, strides.offset(t.batch, t.sequence.q_begin + t.i[r], t.h[r]), dims,
                  rows + r * stride);
  std::fill_n(rows + t.count * stride, (t.width() - t.count) * stride, E{});
}

/// panel[units(dims)][lane] of the panel's rows of a tensor; `rows` is scratch.
template <class E>
inline void load_panel(const Tensor& x, const Strides& strides, const Panel& t, E* rows, E* panel) {
  load_panel_rows(x, strides, t, rows);
  const int64_t columns = units<E>(x.shape[-1]);
  transpose_elements(rows, padded(columns), t.width(), columns, panel, panel_rows());
}

/// Rows of keys (or values) [first, first + count) of a panel's kv head, padded(units<E>(dims)) elements apart. Float32
/// is copied as well: rows of a [batch, row, head, dim] tensor often lie a power of two apart, where caches collide.
template <class E>
inline void load_key_rows(const Tensor& x, const Strides& strides, const Panel& t, int64_t first, int64_t count,
                          E* rows) {
  const int64_t dims = x.shape[-1];
  int64_t offset = strides.offset(t.batch, t.sequence.k_begin + first, t.kv_head);
  for (int64_t j = 0; j < count; ++j, offset += strides.row)
    load_elements(x.data, x.dtype, offset, dims, rows + j * padded(units<E>(dims)));
}

/// Row pairs of the same keys, padded(dims) elements apart, with zeros in place of keys that are not live.
template <class E>
inline void load_key_pairs(const Tensor& x, const Strides& strides, const Panel& t, int64_t first, int64_t count,
                           const uint8_t* live, E* pairs) {
  const int64_t base = strides.offset(t.batch, t.sequence.k_begin + first, t.kv_head), dims = x.shape[-1];
  load_row_pairs(
      x.data, x.dtype, count, dims, [&](int64_t j) { return live[j] ? base + j * strides.row : kZeros; }, pairs,
      padded(dims));
}

// ---- what is visible ----

/// terms[key][lane] = bias, -inf where the boolean mask or the bias itself excludes the key, 0 without either.
template <class Bias>
inline void fill_element_terms(const Problem& p, const Panel& t, const KeyBlock& block, Bias bias, float* terms,
                               int64_t stride) {
  for (int64_t r = 0; r < t.count; ++r) {
    const uint8_t* mask = nullptr;
    if (p.mask.present())
      mask = p.mask.as<const uint8_t>() + Problem::broadcast_offset(p.mask, t.batch, t.h[r], t.i[r], block.first);
    const auto bias_row = bias(r);
    for (int64_t j = 0; j < block.count; ++j) terms[j * stride + r] = mask == nullptr || mask[j] ? bias_row(j) : kNone;
  }
}

inline float as_float(float x) { return x; }
inline float as_float(f16_t x) { return to_float(x); }
inline float as_float(bf16_t x) { return to_float(x); }
/// Finite numbers stay finite: only -inf itself excludes a key.
inline float as_float(double x) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(x) ? std::clamp(x, -kMost, kMost) : x);
}

template <class T>
inline void fill_bias_terms(const Problem& p, const Panel& t, const KeyBlock& block, float* terms, int64_t stride) {
  const auto row_of = [&](int64_t r) {
    const T* row = p.bias.as<const T>() + p.bias_offset(t.batch, t.h[r], t.i[r], block.first);
    return [row](int64_t j) { return as_float(row[j]); };
  };
  fill_element_terms(p, t, block, row_of, terms, stride);
}

inline void fill_terms(const Problem& p, const Panel& t, const KeyBlock& block, float* terms, int64_t stride) {
  if (!p.bias.present()) {
    const auto zero_row = [](int64_t) { return [](int64_t) { return 0.0f; }; };
    return fill_element_terms(p, t, block, zero_row, terms, stride);
  }
  switch (p.bias.dtype) {
    case DType::f64:
      return fill_bias_terms<double>(p, t, block, terms, stride);
    case DType::f32:
      return fill_bias_terms<float>(p, t, block, terms, stride);
    case DType::f16:
      return fill_bias_terms<f16_t>(p, t, block, terms, stride);
    default:
      return fill_bias_terms<bf16_t>(p, t, block, terms, stride);
  }
}

/// A row's visible keys, held to a block so that 32-bit lanes can compare them.
struct HeldRanges {
  alignas(64) int32_t begin[kMaxPanelRows], end[kMaxPanelRows], sink_end[kMaxPanelRows];

  HeldRanges(const Panel& t, const KeyBlock& block) {
    for (int64_t r = 0; r < t.width(); ++r) {
      const auto held = [&](int64_t key) {
        return static_cast<int32_t>(std::clamp<int64_t>(key - block.first, 0, block.count));
      };
      begin[r] = held(t.begin[r]), end[r] = held(t.end[r]), sink_end[r] = held(t.sink_end[r]);
    }
  }
  FloatMask see(int64_t j, int64_t r) const {
    const IntTag di;
    const auto key = hn::Set(di, static_cast<int32_t>(j));
    const auto in_range = hn::And(hn::Ge(key, hn::Load(di, begin + r)), hn::Lt(key, hn::Load(di, end + r)));
    return hn::RebindMask(FloatTag(), hn::Or(in_range, hn::Lt(key, hn::Load(di, sink_end + r))));
  }
};

/// tile = -inf wherever ranges hide the key; and which keys are not live.
inline void exclude_by_ranges(const Panel& t, KeyBlock& block, float* tile) {
  const FloatTag d;
  const HeldRanges ranges(t, block);
  for (int64_t j = 0; j < block.count; ++j) {
    if (j >= block.full_begin && j < block.full_end) continue;
    block.live[j] = 0;
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      float* at = tile + j * panel_rows() + r;
      const FloatMask seen = ranges.see(j, r);
      hn::Store(hn::IfThenElse(seen, hn::Load(d, at), minus_infinity()), d, at);
      if (!hn::AllFalse(d, seen)) block.live[j] = 1;
    }
  }
}

/// Completes `terms`: -inf wherever ranges or segments hide the key; and finds the live keys.
inline void exclude_hidden(const Problem& p, const Panel& t, KeyBlock& block, float* terms) {
  const FloatTag d;
  const IntTag di;
  const HeldRanges ranges(t, block);
  const bool has_terms = p.bias.present() || p.mask.present();
  const int32_t* key_segments = nullptr;
  if (p.q_segments.present())
    key_segments = p.kv_segments.as<const int32_t>() + t.sequence.index * p.kv_segments.strides[0] + block.first;
  for (int64_t j = 0; j < block.count; ++j) {
    float* row = terms + j * panel_rows();
    block.live[j] = 0;
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      FloatMask seen = ranges.see(j, r);
      if (key_segments != nullptr) {
        const auto same = hn::Eq(hn::Load(di, t.segment + r), hn::Set(di, key_segments[j]));
        seen = hn::And(seen, hn::RebindMask(d, same));
      }
      const FloatV term = has_terms ? hn::Load(d, row + r) : hn::Zero(d);
      const FloatV result = hn::IfThenElse(seen, term, minus_infinity());
      hn::Store(result, d, row + r);
      if (!hn::AllTrue(d, hn::Eq(result, minus_infinity()))) block.live[j] = 1;
    }
  }
}

/// True where ranges alone hide keys and a logit is scale * (query . key): then scores stay unscaled until the
/// exponent.
inline bool is_plain(const Problem& p) {
  // The exponent's factor must not be 0 or infinite in float32: times a hidden key's -inf it would be NaN.
  return !p.has_element_masks() && p.soft_cap == 0 && p.scale > 1e-37 && p.scale < 1e37;
}

/// What a number in a tile of scores is to be multiplied by to be a logit, and to be the power of two of its
/// exponential.
inline double logits_per_score(const Problem& p) { return is_plain(p) ? p.scale : 1; }
inline float log2_per_score(const Problem& p) { return static_cast<float>(logits_per_score(p) * 1.4426950408889634); }

/// Says which keys of the block every row sees, and where that is not all, which ones are live; prepares `terms`. With
/// a plain problem the live keys of a block that is not all full are found by compute_scores.
inline void find_visible(const Problem& p, const Panel& t, KeyBlock& block, float* terms) {
  block.full_begin = block.full_end = 0;
  if (!p.has_element_masks()) {
    block.full_begin = std::clamp<int64_t>(t.last_begin - block.first, 0, block.count);
    block.full_end = std::clamp<int64_t>(t.first_end - block.first, block.full_begin, block.count);
  }
  std::fill_n(block.live, block.count, uint8_t{1});
  if (block.all_full() || is_plain(p)) return;
  if (p.bias.present() || p.mask.present()) fill_terms(p, t, block, terms, panel_rows());
  exclude_hidden(p, t, block, terms);
}

// ---- scores ----

/// scores = scale * scores + bias, capped; -inf where excluded.
inline void finish_logits(const Problem& p, const Panel& t, const KeyBlock& block, const TileScratch& scratch,
                          float* scores) {
  const FloatTag d;
  const FloatV scale = hn::Set(d, static_cast<float>(p.scale));
  const auto cap = static_cast<float>(p.soft_cap);
  const FloatV caps = hn::Set(d, cap);
  for (int64_t at = 0; at < block.count * panel_rows(); at += panel_rows())
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      FloatV s = hn::Mul(hn::Load(d, scores + at + r), scale);
      const FloatV term = block.all_full() ? hn::Zero(d) : hn::Load(d, scratch.terms + at + r);
      s = hn::Add(s, term);
      if (cap > 0) {
        FloatV slope = s;
        s = hn::Mul(caps, tanh_any(hn::Div(s, caps), slope));
        if (scratch.slopes != nullptr) hn::Store(slope, d, scratch.slopes + at + r);
      }
      hn::Store(hn::IfThenElse(hn::Eq(term, minus_infinity()), minus_infinity(), s), d, scores + at + r);
    }
}

/// scores[key][lane] of a block, in units of logits_per_score; -inf for what is hidden. `keys` are the block's rows,
/// `queries` the panel's. False when no row sees any of the keys.
template <class E>
inline bool compute_scores(const Problem& p, const Panel& t, KeyBlock& block, const E* queries, const E* keys,
                           const TileScratch& scratch, float* scores) {
  find_visible(p, t, block, scratch.terms);
  if (!block.any_live()) return false;
  const int64_t columns = units<E>(p.head_dim);
  gemm<Left::kRows, false>(scratch.unit, Gemm<E>{.m = block.count,
                                                 .n = t.width(),
                                                 .k = columns,
                                                 .a = keys,
                                                 .a_stride = padded(columns),
                                                 .b = queries,
                                                 .b_stride = panel_rows(),
                                                 .c = scores,
                                                 .c_stride = panel_rows()});
  if (!is_plain(p))
    finish_logits(p, t, block, scratch, scores);
  else if (!block.all_full())
    exclude_by_ranges(t, block, scores);
  return block.any_live();
}

/// factors[key][lane]: 0 where dropout drops the probability, 65536 / (65536 - t) where it keeps it (rule 11). Blocks
/// of keys begin at multiples of 32, so they hold whole groups of draws.
inline void fill_dropout_factors(const Problem& p, const Panel& t, const KeyBlock& block, float* factors,
                                 int64_t stride) {
  const FloatTag d;
  const WordTag dw;
  const uint32_t* words = p.dropout_seed.as<const uint32_t>();
  const uint32_t seed = words == nullptr ? 0 : words[0], offset = words == nullptr ? 0 : words[1];
  const auto threshold = hn::Set(dw, p.dropout_threshold), low_half = hn::Set(dw, 0xffffu);
  const FloatV kept = hn::Set(d, static_cast<float>(p.keep_scale));
  for (int64_t base = 0; base < block.count; base += 32)
    for (int64_t quarter = 0; quarter < 4; ++quarter)
      for (int64_t r = 0; r < t.width(); r += lanes()) {
        const int64_t first =
            base + 2 * quarter;  // of the group's keys: two here, and two in each of three further eights
        auto w0 = hn::Set(dw, dropout_group(static_cast<uint32_t>(block.first + first)));
        auto w1 = hn::Load(dw, t.position_word + r), w2 = hn::Load(dw, t.head_word + r);
        auto w3 = hn::Set(dw, static_cast<uint32_t>(t.sequence.index));
        philox4x32(w0, w1, w2, w3, seed, offset);
        const auto store = [&](int64_t key, WordV draw) HWY_ATTR {
          if (key >= block.count) return;
          const auto keep = hn::RebindMask(d, hn::Ge(draw, threshold));
          hn::Store(hn::IfThenElseZero(keep, kept), d, factors + key * stride + r);
        };
        const auto store_both = [&](int64_t key, WordV word) HWY_ATTR {
          store(key, hn::And(word, low_half));
          store(key + 1, hn::ShiftRight<16>(word));
        };
        store_both(first, w0);
        store_both(first + 8, w1);
        store_both(first + 16, w2);
        store_both(first + 24, w3);
      }
}

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
