// One tile of query rows of flash_attention, cut into panels (attention_tiles-inl.h), from loading to storing. Per
// block of keys and panel: scores (a matrix product), running maximum and sum of each lane, weights in place, and what
// V^T P (a matrix product) adds to the results. Products are of elements E: floats, or pairs of bf16; then weights are
// rounded to bf16 before they multiply values. Included once per instruction set, after attention_pages-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

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

/// Block `place.block` of the rows of a sequence and kv head, counted from the last one.
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

// Compiled in flash_attention_pairs_cpu.cpp: together with those of floats they would take a compiler too long.
extern template void run_forward_tile<Pair>(const Problem& p, const CpuConfig& config, double value_scale,
                                            const Sequence& s, const BlockMap::Place& place, const Tensor& out,
                                            const Tensor& lse, std::byte* memory);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
