// Decode on the CPU: few query rows against many keys that lie in pages, at the speed of memory.
//
// A task owns a part of a sequence's keys and takes all kv heads of a block of them before the next block. Per block:
// logits (head_dim across lanes), online softmax down each row, weighted sums of values. Keys, and then values, are
// read in several streams, each of which goes through memory in order, as the processor's own prefetchers like it;
// what a stream needs next is asked for besides. Queries and weights of bf16 are multiplied in pairs with caches that
// are exact in bf16, in vectors or, packed to its factors, on the matrix unit; there int8 is multiplied with digits,
// too (paged_digits-inl.h). Else codes are widened in registers, where groups of elements get their scales. Scales of a
// kv head are folded into logits and output, those of a slot and head into logits and weights. Head sizes that are not
// whole vectors are widened to rows of floats first.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ejkernel/ops/page_attention/paged_cpu_internal.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/pages.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/page_attention/paged_stream_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/split-inl.h"
#include "ejkernel/platform/cpu/stored-inl.h"
// After those:
#include "ejkernel/platform/cpu/codes-inl.h"
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
#include "ejkernel/ops/page_attention/paged_stream-inl.h"
// And after those:
#include "ejkernel/ops/flash_attention/attention_pages-inl.h"
#include "ejkernel/ops/page_attention/paged_digits-inl.h"
#include "ejkernel/ops/page_attention/paged_softmax-inl.h"
// Last:
#include "ejkernel/ops/page_attention/paged_stream_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

class Stream {
 public:
  Stream(const PagedCall& call, const PagedCpuConfig& config, const StreamTask& task, std::byte* memory)
      : call_(call), p_(call.problem), config_(config), task_(task), block_(config.stream_block) {
    digits_ = takes_digits(p_, config) && cpu::matrix_unit() != nullptr;
    cpu::Carver carver(memory);
    s_ = StreamScratch::carve(p_, block_, digits_, carver);
    sequence_ = p_.sequence(task.sequence, nullptr);
    rows_ = task.num_positions * p_.group();
    stride_ = row_stride(p_.value_dim);
    std::fill_n(s_.zeros, std::max(padded(p_.head_dim), padded(p_.value_dim)), 0.0f);
    key_.set(p_.key, p_.k, p_.k_scale);
    value_.set(p_.value, p_.v, p_.v_scale);
    const bool on_unit = config.stream_dot == 2;
    const bool pairs = (on_unit || config.stream_dot == 1) && p_.query.dtype == DType::bf16;
    key_pairs_ = pairs && key_.fits_pairs(on_unit);
    value_pairs_ = pairs && value_.fits_pairs(on_unit) && !call.batch_invariant;
    if (digits_ || (on_unit && (key_pairs_ || value_pairs_))) unit_ = cpu::matrix_unit();
    width_ = digits_ ? cpu::kDigitDepth : unit_ != nullptr ? kUnitColumns : kColumns;
    for (int64_t p = 0; p < block_; ++p)
      s_.key_at[p] = static_cast<int32_t>(digits_ ? p : p % width_ * (block_ / width_) + p / width_);
  }

  void run() {
    const cpu::MatrixUnitScope scope(unit_);
    load_queries();
    set_ranges();
    const int64_t first = first_begin_ == INT64_MAX ? 0 : first_begin_;  // of a window; without one, of sinks
    for (int64_t g = 0; value_pairs_ && g < p_.num_kv_heads; ++g)
      s_.tiny_values[g] = has_tiny_values(p_, sequence_, g, first, past_) || has_tiny_scales(g, first);
    if (task_.parts == nullptr && task_.num_splits > 1) return run_all_splits();
    for (int64_t n = 0; n < task_.num_splits; ++n) {
      run_split(task_.split + n);
      const int64_t all = rows_ * p_.num_kv_heads;
      if (task_.parts != nullptr)
        std::memcpy(task_.parts + (task_.split + n) * all * stride_, s_.sums,
                    static_cast<size_t>(all * stride_) * sizeof(float));
      else
        finish(s_.sums);
    }
  }

 private:
  /// The same question of scales by which weights are multiplied before they are rounded to pairs.
  bool has_tiny_scales(int64_t kv_head, int64_t first) const {
    if (value_.groups != 1) return false;
    constexpr int64_t kStep = 16;  // the first scale mostly answers
    const float* scales = value_.scale->as<const float>() + kv_head * value_.scale_strides.head;
    bool any = false;
    for (; first < past_; first += kStep) {
      int64_t offsets[kStep];
      const int64_t count = std::min(kStep, past_ - first);
      PagedRows{p_, *value_.scale, value_.scale_strides, *value_.scale}.find(sequence_, first, count, offsets);
      for (int64_t j = 0; j < count; ++j) {
        if (offsets[j] == cpu::kNoRow) continue;
        const float size = std::abs(scales[offsets[j]]);
        if (size >= 0x1p-50f) return false;
        any = any || size > 0;
      }
    }
    return any;
  }

  /// Splits one after the other, merged as merge_parts() merges what other tasks computed.
  void run_all_splits() {
    const int64_t all = rows_ * p_.num_kv_heads;
    for (int64_t r = 0; r < all; ++r) clear(row_part(s_.totals + r * stride_, p_.value_dim), p_.value_dim);
    for (int64_t n = 0; n < task_.num_splits; ++n) {
      run_split(task_.split + n);
      for (int64_t r = 0; r < all; ++r)
        add_part(row_part(s_.totals + r * stride_, p_.value_dim), row_part(s_.sums + r * stride_, p_.value_dim),
                 p_.value_dim);
    }
    finish(s_.totals);
  }

  void finish(float* sums) {
    for (int64_t g = 0; g < p_.num_kv_heads; ++g)
      for (int64_t r = 0; r < rows_; ++r)
        finish_row(call_, row_part(sums + (g * rows_ + r) * stride_, p_.value_dim), g * p_.group() + r % p_.group(),
                   sequence_.q_begin + task_.position + r / p_.group(), head_scale(p_.v_scale, g));
  }

  void load_queries() {
    if (digits_)
      load_digit_queries();
    else if (unit_ != nullptr && key_pairs_)
      load_unit_queries();
    else if (key_pairs_)
      load_queries(reinterpret_cast<Pair*>(s_.queries));
    else
      load_queries(s_.queries);
  }
  template <class E>
  void load_queries(E* to) {
    const int64_t count = units<E>(p_.head_dim), stride = padded(count);
    for (int64_t g = 0; g < p_.num_kv_heads; ++g)
      for (int64_t r = 0; r < rows_; ++r, to += stride) {
        load_query(g, r, to);
        std::fill(to + count, to + stride, E{});
      }
  }
  template <class E>
  void load_query(int64_t g, int64_t r, E* to) {
    const int64_t row = sequence_.q_begin + task_.position + r / p_.group();
    load_elements(p_.query.data, p_.query.dtype, p_.q.offset(0, row, g * p_.group() + r % p_.group()), p_.head_dim, to);
  }

  void load_digit_queries() {
    s_.digits.begin(*unit_, p_.num_kv_heads, rows_);
    for (int64_t g = 0; g < p_.num_kv_heads; ++g)
      for (int64_t r = 0; r < rows_; ++r) {
        load_query(g, r, s_.wide_keys);
        s_.digits.set_query(g, r, s_.wide_keys);
      }
  }

  /// Rows stand side by side; columns that no row has are 0.
  void load_unit_queries() {
    const int64_t count = units<Pair>(p_.head_dim);
    for (int64_t g = 0; g < p_.num_kv_heads; ++g) {
      Pair* const all = unit_queries(g);
      std::fill_n(all, unit_columns(rows_) * count, Pair{});
      for (int64_t r = 0; r < rows_; ++r) {
        load_query(g, r, s_.packed);
        const int64_t first = r / kUnitRows * kUnitRows, columns = unit_columns(std::min(kUnitRows, rows_ - first));
        Pair* const column = all + first * count + (r - first);
        for (int64_t d = 0; d < count; ++d) column[d * columns] = s_.packed[d];
      }
    }
  }
  static int64_t unit_columns(int64_t rows) { return cpu::round_up(rows, 4); }
  Pair* unit_queries(int64_t kv_head) const {
    return reinterpret_cast<Pair*>(s_.queries) + kv_head * unit_columns(rows_) * units<Pair>(p_.head_dim);
  }

  void set_ranges() {
    first_begin_ = INT64_MAX, past_ = last_sink_ = 0;
    for (int64_t i = 0; i < task_.num_positions; ++i) {
      const auto range = s_.ranges[i] = p_.key_range(sequence_, task_.position + i);
      s_.sink_ends[i] = p_.sink_end(sequence_, task_.position + i);
      if (range.begin < range.end) first_begin_ = std::min(first_begin_, range.begin);
      past_ = std::max({past_, range.begin < range.end ? range.end : 0, s_.sink_ends[i]});
      last_sink_ = std::max(last_sink_, s_.sink_ends[i]);
    }
  }

  /// The first block from key j on that some row may see; blocks begin at multiples of stream_block.
  int64_t next_block(int64_t j) const {
    if (j >= last_sink_ && first_begin_ != INT64_MAX && j + block_ <= first_begin_)
      return first_begin_ / block_ * block_;
    return j;
  }

  void run_split(int64_t split) {
    const int64_t all = rows_ * p_.num_kv_heads;
    for (int64_t r = 0; r < all; ++r) clear(row_part(s_.sums + r * stride_, p_.value_dim), p_.value_dim);
    const int64_t end = std::min<int64_t>((split + 1) * config_.split_keys, past_);
    int64_t j = next_block(split * config_.split_keys);
    int turn = 0;
    if (j < end) find_offsets(j, turn);
    while (j < end) {
      const int64_t next = next_block(j + block_);
      if (next < end) find_offsets(next, 1 - turn);
      has_next_ = next < end;
      add_block(j, turn);
      j = next, turn = 1 - turn;
    }
    for (int64_t r = 0; digits_ && r < all; ++r) restore_columns(s_.sums + r * stride_, p_.value_dim);
  }

  int64_t keys_in(int64_t j) const { return std::min(block_, sequence_.k_len - j); }

  void find_offsets(int64_t j, int turn) {
    const int64_t count = keys_in(j);
    const auto* nothing = reinterpret_cast<const std::byte*>(s_.zeros);
    const auto find = [&](const Source& from, const Strides& strides, int64_t* offsets, const std::byte** rows) {
      int64_t in_order[kMaxStreamBlock];
      PagedRows{p_, *from.x, strides, *from.scale}.find(sequence_, j, count, in_order);
      for (int64_t p = 0; p < block_; ++p) {
        offsets[p] = s_.key_at[p] < count ? in_order[s_.key_at[p]] : cpu::kNoRow;
        rows[p] = offsets[p] == cpu::kNoRow ? nothing : from.at(offsets[p]);
      }
    };
    find(key_, p_.k, s_.key_offsets[turn], s_.key_rows[turn]);
    find(value_, p_.v, s_.value_offsets[turn], s_.value_rows[turn]);
    if (key_.groups > 0) find_scales(key_, j, s_.key_scales[turn]);
    if (value_.groups > 0) find_scales(value_, j, s_.value_scales[turn]);
  }

  void find_scales(const Source& of, int64_t j, int64_t* offsets) {
    const int64_t count = keys_in(j);
    int64_t in_order[kMaxStreamBlock];
    PagedRows{p_, *of.scale, of.scale_strides, *of.scale}.find(sequence_, j, count, in_order);
    for (int64_t p = 0; p < block_; ++p) offsets[p] = s_.key_at[p] < count ? in_order[s_.key_at[p]] : cpu::kNoRow;
  }

  void add_block(int64_t first, int turn) {
    first_ = first, count_ = keys_in(first), turn_ = turn;
    const int64_t in_column = block_ / width_;
    columns_ = unit_ == nullptr ? cpu::round_up(cpu::ceil_div(count_, in_column), 4) : width_;
    places_ = digits_ ? cpu::round_up(count_, width_) : std::min(count_, in_column) * width_;
    find_live();
    if (digits_) return add_block_of_digits();
    // All kv heads take a row of keys before the next one: memory is read in the order in which it lies there.
    for (int64_t begin = 0; begin < places_; begin += width_)
      for (int64_t g = 0, end; g < p_.num_kv_heads; g = end) {
        end = end_of_run(key_, g);
        if (unit_ != nullptr && key_pairs_)
          multiply_on_unit(g, end, begin);
        else if (key_pairs_)
          multiply<Pair>(g, end, begin);
        else
          multiply<float>(g, end, begin);
      }
    for (int64_t g = 0; g < p_.num_kv_heads; ++g) weigh(g);
    if (!call_.out.present()) return;
    for (int64_t begin = 0; begin < places_; begin += width_)
      for (int64_t g = 0, end; g < p_.num_kv_heads; g = end) {
        end = end_of_run(value_, g);
        if (!s_.has_weights[g])
          continue;
        else if (unit_ != nullptr && has_pairs(g))
          add_on_unit(g, end, begin);
        else if (has_pairs(g))
          add<Pair>(g, end, begin);
        else
          add<float>(g, end, begin);
      }
  }

  /// Keys in their order, of which a tile takes 16 where they lie. Memory is asked for values while keys are multiplied
  /// and weights computed, for the next block's keys while values are.
  void add_block_of_digits() {
    Digits& digits = s_.digits;
    const int64_t heads = p_.num_kv_heads;
    digits.ahead = value_.lines_of(s_.value_rows[turn_], call_.out.present() ? places_ : 0, places_, heads);
    for (int64_t begin = 0; begin < places_; begin += width_)
      for (int64_t g = 0; g < heads; ++g) {
        const StoredRows keys = key_rows(g, g + 1, begin);
        if (g == 0 || !all_live_) digits.set_keys(keys.rows);
        digits.multiply_keys(g, keys.skip, scores(g) + begin, block_);
      }
    digits.finish();
    for (int64_t g = 0; g < heads; ++g) digits.ahead.ask(digits.ahead.left() / (heads - g)), weigh(g);
    if (!call_.out.present()) return;
    digits.ahead = key_.lines_of(s_.key_rows[1 - turn_], has_next_ ? places_ : 0, width_, heads);
    columns_ = places_;
    for (int64_t g = 0; g < heads; ++g) {
      if (!s_.has_weights[g]) continue;
      const StoredRows values = value_rows(g, g + 1, 0);
      for (int64_t at = 0; at < p_.value_dim; at += cpu::kCodeColumns)
        digits.add_values(g, values.rows, values.skip + at, places_, sums(g) + at, stride_);
    }
    digits.finish();
  }

  /// The kv heads from g on whose rows are computed with as they lie in memory, and alike: one call for all of them.
  int64_t end_of_run(const Source& from, int64_t g) const {
    int64_t end = g + 1;
    if (!from.direct || !all_live_ || from.groups > 1) return end;
    const auto is_alike = [&](int64_t other) {
      return &from == &key_ || (s_.has_weights[other] == s_.has_weights[g] && has_pairs(other) == has_pairs(g));
    };
    while (end < p_.num_kv_heads && is_alike(end)) ++end;
    return end;
  }

  bool has_pairs(int64_t kv_head) const { return value_pairs_ && !s_.tiny_values[kv_head]; }
  float* scores(int64_t kv_head) const { return s_.scores + kv_head * rows_ * block_; }
  float* sums(int64_t kv_head) const { return s_.sums + kv_head * rows_ * stride_; }

  /// Scores of the rows of kv heads [g, end) and the row of keys from place `begin` on.
  template <class E>
  void multiply(int64_t g, int64_t end, int64_t begin) {
    const int64_t stride = padded(units<E>(p_.head_dim));
    multiply_keys(key_rows(g, end, begin), columns_, cpu::round_up(p_.head_dim, lanes()),
                  reinterpret_cast<const E*>(s_.queries) + g * rows_ * stride, stride, rows_, scores(g) + begin,
                  block_);
  }

  void multiply_on_unit(int64_t g, int64_t end, int64_t begin) {
    const int64_t count = units<Pair>(p_.head_dim);
    const StoredRows keys = key_rows(g, end, begin);
    for (int64_t n = g; n < end; ++n) {
      pack_keys(keys, n - g, kUnitColumns, p_.head_dim, s_.packed);
      for (int64_t r = 0; r < rows_; r += kUnitRows) {
        const int64_t few = set_unit(r), columns = unit_columns(few);
        unit_->multiply_few_columns({.m = kUnitColumns,
                                     .n = columns,
                                     .k = count,
                                     .a = s_.packed,
                                     .a_stride = count,
                                     .b = unit_queries(n) + r * count,
                                     .b_stride = columns,
                                     .c = s_.products,
                                     .c_stride = columns});
        transpose_columns(s_.products, columns, kUnitColumns, few, scores(n) + r * block_ + begin, block_);
      }
    }
  }

  /// Makes the unit ready for the rows from r on; returns how many of them it takes.
  int64_t set_unit(int64_t r) {
    const int64_t few = std::min(kUnitRows, rows_ - r);
    if (few != unit_rows_) unit_->configure_few(static_cast<int>(few));
    return unit_rows_ = few;
  }

  /// Products become weights.
  void weigh(int64_t g) {
    set_factors(key_, s_.key_scales[turn_], g, p_.scale * head_scale(p_.q_scale, 0) * head_scale(p_.k_scale, g),
                s_.key_factors);
    set_factors(value_, s_.value_scales[turn_], g, 1, s_.value_factors);
    const Places places = {.count = places_,
                           .key_at = s_.key_at,
                           .live = s_.live,
                           .key_factors = s_.key_factors,
                           .value_factors = s_.value_factors};
    const auto to_softmax = has_pairs(g) ? add_to_softmax<Pair> : add_to_softmax<float>;
    bool any = false;
    for (int64_t r = 0; r < rows_; ++r) {
      float* row = scores(g) + r * block_;
      any = to_softmax(p_, places, seen_by(r), row, row_part(sums(g) + r * stride_, p_.value_dim)) || any;
      if (digits_) s_.digits.set_weights(g, r, row, places_);
    }
    s_.has_weights[g] = any;
  }

  SeenKeys seen_by(int64_t r) const {
    const int64_t position = r / p_.group();
    const auto range = held(s_.ranges[position]);
    return {.range = range,
            .sink_end = std::clamp<int64_t>(s_.sink_ends[position] - first_, 0, count_),
            .all = range.begin == 0 && range.end == block_ && !any_missing_};
  }

  /// What the block's products are multiplied by: `all`, and the scale of a slot's row where it has one.
  void set_factors(const Source& of, const int64_t* offsets, int64_t kv_head, double all, float* factors) const {
    if (of.groups != 1) {
      std::fill_n(factors, places_, static_cast<float>(all));
      return;
    }
    const float* scales = of.scale->as<const float>() + kv_head * of.scale_strides.head;
    for (int64_t p = 0; p < places_; ++p)
      factors[p] = s_.live[p] == 0 ? 0.0f : static_cast<float>(all * scales[offsets[p]]);
  }

  /// Adds the row of values from place `begin` on by their weights, to the sums of kv heads [g, end).
  template <class E>
  void add(int64_t g, int64_t end, int64_t begin) {
    add_values(value_rows(g, end, begin), columns_, cpu::round_up(p_.value_dim, lanes()),
               reinterpret_cast<const E*>(scores(g)) + units<E>(begin), block_, rows_, sums(g), stride_);
  }

  void add_on_unit(int64_t g, int64_t end, int64_t begin) {
    const StoredRows values = value_rows(g, end, begin);
    for (int64_t n = g; n < end; ++n) {
      pack_values(values, n - g, kUnitColumns, p_.value_dim, s_.packed);
      for (int64_t r = 0; r < rows_; r += kUnitRows)
        unit_->add_few_rows({.m = set_unit(r),
                             .n = p_.value_dim,
                             .k = units<Pair>(kUnitColumns),
                             .a = reinterpret_cast<const Pair*>(scores(n) + r * block_) + units<Pair>(begin),
                             .a_stride = block_,
                             .b = s_.packed,
                             .b_stride = p_.value_dim,
                             .c = sums(n) + r * stride_,
                             .c_stride = stride_});
    }
  }

  StoredRows key_rows(int64_t g, int64_t end, int64_t begin) const {
    return rows_of(key_, s_.key_rows, s_.key_offsets, s_.key_scales[turn_], g, end, begin, s_.wide_keys, s_.keys);
  }
  StoredRows value_rows(int64_t g, int64_t end, int64_t begin) const {
    return rows_of(value_, s_.value_rows, s_.value_offsets, s_.value_scales[turn_], g, end, begin, s_.wide_values,
                   s_.values);
  }

  /// Which places hold keys that some row sees: in its range, and on a page that exists.
  void find_live() {
    std::fill_n(s_.live, block_, 0);
    for (int64_t i = 0; i < task_.num_positions; ++i) {
      const auto [begin, end] = held(s_.ranges[i]);
      const int64_t sinks = std::clamp<int64_t>(s_.sink_ends[i] - first_, 0, count_);
      for (int64_t p = 0; p < block_; ++p) {
        const int64_t key = s_.key_at[p];
        if ((key >= begin && key < end) || key < sinks) s_.live[p] = 1;
      }
    }
    any_missing_ = false;
    for (int64_t p = 0; p < block_; ++p) {
      if (s_.key_offsets[turn_][p] != cpu::kNoRow) continue;
      s_.live[p] = 0;
      any_missing_ = true;
    }
    all_live_ = std::find(s_.live, s_.live + block_, 0) == s_.live + block_;
  }

  Problem::KeyRange held(const Problem::KeyRange& range) const {
    const int64_t begin = std::clamp<int64_t>(range.begin - first_, 0, count_);
    return {begin, std::clamp<int64_t>(range.end - first_, begin, count_)};
  }

  /// A row of places from `begin` on as kv heads [kv_head, end), a run, compute with it: the tensor's own rows, or
  /// floats; zeros in place of keys that nobody sees. Ahead of it are the rows of the next places.
  StoredRows rows_of(const Source& from, const std::byte** const* found, const int64_t* const* offsets,
                     const int64_t* scales, int64_t kv_head, int64_t end, int64_t begin, float* wide,
                     const std::byte** rows) const {
    const int64_t head_bytes = from.strides.head * bits(from.x->dtype) / 8, dims = from.x->shape[-1];
    const int64_t skip = kv_head * head_bytes;
    const std::byte** here = found[turn_] + begin;
    const std::byte** ahead = begin + width_ < places_ ? here + width_ : has_next_ ? found[1 - turn_] : here;
    StoredRows result = {from.direct ? from.x->dtype : DType::f32, rows, 0, ahead, skip, end - kv_head, head_bytes};
    if (from.groups > 1) {
      load_group_scales(from, scales + begin, s_.live + begin, kv_head);
      result.scales = s_.group_scales, result.groups = from.groups, result.group = dims / from.groups;
    }
    if (from.direct && all_live_) {
      result.rows = here, result.skip = skip;
      return result;
    }
    const int64_t stride = padded(dims);
    for (int64_t n = 0; n < columns_; ++n) {
      const int64_t p = begin + n;
      if (s_.live[p] == 0) {
        rows[n] = reinterpret_cast<const std::byte*>(s_.zeros);
      } else if (from.direct) {
        rows[n] = here[n] + skip;
      } else {
        float* row = wide + n * stride;
        load_stored_row(from.x->data, from.x->dtype, offsets[turn_][p] + kv_head * from.strides.head, dims, row);
        std::fill(row + dims, row + stride, 0.0f);
        for (int64_t d = 0; from.groups > 1 && d < dims; ++d)
          row[d] *= s_.group_scales[n * from.groups + d / result.group];
        rows[n] = reinterpret_cast<const std::byte*>(row);
      }
    }
    return result;
  }

  /// Scales of the groups of a row of places; 0 for keys that nobody sees.
  void load_group_scales(const Source& of, const int64_t* offsets, const int32_t* live, int64_t kv_head) const {
    const float* scales = of.scale->as<const float>() + kv_head * of.scale_strides.head;
    const int64_t stride = of.scale->strides[3];
    float* to = s_.group_scales;
    for (int64_t n = 0; n < columns_; ++n)
      for (int64_t i = 0; i < of.groups; ++i) *to++ = live[n] == 0 ? 0.0f : scales[offsets[n] + i * stride];
  }

  const PagedCall& call_;
  const Problem& p_;
  const PagedCpuConfig& config_;
  const StreamTask& task_;
  const int64_t block_;
  StreamScratch s_ = {};
  Sequence sequence_ = {};
  Source key_ = {}, value_ = {};
  int64_t rows_ = 0;    ///< per kv head
  int64_t stride_ = 0;  ///< between rows of sums
  int64_t first_begin_ = 0, past_ = 0, last_sink_ = 0;
  int64_t first_ = 0, count_ = 0;
  int64_t columns_ = 0, places_ = 0;  ///< of the block's, what is in use
  int turn_ = 0;
  bool any_missing_ = false, all_live_ = false, has_next_ = false;
  bool key_pairs_ = false, value_pairs_ = false;  ///< products are of pairs of bf16
  bool digits_ = false;                           ///< products are of codes and digits
  const cpu::MatrixUnit* unit_ = nullptr;         ///< multiplies pairs or digits, where vectors do not
  int64_t unit_rows_ = 0;                         ///< how many rows it is ready for
  int64_t width_ = 0;                             ///< places in a row
};

void stream(const PagedCall& call, const PagedCpuConfig& config, const StreamTask& task, std::byte* scratch) {
  Stream(call, config, task, scratch).run();
}

size_t scratch_bytes(const Problem& p, const PagedCpuConfig& config) {
  cpu::Carver carver;
  StreamScratch::carve(p, config.stream_block, takes_digits(p, config), carver);
  return carver.used();
}

}  // namespace
}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attn {
namespace {
HWY_EXPORT(stream);
HWY_EXPORT(merge);
HWY_EXPORT(scratch_bytes);
}  // namespace

int64_t part_stride(const Problem& p) { return cpu::padded(p.value_dim) + cpu::kMaxLanes; }

size_t stream_scratch_bytes(const Problem& p, const PagedCpuConfig& config) {
  return HWY_DYNAMIC_DISPATCH(scratch_bytes)(p, config);
}
void stream_rows(const PagedCall& call, const PagedCpuConfig& config, const StreamTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(stream)(call, config, task, scratch);
}
void merge_parts(const PagedCall& call, const StreamTask& all, int64_t kv_head) {
  HWY_DYNAMIC_DISPATCH(merge)(call, all, kv_head);
}

}  // namespace ejk::attn
#endif
