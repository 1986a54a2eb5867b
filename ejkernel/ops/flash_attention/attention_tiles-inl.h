// The tile that every CPU attention kernel computes: logits of a block of keys for a tile of query rows.
//
// Query rows lie across SIMD lanes, keys down the rows of the tile: scores[key][lane]. So the softmax of a query runs
// down a lane and needs no step across lanes; K, V, and in the backward K again, are read as they lie in memory, one
// broadcast element at a time; only the queries are transposed, once per tile. The rows of a tile are those of all
// query heads that share a kv head, position by position, so grouped heads share the keys that were loaded.
//
// Keys that a query must not see are excluded by selection: their logit is -inf. A block's keys that no query of the
// tile sees are replaced by zeros before they are multiplied by probabilities, because 0 * NaN is NaN. Included once
// per instruction set, after gemm-inl.h and philox-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attention::HWY_NAMESPACE {

using namespace ejk::cpu::HWY_NAMESPACE;  // NOLINT: the SIMD vocabulary
using cpu::padded;

inline constexpr float kNone = -std::numeric_limits<float>::infinity();

/// A tile of query rows: row r of the tile is lane r, position i[r] of its sequence and query head h[r].
struct RowTile {
  Sequence sequence;
  int64_t batch = 0, kv_head = 0, count = 0;
  alignas(64) int32_t segment[kMaxBlockQ];
  alignas(64) uint32_t position_word[kMaxBlockQ], head_word[kMaxBlockQ];  ///< as the dropout counter has them
  int64_t i[kMaxBlockQ], h[kMaxBlockQ];
  // Keys that ranges leave to each row: [begin, end) and [0, sink_end).
  int64_t begin[kMaxBlockQ], end[kMaxBlockQ], sink_end[kMaxBlockQ];
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
    for (int64_t r = rows; r < padded(rows); ++r) segment[r] = 0, position_word[r] = head_word[r] = 0, hide(r);
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

  /// Calls f(first key, number of keys) for the blocks that may hold visible keys, in rising order. Blocks begin at
  /// multiples of block_k.
  template <class F>
  void for_each_key_block(int64_t block_k, F f) const {
    const int64_t past = std::max(last_end, last_sink_end);
    for (int64_t j = 0; j < past; j += block_k) {
      if (!may_see(j, j + block_k)) j = first_begin / block_k * block_k;  // between the sinks and the window
      f(j, std::min(block_k, sequence.k_len - j));
    }
  }
};

/// Which keys of a block somebody sees.
struct KeyBlock {
  int64_t first = 0, count = 0;
  bool all_visible = false;  ///< every row of the tile sees every key: nothing to exclude
  uint8_t live[kMaxBlockK];  ///< key is seen by some row

  bool any_live() const { return std::find(live, live + count, 1) != live + count; }
};

/// Scratch of one worker. Tiles have rows of padded(block_q) floats.
struct TileScratch {
  int64_t stride;
  float* scores;            ///< [block_k]: logits, then probabilities
  float* terms;             ///< [block_k]: bias or -inf before the logits, factors of dropout after them
  float* slopes = nullptr;  ///< [block_k]: d logit / d (what was capped), where it is asked for

  void carve(cpu::Carver& carver, const CpuConfig& config) {
    stride = padded(config.block_q);
    scores = carver.take<float>(config.block_k * stride);
    terms = carver.take<float>(config.block_k * stride);
  }
};

// ---- loading ----

/// The block's rows of one kv head, one after the other, as floats: rows[key] has padded(dims) elements. Float32 keys
/// are copied as well: rows of a [batch, row, head, dim] tensor often lie a power of two apart, where caches collide.
inline void load_key_rows(const Tensor& t, const Strides& strides, const RowTile& tile, const KeyBlock& block,
                          float* rows) {
  const int64_t dims = t.shape[-1];
  int64_t offset = strides.offset(tile.batch, tile.sequence.k_begin + block.first, tile.kv_head);
  for (int64_t j = 0; j < block.count; ++j, offset += strides.row)
    load_row(t.data, t.dtype, offset, dims, rows + j * padded(dims));
}

/// Zeros in place of the rows of keys that nobody sees.
inline void clear_dead_rows(const KeyBlock& block, int64_t dims, float* rows) {
  for (int64_t j = 0; j < block.count; ++j)
    if (!block.live[j]) std::fill_n(rows + j * padded(dims), dims, 0.0f);
}

/// The tile's rows of a [batch, row, head, dim] tensor, one after the other, as floats; lanes without a row and
/// elements beyond the last dimension are 0. `rows` has rows of padded(dims) floats.
inline void load_tile_rows(const Tensor& t, const Strides& strides, const RowTile& tile, float* rows) {
  const int64_t dims = t.shape[-1], stride = padded(dims);
  for (int64_t r = 0; r < tile.count; ++r) {
    const int64_t offset = strides.offset(tile.batch, tile.sequence.q_begin + tile.i[r], tile.h[r]);
    load_row(t.data, t.dtype, offset, dims, rows + r * stride);
    std::fill_n(rows + r * stride + dims, stride - dims, 0.0f);
  }
  std::fill_n(rows + tile.count * stride, (padded(tile.count) - tile.count) * stride, 0.0f);
}

/// panel[d][lane] of rows that load_tile_rows loaded.
inline void make_panel(const RowTile& tile, const float* rows, int64_t dims, float* panel, int64_t panel_stride) {
  transpose(rows, padded(dims), padded(tile.count), dims, panel, panel_stride);
}

// ---- what is visible ----

/// terms[key][lane] = bias, -inf where the boolean mask or the bias itself excludes the key, 0 without either.
template <class Bias>
inline void fill_element_terms(const Problem& p, const RowTile& t, const KeyBlock& block, Bias bias, float* terms,
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
inline void fill_bias_terms(const Problem& p, const RowTile& t, const KeyBlock& block, float* terms, int64_t stride) {
  const auto row_of = [&](int64_t r) {
    const T* row = p.bias.as<const T>() + p.bias_offset(t.batch, t.h[r], t.i[r], block.first);
    return [row](int64_t j) { return as_float(row[j]); };
  };
  fill_element_terms(p, t, block, row_of, terms, stride);
}

inline void fill_terms(const Problem& p, const RowTile& t, const KeyBlock& block, float* terms, int64_t stride) {
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

/// Completes `terms`: -inf wherever ranges or segments hide the key; and finds the live keys. Ranges are held to the
/// block, so that 32-bit lanes can compare them.
inline void exclude_hidden(const Problem& p, const RowTile& t, KeyBlock& block, float* terms, int64_t stride) {
  const FloatTag d;
  const IntTag di;
  alignas(64) int32_t begin[kMaxBlockQ], end[kMaxBlockQ], sink_end[kMaxBlockQ];
  for (int64_t r = 0; r < padded(t.count); ++r) {
    const auto held = [&](int64_t key) {
      return static_cast<int32_t>(std::clamp<int64_t>(key - block.first, 0, block.count));
    };
    begin[r] = held(t.begin[r]), end[r] = held(t.end[r]), sink_end[r] = held(t.sink_end[r]);
  }
  const bool has_terms = p.bias.present() || p.mask.present();
  const int32_t* key_segments = nullptr;
  if (p.q_segments.present())
    key_segments = p.kv_segments.as<const int32_t>() + t.sequence.index * p.kv_segments.strides[0] + block.first;
  for (int64_t j = 0; j < block.count; ++j) {
    const auto key = hn::Set(di, static_cast<int32_t>(j));
    float* row = terms + j * stride;
    block.live[j] = 0;
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      auto seen = hn::And(hn::Ge(key, hn::Load(di, begin + r)), hn::Lt(key, hn::Load(di, end + r)));
      seen = hn::Or(seen, hn::Lt(key, hn::Load(di, sink_end + r)));
      if (key_segments != nullptr)
        seen = hn::And(seen, hn::Eq(hn::Load(di, t.segment + r), hn::Set(di, key_segments[j])));
      const FloatV term = has_terms ? hn::Load(d, row + r) : hn::Zero(d);
      const FloatV result = hn::IfThenElse(hn::RebindMask(d, seen), term, minus_infinity());
      hn::Store(result, d, row + r);
      if (!hn::AllTrue(d, hn::Eq(result, minus_infinity()))) block.live[j] = 1;
    }
  }
}

/// Says which keys of the block the tile sees, and prepares `terms` unless it sees all of them.
inline void find_visible(const Problem& p, const RowTile& t, KeyBlock& block, float* terms, int64_t stride) {
  block.all_visible = t.last_begin <= block.first && t.first_end >= block.first + block.count && !p.has_element_masks();
  if (block.all_visible) {
    std::fill_n(block.live, block.count, uint8_t{1});
    return;
  }
  if (p.bias.present() || p.mask.present()) fill_terms(p, t, block, terms, stride);
  exclude_hidden(p, t, block, terms, stride);
}

// ---- logits ----

/// scores = scale * scores + bias, capped; -inf where excluded.
inline void finish_logits(const Problem& p, const RowTile& t, const KeyBlock& block, const TileScratch& scratch) {
  const FloatTag d;
  const FloatV scale = hn::Set(d, static_cast<float>(p.scale));
  const auto cap = static_cast<float>(p.soft_cap);
  const FloatV caps = hn::Set(d, cap);
  for (int64_t j = 0; j < block.count; ++j) {
    float* row = scratch.scores + j * scratch.stride;
    const float* terms = scratch.terms + j * scratch.stride;
    float* slopes = scratch.slopes == nullptr ? nullptr : scratch.slopes + j * scratch.stride;
    for (int64_t r = 0; r < t.width(); r += lanes()) {
      FloatV s = hn::Mul(hn::Load(d, row + r), scale);
      const FloatV term = block.all_visible ? hn::Zero(d) : hn::Load(d, terms + r);
      s = hn::Add(s, term);
      if (cap > 0) {
        FloatV slope = s;
        s = hn::Mul(caps, tanh_any(hn::Div(s, caps), slope));
        if (slopes != nullptr) hn::Store(slope, d, slopes + r);
      }
      hn::Store(hn::IfThenElse(hn::Eq(term, minus_infinity()), minus_infinity(), s), d, row + r);
    }
  }
}

/// Logits of a block whose visibility is known: scores[key][lane].
inline void compute_logits(const Problem& p, const RowTile& t, const KeyBlock& block, const float* query_panel,
                           const float* key_rows, const TileScratch& scratch) {
  gemm<Left::kRows, false>({.m = block.count,
                            .n = t.width(),
                            .k = p.head_dim,
                            .a = key_rows,
                            .a_stride = padded(p.head_dim),
                            .b = query_panel,
                            .b_stride = scratch.stride,
                            .c = scratch.scores,
                            .c_stride = scratch.stride});
  finish_logits(p, t, block, scratch);
}

/// factors[key][lane]: 0 where dropout drops the probability, 65536 / (65536 - t) where it keeps it (rule 11). Blocks
/// of keys begin at multiples of 32, so they hold whole groups of draws.
inline void fill_dropout_factors(const Problem& p, const RowTile& t, const KeyBlock& block, float* factors,
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

}  // namespace ejk::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
