// What the backward adds to attention_tiles-inl.h: for one panel of query rows and one block of keys, the probabilities
// that multiply dO in dV, and dS, both as tile[key][lane] of floats.
// Included once per instruction set, after attention_tiles-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

/// Scratch of one panel and one block of keys.
template <class E>
struct GradientScratch : TileScratch {
  float* scores;    ///< [block_k][lane]: scores, then P times the factor of dropout
  float* d_scores;  ///< [block_k][lane]: dO V^T, then dS
  E* rows;          ///< of the panel, on their way in
  // Per lane.
  float* lse;
  float* delta;
  float* sees;  ///< 1 where the row saw a key of the blocks computed so far

  void carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    TileScratch::carve(carver, config, p.soft_cap > 0);
    const int64_t tile = config.block_k * panel_rows();
    scores = carver.take<float>(tile);
    d_scores = carver.take<float>(tile);
    rows = carver.take<E>(panel_rows() * padded(units<E>(std::max(p.head_dim, p.value_dim))));
    for (float** lanes : {&lse, &delta, &sees}) *lanes = carver.take<float>(panel_rows());
  }
};

/// Rows whose lse is -inf see nothing, whatever the masks say: they have no gradient (rule 9).
inline void hide_rows_without_lse(const BackwardCall& call, Panel& t) {
  for (int64_t r = 0; r < t.count; ++r)
    if (call.lse_of(t.batch, t.h[r], t.sequence.q_begin + t.i[r]) == kNone) t.hide(r);
  t.find_bounds();
}

/// Rows first … first + count of all query heads that share a kv head, counted position by position.
inline void set_rows(const BackwardCall& call, const Sequence& s, int64_t kv_head, int64_t first, int64_t count,
                     Panel& t) {
  const int64_t heads = call.problem.group();
  t.set(call.problem, s, kv_head, kv_head * heads, heads, first, count);
  hide_rows_without_lse(call, t);
}

/// Panel of dO; without a cotangent of out it is zeros.
template <class E>
inline void load_d_out_panel(const BackwardCall& call, const Panel& t, E* rows, E* panel) {
  const Tensor& d_out = call.given.d_out;
  if (d_out.present()) return load_panel(d_out, strides_of(d_out), t, rows, panel);
  std::fill_n(panel, units<E>(call.problem.value_dim) * panel_rows(), E{});
}

/// tile[key][lane] = the weights' cotangents, zeros in lanes without a row.
inline void load_d_weights(const Tensor& d_weights, const Panel& t, const KeyBlock& block, float* tile,
                           int64_t stride) {
  const auto load = [&]<class T>(T) {
    for (int64_t r = 0; r < t.width(); ++r) {
      const T* row = nullptr;
      if (r < t.count)
        row = d_weights.as<const T>() + Problem::broadcast_offset(d_weights, t.batch, t.h[r], t.i[r], block.first);
      for (int64_t j = 0; j < block.count; ++j) tile[j * stride + r] = row == nullptr ? 0 : as_float(row[j]);
    }
  };
  switch (d_weights.dtype) {
    case DType::f32:
      return load(float());
    case DType::f16:
      return load(f16_t());
    default:
      return load(bf16_t());
  }
}

/// P and dS of one panel, block by block.
template <class E>
class GradientTile {
 public:
  struct Wanted {
    bool probabilities, d_scores;
  };
  GradientTile(const BackwardCall& call, const Panel& panel, const GradientScratch<E>& scratch, Wanted wanted)
      : call_(call), p_(call.problem), t_(panel), s_(scratch), wanted_(wanted) {
    for (float* lanes : {s_.lse, s_.delta, s_.sees}) std::fill_n(lanes, panel_rows(), 0.0f);
    for (int64_t r = 0; r < t_.count; ++r) {
      const int64_t row = t_.sequence.q_begin + t_.i[r];
      s_.lse[r] = call_.lse_of(t_.batch, t_.h[r], row);
      if (wanted_.d_scores) s_.delta[r] = call_.delta_of(t_.batch, t_.h[r], row);
    }
  }

  /// scores = P times the factor of dropout, d_scores = dS; finds the block's live keys and adds to `sees`. Keys and
  /// values are the block's rows, queries and d_outs the panel's; values and d_outs are only read for dS. False when no
  /// row sees any of the keys; then nothing was computed.
  bool compute(KeyBlock& block, const E* keys, const E* values, const E* queries, const E* d_outs);

 private:
  /// d_scores[key][lane] = V dO^T, plus what comes back through the weights
  void multiply_values(const KeyBlock& block, const E* values, const E* d_outs) {
    const int64_t columns = units<E>(p_.value_dim);
    const Gemm<E> product{.m = block.count,
                          .n = t_.width(),
                          .k = columns,
                          .a = values,
                          .a_stride = padded(columns),
                          .b = d_outs,
                          .b_stride = panel_rows(),
                          .c = s_.d_scores,
                          .c_stride = panel_rows()};
    if (!call_.given.d_weights.present()) return gemm<Left::kRows, false>(s_.unit, product);
    load_d_weights(call_.given.d_weights, t_, block, s_.d_scores, panel_rows());
    gemm<Left::kRows, true>(s_.unit, product);
  }

  /// P = e^(logit - lse), dS = P * (dP * factor - delta) * slope; both 0 where the logit is -inf.
  template <bool kScores, bool kDrops, bool kCaps>
  void differentiate(KeyBlock& block) {
    const FloatTag d;
    const FloatV one = hn::Set(d, 1.0f), log2_e = hn::Set(d, 1.44269504f);
    const FloatV to_logit = hn::Set(d, static_cast<float>(logits_per_score(p_)));
    const FloatV overflow = hn::Set(d, 128.0f), infinity = hn::Inf(d);
    if (!block.all_full()) std::fill_n(block.live, block.count, uint8_t{0});
    for (int64_t r = 0; r < t_.width(); r += lanes()) {
      const FloatV lse = hn::Load(d, s_.lse + r), delta = hn::Load(d, s_.delta + r);
      FloatV sees = hn::Load(d, s_.sees + r);
      if (block.all_full()) sees = one;
      for (int64_t j = 0; j < block.count; ++j) {
        const int64_t at = j * panel_rows() + r;
        const FloatV score = hn::Load(d, s_.scores + at);
        const FloatMask hidden = hn::Eq(score, minus_infinity());
        const FloatV power = hn::Mul(hn::MulSub(score, to_logit, lse), log2_e);
        FloatV probability = exp2_below_128<6>(power);
        probability = hn::IfThenElse(hn::Ge(power, overflow), infinity, probability);
        if (!block.all_full()) {
          probability = hn::IfThenZeroElse(hidden, probability);
          sees = hn::IfThenElse(hidden, sees, one);
          if (!hn::AllTrue(d, hidden)) block.live[j] = 1;
        }
        const FloatV factor = kDrops ? hn::Load(d, s_.terms + at) : one;
        hn::Store(kDrops ? hn::IfThenZeroElse(hidden, hn::Mul(probability, factor)) : probability, d, s_.scores + at);
        if constexpr (kScores) {
          FloatV d_probability = hn::Load(d, s_.d_scores + at);
          if constexpr (kDrops) d_probability = hn::Mul(d_probability, factor);
          FloatV d_score = hn::Mul(probability, hn::Sub(d_probability, delta));
          if constexpr (kCaps) d_score = hn::Mul(d_score, hn::Load(d, s_.slopes + at));
          hn::Store(hn::IfThenZeroElse(hidden, d_score), d, s_.d_scores + at);
        }
      }
      hn::Store(sees, d, s_.sees + r);
    }
  }

  const BackwardCall& call_;
  const Problem& p_;
  const Panel& t_;
  const GradientScratch<E>& s_;
  const Wanted wanted_;
};

template <class E>
bool GradientTile<E>::compute(KeyBlock& block, const E* keys, const E* values, const E* queries, const E* d_outs) {
  if (!compute_scores(p_, t_, block, queries, keys, s_, s_.scores)) return false;
  if (wanted_.d_scores) multiply_values(block, values, d_outs);
  if (p_.dropout_threshold > 0) fill_dropout_factors(p_, t_, block, s_.terms, panel_rows());
  const bool drops = p_.dropout_threshold > 0, caps = s_.slopes != nullptr;
  // One loop for each case: what is not there costs nothing.
  if (!wanted_.d_scores)
    drops ? differentiate<false, true, false>(block) : differentiate<false, false, false>(block);
  else if (drops)
    caps ? differentiate<true, true, true>(block) : differentiate<true, true, false>(block);
  else
    caps ? differentiate<true, false, true>(block) : differentiate<true, false, false>(block);
  return true;
}

// Compiled in attention_gradient_tiles_cpu.cpp, once for all kernels.
extern template bool GradientTile<float>::compute(KeyBlock& block, const float* keys, const float* values,
                                                  const float* queries, const float* d_outs);
extern template bool GradientTile<Pair>::compute(KeyBlock& block, const Pair* keys, const Pair* values,
                                                 const Pair* queries, const Pair* d_outs);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
