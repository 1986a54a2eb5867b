// What a decode task keeps of its rows, how a row's sums become its output, and the task's scratch memory. Included
// once per instruction set, after attention_tiles-inl.h, split-inl.h, stored-inl.h and paged_digits-inl.h.

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {

/// A block's keys stand in rows of so many places: place p is key p % kColumns * (block / kColumns) + p / kColumns of
/// the block. A kv head takes a row at once, so that memory is read in kColumns streams, each of them in order.
/// A processor of AVX2 (a Zen 3) reads eight streams faster than 16 (half the time of decode with one query head per kv
/// head, 0.8 to 1 with four); those of AVX-512 follow 16.
inline constexpr int64_t kColumns = HWY_MAX_LANES_D(FloatTag) >= 16 ? 16 : 8;
/// With a matrix unit: two tiles of keys, and the values that one product of tiles takes.
inline constexpr int64_t kUnitColumns = 32;
inline constexpr int64_t kMostColumns = std::max(kColumns, kUnitColumns);
/// Query rows that one product of the unit takes.
inline constexpr int64_t kUnitRows = 16;
/// Head sizes that are whole tiles of pairs.
inline constexpr int64_t kUnitDims = 32;

inline int64_t row_stride(int64_t value_dim) { return padded(value_dim) + cpu::kMaxLanes; }

/// A row's sums as they lie in a part: values, then shift and sum.
inline RowPart row_part(float* row, int64_t value_dim) {
  float* statistics = row + padded(value_dim);
  return {.shift = statistics, .sum = statistics + 1, .values = row};
}

inline void clear(const RowPart& row, int64_t value_dim) {
  *row.shift = kNone, *row.sum = 0;
  std::fill_n(row.values, padded(value_dim), 0.0f);
}

/// Writes out and lse of one row.
inline void finish_row(const PagedCall& call, const RowPart& row, int64_t h, int64_t at, double value_scale) {
  const Problem& p = call.problem;
  const bool sees_nothing = *row.sum == 0;  // the largest logit adds at least 2^-8, a NaN adds NaN
  double lse = p.sinks_lse(h);
  if (!sees_nothing) {
    double max = *row.shift;
    for (int64_t a = 0; a < p.num_sinks; ++a) max = std::max(max, p.sink_at(h, a));
    double total = *row.sum * std::exp(*row.shift - max);
    for (int64_t a = 0; a < p.num_sinks; ++a) total += std::exp(p.sink_at(h, a) - max);
    lse = max + std::log(total);
  }
  if (call.lse.present()) call.lse.as<float>()[stat_offset(call.lse, 0, h, at)] = static_cast<float>(lse);
  if (!call.out.present()) return;
  if (sees_nothing) std::fill_n(row.values, p.value_dim, 0.0f);
  const double factor = sees_nothing ? 1 : std::exp(*row.shift - lse) * value_scale;
  store_row(row.values, static_cast<float>(factor), p.value_dim, call.out.data, call.out.dtype,
            strides_of(call.out).offset(0, at, h));
}

/// What a kv head's codes are multiplied by, where that is not per group of elements.
inline double head_scale(const Tensor& scale, int64_t kv_head) {
  return scale.rank() == 4 ? 1 : Problem::scale_at(scale, 0, 0, kv_head);
}

/// Scales that a slot and kv head has of its own.
inline int64_t groups_of(const Tensor& scale) { return scale.rank() == 4 ? scale.shape[3] : 0; }

/// A tensor over pages, and whether its rows are computed with as they lie there.
struct Source {
  const Tensor* x = nullptr;
  Strides strides = {};
  const Tensor* scale = nullptr;
  Strides scale_strides = {};
  int64_t groups = 0;  ///< scales of each slot and kv head
  bool direct = false;

  void set(const Tensor& tensor, const Strides& tensor_strides, const Tensor& scales) {
    x = &tensor, strides = tensor_strides, scale = &scales;
    groups = groups_of(scales);
    if (groups > 0) scale_strides = strides_of(scales);
    direct = tensor.shape[-1] % lanes() == 0 && (groups <= 1 || bits(tensor.dtype) <= 8);
  }
  bool fits_pairs(bool on_unit) const {
    if (!direct || groups > 1 || !is_exact_in_bf16(x->dtype)) return false;
    return x->shape[-1] % (2 * lanes()) == 0 && (!on_unit || x->shape[-1] % kUnitDims == 0);
  }
  const std::byte* at(int64_t offset) const { return x->as<const std::byte>() + offset * bits(x->dtype) / 8; }
  /// Of `count` rows of int8, `chunk` of each head at a time.
  cpu::LinesAhead lines_of(const std::byte* const* rows, int64_t count, int64_t chunk, int64_t heads) const {
    return {rows, count, chunk, heads, strides.head, x->shape[-1]};
  }
};

struct StreamScratch {
  /// [kv head][row][padded(head_dim)]; pairs: [padded(units(head_dim))]; as right factors of a matrix unit, 16 rows at
  /// a time: [kv head][units(head_dim)][rows].
  float* queries;
  float* sums;    ///< [kv head][row][row_stride(value_dim)]
  float* totals;  ///< likewise, of the splits before
  float* scores;  ///< [kv head][row][stream_block], and in their place weights
  // Of a block's places: keys; offsets in the two tensors, for this block and the next; where a kv head's rows are.
  int32_t* key_at;
  int64_t* key_offsets[2];
  int64_t* value_offsets[2];
  const std::byte** keys;
  const std::byte** values;
  // Where those rows are, kv head 0's; zeros for what does not exist.
  const std::byte** key_rows[2];
  const std::byte** value_rows[2];
  // Where a slot has scales: where those are, kv head 0's; what a kv head's keys and weights of the block are
  // multiplied by; and of a row of places, the scales of groups.
  int64_t* key_scales[2];
  int64_t* value_scales[2];
  float* key_factors;
  float* value_factors;
  float* group_scales;
  int32_t* live;  ///< key is seen by some row
  float* wide_keys;
  float* wide_values;  ///< rows of floats, where the tensor's own cannot be used
  float* zeros;
  cpu::Pair* packed;          ///< kUnitColumns keys or values of a kv head as the unit's factor
  float* products;            ///< [kUnitColumns][rows]
  Problem::KeyRange* ranges;  ///< of each position
  int64_t* sink_ends;
  uint8_t* has_weights;  ///< of a kv head: some weight of the block is not 0
  uint8_t* tiny_values;  ///< of a kv head, where products may be of pairs
  Digits digits;         ///< where products are of those

  static StreamScratch carve(const Problem& p, int64_t block, bool has_digits, cpu::Carver& carver) {
    StreamScratch s;
    const int64_t positions = stream_positions(p), rows = positions * p.num_q_heads;
    const int64_t wide = std::max(padded(p.head_dim), padded(p.value_dim));
    const int64_t unit_rows = p.num_kv_heads * cpu::round_up(positions * p.group(), 4);
    s.queries = carver.take<float>(std::max(rows * padded(p.head_dim), unit_rows * cpu::units<cpu::Pair>(p.head_dim)));
    s.sums = carver.take<float>(rows * row_stride(p.value_dim));
    s.totals = carver.take<float>(rows * row_stride(p.value_dim));
    s.scores = carver.take<float>(rows * block);
    s.key_at = carver.take<int32_t>(block);
    for (int n = 0; n < 2; ++n) s.key_offsets[n] = carver.take<int64_t>(block);
    for (int n = 0; n < 2; ++n) s.value_offsets[n] = carver.take<int64_t>(block);
    s.keys = carver.take<const std::byte*>(block);
    s.values = carver.take<const std::byte*>(block);
    for (int n = 0; n < 2; ++n) s.key_rows[n] = carver.take<const std::byte*>(block);
    for (int n = 0; n < 2; ++n) s.value_rows[n] = carver.take<const std::byte*>(block);
    for (int n = 0; n < 2; ++n) s.key_scales[n] = carver.take<int64_t>(block);
    for (int n = 0; n < 2; ++n) s.value_scales[n] = carver.take<int64_t>(block);
    s.key_factors = carver.take<float>(block);
    s.value_factors = carver.take<float>(block);
    s.group_scales = carver.take<float>(kMostColumns * std::max(groups_of(p.k_scale), groups_of(p.v_scale)));
    s.live = carver.take<int32_t>(block);
    s.wide_keys = carver.take<float>(kMostColumns * padded(p.head_dim));
    s.wide_values = carver.take<float>(kMostColumns * padded(p.value_dim));
    s.zeros = carver.take<float>(wide);
    s.packed = carver.take<cpu::Pair>(kUnitColumns / 2 * wide);
    s.products = carver.take<float>(kUnitColumns * kUnitRows);
    s.ranges = carver.take<Problem::KeyRange>(positions);
    s.sink_ends = carver.take<int64_t>(positions);
    s.has_weights = carver.take<uint8_t>(p.num_kv_heads);
    s.tiny_values = carver.take<uint8_t>(p.num_kv_heads);
    if (has_digits) s.digits = Digits(p, positions * p.group(), block, carver);
    return s;
  }
};

inline void merge(const PagedCall& call, const StreamTask& all, int64_t kv_head) {
  const Problem& p = call.problem;
  const Sequence s = p.sequence(all.sequence, nullptr);
  const int64_t rows = all.num_positions * p.group(), stride = row_stride(p.value_dim);
  alignas(64) float memory[kMaxDims + cpu::kMaxLanes];
  const RowPart total = row_part(memory, p.value_dim);
  for (int64_t r = 0; r < rows; ++r) {
    clear(total, p.value_dim);
    for (int64_t n = 0; n < all.num_splits; ++n)
      add_part(total, row_part(all.parts + ((n * p.num_kv_heads + kv_head) * rows + r) * stride, p.value_dim),
               p.value_dim);
    finish_row(call, total, kv_head * p.group() + r % p.group(), s.q_begin + r / p.group(),
               head_scale(p.v_scale, kv_head));
  }
}

}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
