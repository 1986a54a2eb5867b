#include "ejkernel/ops/flash_attention/flash_attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"

namespace ejk::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t sum_of(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

/// Builds one forward problem from its description.
class Builder {
 public:
  explicit Builder(const AttentionCase& c)
      : c_(c), random_(c.seed ^ 0x464C4153u), problem_(Problem::of(declaration<FlashAttention>())) {
    problem_.seed = c.seed;
    problem_.params = ParamsBlock::of(c.params);
    problem_.label = to_string(c);
  }

  Problem build() {
    add_rows();
    if (packed())
      add_offsets();
    else
      add_planes();
    if (c_.seqused_k) add_lengths();
    if (c_.num_sinks > 0) add_sinks();
    if (c_.dropout_seed)
      fill(add("dropout_seed", DType::u32, {2}), [&](int64_t) { return random_.below(int64_t{1} << 32); });
    add_scales();
    if (c_.poison) poison();
    return std::move(problem_);
  }

 private:
  bool packed() const { return !c_.q_lens.empty(); }
  int64_t value_dim() const { return c_.value_dim == 0 ? c_.head_dim : c_.value_dim; }

  Tensor add(std::string_view name, DType dtype, const Shape& shape) {
    return problem_.add(name, dtype, shape,
                        c_.random_layouts ? random_layout(random_, dtype, shape.rank(), c_.alignment) : Layout{});
  }

  void add_rows() {
    const int64_t q_rows = packed() ? sum_of(c_.q_lens) + 2 * c_.unowned_rows : c_.q_len;
    const int64_t k_rows = packed() ? sum_of(c_.k_lens) + 2 * c_.unowned_rows : c_.kv_len;
    auto shape = [&](int64_t rows, int64_t heads, int64_t dim) {
      return packed() ? Shape{rows, heads, dim} : Shape{c_.batch, rows, heads, dim};
    };
    const Tensor q = add("query", c_.dtype, shape(q_rows, c_.num_q_heads, c_.head_dim));
    const Tensor k = add("key", c_.dtype, shape(k_rows, c_.num_kv_heads, c_.head_dim));
    const Tensor v = add("value", c_.dtype, shape(k_rows, c_.num_kv_heads, value_dim()));
    const double codes = c_.dtype == DType::i8 ? 40 : 1;  // integers must not all round to 0
    const double product = c_.data == Data::huge ? 200 : codes;
    fill_data(q, product);
    fill_data(k, product);
    fill_data(v, c_.data == Data::huge ? huge_value() : c_.data == Data::subnormal ? subnormal_value() : codes);
  }

  void fill_data(const Tensor& t, double deviation) {
    if (c_.data == Data::equal)
      fill(t, [&](int64_t) { return 0.75 * deviation; });
    else
      fill_normal(t, random_, deviation);
  }
  double huge_value() const { return c_.dtype == DType::f16 ? 1e4 : 1e30; }
  double subnormal_value() const { return c_.dtype == DType::f16 ? 4e-5 : 1e-38; }

  void add_offsets() {
    for (const auto& [name, lengths] : {std::pair{"cu_seqlens_q", &c_.q_lens}, std::pair{"cu_seqlens_k", &c_.k_lens}}) {
      std::vector<int64_t> offsets = {c_.unowned_rows};
      for (int64_t length : *lengths) offsets.push_back(offsets.back() + length);
      if (c_.hostile) spoil(offsets);
      fill_values(add(name, DType::i32, {static_cast<int64_t>(offsets.size())}), offsets);
    }
  }

  void add_lengths() {
    const int64_t count = packed() ? static_cast<int64_t>(c_.k_lens.size()) : c_.batch;
    std::vector<int64_t> lengths;
    for (int64_t n = 0; n < count; ++n)
      lengths.push_back(random_.between(0, packed() ? c_.k_lens[static_cast<size_t>(n)] : c_.kv_len));
    if (c_.hostile) spoil(lengths);
    // Cut by max_seqlen_k a length would rightly raise the status bit; a well-behaved call has none.
    if (!c_.hostile && c_.params.max_seqlen_k)
      for (int64_t& length : lengths) length = std::min(length, *c_.params.max_seqlen_k);
    fill_values(add("seqused_k", DType::i32, {count}), lengths);
  }

  /// Index contents nobody should send.
  void spoil(std::vector<int64_t>& values) {
    for (int64_t& value : values) {
      if (random_.chance(0.5)) continue;
      value = random_.pick<int64_t>({-1, -2147483648LL, 2147483647LL, 1 << 30, -7, 0, value + 1, value - 1, value * 2,
                                     random_.between(-1000, 1000), random_.between(-2147483648LL, 2147483647LL)});
      value = std::clamp<int64_t>(value, -2147483648LL, 2147483647LL);
    }
  }

  Shape plane_shape(const Plane& plane) const {
    return {plane.batch ? c_.batch : 1, plane.heads ? c_.num_q_heads : 1, plane.rows ? c_.q_len : 1, c_.kv_len};
  }

  void add_planes() {
    if (c_.bias.given)
      fill(add("bias", c_.bias_dtype, plane_shape(c_.bias)),
           [&](int64_t) { return random_.chance(c_.minus_infinity) ? -kInfinity : random_.normal(); });
    if (c_.mask.given)
      fill(add("attention_mask", DType::boolean, plane_shape(c_.mask)),
           [&](int64_t) { return random_.chance(c_.mask_density); });
    if (c_.num_segments == 0) return;
    add_segments("q_segment_ids", c_.q_len);
    if (c_.kv_segments) add_segments("kv_segment_ids", c_.kv_len);
  }

  /// Runs of equal ids, some of them padding; hostile ones are any integers in any order.
  void add_segments(std::string_view name, int64_t length) {
    const Tensor ids = add(name, DType::i32, {c_.batch, length});
    int64_t id = 0;
    fill(ids, [&](int64_t n) -> int64_t {
      if (c_.hostile) return random_.pick<int64_t>({-2147483648LL, -1, 0, 1, 2147483647LL});
      if (n % std::max<int64_t>(length, 1) == 0)
        id = 0;
      else if (random_.chance(static_cast<double>(c_.num_segments) / static_cast<double>(length)))
        ++id;
      return random_.chance(0.05) ? -1 : id % c_.num_segments;
    });
  }

  void add_sinks() {
    const Shape shape = c_.shared_sinks ? Shape{c_.num_sinks} : Shape{c_.num_q_heads, c_.num_sinks};
    fill_normal(add("softmax_aux", c_.bias_dtype, shape), random_, 2);
  }

  void add_scales() {
    if (c_.scales == CodeScale::none) return;
    const double typical = c_.dtype == DType::i8 ? 1.0 / 40 : 1;
    auto add_one = [&](std::string_view name, int64_t length, int64_t heads) {
      Shape shape;
      if (c_.scales == CodeScale::per_head) shape = {heads};
      if (c_.scales == CodeScale::per_block) shape = {c_.batch, (length + 127) / 128, heads};
      fill(add(name, DType::f32, shape), [&](int64_t) { return typical * (0.5 + random_.uniform()); });
    };
    add_one("q_scale", c_.q_len, c_.num_q_heads);
    add_one("k_scale", c_.kv_len, c_.num_kv_heads);
    add_one("v_scale", c_.kv_len, c_.num_kv_heads);
  }

  /// NaN (or infinity) in every row of query, key and value that no visible pair uses. Integer codes have no NaN.
  void poison() {
    if (!is_float(c_.dtype)) return;
    const auto inputs = to_struct<FlashAttention::Inputs>(problem_.views());
    const attn::Rules rules(inputs, c_.params);
    const auto used = rules.used();
    auto spoil_rows = [&](const Tensor& t, const std::vector<bool>& used_rows) {
      const int64_t row = t.shape[-2] * t.shape[-1];
      const double bad = random_.chance(0.7) ? kNaN : kInfinity;
      for (size_t r = 0; r < used_rows.size(); ++r)
        for (int64_t n = 0; n < row && !used_rows[r]; ++n) set(t, static_cast<int64_t>(r) * row + n, bad);
    };
    spoil_rows(inputs.query, used.query);
    spoil_rows(inputs.key, used.key);
    spoil_rows(inputs.value, used.key);
    if (inputs.bias.present()) poison_bias(rules, inputs.bias);
  }

  /// A bias entry is read by some visible pair, or it may hold anything (its -inf may not go: it is what hides the
  /// pair).
  void poison_bias(const attn::Rules& rules, const Tensor& bias) {
    std::vector<bool> read(static_cast<size_t>(bias.num_elements()));
    for (const auto& part : rules.parts())
      for (int64_t h = 0; h < c_.num_q_heads; ++h)
        for (int64_t i = 0; i < part.q_len; ++i)
          for (int64_t j = 0; j < c_.kv_len; ++j)
            if (rules.sees(part, h, i, j)) read[static_cast<size_t>(plane_index(bias, part.index, h, i, j))] = true;
    for (size_t n = 0; n < read.size(); ++n)
      if (!read[n] && get(bias, static_cast<int64_t>(n)) != -kInfinity) set(bias, static_cast<int64_t>(n), kNaN);
  }

  static int64_t plane_index(const Tensor& t, int64_t b, int64_t h, int64_t i, int64_t j) {
    return (((t.shape[0] == 1 ? 0 : b) * t.shape[1] + (t.shape[1] == 1 ? 0 : h)) * t.shape[2] +
            (t.shape[2] == 1 ? 0 : i)) *
               t.shape[3] +
           j;
  }

  const AttentionCase& c_;
  Random random_;
  Problem problem_;
};

std::string plane_text(std::string_view what, const Plane& plane) {
  if (!plane.given) return {};
  return fmt::format(" {}[{}{}{}k]", what, plane.batch ? "b" : "1", plane.heads ? "h" : "1", plane.rows ? "q" : "1");
}

}  // namespace

std::string to_string(const AttentionCase& c) {
  const FlashAttention::Params& p = c.params;
  std::string text = fmt::format("{}", ejk::name(c.dtype));
  if (c.q_lens.empty())
    text += fmt::format(" b={} q={} k={}", c.batch, c.q_len, c.kv_len);
  else
    text += fmt::format(" packed q=({}) k=({})", fmt::join(c.q_lens, ","), fmt::join(c.k_lens, ","));
  text += fmt::format(" heads={}/{} d={}", c.num_q_heads, c.num_kv_heads, c.head_dim);
  if (c.value_dim != 0 && c.value_dim != c.head_dim) text += fmt::format(" dv={}", c.value_dim);
  if (p.causal)
    text += p.causal_align == CausalAlign::top_left ? " causal top_left" : " causal";
  else if (p.causal_align == CausalAlign::top_left)
    text += " top_left";
  if (!p.sliding_window.unbounded())
    text += p.sliding_window.symmetric ? fmt::format(" window={}", p.sliding_window.left)
                                       : fmt::format(" window=({},{})", p.sliding_window.left, p.sliding_window.right);
  if (p.attention_sink_size > 0) text += fmt::format(" sink_size={}", p.attention_sink_size);
  if (p.softmax_scale) text += fmt::format(" scale={:.3g}", *p.softmax_scale);
  if (p.logits_soft_cap) text += fmt::format(" cap={:.3g}", *p.logits_soft_cap);
  if (p.dropout_prob > 0) text += fmt::format(" dropout={:.3g}{}", p.dropout_prob, c.dropout_seed ? "" : " unseeded");
  if (p.out_dtype) text += fmt::format(" out={}", ejk::name(*p.out_dtype));
  if (!p.normalize_output) text += " unnormalised";
  if (p.max_seqlen_q) text += fmt::format(" max_q={}", *p.max_seqlen_q);
  if (p.max_seqlen_k) text += fmt::format(" max_k={}", *p.max_seqlen_k);
  text += plane_text("bias", c.bias) + plane_text("mask", c.mask);
  if (c.minus_infinity > 0 && c.bias.given) text += fmt::format(" -inf={:.2g}", c.minus_infinity);
  if (c.num_segments > 0) text += fmt::format(" segments={}{}", c.num_segments, c.kv_segments ? "" : " shared");
  if (c.num_sinks > 0) text += fmt::format(" sinks={}{}", c.num_sinks, c.shared_sinks ? " shared" : "");
  if (c.seqused_k) text += " seqused_k";
  if (c.unowned_rows > 0) text += fmt::format(" unowned={}", c.unowned_rows);
  if (c.data != Data::normal) text += c.data == Data::equal ? " equal" : c.data == Data::huge ? " huge" : " subnormal";
  if (c.random_layouts) text += " strided";
  if (c.hostile) text += " hostile";
  return text;
}

Problem make_attention_problem(const AttentionCase& description) {
  Problem problem = Builder(description).build();
  problem.replay = "--case=" + description.name;
  return problem;
}

}  // namespace ejk::testing
