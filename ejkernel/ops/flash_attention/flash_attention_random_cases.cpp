// Random attention problems: every option alone and with the others, sizes where kernels go wrong.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"

namespace ejk::testing {
namespace {

/// Multiply-adds that a problem of this size may take, and the largest length and head size.
struct Limits {
  double work;
  int64_t length, dim, batch;
};
Limits limits_of(Size size) {
  switch (size) {
    case Size::tiny:
      return {.work = 4e3, .length = 7, .dim = 4, .batch = 2};
    case Size::small:
      return {.work = 4e5, .length = 150, .dim = 80, .batch = 3};
    case Size::normal:
      break;
  }
  return {.work = 2e7, .length = 700, .dim = 300, .batch = 5};
}

class Draw {
 public:
  Draw(const RandomRequest& request, const AttentionScope& scope)
      : request_(request), scope_(scope), limits_(limits_of(request.size)), random_(request.seed) {
    c_.seed = request.seed;
    c_.hostile = request.hostile;
  }

  AttentionCase draw() {
    if (request_.dense) return draw_dense();
    draw_dtype();
    draw_heads();
    draw_data();
    if (packed_)
      draw_packed();
    else
      draw_batched();
    draw_masks();
    draw_rest();
    c_.random_layouts = random_.chance(0.4);
    return std::move(c_);
  }

 private:
  bool is_code() const { return bits(c_.dtype) <= 8; }

  void draw_dtype() {
    c_.dtype = random_.pick(
        {DType::f32, DType::f32, DType::f32, DType::bf16, DType::bf16, DType::bf16, DType::f16, DType::f16});
    if (random_.chance(0.06)) c_.dtype = DType::f64;
    if (!scope_.gradient && random_.chance(0.05)) c_.dtype = random_.pick({DType::e4m3, DType::e5m2, DType::i8});
    if (request_.dtype) c_.dtype = *request_.dtype;
  }

  void draw_heads() {
    c_.num_kv_heads = random_.pick<int64_t>({1, 1, 2, 3, 4});
    c_.num_q_heads = c_.num_kv_heads * random_.pick<int64_t>({1, 1, 1, 2, 3, 4, 8});
    if (request_.size == Size::tiny)
      c_.num_kv_heads = random_.pick<int64_t>({1, 2}), c_.num_q_heads = c_.num_kv_heads * random_.pick<int64_t>({1, 2});
    c_.head_dim = draw_dim();
    c_.value_dim = random_.chance(0.7) ? c_.head_dim : draw_dim();
    packed_ = scope_.packed && random_.chance(0.28);
  }
  int64_t draw_dim() {
    const auto usual = random_.pick<int64_t>({1, 2, 3, 8, 16, 31, 32, 33, 40, 64, 64, 72, 80, 96, 128, 128, 192, 256});
    return random_.chance(0.7) && usual <= limits_.dim ? usual : random_.log_uniform(1, limits_.dim);
  }

  void draw_data() {
    // Finite differences need numbers of a middle size.
    const bool ordinary = is_code() || request_.dtype == DType::f64;
    if (random_.chance(0.1) && !ordinary) c_.data = random_.pick({Data::equal, Data::huge, Data::subnormal});
    if (random_.chance(0.3))
      c_.params.softmax_scale = random_.pick({0.125, 0.3, -0.2, 0.0, 2 / std::sqrt(static_cast<double>(c_.head_dim))});
    // Keep the logits where float32 holds them: products of 200 * 200, or of integer codes.
    const double squared = c_.data == Data::huge ? 4e4 : c_.dtype == DType::i8 ? 1600 : 1;
    if (is_code() && random_.chance(0.7))
      c_.scales = random_.pick({CodeScale::one, CodeScale::per_head, CodeScale::per_block});
    if (packed_ && c_.scales == CodeScale::per_block) c_.scales = CodeScale::per_head;
    if (squared > 1 && c_.scales == CodeScale::none)
      c_.params.softmax_scale = 1 / (squared * std::sqrt(static_cast<double>(c_.head_dim)));
  }

  /// Multiply-adds of lengths q and k for all heads of one batch entry.
  double work(double q, double k) const {
    return q * k *
           static_cast<double>(c_.num_q_heads * (c_.head_dim + (c_.value_dim == 0 ? c_.head_dim : c_.value_dim)));
  }

  void draw_batched() {
    c_.batch = random_.chance(0.03) ? 0 : random_.between(1, limits_.batch);
    c_.q_len = random_length(random_, limits_.length);
    c_.kv_len = random_.chance(0.3) ? c_.q_len : random_length(random_, limits_.length);
    while (work(static_cast<double>(c_.q_len), static_cast<double>(c_.kv_len)) * static_cast<double>(c_.batch) >
           limits_.work) {
      if (c_.batch > 1)
        --c_.batch;
      else
        (c_.q_len > c_.kv_len ? c_.q_len : c_.kv_len) /= 2;
    }
    c_.seqused_k = random_.chance(0.15);
  }

  void draw_packed() {
    const int64_t count = random_.chance(0.04) ? 0 : random_.between(1, limits_.batch + 2);
    double left = limits_.work;
    for (int64_t n = 0; n < count; ++n) {
      int64_t q = random_length(random_, limits_.length / 2),
              k = random_.chance(0.5) ? q : random_length(random_, limits_.length / 2);
      while (work(static_cast<double>(q), static_cast<double>(k)) > left) (q > k ? q : k) /= 2;
      left -= work(static_cast<double>(q), static_cast<double>(k));
      c_.q_lens.push_back(q);
      c_.k_lens.push_back(k);
    }
    if (count == 0) {  // no sequence at all: rows that nobody owns
      packed_ = false;
      return draw_batched();
    }
    if (random_.chance(0.3)) c_.unowned_rows = random_.between(1, 3);
    c_.seqused_k = random_.chance(0.2);
    draw_max_seqlen(c_.q_lens, c_.params.max_seqlen_q);
    draw_max_seqlen(c_.k_lens, c_.params.max_seqlen_k);
  }

  /// Usually the true bound; sometimes a smaller one, which cuts the sequences.
  void draw_max_seqlen(const std::vector<int64_t>& lengths, std::optional<int64_t>& max_seqlen) {
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    if (random_.chance(0.4)) max_seqlen = longest + random_.pick<int64_t>({0, 0, 5});
    if (random_.chance(0.05)) max_seqlen = random_.between(0, longest);
  }

  Plane draw_plane() {
    return {.given = true, .batch = random_.chance(0.5), .heads = random_.chance(0.5), .rows = random_.chance(0.7)};
  }

  void draw_masks() {
    FlashAttention::Params& p = c_.params;
    p.causal = random_.chance(0.45);
    if (random_.chance(0.25)) p.causal_align = CausalAlign::top_left;
    if (random_.chance(0.3)) {
      const auto side = [&] {
        return random_.chance(0.2) ? -1 : random_.chance(0.2) ? 0 : random_.log_uniform(1, limits_.length);
      };
      p.sliding_window = random_.chance(0.4) ? Window(std::max<int64_t>(side(), 0)) : Window(side(), side());
      if (random_.chance(0.05)) p.sliding_window = Window(INT64_MAX, INT64_MAX);
    }
    if (random_.chance(0.15)) p.attention_sink_size = random_.between(1, 5);
    if (packed_) return;
    if (random_.chance(0.3)) {
      c_.bias = draw_plane();
      c_.bias_dtype = random_.pick({DType::f32, DType::f32, DType::bf16, DType::f16});
      if (random_.chance(0.4)) c_.minus_infinity = random_.pick({0.1, 0.5, 1.0});
    }
    if (random_.chance(0.25)) c_.mask = draw_plane(), c_.mask_density = random_.pick({0.02, 0.5, 0.7, 0.95});
    if (random_.chance(0.2)) {
      c_.num_segments = random_.between(1, 4);
      c_.kv_segments = c_.q_len != c_.kv_len || random_.chance(0.5);
    }
  }

  void draw_rest() {
    FlashAttention::Params& p = c_.params;
    if (random_.chance(0.25)) p.logits_soft_cap = random_.pick({0.5, 5.0, 30.0, 50.0});
    if (random_.chance(0.25)) c_.num_sinks = random_.between(1, 3), c_.shared_sinks = random_.chance(0.4);
    if (random_.chance(0.2))
      p.dropout_prob = random_.pick({1e-7, 0.1, 0.5, 0.9, 0.999999}), c_.dropout_seed = random_.chance(0.8);
    if (random_.chance(0.15) && c_.data == Data::normal && request_.dtype != DType::f64)
      p.out_dtype = random_.pick({DType::f32, DType::f16, DType::bf16});
    if (random_.chance(0.07) && !scope_.gradient) p.normalize_output = false;
    p.deterministic = random_.chance(0.5);
    if (c_.hostile && !packed_ && c_.num_segments == 0) c_.seqused_k = true;
    if (c_.dtype == DType::f64 && (request_.dtype || random_.chance(0.5))) c_.bias_dtype = DType::f64;
    // Rounding errors beside values of 1e30 are larger than any float16: the gradient of such a bias would be infinite.
    if (c_.data == Data::huge && c_.bias_dtype == DType::f16) c_.bias_dtype = DType::f32;
  }

  /// 16-bit numbers, head sizes of whole swizzled rows and nothing but a causal mask. Lengths reach several of the
  /// largest tiles, and the number of tiles several waves of a GPU's multiprocessors.
  AttentionCase draw_dense() {
    const auto [work_limit, longest] = dense_limits();
    c_.dtype = request_.dtype.value_or(random_.pick({DType::bf16, DType::f16}));
    c_.head_dim = random_.pick<int64_t>({64, 128, 256});
    c_.num_kv_heads = random_.pick<int64_t>({1, 1, 2, 3, 8});
    c_.num_q_heads = c_.num_kv_heads * random_.pick<int64_t>({1, 1, 2, 3, 4, 8});
    c_.batch = random_.between(1, 4);
    c_.q_len = dense_length(longest);
    c_.kv_len = random_.chance(0.6) ? c_.q_len : dense_length(longest);
    if (request_.size == Size::normal && random_.chance(0.3)) {  // many short ones
      c_.num_kv_heads = 8;
      c_.num_q_heads = random_.pick<int64_t>({8, 8, 16});
      c_.batch = random_.between(8, 20);
      c_.q_len = random_.between(64, 300);
      c_.kv_len = c_.q_len + random_.between(-1, 70);
    }
    while (work(static_cast<double>(c_.q_len), static_cast<double>(c_.kv_len)) * static_cast<double>(c_.batch) >
           work_limit) {
      if (c_.batch > 1)
        --c_.batch;
      else if (c_.num_kv_heads > 1)
        c_.num_q_heads /= c_.num_kv_heads, c_.num_kv_heads = 1;
      else
        (c_.q_len > c_.kv_len ? c_.q_len : c_.kv_len) /= 2;
    }
    c_.params.causal = random_.chance(0.5);
    if (random_.chance(0.2)) c_.params.softmax_scale = random_.pick({0.3, 1.0, -0.2, 0.0});
    if (random_.chance(0.1)) c_.data = random_.pick({Data::equal, Data::subnormal});
    c_.random_layouts = random_.chance(0.4);
    if (random_.chance(0.7)) c_.alignment = 16;
    c_.params.deterministic = random_.chance(0.5);  // of the gradient
    // Looking for rows that nothing reads takes a visit to every pair.
    c_.poison = c_.batch * c_.num_q_heads * c_.q_len * c_.kv_len < (1 << 20);
    return std::move(c_);
  }
  std::pair<double, int64_t> dense_limits() const {
    if (request_.size == Size::tiny) return {2e6, 100};
    if (request_.size == Size::small) return {5e7, 500};
    return {1e9, 3000};
  }
  int64_t dense_length(int64_t longest) {
    if (random_.chance(0.3)) {
      const int64_t tile = random_.pick<int64_t>({64, 80, 128, 160, 176, 192, 256});
      const int64_t edge = tile * random_.between(1, 4) + random_.between(-1, 1);
      if (edge <= longest) return edge;
    }
    return random_length(random_, longest);
  }

  RandomRequest request_;
  AttentionScope scope_;
  Limits limits_;
  Random random_;
  AttentionCase c_;
  bool packed_ = false;
};

}  // namespace

AttentionCase random_attention_case(const RandomRequest& request, const AttentionScope& scope) {
  return Draw(request, scope).draw();
}

}  // namespace ejk::testing
