// Random problems over a cache: every option alone and with the others, sizes where kernels go wrong.
#include <algorithm>
#include <cmath>

#include "ejkernel/ops/page_attention/paged_cases.h"

namespace ejk::testing {
namespace {

/// Multiply-adds that a problem of this size may take, and the largest length, number of rows, head size and batch.
struct Limits {
  double work;
  int64_t length, rows, dim, batch;
};
Limits limits_of(Size size) {
  switch (size) {
    case Size::tiny:
      return {.work = 4e3, .length = 9, .rows = 4, .dim = 4, .batch = 3};
    case Size::small:
      return {.work = 4e5, .length = 200, .rows = 40, .dim = 80, .batch = 4};
    case Size::normal:
      break;
  }
  return {.work = 8e6, .length = 1500, .rows = 200, .dim = 300, .batch = 6};
}

class Draw {
 public:
  Draw(const RandomRequest& request, const PagedScope& scope)
      : request_(request), scope_(scope), limits_(limits_of(request.size)), random_(request.seed) {
    c_.seed = request.seed;
    c_.hostile = request.hostile;
  }

  PagedCase draw() {
    draw_dtypes();
    draw_heads();
    draw_sequences();
    draw_pages();
    draw_params();
    draw_scales();
    c_.random_layouts = random_.chance(0.4);
    return std::move(c_);
  }

 private:
  bool is_code() const { return bits(c_.cache) <= 8; }

  void draw_dtypes() {
    c_.dtype = random_.pick({DType::f32, DType::f32, DType::bf16, DType::bf16, DType::bf16, DType::f16});
    if (random_.chance(0.06)) c_.dtype = DType::f64;
    if (request_.dtype) c_.dtype = *request_.dtype;
    c_.cache = c_.dtype;
    if (random_.chance(0.6))
      c_.cache = random_.pick({DType::bf16, DType::f16, DType::f32, DType::i8, DType::i8, DType::e4m3, DType::e4m3,
                               DType::e5m2, DType::i4, DType::i4});
    if (scope_.writes && c_.cache == DType::i4) c_.cache = DType::i8;
    if (!is_code() && random_.chance(0.1)) c_.data = random_.pick({Data::equal, Data::huge, Data::subnormal});
  }

  void draw_heads() {
    c_.num_kv_heads = random_.pick<int64_t>({1, 1, 2, 3, 4, 8});
    c_.num_q_heads = c_.num_kv_heads * random_.pick<int64_t>({1, 1, 2, 3, 4, 7, 8});
    if (request_.size == Size::tiny)
      c_.num_kv_heads = random_.pick<int64_t>({1, 2}), c_.num_q_heads = c_.num_kv_heads * random_.pick<int64_t>({1, 2});
    c_.head_dim = draw_dim();
    c_.value_dim = scope_.interleaved || random_.chance(0.7) ? c_.head_dim : draw_dim();
  }
  int64_t draw_dim() {
    const auto usual = random_.pick<int64_t>({1, 2, 3, 8, 16, 31, 32, 33, 40, 64, 64, 72, 80, 96, 128, 128, 192, 256});
    const int64_t dim = random_.chance(0.7) && usual <= limits_.dim ? usual : random_.log_uniform(1, limits_.dim);
    return c_.cache == DType::i4 ? dim + dim % 2 : dim;
  }

  double work(int64_t rows, int64_t length) const {
    return static_cast<double>(rows * length) * static_cast<double>(c_.num_q_heads * (c_.head_dim + c_.value_dim));
  }

  void draw_sequences() {
    const int64_t count = random_.chance(0.04) ? 0 : random_.between(1, limits_.batch + (scope_.rows ? 3 : 0));
    double left = limits_.work;
    for (int64_t n = 0; n < count; ++n) {
      int64_t length = random_length(random_, limits_.length), rows = scope_.rows ? draw_rows(length) : 1;
      while (work(rows, length) > left && length > 0) (rows > length ? rows : length) /= 2;
      left -= work(rows, length);
      c_.lens.push_back(length);
      if (scope_.rows) c_.q_lens.push_back(rows);
    }
    if (!scope_.rows) {
      c_.token_axis = random_.chance(0.4);
      return;
    }
    c_.idle_sequences = random_.chance(0.3) ? random_.between(1, 3) : 0;
    c_.unowned_rows = random_.chance(0.3) ? random_.between(1, 3) : 0;
    c_.q_scale = random_.chance(0.3);
  }
  /// A token, a chunk, the whole of it, nothing; now and then more rows than there are tokens.
  int64_t draw_rows(int64_t length) {
    if (random_.chance(0.45)) return 1;
    if (random_.chance(0.08)) return random_.between(0, std::min<int64_t>(length + 9, limits_.rows));
    return std::min(random_.chance(0.4) ? length : random_length(random_, std::max<int64_t>(length, 1)), limits_.rows);
  }

  void draw_pages() {
    c_.page_size = random_.pick<int64_t>({1, 2, 3, 7, 8, 16, 16, 16, 32, 64, 128});
    c_.spare_pages = random_.chance(0.2) ? 0 : random_.between(1, 5);
    c_.spare_entries = random_.chance(0.3) ? 0 : random_.between(1, 4);
    if (random_.chance(0.03)) c_.most_entries = random_.between(0, 3);
    if (random_.chance(0.15)) c_.missing = random_.pick({0.05, 0.3, 1.0});
    if (random_.chance(0.3)) c_.shared = random_.pick({0.2, 0.9});
    if (random_.chance(0.4)) c_.params.cache_layout = CacheLayout::head_major;
  }

  void draw_params() {
    PageAttention::Params& p = c_.params;
    if (random_.chance(0.3) && (c_.data != Data::huge))
      p.softmax_scale = random_.pick({0.125, 0.3, -0.2, 0.0}) / code_size();
    if (random_.chance(0.35)) {
      const int64_t left = random_.chance(0.1) ? random_.pick<int64_t>({0, INT64_MAX, 1 << 30})
                                               : random_length(random_, limits_.length / 2);
      p.sliding_window = random_.chance(0.5) ? Window(left) : Window(left, random_.pick<int64_t>({-1, 0, 3}));
      if (random_.chance(0.4)) p.attention_sink_size = random_.pick<int64_t>({1, 4, 5, 17, 1000000});
    }
    if (random_.chance(0.25)) p.logits_soft_cap = random_.pick({0.5, 5.0, 30.0, 50.0});
    p.batch_invariant = random_.chance(0.3);
    if (random_.chance(0.25)) c_.num_sinks = random_.between(1, 3), c_.shared_sinks = random_.chance(0.4);
    c_.sinks_dtype = random_.pick({DType::f32, DType::f32, DType::bf16});
  }
  /// Without scales, logits are made of whole codes.
  double code_size() const { return c_.cache == DType::i8 ? 40 : c_.cache == DType::i4 ? 3 : 1; }

  void draw_scales() {
    if (!random_.chance(is_code() ? 0.8 : 0.15) || c_.data != Data::normal) return;
    c_.scales = random_.pick({CacheScale::one, CacheScale::per_head, CacheScale::grouped});
    if (c_.scales == CacheScale::grouped && scope_.writes) c_.scales = CacheScale::per_head;
    const auto group = random_.pick<int64_t>({16, 32, 64, 128});
    if (c_.head_dim % group == 0 && c_.value_dim % group == 0) c_.group = group;
  }

  RandomRequest request_;
  PagedScope scope_;
  Limits limits_;
  Random random_;
  PagedCase c_;
};

}  // namespace

PagedCase random_paged_case(const RandomRequest& request, const PagedScope& scope) {
  return Draw(request, scope).draw();
}

}  // namespace ejk::testing
