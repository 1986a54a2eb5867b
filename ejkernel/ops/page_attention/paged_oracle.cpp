#include "ejkernel/ops/page_attention/paged_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/flash_attention/attention_oracle.h"
#include "ejkernel/ops/page_append/page_append.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"

namespace ejk::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t index(int64_t n) { return static_cast<size_t>(n); }

/// An input by the first of these names that the operation has.
Tensor input(const Problem& problem, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (find_input(*problem.operation, name) >= 0) return problem.view(name);
  return {};
}

template <class Params>
PageAttention::Params common(const Params& p) {
  return {.softmax_scale = p.softmax_scale,
          .sliding_window = p.sliding_window,
          .attention_sink_size = p.attention_sink_size,
          .logits_soft_cap = p.logits_soft_cap,
          .batch_invariant = p.batch_invariant};
}

PageAttention::Params params_of(const Problem& problem) {
  const std::string_view op = problem.operation->name;
  if (op == PageAttention::kName) return problem.params.as<PageAttention::Params>();
  if (op == PageAppend::kName) return {.cache_layout = problem.params.as<PageAppend::Params>().cache_layout};
  if (op == RaggedDecodeAttention::kName) return common(problem.params.as<RaggedDecodeAttention::Params>());
  if (op == RaggedPageAttention::kName) return common(problem.params.as<RaggedPageAttention::Params>());
  return common(problem.params.as<RaggedPageAttentionV3::Params>());
}

}  // namespace

int64_t StoredRows::flat(const Slot& at, int64_t head, int64_t d) const {
  int64_t index[4] = {at.page, 0, 0, d};
  index[slot_axis] = at.slot;
  index[head_axis] = first_head + head_step * head;
  int64_t flat = 0;
  for (int axis = 0; axis < 4; ++axis) flat = flat * codes.shape[axis] + index[axis];
  return flat;
}

double StoredRows::scale_at(const Slot& at, int64_t head, int64_t d) const {
  if (!scale.present()) return 1;
  if (scale.rank() == 0) return get(scale, 0);
  if (scale.rank() == 1) return get(scale, head);
  const int64_t groups = scale.shape[3], group_of_d = d / (dims() / groups);
  return get(scale, ((at.page * scale.shape[1] + at.slot) * scale.shape[2] + head) * groups + group_of_d);
}

double StoredRows::value(const Slot& at, int64_t head, int64_t d) const {
  const int64_t offset = at.page * codes.strides[0] + at.slot * codes.strides[slot_axis] +
                         (first_head + head_step * head) * codes.strides[head_axis] + d * codes.strides[3];
  return load_as_double(codes.data, codes.dtype, offset) * scale_at(at, head, d);
}

PagedReading::PagedReading(const Problem& problem)
    : rows_(input(problem, {"query", "queries", "keys"})),
      sinks_(input(problem, {"softmax_aux"})),
      q_scale_(input(problem, {"q_scale"})),
      params_(params_of(problem)) {
  query_ = input(problem, {"query", "queries"});
  if (query_.present() && query_.rank() == 4)
    query_ = Tensor(query_.data, query_.dtype, {query_.shape[0], query_.shape[2], query_.shape[3]},
                    {query_.strides[0], query_.strides[2], query_.strides[3]});
  read_cache(problem);
  if (problem.operation->name == RaggedDecodeAttention::kName)
    read_ranges(problem);
  else
    read_paged_sequences(problem);
}

void PagedReading::read_cache(const Problem& problem) {
  const Tensor both = input(problem, {"kv_pages", "kv_cache"});
  if (both.present()) {
    keys_ = {.codes = both, .first_head = 0, .head_step = 2};
    values_ = {.codes = both, .first_head = 1, .head_step = 2};
  } else {
    keys_.codes = input(problem, {"key_cache", "key"});
    values_.codes = input(problem, {"value_cache", "value"});
  }
  if (params_.cache_layout == CacheLayout::head_major)
    for (StoredRows* rows : {&keys_, &values_}) rows->slot_axis = 2, rows->head_axis = 1;
  keys_.scale = input(problem, {"k_scale"});
  values_.scale = input(problem, {"v_scale"});
  num_pages_ = keys_.codes.shape[0];
  page_size_ = keys_.codes.shape[keys_.slot_axis];
}

int64_t PagedReading::length_in_use(double length, int64_t most) {
  if (length < 0 || length > static_cast<double>(most)) clamped_ |= status::kLength;
  return static_cast<int64_t>(std::clamp(length, 0.0, static_cast<double>(most)));
}

/// Tokens start … end - 1 of a batch entry's own row of the cache.
void PagedReading::read_ranges(const Problem& problem) {
  const Tensor starts = problem.view("sequence_start"), ends = problem.view("sequence_end");
  const auto most = static_cast<double>(page_size_);
  for (int64_t n = 0; n < num_pages_; ++n) {
    const double start = get(starts, n), end = get(ends, n);
    if (start < 0 || start > most || end < 0 || end > most) clamped_ |= status::kOffsets;
    Sequence s{.index = n, .q_begin = n, .q_len = 1};
    const auto past = static_cast<int64_t>(std::clamp(end, 0.0, most));
    for (auto t = static_cast<int64_t>(std::clamp(start, 0.0, most)); t < past; ++t) s.slots.push_back({n, t});
    sequences_.push_back(std::move(s));
  }
}

void PagedReading::read_paged_sequences(const Problem& problem) {
  const Tensor lens = problem.view("context_lens"), table = problem.view("block_tables");
  const Tensor starts = input(problem, {"query_start_loc"});
  const Tensor num_seqs = input(problem, {"num_seqs"}), distribution = input(problem, {"distribution"});
  const int64_t most = lens.shape[0];
  const int64_t entries = most == 0 ? 0 : table.num_elements() / most;
  int64_t count = most;
  if (num_seqs.present()) count = length_in_use(get(num_seqs, 0), most);
  if (distribution.present()) count = length_in_use(get(distribution, 2), most);

  const auto total = static_cast<double>(num_rows());
  for (int64_t n = 0; n < count; ++n) {
    Sequence s{.index = n, .q_begin = n, .q_len = 1};
    if (starts.present()) {
      const double first = get(starts, n), past = get(starts, n + 1);
      if (first < 0 || first > total || past < 0 || past > total || past < first) clamped_ |= status::kOffsets;
      s.q_begin = static_cast<int64_t>(std::clamp(first, 0.0, total));
      s.q_len = std::max<int64_t>(static_cast<int64_t>(std::clamp(past, 0.0, total)) - s.q_begin, 0);
    }
    const int64_t length = length_in_use(get(lens, n), entries * page_size_);
    for (int64_t t = 0; t < length; ++t) {
      const auto page = static_cast<int64_t>(get(table, n * entries + t / page_size_));
      s.slots.push_back({page >= 0 && page < num_pages_ ? page : -1, t % page_size_});
    }
    sequences_.push_back(std::move(s));
  }
}

bool PagedReading::may_see(const Sequence& s, int64_t r, int64_t t) const {
  const int64_t p = s.position(r);
  if (t > p) return false;
  if (t < params_.attention_sink_size) return true;
  // The right side of a window does not matter: it begins at p. In double: a window may be as wide as an integer gets.
  const int64_t left = params_.sliding_window.left;
  return left < 0 || static_cast<double>(t) >= static_cast<double>(p) - static_cast<double>(left);
}

bool PagedReading::sees(const Sequence& s, int64_t r, int64_t t) const {
  return s.slots[index(t)].exists() && may_see(s, r, t);
}

uint32_t PagedReading::status() const {
  if (!query_.present()) return clamped_;
  for (const Sequence& s : sequences_)
    for (int64_t t = 0; t < s.length(); ++t) {
      if (s.slots[index(t)].exists()) continue;
      for (int64_t r = 0; r < s.q_len; ++r)
        if (may_see(s, r, t)) return clamped_ | status::kPageId;
    }
  return clamped_;
}

std::vector<int> PagedReading::owners() const {
  std::vector<int> owners(index(num_rows()));
  for (const Sequence& s : sequences_)
    for (int64_t r = 0; r < s.q_len; ++r) ++owners[index(s.q_begin + r)];
  return owners;
}

PagedReading::Used PagedReading::used() const {
  Used used{std::vector<bool>(index(num_rows())), std::vector<bool>(index(num_pages_ * page_size_))};
  for (const Sequence& s : sequences_)
    for (int64_t r = 0; r < s.q_len; ++r)
      for (int64_t t = 0; t < s.length(); ++t)
        if (sees(s, r, t)) used.query[index(s.q_begin + r)] = used.slots[slot_index(s.slots[index(t)])] = true;
  return used;
}

namespace {

/// The sequences of a call one after the other, as a packed problem of flash_attention whose keys are there twice where
/// pages are shared.
class Gathered {
 public:
  explicit Gathered(const PagedReading& reading) : reading_(reading) {
    int64_t rows = 0, tokens = 0, longest = 0;
    for (const auto& s : reading.sequences())
      rows += s.q_len, tokens += s.length(), longest = std::max(longest, s.length());
    const Tensor& query = reading.query();
    const auto count = static_cast<int64_t>(reading.sequences().size());
    const StoredRows &keys = reading.keys(), &values = reading.values();
    query_ = Array(query.dtype, {rows, query.shape[1], query.shape[2]});
    key_ = Array::zeros(DType::f64, {tokens, keys.num_heads(), keys.dims()});
    value_ = Array::zeros(DType::f64, {tokens, values.num_heads(), values.dims()});
    q_offsets_ = Array::zeros(DType::i32, {count + 1});
    k_offsets_ = Array::zeros(DType::i32, {count + 1});
    exists_ = Array(DType::boolean, {count, 1, 1, longest});
    fill(exists_, [](int64_t) { return 1; });
    for (int64_t n = 0; n < count; ++n) add(n, longest);
  }

  FlashAttention::Inputs inputs() const {
    return {.query = query_,
            .key = key_,
            .value = value_,
            .attention_mask = exists_,
            .softmax_aux = reading_.sinks(),
            .q_scale = reading_.q_scale(),
            .cu_seqlens_q = q_offsets_,
            .cu_seqlens_k = k_offsets_};
  }
  FlashAttention::Params params() const {
    const PageAttention::Params& p = reading_.params();
    return {.softmax_scale = p.softmax_scale,
            .causal = true,
            .causal_align = CausalAlign::bottom_right,
            .sliding_window = p.sliding_window,
            .attention_sink_size = p.attention_sink_size,
            .logits_soft_cap = p.logits_soft_cap};
  }

 private:
  void add(int64_t n, int64_t longest) {
    const PagedReading::Sequence& s = reading_.sequences()[index(n)];
    const int64_t q_begin = q_offsets_.as<int32_t>()[n], k_begin = k_offsets_.as<int32_t>()[n];
    q_offsets_.as<int32_t>()[n + 1] = static_cast<int32_t>(q_begin + s.q_len);
    k_offsets_.as<int32_t>()[n + 1] = static_cast<int32_t>(k_begin + s.length());
    const Tensor& query = reading_.query();
    const int64_t row = query.shape[1] * query.shape[2];
    for (int64_t m = 0; m < s.q_len * row; ++m) set(query_, q_begin * row + m, get(query, s.q_begin * row + m));
    for (int64_t t = 0; t < s.length(); ++t) {
      const Slot& at = s.slots[index(t)];
      if (!at.exists())
        set(exists_, n * longest + t, 0);
      else
        add_row(reading_.keys(), at, key_, k_begin + t), add_row(reading_.values(), at, value_, k_begin + t);
    }
  }
  static void add_row(const StoredRows& from, const Slot& at, const Array& to, int64_t row) {
    double* element = to.as<double>() + row * from.num_heads() * from.dims();
    for (int64_t g = 0; g < from.num_heads(); ++g)
      for (int64_t d = 0; d < from.dims(); ++d) *element++ = from.value(at, g, d);
  }

  const PagedReading& reading_;
  Array query_, key_, value_, q_offsets_, k_offsets_, exists_;
};

double sinks_lse(const Tensor& sinks, int64_t head) {
  if (!sinks.present()) return -kInfinity;
  const int64_t count = sinks.shape[-1], first = sinks.rank() == 1 ? 0 : head * count;
  double most = -kInfinity, sum = 0;
  for (int64_t a = 0; a < count; ++a) most = std::max(most, get(sinks, first + a));
  if (most == -kInfinity) return most;
  for (int64_t a = 0; a < count; ++a) sum += std::exp(get(sinks, first + a) - most);
  return most + std::log(sum);
}

/// An operation's own output from that of the packed problem, element by element.
class Scattered {
 public:
  static constexpr int64_t kUnjudged = -1;

  Scattered(const Sum& packed, const Judged& judged) : packed_(packed), judged_(packed.ref.size(), !judged) {
    for (size_t n = 0; judged && n < judged->size(); ++n) judged_[index((*judged)[n])] = true;
  }
  /// Element `to` is the packed one's `from`.
  void add(int64_t to, int64_t from) {
    if (from == kUnjudged || !judged_[index(from)]) return;
    add(to, packed_.ref[index(from)], packed_.squares[index(from)]);
    for (size_t run = 0; run < runs_.size(); ++run) runs_[run].back() = packed_.runs[run][index(from)];
  }
  /// Element `to` is a sum without terms.
  void add_empty(int64_t to, double value) { add(to, value, 0); }

  Expected expected(int64_t elements, DType dtype, const Tolerance& tolerance) {
    Expected e{.present = true, .ref = std::move(ref_), .spread = std::move(spread_), .tolerance = tolerance};
    if (static_cast<int64_t>(at_.size()) != elements || !std::is_sorted(at_.begin(), at_.end())) e.at = std::move(at_);
    for (const auto& run : runs_) add_baseline(e, run, dtype);
    return e;
  }

 private:
  void add(int64_t to, double value, double squares) {
    at_.push_back(to), ref_.push_back(value), spread_.push_back(std::sqrt(squares));
    for (auto& run : runs_) run.push_back(value);
  }

  const Sum& packed_;
  std::vector<bool> judged_;
  std::vector<int64_t> at_;
  std::vector<double> ref_, spread_;
  std::array<std::vector<double>, 3> runs_;
};

/// The packed row of each query row: kNoOwner, or kManyOwners, whose results are one of several.
constexpr int64_t kNoOwner = -1, kManyOwners = -2;
std::vector<int64_t> packed_rows(const PagedReading& reading) {
  std::vector<int64_t> packed(index(reading.num_rows()), kNoOwner);
  int64_t row = 0;
  for (const auto& s : reading.sequences())
    for (int64_t r = 0; r < s.q_len; ++r, ++row) {
      int64_t& at = packed[index(s.q_begin + r)];
      at = at == kNoOwner ? row : kManyOwners;
    }
  return packed;
}

}  // namespace

PagedAnswer attention_answer(const PagedReading& reading, double budget, uint64_t seed, bool lse_by_row) {
  const Gathered gathered(reading);
  const AttentionOracle oracle(gathered.inputs(), gathered.params(), budget, seed);
  AttentionOracle::Forward forward = oracle.forward();
  Scattered out(forward.out, forward.out_at), lse(forward.lse, forward.lse_at);

  const int64_t rows = reading.num_rows(), heads = reading.query().shape[1], dims = reading.values().dims();
  const std::vector<int64_t> packed = packed_rows(reading);
  const auto num_packed = static_cast<int64_t>(forward.lse.ref.size()) / std::max<int64_t>(heads, 1);
  PagedAnswer answer{.complete = forward.complete};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = packed[index(row)];
    answer.complete = answer.complete && from != kManyOwners;
    for (int64_t h = 0; h < heads && from != kManyOwners; ++h)
      for (int64_t d = 0; d < dims; ++d) {
        const int64_t to = (row * heads + h) * dims + d;
        from == kNoOwner ? out.add_empty(to, 0) : out.add(to, (from * heads + h) * dims + d);
      }
  }
  auto add_lse = [&](int64_t row, int64_t h, int64_t to) {
    const int64_t from = packed[index(row)];
    if (from >= 0) lse.add(to, h * num_packed + from);
    if (from == kNoOwner) lse.add_empty(to, sinks_lse(reading.sinks(), h));
  };
  for (int64_t n = 0; n < rows * heads; ++n)
    lse_by_row ? add_lse(n / heads, n % heads, n) : add_lse(n % rows, n / rows, n);

  const DType dtype = reading.query().dtype, lse_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
  answer.out = out.expected(rows * heads * dims, dtype, oracle.tolerance(dtype));
  answer.lse = lse.expected(rows * heads, lse_dtype, oracle.lse_tolerance());
  return answer;
}

namespace {

Answer answer_of_reading(const Problem& problem, double budget, bool lse_by_row) {
  const PagedReading reading(problem);
  PagedAnswer answer = attention_answer(reading, budget, problem.seed, lse_by_row);
  return {.outputs = {std::move(answer.out), std::move(answer.lse)},
          .status = reading.status(),
          .complete = answer.complete};
}

}  // namespace

Answer page_attention_answer(const Problem& problem, double budget) { return answer_of_reading(problem, budget, true); }

Answer ragged_page_attention_answer(const Problem& problem, double budget) {
  return answer_of_reading(problem, budget, false);
}

}  // namespace ejk::testing
