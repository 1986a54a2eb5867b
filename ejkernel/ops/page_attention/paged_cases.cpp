#include "ejkernel/ops/page_attention/paged_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "ejkernel/ops/page_append/page_append.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"

namespace ejk::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLowest = INT32_MIN, kHighest = INT32_MAX;

size_t index(int64_t n) { return static_cast<size_t>(n); }

template <class Op>
constexpr bool kIsRanges = std::is_same_v<Op, RaggedDecodeAttention>;
template <class Op>
constexpr bool kIsAppend = std::is_same_v<Op, PageAppend>;
template <class Op>
constexpr bool kWrites = kIsAppend<Op> || std::is_same_v<Op, RaggedPageAttentionV3>;
template <class Op>
constexpr bool kHasRows = kWrites<Op> || std::is_same_v<Op, RaggedPageAttention>;

/// Numbers of this size keep their share of a narrow integer's range.
double code_deviation(DType dtype) { return dtype == DType::i8 ? 40 : dtype == DType::i4 ? 3 : 1; }

/// Builds one problem from its description.
template <class Op>
class Builder {
 public:
  explicit Builder(const PagedCase& c)
      : c_(c), random_(c.seed ^ 0x50414745u), problem_(Problem::of(declaration<Op>())), q_lens_(c.q_lens) {
    problem_.seed = c.seed;
    problem_.label = to_string(c);
    if (q_lens_.empty()) q_lens_.assign(c.lens.size(), 1);
    set_params();
  }

  Problem build() {
    place_pages();
    add_rows();
    add_caches();
    if constexpr (kIsRanges<Op>)
      add_ranges();
    else
      add_tables();
    if constexpr (kHasRows<Op>) add_offsets();
    if constexpr (!kIsAppend<Op>) {
      if (c_.num_sinks > 0) {
        const Shape shape = c_.shared_sinks ? Shape{c_.num_sinks} : Shape{c_.num_q_heads, c_.num_sinks};
        fill_normal(add("softmax_aux", c_.sinks_dtype, shape), random_, 2);
      }
    }
    add_scales();
    if (c_.poison) poison();
    return std::move(problem_);
  }

 private:
  int64_t num_used() const { return static_cast<int64_t>(c_.lens.size()); }
  int64_t num_sequences() const { return num_used() + (kHasRows<Op> ? c_.idle_sequences : 0); }
  int64_t num_rows() const {
    if (!kHasRows<Op>) return num_used();
    return std::accumulate(q_lens_.begin(), q_lens_.end(), 2 * c_.unowned_rows);
  }
  int64_t value_dim() const { return c_.value_dim == 0 ? c_.head_dim : c_.value_dim; }

  void set_params() {
    if constexpr (kIsAppend<Op>) {
      problem_.params = ParamsBlock::of(PageAppend::Params{.cache_layout = c_.params.cache_layout});
    } else {
      PageAttention::Params from = c_.params;
      // Products of integer codes grow with the codes.
      if (c_.scales == CacheScale::none && !from.softmax_scale && code_deviation(c_.cache) > 1)
        from.softmax_scale = 1 / (code_deviation(c_.cache) * std::sqrt(static_cast<double>(c_.head_dim)));
      if (c_.data == Data::huge) from.softmax_scale = 1 / (4e4 * std::sqrt(static_cast<double>(c_.head_dim)));
      typename Op::Params to;
      to.softmax_scale = from.softmax_scale, to.sliding_window = from.sliding_window;
      to.attention_sink_size = from.attention_sink_size, to.logits_soft_cap = from.logits_soft_cap;
      to.batch_invariant = from.batch_invariant;
      if constexpr (std::is_same_v<Op, PageAttention>) to.cache_layout = from.cache_layout;
      problem_.params = ParamsBlock::of(to);
    }
  }

  Tensor add(std::string_view name, DType dtype, const Shape& shape) {
    // Rows of i4 begin at whole bytes.
    const size_t alignment = dtype == DType::i4 ? 2 : 1;
    return problem_.add(name, dtype, shape,
                        c_.random_layouts ? random_layout(random_, dtype, shape.rank(), alignment) : Layout{});
  }

  // ---- where tokens lie ----

  int64_t entries_of(int64_t n) const {
    const int64_t entries = c_.page_size == 0 ? 0 : (c_.lens[index(n)] + c_.page_size - 1) / c_.page_size;
    return c_.most_entries < 0 ? entries : std::min(entries, c_.most_entries);
  }
  /// A page of which no slot is one of the sequence's new tokens.
  bool is_old(int64_t n, int64_t entry) const {
    return (entry + 1) * c_.page_size <= c_.lens[index(n)] - q_lens_[index(n)];
  }

  /// A page of its own for every entry, in any order; then some entries share an older one's.
  void place_pages() {
    if constexpr (kIsRanges<Op>) return;
    int64_t needed = 0;
    for (int64_t n = 0; n < num_used(); ++n) needed += entries_of(n), width_ = std::max(width_, entries_of(n));
    width_ += c_.spare_entries;
    if (c_.most_entries >= 0) width_ = std::min(width_, c_.most_entries);
    num_pages_ = needed + c_.spare_pages;
    std::vector<int64_t> pages(index(num_pages_));
    std::iota(pages.begin(), pages.end(), int64_t{0});
    random_.shuffle(pages);
    std::vector<int64_t> old_pages;
    table_.assign(index(num_sequences() * width_), 0);
    for (int64_t& entry : table_) entry = garbage_page();
    for (int64_t n = 0; n < num_used(); ++n)
      for (int64_t e = 0; e < entries_of(n); ++e) {
        int64_t& entry = table_[index(n * width_ + e)];
        entry = pages.back(), pages.pop_back();
        if (!is_old(n, e)) continue;
        if (!old_pages.empty() && random_.chance(c_.shared)) entry = random_.pick(old_pages);
        old_pages.push_back(entry);
      }
    for (int64_t n = 0; n < num_used(); ++n)
      for (int64_t e = 0; e < entries_of(n); ++e)
        if (random_.chance(c_.missing)) table_[index(n * width_ + e)] = missing_page();
  }
  int64_t missing_page() { return random_.pick<int64_t>({-1, -2, kLowest, num_pages_, num_pages_ + 1, kHighest}); }
  /// For entries that nothing may read.
  int64_t garbage_page() { return random_.chance(0.5) ? missing_page() : random_.below(num_pages_ + 1); }

  /// Index contents nobody should send.
  std::vector<int64_t> spoiled(std::vector<int64_t> values) {
    for (int64_t& value : values) {
      if (!c_.hostile || random_.chance(0.5)) continue;
      value = random_.pick<int64_t>({-1, kLowest, kHighest, 1 << 30, -7, 0, value + 1, value - 1, value * 2,
                                     random_.between(-1000, 1000), random_.between(kLowest, kHighest)});
      value = std::clamp(value, kLowest, kHighest);
    }
    return values;
  }
  void add_indices(std::string_view name, const Shape& shape, const std::vector<int64_t>& values) {
    fill_values(add(name, DType::i32, shape), spoiled(values));
  }

  void add_tables() {
    std::vector<int64_t> lens = c_.lens;
    while (static_cast<int64_t>(lens.size()) < num_sequences()) lens.push_back(random_.between(-3, 1 << 20));
    add_indices("context_lens", {num_sequences()}, lens);
    const bool is_flat = std::is_same_v<Op, RaggedPageAttentionV3>;
    add_indices("block_tables", is_flat ? Shape{num_sequences() * width_} : Shape{num_sequences(), width_}, table_);
  }

  void add_offsets() {
    std::vector<int64_t> offsets = {c_.unowned_rows};
    for (const int64_t rows : q_lens_) offsets.push_back(offsets.back() + rows);
    while (static_cast<int64_t>(offsets.size()) <= num_sequences()) offsets.push_back(random_.between(-3, 1 << 20));
    add_indices("query_start_loc", {num_sequences() + 1}, offsets);
    if constexpr (std::is_same_v<Op, RaggedPageAttention>) add_indices("num_seqs", {1}, {num_used()});
    // Of distribution only the last number counts.
    if constexpr (std::is_same_v<Op, RaggedPageAttentionV3>)
      add_indices("distribution", {3}, {random_.between(0, num_used()), random_.between(-9, 99), num_used()});
  }

  void add_ranges() {
    std::vector<int64_t> starts, ends;
    for (const int64_t length : c_.lens) {
      starts.push_back(random_.between(0, slots_ - length));
      ends.push_back(starts.back() + length);
      if (length == 0 && random_.chance(0.5)) ends.back() = random_.between(0, starts.back());
    }
    add_indices("sequence_start", {num_used()}, starts);
    add_indices("sequence_end", {num_used()}, ends);
  }

  // ---- numbers ----

  void fill_data(const Tensor& t, double deviation) {
    if (c_.data == Data::equal)
      fill(t, [&](int64_t) { return 0.75 * deviation; });
    else
      fill_normal(t, random_, deviation);
  }
  double product_deviation() const { return c_.data == Data::huge ? 200 : 1; }
  double value_deviation() const {
    const bool narrow = c_.dtype == DType::f16 || c_.cache == DType::f16;
    if (c_.data == Data::huge) return narrow ? 1e4 : 1e30;
    if (c_.data == Data::subnormal) return narrow ? 4e-5 : 1e-38;
    return 1;
  }

  void add_rows() {
    const int64_t rows = num_rows();
    if constexpr (!kIsAppend<Op>) {
      const bool with_tokens = kIsRanges<Op> && c_.token_axis;
      const Shape shape =
          with_tokens ? Shape{rows, 1, c_.num_q_heads, c_.head_dim} : Shape{rows, c_.num_q_heads, c_.head_dim};
      fill_data(add(kHasRows<Op> ? "queries" : "query", c_.dtype, shape), product_deviation());
    }
    if constexpr (kWrites<Op>) {
      fill_data(add("keys", c_.dtype, {rows, c_.num_kv_heads, c_.head_dim}), product_deviation());
      fill_data(add("values", c_.dtype, {rows, c_.num_kv_heads, value_dim()}), value_deviation());
    }
  }

  void add_caches() {
    const int64_t heads = c_.num_kv_heads;
    if constexpr (kIsRanges<Op>) {
      slots_ = c_.spare_pages;
      for (const int64_t length : c_.lens) slots_ = std::max(slots_, length + c_.spare_pages);
      fill_cache("key", {num_used(), slots_, heads, c_.head_dim}, product_deviation());
      fill_cache("value", {num_used(), slots_, heads, value_dim()}, value_deviation());
    } else if constexpr (std::is_same_v<Op, RaggedPageAttention> || std::is_same_v<Op, RaggedPageAttentionV3>) {
      const Tensor both = fill_cache(kWrites<Op> ? "kv_cache" : "kv_pages",
                                     {num_pages_, c_.page_size, 2 * heads, c_.head_dim}, product_deviation());
      if (c_.data == Data::normal || c_.data == Data::equal) return;
      Tensor values = both;  // every other head
      values.shape[2] = heads, values.strides[2] *= 2;
      values.data = both.as<std::byte>() + both.strides[2] * bits(both.dtype) / 8;
      fill_data(values, value_deviation());
    } else {
      auto shape = [&](int64_t dim) {
        return c_.params.cache_layout == CacheLayout::head_major ? Shape{num_pages_, heads, c_.page_size, dim}
                                                                 : Shape{num_pages_, c_.page_size, heads, dim};
      };
      fill_cache("key_cache", shape(c_.head_dim), product_deviation());
      fill_cache("value_cache", shape(value_dim()), value_deviation());
    }
  }
  Tensor fill_cache(std::string_view name, const Shape& shape, double deviation) {
    const Tensor cache = add(name, c_.cache, shape);
    fill_data(cache, deviation * code_deviation(c_.cache));
    return cache;
  }

  void add_scales() {
    if constexpr (std::is_same_v<Op, RaggedPageAttentionV3>)
      if (c_.q_scale) fill(add("q_scale", DType::f32, {}), [&](int64_t) { return 0.5 + random_.uniform(); });
    if (c_.scales == CacheScale::none) return;
    auto add_one = [&](std::string_view name, int64_t dims) {
      Shape shape;
      if (c_.scales == CacheScale::per_head) shape = {c_.num_kv_heads};
      if (c_.scales == CacheScale::grouped)
        shape = {kIsRanges<Op> ? num_used() : num_pages_, kIsRanges<Op> ? slots_ : c_.page_size, c_.num_kv_heads,
                 c_.group == 0 ? 1 : dims / c_.group};
      fill(add(name, DType::f32, shape), [&](int64_t) { return (0.5 + random_.uniform()) / code_deviation(c_.cache); });
    };
    add_one("k_scale", c_.head_dim);
    add_one("v_scale", value_dim());
  }

  // ---- what nothing may read ----

  static void spoil_row(const Tensor& t, int64_t row) {
    const int64_t size = t.shape[-2] * t.shape[-1];
    for (int64_t n = 0; n < size; ++n) set(t, row * size + n, kNaN);
  }

  void poison() {
    const PagedReading reading(problem_);
    const PagedReading::Used used = reading.used();
    for (int64_t row = 0; !kIsAppend<Op> && row < reading.num_rows(); ++row)
      if (!used.query[index(row)]) spoil_row(reading.query(), row);
    std::vector<bool> read = used.slots;
    if constexpr (kWrites<Op>) {
      // What stays is judged apart from what two rows claim, and then NaN would look like an element never written.
      if (c_.hostile && WrittenCache(problem_).has_conflicts()) return;
      poison_new_rows(reading, used, read);
    }
    for (const StoredRows* rows : {&reading.keys(), &reading.values()}) poison_slots(*rows, read);
  }

  /// New rows that are not stored; and slots that they go to, before they do.
  void poison_new_rows(const PagedReading& reading, const PagedReading::Used& used, std::vector<bool>& read) {
    std::vector<bool> stored(index(reading.num_rows()));
    if (kIsAppend<Op>) read.assign(read.size(), true);
    for (const auto& s : reading.sequences())
      for (int64_t r = 0; r < s.q_len; ++r) {
        if (s.position(r) < 0) continue;
        const Slot& at = s.slots[index(s.position(r))];
        if (!at.exists()) continue;
        // Of integers NaN makes 0, but what would make it NaN again is not there to see it.
        if (kIsAppend<Op> || !is_float(c_.cache) || used.slots[reading.slot_index(at)])
          stored[index(s.q_begin + r)] = true;
        read[reading.slot_index(at)] = false;
      }
    for (int64_t row = 0; row < reading.num_rows(); ++row)
      if (!stored[index(row)]) spoil_row(problem_.view("keys"), row), spoil_row(problem_.view("values"), row);
  }

  void poison_slots(const StoredRows& rows, const std::vector<bool>& read) {
    const int64_t pages = rows.codes.shape[0], slots = rows.codes.shape[rows.slot_axis];
    for (int64_t n = 0; n < pages * slots; ++n) {
      if (read[index(n)]) continue;
      const Slot at{n / slots, n % slots};
      for (int64_t g = 0; g < rows.num_heads() && is_float(c_.cache); ++g)
        for (int64_t d = 0; d < rows.dims(); ++d) set(rows.codes, rows.flat(at, g, d), kNaN);
      if (rows.scale.present() && rows.scale.rank() == 4) {
        const int64_t size = rows.scale.shape[2] * rows.scale.shape[3];
        for (int64_t m = 0; m < size; ++m) set(rows.scale, n * size + m, kNaN);
      }
    }
  }

  const PagedCase& c_;
  Random random_;
  Problem problem_;
  std::vector<int64_t> q_lens_, table_;
  int64_t width_ = 0, num_pages_ = 0, slots_ = 0;
};

}  // namespace

std::string to_string(const PagedCase& c) {
  const PageAttention::Params& p = c.params;
  std::string text =
      fmt::format("{} over {} lens=({})", ejk::name(c.dtype), ejk::name(c.cache), fmt::join(c.lens, ","));
  if (!c.q_lens.empty()) text += fmt::format(" rows=({})", fmt::join(c.q_lens, ","));
  text += fmt::format(" heads={}/{} d={}", c.num_q_heads, c.num_kv_heads, c.head_dim);
  if (c.value_dim != 0 && c.value_dim != c.head_dim) text += fmt::format(" dv={}", c.value_dim);
  text += fmt::format(" page={}", c.page_size);
  if (p.cache_layout == CacheLayout::head_major) text += " head_major";
  if (!p.sliding_window.unbounded())
    text += fmt::format(" window=({},{})", p.sliding_window.left, p.sliding_window.right);
  if (p.attention_sink_size > 0) text += fmt::format(" sink_size={}", p.attention_sink_size);
  if (p.softmax_scale) text += fmt::format(" scale={:.3g}", *p.softmax_scale);
  if (p.logits_soft_cap) text += fmt::format(" cap={:.3g}", *p.logits_soft_cap);
  if (p.batch_invariant) text += " batch_invariant";
  if (c.num_sinks > 0) text += fmt::format(" sinks={}{}", c.num_sinks, c.shared_sinks ? " shared" : "");
  if (c.scales == CacheScale::one) text += " scale";
  if (c.scales == CacheScale::per_head) text += " scale_per_head";
  if (c.scales == CacheScale::grouped) text += fmt::format(" scale_per_{}", c.group == 0 ? c.head_dim : c.group);
  if (c.q_scale) text += " q_scale";
  if (c.token_axis) text += " token_axis";
  if (c.most_entries >= 0) text += fmt::format(" entries<={}", c.most_entries);
  if (c.idle_sequences > 0) text += fmt::format(" idle={}", c.idle_sequences);
  if (c.unowned_rows > 0) text += fmt::format(" unowned={}", c.unowned_rows);
  if (c.missing > 0) text += fmt::format(" missing={:.2g}", c.missing);
  if (c.shared > 0) text += fmt::format(" shared={:.2g}", c.shared);
  if (c.data != Data::normal) text += c.data == Data::equal ? " equal" : c.data == Data::huge ? " huge" : " subnormal";
  if (c.random_layouts) text += " strided";
  if (c.hostile) text += " hostile";
  return text;
}

template <class Op>
Problem make_paged_problem(const PagedCase& description) {
  Problem problem = Builder<Op>(description).build();
  problem.replay = "--case=" + description.name;
  return problem;
}

template Problem make_paged_problem<PageAttention>(const PagedCase&);
template Problem make_paged_problem<PageAppend>(const PagedCase&);
template Problem make_paged_problem<RaggedDecodeAttention>(const PagedCase&);
template Problem make_paged_problem<RaggedPageAttention>(const PagedCase&);
template Problem make_paged_problem<RaggedPageAttentionV3>(const PagedCase&);

}  // namespace ejk::testing
