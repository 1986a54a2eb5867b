// Decode on the CPU: few query rows against many keys that lie in pages, at the speed of memory.
//
// A task owns a part of a sequence's keys and takes all kv heads of a block of them before the next block, so that it
// reads pages in the order in which they lie in memory; while it computes one block it asks for the next. Per block and
// kv head: logits (head_dim across lanes), online softmax down each row, weighted sums of values. Codes of 8 bits are
// widened in registers; scales of a kv head are folded into logits and output. Other layouts (i4, scales of groups,
// head sizes that are not whole vectors) are widened to rows of floats first.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ejkernel/ops/page_attention/paged_cpu_internal.h"
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
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
#include "ejkernel/ops/page_attention/paged_stream-inl.h"
// And after those:
#include "ejkernel/ops/flash_attention/attention_pages-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
/// How far a logit may lie above the shift before the shift follows: weights stay below 2^8.
constexpr float kSlack = 8 / kLog2E;

int64_t row_stride(int64_t value_dim) { return padded(value_dim) + cpu::kMaxLanes; }

/// A row's sums as they lie in a part: values, then shift and sum.
RowPart row_part(float* row, int64_t value_dim) {
  float* statistics = row + padded(value_dim);
  return {.shift = statistics, .sum = statistics + 1, .values = row};
}

void clear(const RowPart& row, int64_t value_dim) {
  *row.shift = kNone, *row.sum = 0;
  std::fill_n(row.values, padded(value_dim), 0.0f);
}

/// Writes out and lse of one row.
void finish_row(const PagedCall& call, const RowPart& row, int64_t h, int64_t at, double value_scale) {
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
double head_scale(const Tensor& scale, int64_t kv_head) {
  return scale.rank() == 4 ? 1 : Problem::scale_at(scale, 0, 0, kv_head);
}

struct StreamScratch {
  float* queries;  ///< [kv head][row][padded(head_dim)], or pairs: [padded(units(head_dim))]
  float* sums;     ///< [kv head][row][row_stride(value_dim)]
  float* totals;   ///< likewise, of the splits before
  float* scores;   ///< [row][stream_block], and in their place weights
  // Of a block's keys: offsets in the two tensors, for this block and the next; where the rows of a kv head are.
  int64_t* key_offsets[2];
  int64_t* value_offsets[2];
  const void** keys;
  const void** values;
  // Where those rows are, kv head 0's; null for what does not exist.
  const std::byte** key_rows[2];
  const std::byte** value_rows[2];
  const std::byte** ahead_keys;  ///< pieces of the next block to ask memory for
  const std::byte** ahead_values;
  int32_t* live;  ///< key is seen by some row
  float* wide_keys;
  float* wide_values;  ///< rows of floats, where the tensor's own cannot be used
  float* zeros;
  Problem::KeyRange* ranges;  ///< of each position
  int64_t* sink_ends;
  uint8_t* tiny_values;  ///< of a kv head, where products may be of pairs

  static StreamScratch carve(const Problem& p, int64_t block, cpu::Carver& carver) {
    StreamScratch s;
    const int64_t positions = stream_positions(p), rows = positions * p.num_q_heads;
    const int64_t wide = std::max(padded(p.head_dim), padded(p.value_dim));
    s.queries = carver.take<float>(rows * padded(p.head_dim));
    s.sums = carver.take<float>(rows * row_stride(p.value_dim));
    s.totals = carver.take<float>(rows * row_stride(p.value_dim));
    s.scores = carver.take<float>(positions * p.group() * block);
    for (int n = 0; n < 2; ++n) s.key_offsets[n] = carver.take<int64_t>(block);
    for (int n = 0; n < 2; ++n) s.value_offsets[n] = carver.take<int64_t>(block);
    s.keys = carver.take<const void*>(block);
    s.values = carver.take<const void*>(block);
    for (int n = 0; n < 2; ++n) s.key_rows[n] = carver.take<const std::byte*>(block);
    for (int n = 0; n < 2; ++n) s.value_rows[n] = carver.take<const std::byte*>(block);
    s.ahead_keys = carver.take<const std::byte*>(block);
    s.ahead_values = carver.take<const std::byte*>(block);
    s.live = carver.take<int32_t>(block);
    s.wide_keys = carver.take<float>(block * padded(p.head_dim));
    s.wide_values = carver.take<float>(block * padded(p.value_dim));
    s.zeros = carver.take<float>(wide);
    s.ranges = carver.take<Problem::KeyRange>(positions);
    s.sink_ends = carver.take<int64_t>(positions);
    s.tiny_values = carver.take<uint8_t>(p.num_kv_heads);
    return s;
  }
};

class Stream {
 public:
  Stream(const PagedCall& call, const PagedCpuConfig& config, const StreamTask& task, std::byte* memory)
      : call_(call), p_(call.problem), config_(config), task_(task), block_(config.stream_block) {
    cpu::Carver carver(memory);
    s_ = StreamScratch::carve(p_, block_, carver);
    sequence_ = p_.sequence(task.sequence, nullptr);
    rows_ = task.num_positions * p_.group();
    stride_ = row_stride(p_.value_dim);
    std::fill_n(s_.zeros, std::max(padded(p_.head_dim), padded(p_.value_dim)), 0.0f);
    key_.set(p_.key, p_.k, p_.k_scale);
    value_.set(p_.value, p_.v, p_.v_scale);
    const bool pairs = config.stream_dot != 0 && p_.query.dtype == DType::bf16;
    key_pairs_ = pairs && key_.fits_pairs();
    value_pairs_ = pairs && value_.fits_pairs() && !call.batch_invariant;
  }

  void run() {
    load_queries();
    set_ranges();
    for (int64_t g = 0; value_pairs_ && g < p_.num_kv_heads; ++g)
      s_.tiny_values[g] = has_tiny_values(p_, sequence_, g, last_sink_ > 0 ? 0 : first_begin_, past_);
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
  /// A tensor over pages, and whether its rows are computed with as they lie there.
  struct Source {
    const Tensor* x = nullptr;
    Strides strides = {};
    const Tensor* scale = nullptr;
    bool direct = false;
    int64_t row_bytes = 0;

    void set(const Tensor& tensor, const Strides& tensor_strides, const Tensor& scales) {
      x = &tensor, strides = tensor_strides, scale = &scales;
      direct = tensor.dtype != DType::i4 && scales.rank() != 4 && tensor.shape[-1] % lanes() == 0;
      row_bytes = tensor.shape[-1] * bits(tensor.dtype) / 8;
    }
    bool fits_pairs() const { return direct && is_exact_in_bf16(x->dtype) && x->shape[-1] % (2 * lanes()) == 0; }
    const std::byte* at(int64_t offset) const { return x->as<const std::byte>() + offset * bits(x->dtype) / 8; }
  };

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
    if (key_pairs_)
      load_queries(reinterpret_cast<Pair*>(s_.queries));
    else
      load_queries(s_.queries);
  }
  template <class E>
  void load_queries(E* to) {
    const int64_t count = units<E>(p_.head_dim), stride = padded(count);
    for (int64_t g = 0; g < p_.num_kv_heads; ++g)
      for (int64_t r = 0; r < rows_; ++r, to += stride) {
        const int64_t row = sequence_.q_begin + task_.position + r / p_.group();
        load_elements(p_.query.data, p_.query.dtype, p_.q.offset(0, row, g * p_.group() + r % p_.group()), p_.head_dim,
                      to);
        std::fill(to + count, to + stride, E{});
      }
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
      next_count_ = next < end ? keys_in(next) : 0;
      add_block(j, turn);
      j = next, turn = 1 - turn;
    }
  }

  int64_t keys_in(int64_t j) const { return std::min(block_, sequence_.k_len - j); }

  void find_offsets(int64_t j, int turn) {
    PagedRows{p_, p_.key, p_.k, p_.k_scale}.find(sequence_, j, keys_in(j), s_.key_offsets[turn]);
    PagedRows{p_, p_.value, p_.v, p_.v_scale}.find(sequence_, j, keys_in(j), s_.value_offsets[turn]);
    for (int64_t n = 0; n < keys_in(j); ++n) {
      const int64_t key = s_.key_offsets[turn][n], value = s_.value_offsets[turn][n];
      s_.key_rows[turn][n] = key == cpu::kNoRow ? nullptr : key_.at(key);
      s_.value_rows[turn][n] = key == cpu::kNoRow ? nullptr : value_.at(value);
    }
  }

  void add_block(int64_t first, int turn) {
    first_ = first, count_ = keys_in(first), turn_ = turn;
    find_live();
    for (int64_t g = 0; g < p_.num_kv_heads; ++g) {
      float* sums = s_.sums + g * rows_ * stride_;
      if (key_pairs_)
        multiply<Pair>(g);
      else
        multiply<float>(g);
      const bool pairs = value_pairs_ && !s_.tiny_values[g];
      const double factor = p_.scale * head_scale(p_.q_scale, 0) * head_scale(p_.k_scale, g);
      bool any = false;
      for (int64_t r = 0; r < rows_; ++r) {
        const RowPart row = row_part(sums + r * stride_, p_.value_dim);
        const auto to_softmax = pairs ? &Stream::add_to_softmax<Pair> : &Stream::add_to_softmax<float>;
        any = (this->*to_softmax)(r, static_cast<float>(factor), row) || any;
      }
      if (!any || !call_.out.present()) continue;
      if (pairs)
        add<Pair>(g, sums);
      else
        add<float>(g, sums);
    }
  }

  /// Scores of a kv head's rows and the block's keys.
  template <class E>
  void multiply(int64_t g) {
    const Rows keys = rows_of(key_, s_.key_rows[turn_], s_.key_offsets[turn_], g, s_.wide_keys, s_.keys);
    const int64_t stride = padded(units<E>(p_.head_dim));
    dispatch<E>(key_, [&]<class T>() {
      multiply_keys(keys.as<T>(), cpu::round_up(count_, 4), cpu::round_up(p_.head_dim, lanes()),
                    reinterpret_cast<const E*>(s_.queries) + g * rows_ * stride, stride, rows_, s_.scores, block_,
                    ahead(key_, s_.key_rows[1 - turn_], g, s_.ahead_keys));
    });
  }

  /// Adds the block's values by their weights.
  template <class E>
  void add(int64_t g, float* sums) {
    const Rows values = rows_of(value_, s_.value_rows[turn_], s_.value_offsets[turn_], g, s_.wide_values, s_.values);
    dispatch<E>(value_, [&]<class T>() {
      add_values(values.as<T>(), count_, cpu::round_up(p_.value_dim, lanes()), reinterpret_cast<const E*>(s_.scores),
                 block_, rows_, sums, stride_, ahead(value_, s_.value_rows[1 - turn_], g, s_.ahead_values));
    });
  }

  /// Which keys of the block some row sees: in its range, and on a page that exists.
  void find_live() {
    std::fill_n(s_.live, block_, 0);
    for (int64_t i = 0; i < task_.num_positions; ++i) {
      const auto [begin, end] = held(s_.ranges[i]);
      std::fill(s_.live + begin, s_.live + end, 1);
      std::fill(s_.live, s_.live + std::clamp<int64_t>(s_.sink_ends[i] - first_, 0, count_), 1);
    }
    any_missing_ = false;
    for (int64_t j = 0; j < count_; ++j) {
      if (s_.key_offsets[turn_][j] != cpu::kNoRow) continue;
      s_.live[j] = 0;
      any_missing_ = true;
    }
    all_live_ = std::find(s_.live, s_.live + count_, 0) == s_.live + count_;
  }

  Problem::KeyRange held(const Problem::KeyRange& range) const {
    const int64_t begin = std::clamp<int64_t>(range.begin - first_, 0, count_);
    return {begin, std::clamp<int64_t>(range.end - first_, begin, count_)};
  }

  struct Rows {
    const void** rows;
    int64_t skip;  ///< bytes
    template <class T>
    ListedRows<T> as() const {
      return {reinterpret_cast<const T* const*>(rows), skip / static_cast<int64_t>(sizeof(T))};
    }
  };

  /// Rows that are computed with: the tensor's own, or floats. Zeros in place of keys that nobody sees, and up to the
  /// next multiple of four.
  Rows rows_of(const Source& from, const std::byte** found, const int64_t* offsets, int64_t kv_head, float* wide,
               const void** rows) const {
    const int64_t skip = kv_head * from.strides.head * bits(from.x->dtype) / 8;
    if (from.direct && all_live_ && count_ % 4 == 0) return {reinterpret_cast<const void**>(found), skip};
    const PagedRows paged{p_, *from.x, from.strides, *from.scale};
    const int64_t stride = padded(paged.dims());
    for (int64_t j = 0; j < count_; ++j) {
      if (s_.live[j] == 0) {
        rows[j] = s_.zeros;
      } else if (from.direct) {
        rows[j] = found[j] + skip;
      } else {
        float* row = wide + j * stride;
        paged.load(sequence_, first_ + j, kv_head, offsets[j], row);
        std::fill(row + paged.dims(), row + stride, 0.0f);
        rows[j] = row;
      }
    }
    std::fill(rows + count_, rows + cpu::round_up(count_, 4), s_.zeros);
    return {rows, 0};
  }

  /// Calls f with the type of what rows_of() lists; pairs are of types that are exact in bf16.
  template <class E, class F>
  static void dispatch(const Source& from, F f) {
    constexpr bool kPairs = std::is_same_v<E, Pair>;
    const DType dtype = from.direct ? from.x->dtype : DType::f32;
    switch (dtype) {
      case DType::bf16:
        return f.template operator()<bf16_t>();
      case DType::i8:
        return f.template operator()<int8_t>();
      case DType::e4m3:
        return f.template operator()<e4m3_t>();
      case DType::e5m2:
        return f.template operator()<e5m2_t>();
      default:
        if constexpr (!kPairs)
          return dtype == DType::f16 ? f.template operator()<f16_t>() : f.template operator()<float>();
    }
  }

  /// Scores of row r become weights e^(logit - shift) in their place, 0 for what it does not see; its sums follow when
  /// the shift moves. False when all weights are 0.
  template <class E>
  bool add_to_softmax(int64_t r, float factor, const RowPart& row) {
    constexpr int kDegree = std::is_same_v<E, Pair> ? 4 : 6;  // pairs are rounded to bf16: exact enough by far
    const FloatTag d;
    const IntTag di;
    float* scores = s_.scores + r * block_;
    const int64_t width = cpu::round_up(count_, lanes());
    const auto range = held(s_.ranges[r / p_.group()]);
    const int64_t sinks = std::clamp<int64_t>(s_.sink_ends[r / p_.group()] - first_, 0, count_);
    const bool sees_all = range.begin == 0 && range.end == width && !any_missing_;
    const FloatV factors = hn::Set(d, factor), cap = hn::Set(d, static_cast<float>(p_.soft_cap));
    const auto begin = hn::Set(di, static_cast<int32_t>(range.begin)),
               end = hn::Set(di, static_cast<int32_t>(range.end));
    const auto sink_end = hn::Set(di, static_cast<int32_t>(sinks));
    FloatV largest = minus_infinity();
    for (int64_t j = 0; j < width; j += lanes()) {
      FloatV x = hn::Mul(hn::Load(d, scores + j), factors);
      if (p_.soft_cap > 0) {
        FloatV slope = x;
        x = hn::Mul(cap, tanh_any(hn::Div(x, cap), slope));
      }
      if (!sees_all) {
        const auto key = hn::Iota(di, static_cast<int32_t>(j));
        auto seen = hn::Or(hn::And(hn::Ge(key, begin), hn::Lt(key, end)), hn::Lt(key, sink_end));
        seen = hn::And(seen, hn::Ne(hn::Load(di, s_.live + j), hn::Zero(di)));
        x = hn::IfThenElse(hn::RebindMask(d, seen), x, minus_infinity());
      }
      hn::Store(x, d, scores + j);
      largest = hn::Max(largest, x);
    }
    // A NaN may or may not come through Max; it always comes through the exponential and the sum.
    move_shift(row, hn::ReduceMax(d, largest));
    const FloatV shift = hn::Set(d, *row.shift == kNone ? 0 : *row.shift), to_log2 = hn::Set(d, kLog2E);
    FloatV sum = hn::Zero(d);
    for (int64_t j = 0; j < width; j += lanes()) {
      // The difference first: a product of large logits alone would lose what lies between them.
      const FloatV x = exp2_below_128<kDegree>(hn::Mul(hn::Sub(hn::Load(d, scores + j), shift), to_log2));
      store_in_row(x, reinterpret_cast<E*>(scores), j);
      sum = hn::Add(sum, x);
    }
    const float added = hn::ReduceSum(d, sum);
    *row.sum += added;
    return added != 0;
  }

  void move_shift(const RowPart& row, float largest) const {
    if (largest <= *row.shift + kSlack) return;
    const float decay = *row.sum == 0 ? 0 : static_cast<float>(std::exp(static_cast<double>(*row.shift) - largest));
    *row.shift = largest;
    *row.sum *= decay;
    const FloatTag d;
    for (int64_t i = 0; i < p_.value_dim; i += lanes())
      hn::Store(hn::Mul(hn::Load(d, row.values + i), hn::Set(d, decay)), d, row.values + i);
  }

  /// What to ask memory for while kv head `part` is computed: a num_kv_heads-th of the next block, in the order in
  /// which it lies there.
  Ahead ahead(const Source& of, const std::byte* const* next, int64_t part, const std::byte** pieces) const {
    const int64_t heads = p_.num_kv_heads, step = of.strides.head * bits(of.x->dtype) / 8;
    const int64_t span = (heads - 1) * step + of.row_bytes;
    const bool by_slot = step > 0 && (heads - 1) * of.strides.head < std::abs(of.strides.row);
    if (by_slot) {  // slots whole, all heads of them
      const int64_t begin = part * next_count_ / heads, end = (part + 1) * next_count_ / heads;
      return {next + begin, end - begin, span};
    }
    for (int64_t n = 0; n < next_count_; ++n) pieces[n] = next[n] == nullptr ? nullptr : next[n] + part * step;
    return {pieces, next_count_, of.row_bytes};
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
  int64_t first_ = 0, count_ = 0, next_count_ = 0;
  int turn_ = 0;
  bool any_missing_ = false, all_live_ = false;
  bool key_pairs_ = false, value_pairs_ = false;  ///< products are of pairs of bf16
};

void stream(const PagedCall& call, const PagedCpuConfig& config, const StreamTask& task, std::byte* scratch) {
  Stream(call, config, task, scratch).run();
}

void merge(const PagedCall& call, const StreamTask& all, int64_t kv_head) {
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

size_t scratch_bytes(const Problem& p, const PagedCpuConfig& config) {
  cpu::Carver carver;
  StreamScratch::carve(p, config.stream_block, carver);
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
