// Attention whose answer is exact in every arithmetic (reliability A6.5), worked out with integers.
//
// One of two ways. Uniform: queries are 0 and a power of two of keys is visible, so out is a sum of small integers over
// a power of two. One-hot: key j holds the bits of j as +-8 and a query the bits of a key it sees, with softmax_scale
// 1: its logit is 64 * bits, every other one at least 128 less, and e^-128 is 0 in float32. Then out is that key's
// value, lse is 64 * bits, and the gradients are sums of integers: dv of the cotangents, dq = dlse * key, dk = sum dlse
// * query.
#include <algorithm>
#include <bit>
#include <limits>

#include "ejkernel/ops/flash_attention/attention_rules_oracle.h"
#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/flash_attention/move_tensors_relations.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

using attn::Rules;

constexpr double kCode = 8;

/// Bit `d` of a key's number as +-8; dimensions past the bits are 0.
double code(int64_t key, int64_t d, int64_t num_bits) {
  return d >= num_bits ? 0 : (key >> d & 1) != 0 ? kCode : -kCode;
}

AttentionCase draw_exact(uint64_t seed, bool uniform) {
  Random random(seed ^ 0x45584143u);
  AttentionCase c = random_attention_case({.seed = seed, .size = Size::small});
  c.dtype = random.pick({DType::f32, DType::bf16, DType::f16});
  c.scales = CodeScale::none;
  c.data = Data::normal;
  c.bias = {};
  c.head_dim = std::max<int64_t>(c.head_dim, 9);
  c.value_dim = std::max<int64_t>(c.value_dim, 1);
  c.params.softmax_scale = 1;
  c.params.logits_soft_cap.reset();
  c.params.out_dtype.reset();
  c.params.normalize_output = true;
  if (c.params.dropout_prob > 0) c.params.dropout_prob = 0.5;  // kept values double
  c.params.max_seqlen_q.reset(), c.params.max_seqlen_k.reset();
  if (!uniform) return c;
  // A power of two of keys for every row: no mask but the one made for it, and lengths of powers of two.
  const int64_t kv_len = int64_t{1} << random.between(0, 6);
  c.params = {};
  c.mask = {}, c.num_segments = 0, c.num_sinks = 0, c.seqused_k = false, c.dropout_seed = false;
  for (int64_t& length : c.k_lens) length = int64_t{1} << random.between(0, 6);
  c.kv_len = kv_len;
  return c;
}

/// Calls f(part, head, row, batch-major row of the tensors) for every row that a part owns.
template <class F>
void for_rows(const Rules& rules, F&& f) {
  for (const Rules::Part& part : rules.parts())
    for (int64_t h = 0; h < rules.q_heads(); ++h)
      for (int64_t i = 0; i < part.q_len; ++i) f(part, h, i, part.batch * rules.q_rows() + part.q_begin + i);
}

size_t index(int64_t n) { return static_cast<size_t>(n); }

void fill_small_integers(const Tensor& t, Random& random, int64_t most) {
  fill(t, [&](int64_t) { return random.between(-most, most); });
}

/// What the one-hot rows look at.
struct Target {
  int64_t row = -1;   ///< batch-major row of key and value; -1: the query sees nothing
  double factor = 1;  ///< of dropout: 2 or 0
};

class OneHot {
 public:
  explicit OneHot(uint64_t seed)
      : description_(draw_exact(seed, false)),
        random_(seed),
        problem_(make_attention_problem(description_)),
        inputs_(to_struct<FlashAttention::Inputs>(problem_.views())),
        params_(problem_.params.as<FlashAttention::Params>()),
        rules_(inputs_, params_) {
    for (const Rules::Part& part : rules_.parts())
      while ((int64_t{1} << bits_) < part.k_len) ++bits_;
    fill_keys();
    fill_small_integers(inputs_.value, random_, 9);
    if (inputs_.softmax_aux.present()) fill(inputs_.softmax_aux, [](int64_t) { return -1000; });
    choose_targets();
  }

  ExactProblem forward() const {
    ExactProblem exact{problem_, {.outputs = std::vector<Expected>(2), .status = rules_.status()}};
    Expected &out = exact.answer.outputs[0], &lse = exact.answer.outputs[1];
    out = lse = {.present = true, .exact = true};
    out.ref.assign(index(rules_.num_batches() * rules_.q_rows() * rules_.q_heads() * value_dim()), 0);
    lse.ref.assign(index(rules_.num_batches() * rules_.q_rows() * rules_.q_heads()), -kInfinity);
    lse.present = !inputs_.softmax_aux.present();  // a row with nothing but sinks has their logarithm
    for_rows(rules_, [&](const Rules::Part& part, int64_t h, int64_t i, int64_t row) {
      const Target& target = target_of(row, h);
      if (target.row < 0) return;
      lse.ref[index((part.batch * rules_.q_heads() + h) * rules_.q_rows() + part.q_begin + i)] = peak();
      for (int64_t d = 0; d < value_dim(); ++d)
        out.ref[index((row * rules_.q_heads() + h) * value_dim() + d)] = target.factor * value_at(target.row, h, d);
    });
    return exact;
  }

  ExactProblem backward(uint64_t seed) {
    Problem problem = gradient_problem(problem_, seed, description_.random_layouts);
    const auto in = to_struct<FlashAttentionBackward::Inputs>(problem.views());
    Random random(seed);
    fill_small_integers(in.d_out, random, 1);
    fill_small_integers(in.d_lse, random, 1);
    ExactProblem exact{std::move(problem), {.status = rules_.status()}};
    std::vector<double> dq(index(in.query.num_elements())), dk(index(in.key.num_elements())),
        dv(index(in.value.num_elements()));
    const int64_t heads = rules_.q_heads(), kv_heads = rules_.kv_heads(), dims = in.query.shape[-1];
    for_rows(rules_, [&](const Rules::Part& part, int64_t h, int64_t i, int64_t row) {
      const Target& target = target_of(row, h);
      if (target.row < 0) return;
      const int64_t kv = target.row * kv_heads + h / (heads / kv_heads);
      const double d_lse =
          in.d_lse.present() ? get(in.d_lse, (part.batch * heads + h) * rules_.q_rows() + part.q_begin + i) : 0;
      for (int64_t d = 0; d < dims; ++d) {
        dq[index((row * heads + h) * dims + d)] = d_lse * get(in.key, kv * dims + d);
        dk[index(kv * dims + d)] += d_lse * get(in.query, (row * heads + h) * dims + d);
      }
      for (int64_t d = 0; d < value_dim(); ++d)
        dv[index(kv * value_dim() + d)] += target.factor * get(in.d_out, (row * heads + h) * value_dim() + d);
    });
    for (auto* gradient : {&dq, &dk, &dv})
      exact.answer.outputs.push_back({.present = true, .exact = true, .ref = std::move(*gradient)});
    exact.answer.outputs.resize(5);
    return exact;
  }

 private:
  int64_t value_dim() const { return inputs_.value.shape[-1]; }
  double peak() const { return kCode * kCode * static_cast<double>(bits_); }

  double value_at(int64_t row, int64_t h, int64_t d) const {
    const int64_t g = h / (rules_.q_heads() / rules_.kv_heads());
    return get(inputs_.value, (row * rules_.kv_heads() + g) * value_dim() + d);
  }

  void fill_keys() {
    const int64_t dims = inputs_.key.shape[-1], heads = rules_.kv_heads();
    fill(inputs_.key, [](int64_t) { return 0; });
    for (const Rules::Part& part : rules_.parts())
      for (int64_t j = 0; j < part.k_len; ++j)
        for (int64_t n = 0; n < heads * dims; ++n)
          set(inputs_.key, ((part.batch * rules_.k_rows() + part.k_begin + j) * heads) * dims + n,
              code(j, n % dims, bits_));
  }

  void choose_targets() {
    const int64_t dims = inputs_.query.shape[-1], heads = rules_.q_heads();
    targets_.resize(index(rules_.num_batches() * rules_.q_rows() * heads));
    fill(inputs_.query, [](int64_t) { return 0; });
    for_rows(rules_, [&](const Rules::Part& part, int64_t h, int64_t i, int64_t row) {
      std::vector<int64_t> visible;
      for (int64_t j = 0; j < part.k_len; ++j)
        if (rules_.sees(part, h, i, j)) visible.push_back(j);
      if (visible.empty()) return;
      const int64_t j = random_.pick(visible);
      targets_[index(row * heads + h)] = {part.batch * rules_.k_rows() + part.k_begin + j,
                                          attn::keep_factor(inputs_, params_, part.index, h, i, j)};
      for (int64_t d = 0; d < dims; ++d) set(inputs_.query, (row * heads + h) * dims + d, code(j, d, bits_));
    });
  }
  const Target& target_of(int64_t row, int64_t h) const { return targets_[index(row * rules_.q_heads() + h)]; }

  AttentionCase description_;
  Random random_;
  Problem problem_;
  FlashAttention::Inputs inputs_;
  FlashAttention::Params params_;
  Rules rules_;
  int64_t bits_ = 0;
  std::vector<Target> targets_;
};

/// Zero queries over powers of two of keys: all of them, or as many as a mask shows each row.
ExactProblem uniform(uint64_t seed) {
  AttentionCase c = draw_exact(seed, true);
  Random random(seed ^ 0x554E4946u);
  const bool masked = c.q_lens.empty() && random.chance(0.5);
  if (masked) c.mask = {.given = true};
  c.mask_density = 1;
  ExactProblem exact{make_attention_problem(c), {.outputs = std::vector<Expected>(2)}};
  const auto in = to_struct<FlashAttention::Inputs>(exact.problem.views());
  fill(in.query, [](int64_t) { return 0; });
  fill_small_integers(in.key, random, 3);
  // No negative ones: a kernel may multiply by e^-lse, and what is off by its rounding must not cancel to something
  // small.
  fill(in.value, [&](int64_t) { return random.between(0, 3); });
  for (int64_t row = 0; masked && row < in.attention_mask.num_elements(); row += c.kv_len) {
    const int64_t shown = int64_t{1} << random.below(std::bit_width(static_cast<uint64_t>(c.kv_len)));
    const std::vector<int64_t> order = permutation(c.kv_len, random.bits());
    for (int64_t j = 0; j < c.kv_len; ++j) set(in.attention_mask, row + order[index(j)], j < shown ? 1 : 0);
  }
  const Rules rules(in, exact.problem.params.as<FlashAttention::Params>());
  Expected& out = exact.answer.outputs[0];
  out = {.present = true, .exact = true};
  const int64_t dims = in.value.shape[-1], heads = rules.q_heads();
  out.ref.assign(index(rules.num_batches() * rules.q_rows() * heads * dims), 0);
  for_rows(rules, [&](const Rules::Part& part, int64_t h, int64_t i, int64_t row) {
    int64_t count = 0;
    double* sums = out.ref.data() + (row * heads + h) * dims;
    for (int64_t j = 0; j < part.k_len; ++j) {
      if (!rules.sees(part, h, i, j)) continue;
      ++count;
      const int64_t kv =
          (part.batch * rules.k_rows() + part.k_begin + j) * rules.kv_heads() + h / (heads / rules.kv_heads());
      for (int64_t d = 0; d < dims; ++d) sums[d] += get(in.value, kv * dims + d);
    }
    for (int64_t d = 0; d < dims && count > 0; ++d) sums[d] /= static_cast<double>(count);
  });
  return exact;
}

ExactProblem named(ExactProblem exact, uint64_t seed) {
  exact.problem.replay = "--exact --seed=" + std::to_string(seed);
  return exact;
}

}  // namespace

ExactProblem exact_attention(uint64_t seed) {
  return named(seed % 3 == 0 ? uniform(seed) : OneHot(seed).forward(), seed);
}

ExactProblem exact_attention_backward(uint64_t seed) { return named(OneHot(seed).backward(seed), seed); }

}  // namespace ejk::testing
