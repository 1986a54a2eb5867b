// dK and dV of the keys of one kv head, and their share of dQ: block of keys by block of keys, and for each, tile by
// tile of query rows. Included once per instruction set, after attention_gradient_tiles-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

/// Of keys of a block, or of rows of a tile.
struct Range {
  int64_t begin = 0, end = 0;

  bool is_empty() const { return begin >= end; }
  friend bool operator==(const Range&, const Range&) = default;
};

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
  E* d_logit_columns;   ///< those turned, for the matrix unit: [block_q][units(block_k)]
  uint8_t* sees_block;  ///< [block_q]: row sees a key of the block
  Range* seen;          ///< of each panel: outside of it are keys that none of its rows sees

  static KeyScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    KeyScratch s;
    s.GradientScratch<E>::carve(p, config, carver);
    const int64_t block_q = config.block_q, block_k = config.block_k;
    const int64_t head_dim = padded(p.head_dim), value_dim = padded(p.value_dim);
    s.tile_stride = units<E>(block_q);
    if (std::is_same_v<E, Pair>) s.unit = unit_of(config);
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
    s.d_logit_columns = s.unit == nullptr ? nullptr : carver.take<E>(block_q * units<E>(block_k));
    s.sees_block = carver.take<uint8_t>(block_q);
    s.seen = carver.take<Range>(cpu::ceil_div(block_q, panel_rows()));
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
        first_row_(call.parts.first_row(sequence, kv_head, part)),
        wants_key_(call.wanted.key.present()),
        wants_value_(call.wanted.value.present()),
        wants_d_scores_(wants_key_ || call.d_query != nullptr) {}

  /// Blocks `part`, part + number of parts, ...: under a causal mask all parts then have about as much to do.
  void run(int64_t part) {
    std::fill_n(call_.sees + first_row_, num_rows_, uint8_t{0});
    if (call_.d_query != nullptr)
      std::fill_n(call_.d_query + first_row_ * padded(p_.head_dim), num_rows_ * padded(p_.head_dim), 0.0f);
    const int64_t block_k = call_.config.block_k, step = call_.parts.count(sequence_.index) * block_k;
    for (int64_t first = part * block_k; first < sequence_.k_len; first += step)
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
      Range& seen = s_.seen[at / panel_rows()];
      if (block.count == 0 || !compute(t, block)) {
        seen = {};
        fill_tile(at, 0, count_, t.width());
        continue;
      }
      any = true;
      const int64_t offset = block.first - first_;
      seen = {offset, offset + block.count};
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
    GradientTile<E> tile(call_, t, s_, {.probabilities = wants_value_, .d_scores = wants_d_scores_});
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

  /// P and dS of a panel, those that are wanted, from float tiles to elements of the tile.
  void copy_to_tile(int64_t at, int64_t offset, int64_t count, int64_t width) {
    const FloatTag d;
    for (int64_t j = 0; j < count; ++j)
      for (int64_t r = 0; r < width; r += lanes()) {
        const int64_t row = (offset + j) * s_.tile_stride, from = j * panel_rows() + r;
        if (wants_value_) store_in_row(hn::Load(d, s_.scores + from), s_.weights + row, at + r);
        if (wants_d_scores_) store_in_row(hn::Load(d, s_.d_scores + from), s_.d_logits + row, at + r);
      }
    if (std::is_same_v<E, float> || !wants_d_scores_) return;
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
    const auto rows_of = [&](int64_t piece) { return rows_that_see(piece, rows); };
    for_each_run(count_, rows_of, [&](Range keys, Range of_rows) {
      const int64_t first_unit = units<E>(of_rows.begin);
      gemm<Left::kRows, true>(s_.unit, Gemm<E>{.m = keys.end - keys.begin,
                                               .n = dims,
                                               .k = units<E>(of_rows.end) - first_unit,
                                               .a = tile + keys.begin * s_.tile_stride + first_unit,
                                               .a_stride = s_.tile_stride,
                                               .b = pairs + first_unit * padded(dims),
                                               .b_stride = padded(dims),
                                               .c = sums + keys.begin * padded(dims),
                                               .c_stride = padded(dims)});
    });
  }

  /// dQ[row][dim] += dS[key][row] * K[key][dim]
  void add_to_d_query(int64_t row, int64_t rows) {
    const int64_t stride = padded(p_.head_dim), block_q = call_.config.block_q;
    const int64_t column_stride = units<E>(call_.config.block_k);
    if (s_.unit != nullptr)
      transpose_elements(s_.d_logit_pairs, block_q, units<E>(count_), rows, s_.d_logit_columns, column_stride);
    const auto keys_of = [&](int64_t panel) { return s_.seen[panel]; };
    for_each_run(rows, keys_of, [&](Range of_rows, Range keys) {
      const int64_t first_unit = units<E>(keys.begin + 1) - units<E>(1);  // the one that holds the key
      Gemm<E> product{.m = of_rows.end - of_rows.begin,
                      .n = p_.head_dim,
                      .k = units<E>(keys.end) - first_unit,
                      .a = s_.d_logit_pairs + first_unit * block_q + of_rows.begin,
                      .a_stride = block_q,
                      .b = s_.key_pairs + first_unit * stride,
                      .b_stride = stride,
                      .c = call_.d_query + (first_row_ + row + of_rows.begin) * stride,
                      .c_stride = stride};
      if (s_.unit == nullptr) return gemm<Left::kTransposed, true>(product);
      product.a = s_.d_logit_columns + of_rows.begin * column_stride + first_unit;
      product.a_stride = column_stride;
      gemm<Left::kRows, true>(s_.unit, product);
    });
  }

  /// Calls f(part, range) for the parts of [0, count) whose pieces, as long as a panel has rows, have the same range.
  /// Under a causal mask half of a tile on the diagonal is then left out, and any other is one product.
  template <class RangeOf, class F>
  void for_each_run(int64_t count, RangeOf&& range_of, F&& f) const {
    const int64_t num_pieces = cpu::ceil_div(count, panel_rows());
    for (int64_t n = 0, end = 0; n < num_pieces; n = end) {
      const Range range = range_of(n);
      for (end = n + 1; end < num_pieces && range_of(end) == range;) ++end;
      if (!range.is_empty()) f(Range{n * panel_rows(), std::min(end * panel_rows(), count)}, range);
    }
  }

  /// The rows of a tile between the first and the last panel that see the n-th piece of the block of keys.
  Range rows_that_see(int64_t n, int64_t rows) const {
    const Range keys{n * panel_rows(), (n + 1) * panel_rows()};
    Range result{rows, 0};
    for (int64_t at = 0; at < rows; at += panel_rows()) {
      const Range& seen = s_.seen[at / panel_rows()];
      if (std::max(seen.begin, keys.begin) >= std::min(seen.end, keys.end)) continue;
      result = {std::min(result.begin, at), std::min(at + panel_rows(), rows)};
    }
    return result;
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
  const bool wants_key_, wants_value_, wants_d_scores_;
  int64_t first_ = 0, count_ = 0;  ///< the block of keys
  int64_t first_tile_row_ = 0;
  Panel panel_;
};

/// One part of one kv head, with products of elements E.
template <class E>
void run_key_task(const BackwardCall& call, const KeyParts::Task& task, std::byte* memory) {
  cpu::Carver carver(memory);
  const KeyScratch<E> scratch = KeyScratch<E>::carve(call.problem, call.config, carver);
  const Sequence s = call.problem.sequence(task.sequence, nullptr);
  const cpu::MatrixUnitScope uses_unit(scratch.unit);
  KeyTask<E>(call, s, task.kv_head, task.part, scratch).run(task.part);
}

// Compiled in flash_attention_backward_floats_cpu.cpp and flash_attention_backward_pairs_cpu.cpp: together they would
// take a compiler too long.
extern template void run_key_task<float>(const BackwardCall& call, const KeyParts::Task& task, std::byte* memory);
extern template void run_key_task<Pair>(const BackwardCall& call, const KeyParts::Task& task, std::byte* memory);

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
