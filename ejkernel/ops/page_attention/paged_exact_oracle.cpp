// Attention over a cache whose answer is exact in every arithmetic (reliability A6.5): key t holds the bits of t as
// +-c and a query the bits of a token it sees, with a scale that makes its logit 64 for each bit and every other one at
// least 128 less, and e^-128 is 0 in float32. Then out is that token's value.
#include <algorithm>

#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

size_t index(int64_t n) { return static_cast<size_t>(n); }

/// What a bit is stored as, in all dtypes of a cache; int4 ends at 7.
double unit_of(DType cache) { return cache == DType::i4 ? 4 : 8; }

PagedCase draw_exact(uint64_t seed, const PagedScope& scope) {
  Random random(seed ^ 0x45584143u);
  PagedCase c = random_paged_case({.seed = seed, .size = Size::small}, scope);
  c.dtype = random.pick({DType::f32, DType::bf16, DType::f16});
  c.cache = random.pick({c.dtype, c.dtype, DType::f32, DType::bf16, DType::i8, DType::e4m3, DType::e5m2, DType::i4});
  c.head_dim = std::max<int64_t>(c.head_dim, 9);
  for (int64_t* dim : {&c.head_dim, &c.value_dim})
    if (c.cache == DType::i4) *dim += *dim % 2;
  if (scope.interleaved) c.value_dim = c.head_dim;
  c.scales = CacheScale::none;
  c.data = Data::normal;
  c.shared = 0;  // a slot is one token
  c.poison = false;
  c.params.logits_soft_cap.reset();
  c.params.softmax_scale = 64 / (unit_of(c.cache) * unit_of(c.cache));
  return c;
}

class OneHot {
 public:
  OneHot(Problem problem, bool lse_by_row, uint64_t seed)
      : problem_(std::move(problem)), reading_(problem_), random_(seed), by_row_(lse_by_row) {
    for (const auto& s : reading_.sequences())
      while ((int64_t{1} << bits_) < s.length()) ++bits_;
  }

  ExactProblem build() {
    fill_cache();
    if (reading_.sinks().present()) fill(reading_.sinks(), [](int64_t) { return -1000; });
    const Tensor& query = reading_.query();
    const int64_t rows = reading_.num_rows(), heads = query.shape[1], dims = reading_.values().dims();
    Expected out{.present = true, .exact = true}, lse = out;
    out.ref.assign(index(rows * heads * dims), 0);
    lse.ref.assign(index(rows * heads), -kInfinity);
    lse.present = !reading_.sinks().present();  // a row with nothing but sinks has their logarithm
    for (const auto& s : reading_.sequences())
      for (int64_t r = 0; r < s.q_len; ++r)
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t t = pick_token(s, r), row = s.q_begin + r;
          if (t < 0) continue;
          for (int64_t d = 0; d < query.shape[2]; ++d) set(query, (row * heads + h) * query.shape[2] + d, code(t, d));
          const int64_t g = h / (heads / reading_.keys().num_heads());
          for (int64_t d = 0; d < dims; ++d)
            out.ref[index((row * heads + h) * dims + d)] = reading_.values().value(s.slots[index(t)], g, d);
          lse.ref[index(by_row_ ? row * heads + h : h * rows + row)] = 64 * static_cast<double>(bits_);
        }
    return {problem_, {.outputs = {std::move(out), std::move(lse)}, .status = reading_.status()}};
  }

 private:
  /// Bit `d` of a token's number; dimensions past the bits are 0.
  double code(int64_t token, int64_t d) const {
    const double unit = unit_of(reading_.keys().codes.dtype);
    return d >= bits_ ? 0 : (token >> d & 1) != 0 ? unit : -unit;
  }

  void fill_cache() {
    const StoredRows &keys = reading_.keys(), &values = reading_.values();
    for (const auto& s : reading_.sequences())
      for (int64_t t = 0; t < s.length(); ++t) {
        const Slot& at = s.slots[index(t)];
        if (!at.exists()) continue;
        for (int64_t g = 0; g < keys.num_heads(); ++g) {
          for (int64_t d = 0; d < keys.dims(); ++d) set(keys.codes, keys.flat(at, g, d), code(t, d));
          for (int64_t d = 0; d < values.dims(); ++d)
            set(values.codes, values.flat(at, g, d), static_cast<double>(random_.between(-7, 7)));
        }
      }
  }

  /// One that the row sees; -1: it sees none.
  int64_t pick_token(const PagedReading::Sequence& s, int64_t r) {
    std::vector<int64_t> visible;
    for (int64_t t = 0; t < s.length(); ++t)
      if (reading_.sees(s, r, t)) visible.push_back(t);
    return visible.empty() ? -1 : random_.pick(visible);
  }

  Problem problem_;
  PagedReading reading_;
  Random random_;
  bool by_row_;
  int64_t bits_ = 0;
};

template <class Op>
ExactProblem exact(uint64_t seed) {
  ExactProblem one = OneHot(make_paged_problem<Op>(draw_exact(seed, kScope<Op>)), !kScope<Op>.rows, seed).build();
  one.problem.replay = "--exact --seed=" + std::to_string(seed);
  return one;
}

}  // namespace

ExactProblem exact_page_attention(uint64_t seed) { return exact<PageAttention>(seed); }
ExactProblem exact_ragged_decode_attention(uint64_t seed) { return exact<RaggedDecodeAttention>(seed); }
ExactProblem exact_ragged_page_attention(uint64_t seed) { return exact<RaggedPageAttention>(seed); }

}  // namespace ejk::testing
