// What the backward adds to attention_tiles-inl.h: for one tile of query rows and one block of keys, the probabilities
// that multiply dO in dV, and dS, both as tile[key][lane].
// Included once per instruction set, after attention_tiles-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attention::HWY_NAMESPACE {

struct GradientScratch : TileScratch {
  float* d_scores;    ///< [block_k][lane]: dO V^T, then dS
  float* queries;     ///< [head_dim][lane]
  float* outs;        ///< [value_dim][lane]
  float* d_outs;      ///< [value_dim][lane]
  float* query_rows;  ///< [lane][head_dim]
  float* d_out_rows;  ///< [lane][value_dim]
  float* keys;        ///< [block_k][head_dim]
  float* values;      ///< [block_k][value_dim]
  float* rows;        ///< rows of O on their way in, of dQ on their way out
  // The sums, one set per kind of task.
  float* d_queries;  ///< [head_dim][lane]
  float* d_keys;     ///< [block_k][head_dim]
  float* d_values;   ///< [block_k][value_dim]
  float* bias_sums;  ///< [block_k][lane]
  // Per lane.
  float* lse;
  float* delta;
  float* row_sees;  ///< 1 where the row saw a key of the blocks computed so far

  static GradientScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    GradientScratch s;
    s.TileScratch::carve(carver, config);
    const int64_t block_k = config.block_k, head_dim = padded(p.head_dim), value_dim = padded(p.value_dim);
    if (p.soft_cap > 0) s.slopes = carver.take<float>(block_k * s.stride);
    s.d_scores = carver.take<float>(block_k * s.stride);
    s.queries = carver.take<float>(head_dim * s.stride);
    s.outs = carver.take<float>(value_dim * s.stride);
    s.d_outs = carver.take<float>(value_dim * s.stride);
    s.query_rows = carver.take<float>(s.stride * head_dim);
    s.d_out_rows = carver.take<float>(s.stride * value_dim);
    s.keys = carver.take<float>(block_k * head_dim);
    s.values = carver.take<float>(block_k * value_dim);
    s.rows = carver.take<float>(s.stride * std::max(head_dim, value_dim));
    s.d_queries = carver.take<float>(head_dim * s.stride);
    s.d_keys = carver.take<float>(block_k * head_dim);
    s.d_values = carver.take<float>(block_k * value_dim);
    s.bias_sums = carver.take<float>(block_k * s.stride);
    for (float** lanes : {&s.lse, &s.delta, &s.row_sees}) *lanes = carver.take<float>(s.stride);
    return s;
  }
};

/// Rows whose lse is -inf see nothing, whatever the masks say: they have no gradient (rule 9).
inline void hide_rows_without_lse(const BackwardCall& call, RowTile& t) {
  for (int64_t r = 0; r < t.count; ++r)
    if (call.lse_of(t.batch, t.h[r], t.sequence.q_begin + t.i[r]) == kNone) t.hide(r);
  t.find_bounds();
}

/// Tile number `block` of the rows of all query heads that share a kv head.
inline void set_row_block(const BackwardCall& call, const Sequence& s, int64_t kv_head, int64_t block, RowTile& t) {
  const Problem& p = call.problem;
  const int64_t heads = p.group(), first = block * call.config.block_q;
  const int64_t rows = std::min<int64_t>(call.config.block_q, s.q_len * heads - first);
  t.set(p, s, kv_head, kv_head * heads, heads, first, rows);
  hide_rows_without_lse(call, t);
}

/// The tile's rows of dO; without a cotangent of out they are zeros.
inline void load_d_out_rows(const BackwardCall& call, const RowTile& t, float* rows) {
  const Tensor& d_out = call.given.d_out;
  if (d_out.present()) return load_tile_rows(d_out, strides_of(d_out), t, rows);
  std::fill_n(rows, padded(t.count) * padded(call.problem.value_dim), 0.0f);
}

/// tile[key][lane] = the weights' cotangents, zeros in lanes without a row.
inline void load_d_weights(const Tensor& d_weights, const RowTile& t, const KeyBlock& block, float* tile,
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

class GradientTile {
 public:
  struct Wanted {
    bool probabilities, d_scores;
  };
  GradientTile(const BackwardCall& call, const RowTile& tile, const GradientScratch& scratch, Wanted wanted)
      : call_(call), p_(call.problem), t_(tile), s_(scratch), wanted_(wanted) {}

  /// Loads the query side. Nothing has been seen yet.
  void load_rows_of_tile() {
    load_tile_rows(p_.query, p_.q, t_, s_.query_rows);
    make_panel(t_, s_.query_rows, p_.head_dim, s_.queries, s_.stride);
    load_d_out_rows(call_, t_, s_.d_out_rows);
    if (wanted_.d_scores) make_panel(t_, s_.d_out_rows, p_.value_dim, s_.d_outs, s_.stride);
    for (float* lanes : {s_.lse, s_.delta, s_.row_sees}) std::fill_n(lanes, s_.stride, 0.0f);
    for (int64_t r = 0; r < t_.count; ++r) {
      const int64_t row = t_.sequence.q_begin + t_.i[r];
      s_.lse[r] = call_.lse_of(t_.batch, t_.h[r], row);
      if (wanted_.d_scores) s_.delta[r] = call_.delta_of(t_.batch, t_.h[r], row);
    }
  }

  /// scores = P times the factor of dropout, d_scores = dS; finds the block's live keys and adds to row_sees. False
  /// when no row sees any of the keys; then nothing was computed.
  bool compute(KeyBlock& block) {
    find_visible(p_, t_, block, s_.terms, s_.stride);
    if (!block.any_live()) return false;
    load_key_rows(p_.key, p_.k, t_, block, s_.keys);
    compute_logits(p_, t_, block, s_.queries, s_.keys, s_);
    if (wanted_.d_scores) multiply_values(block);
    if (p_.dropout_threshold > 0) fill_dropout_factors(p_, t_, block, s_.terms, s_.stride);
    differentiate(block);
    return true;
  }

  /// Zeros in place of the rows that see nothing in the last block: they are about to be multiplied by zeros.
  void clear_rows_that_see_nothing() {
    for (int64_t r = 0; r < t_.count; ++r) {
      if (s_.row_sees[r] != 0) continue;
      std::fill_n(s_.query_rows + r * padded(p_.head_dim), p_.head_dim, 0.0f);
      std::fill_n(s_.d_out_rows + r * padded(p_.value_dim), p_.value_dim, 0.0f);
    }
  }

 private:
  /// d_scores[key][lane] = V dO^T, plus what comes back through the weights
  void multiply_values(const KeyBlock& block) {
    load_key_rows(p_.value, p_.v, t_, block, s_.values);
    const Gemm product = {.m = block.count,
                          .n = t_.width(),
                          .k = p_.value_dim,
                          .a = s_.values,
                          .a_stride = padded(p_.value_dim),
                          .b = s_.d_outs,
                          .b_stride = s_.stride,
                          .c = s_.d_scores,
                          .c_stride = s_.stride};
    if (!call_.given.d_weights.present()) return gemm<Left::kRows, false>(product);
    load_d_weights(call_.given.d_weights, t_, block, s_.d_scores, s_.stride);
    gemm<Left::kRows, true>(product);
  }

  /// P = e^(logit - lse), dS = P * (dP * factor - delta) * slope; both 0 where the logit is -inf.
  void differentiate(KeyBlock& block) {
    const FloatTag d;
    const bool drops = p_.dropout_threshold > 0;
    const FloatV one = hn::Set(d, 1.0f);
    std::fill_n(block.live, block.count, uint8_t{0});
    for (int64_t r = 0; r < t_.width(); r += lanes()) {
      const FloatV lse = hn::Load(d, s_.lse + r), delta = hn::Load(d, s_.delta + r);
      FloatV row_sees = hn::Load(d, s_.row_sees + r);
      for (int64_t j = 0; j < block.count; ++j) {
        const int64_t at = j * s_.stride + r;
        const FloatV logit = hn::Load(d, s_.scores + at);
        const FloatMask hidden = hn::Eq(logit, minus_infinity());
        const FloatV probability = exp_any(hn::Sub(logit, lse));
        const FloatV factor = drops ? hn::Load(d, s_.terms + at) : one;
        hn::Store(hn::IfThenZeroElse(hidden, hn::Mul(probability, factor)), d, s_.scores + at);
        row_sees = hn::IfThenElse(hidden, row_sees, one);
        if (!hn::AllTrue(d, hidden)) block.live[j] = 1;
        if (!wanted_.d_scores) continue;
        const FloatV d_probability = hn::Mul(hn::Load(d, s_.d_scores + at), factor);
        FloatV d_score = hn::Mul(probability, hn::Sub(d_probability, delta));
        if (s_.slopes != nullptr) d_score = hn::Mul(d_score, hn::Load(d, s_.slopes + at));
        hn::Store(hn::IfThenZeroElse(hidden, d_score), d, s_.d_scores + at);
      }
      hn::Store(row_sees, d, s_.row_sees + r);
    }
  }

  const BackwardCall& call_;
  const Problem& p_;
  const RowTile& t_;
  const GradientScratch& s_;
  const Wanted wanted_;
};

}  // namespace ejk::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
