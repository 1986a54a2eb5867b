// What must hold between two calls of flash_attention, whatever the answer is (reliability A6.7).
#include <cmath>
#include <tuple>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/flash_attention/move_tensors_relations.h"

namespace ejk::testing {
namespace {

void set_params(Problem& p, const FlashAttention::Params& params) { p.params = ParamsBlock::of(params); }

/// Nothing that ties a key to its position.
AttentionCase draw_unordered(uint64_t seed, Size size) {
  AttentionCase c = draw_batched(seed, size);
  c.params.causal = false;
  c.params.sliding_window = {};
  c.params.dropout_prob = 0;
  c.seqused_k = false;
  c.num_segments = 0;
  return c;
}
/// Without the tensors of the unpacked form.
AttentionCase draw_plain(uint64_t seed, Size size) {
  AttentionCase c = draw_batched(seed, size);
  c.bias = {}, c.mask = {};
  c.num_segments = 0;
  c.seqused_k = false;
  return c;
}

/// Of two calls with the dtype of `call`. Weights may be rounded to the inputs' dtype before they multiply values
/// (reliability A6.2), so steps of `out` are steps of that one where out is wider; lse is float32 throughout.
std::string compare_outputs(const Problem& call, const std::vector<Array>& a, const std::vector<Array>& b) {
  const double input_steps = few_steps(call.view("query"));
  for (size_t o = 0; o < a.size(); ++o) {
    if (!a[o].present() && !b[o].present()) continue;
    const bool is_lse = o == 1;
    const double steps = is_lse ? few_steps(b[o]) : std::max(few_steps(b[o]), input_steps);
    const std::string wrong = compare(a[o], b[o], steps, is_lse ? 1.0 : 0.05);
    if (!wrong.empty()) return "output " + std::to_string(o) + ": " + wrong;
  }
  return {};
}
std::string compare_outputs_exactly(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t o = 0; o < a.size(); ++o)
    if (const std::string wrong = compare_bits(a[o], b[o]); !wrong.empty())
      return "output " + std::to_string(o) + ": " + wrong;
  return {};
}

/// Inputs whose axis 0 is the batch (in full, not broadcast).
constexpr std::array kOfBatch = {"query",          "key",           "value",          "bias",
                                 "attention_mask", "q_segment_ids", "kv_segment_ids", "seqused_k"};

std::string permuted_batch(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.params.dropout_prob = 0;  // dropout depends on the batch entry's number
  const Problem before = make_attention_problem(c);
  Problem after = before;
  const std::vector<int64_t> order = permutation(c.batch, seed);
  auto moved = [&](Index i) { return i[0] = order[static_cast<size_t>(i[0])], i; };
  for (const char* name : kOfBatch)
    if (const Tensor t = before.view(name); t.present() && t.shape[0] == c.batch)
      put(after, name, t.dtype, t.shape, [&](const Index& i) { return at(t, moved(i)); });
  std::vector<Array> expected = run(before);
  for (Array& output : expected) output = picked(output, output.shape(), moved);
  return compare_outputs_exactly(run(after), expected);
}

std::string permuted_heads(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.params.dropout_prob = 0;
  const Problem before = make_attention_problem(c);
  Problem after = before;
  const std::vector<int64_t> order = permutation(c.num_kv_heads, seed);
  const int64_t group = c.num_q_heads / c.num_kv_heads;
  auto move = [&](int64_t head, int64_t heads) {  // query heads move with their kv head
    if (heads == 1) return head;
    return heads == c.num_kv_heads ? order[static_cast<size_t>(head)]
                                   : order[static_cast<size_t>(head / group)] * group + head % group;
  };
  auto permute = [&](const char* name, size_t axis) {
    const Tensor t = before.view(name);
    if (!t.present() || t.rank() <= static_cast<int>(axis)) return;
    put(after, name, t.dtype, t.shape, [&](Index i) {
      i[axis] = move(i[axis], t.shape[static_cast<int>(axis)]);
      return at(t, i);
    });
  };
  permute("query", 2), permute("key", 2), permute("value", 2), permute("bias", 1), permute("attention_mask", 1);
  if (const Tensor t = before.view("softmax_aux"); t.present() && t.rank() == 2) permute("softmax_aux", 0);
  std::vector<Array> expected = run(before);
  expected[0] = picked(expected[0], expected[0].shape(), [&](Index i) { return i[2] = move(i[2], c.num_q_heads), i; });
  expected[1] = picked(expected[1], expected[1].shape(), [&](Index i) { return i[1] = move(i[1], c.num_q_heads), i; });
  return compare_outputs_exactly(run(after), expected);
}

std::string permuted_keys(uint64_t seed, Size size, const KernelRunner& run) {
  const AttentionCase c = draw_unordered(seed, size);
  const Problem before = make_attention_problem(c);
  Problem after = before;
  const std::vector<int64_t> order = permutation(c.kv_len, seed);
  for (const auto& [name, axis] : {std::pair{"key", 1}, {"value", 1}, {"bias", 3}, {"attention_mask", 3}}) {
    const Tensor t = before.view(name);
    const auto a = static_cast<size_t>(axis);
    if (t.present())
      put(after, name, t.dtype, t.shape, [&](Index i) { return i[a] = order[static_cast<size_t>(i[a])], at(t, i); });
  }
  return compare_outputs(before, run(after), run(before));
}

/// More keys at the end, beyond the length in use and full of NaN.
std::string padded_sequence(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.bias = {}, c.mask = {};
  c.num_segments = 0;
  const Problem before = make_attention_problem(c);
  const int64_t longer = c.kv_len + 1 + static_cast<int64_t>(seed % 40);
  const Problem after = with_unused_keys(before, longer);
  return compare_outputs(before, run(after), run(before));
}

/// Keys that a mask hides, among the others and full of NaN.
std::string masked_nan_keys(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_unordered(seed, size);
  c.mask = {};
  const Problem before = make_attention_problem(c);
  Problem after = before;
  const int64_t more = 1 + static_cast<int64_t>(seed % 9);
  for (const char* name : {"key", "value"}) {
    const Tensor t = before.view(name);
    Shape shape = t.shape;
    shape[1] += more;
    put(after, name, t.dtype, shape, [&](Index i) { return i[1] < more ? std::nan("") : (i[1] -= more, at(t, i)); });
  }
  if (const Tensor t = before.view("bias"); t.present()) {
    Shape shape = t.shape;
    shape[3] += more;
    put(after, "bias", t.dtype, shape, [&](Index i) { return i[3] < more ? 0.0 : (i[3] -= more, at(t, i)); });
  }
  put(after, "attention_mask", DType::boolean, {1, 1, 1, c.kv_len + more},
      [&](const Index& i) { return i[3] >= more ? 1.0 : 0.0; });
  return compare_outputs(before, run(after), run(before));
}

/// Keys in two parts, whose results are merged by their lse.
std::string split_keys(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_unordered(seed, size);
  c.params.out_dtype = DType::f32;
  c.kv_len = std::max<int64_t>(c.kv_len, 2);
  const Problem whole = make_attention_problem(c);
  const int64_t first = 1 + static_cast<int64_t>(seed % static_cast<uint64_t>(c.kv_len - 1));
  std::array<std::vector<Array>, 2> parts;
  for (size_t part = 0; part < 2; ++part) {
    Problem p = whole;
    const int64_t begin = part == 0 ? 0 : first, count = part == 0 ? first : c.kv_len - first;
    for (const auto& [name, axis] : {std::pair{"key", 1}, {"value", 1}, {"bias", 3}, {"attention_mask", 3}}) {
      const Tensor t = whole.view(name);
      if (!t.present()) continue;
      Shape shape = t.shape;
      shape[axis] = count;
      put(p, name, t.dtype, shape, [&, a = static_cast<size_t>(axis)](Index i) { return i[a] += begin, at(t, i); });
    }
    if (part == 1) p.inputs[7] = {};  // the sinks count once
    parts[part] = run(p);
  }
  std::vector<Array> expected = run(whole);
  auto lse_of = [&](size_t part, const Index& i) { return at(parts[part][1], {i[0], i[2], i[1]}); };
  Array merged = expected[0].clone();
  fill(merged, [&](int64_t n) {
    const Index i = index_of(merged, n);
    const double a = lse_of(0, i), b = lse_of(1, i), most = std::max(a, b);
    if (most == -kInfinity) return 0.0;
    const double ea = std::exp(a - most), eb = std::exp(b - most);
    return (ea * at(parts[0][0], i) + eb * at(parts[1][0], i)) / (ea + eb);
  });
  // The rounding of out to a narrow input's dtype is not there; that of P is.
  return compare(merged, expected[0], few_steps(whole.view("query")), 0.05);
}

/// Replaces the parameter's mask by an attention_mask that says the same.
template <class F>
std::string same_under_mask(const AttentionCase& c, const KernelRunner& run, FlashAttention::Params without,
                            F&& visible) {
  const Problem before = make_attention_problem(c);
  Problem after = before;
  set_params(after, without);
  const Tensor mask = before.view("attention_mask");
  put(after, "attention_mask", DType::boolean, {c.batch, c.num_q_heads, c.q_len, c.kv_len},
      [&](const Index& i) { return visible(i[0], i[2], i[3]) && (!mask.present() || at(mask, i) != 0) ? 1.0 : 0.0; });
  return compare_outputs(before, run(after), run(before));
}

int64_t aligned(const AttentionCase& c, int64_t i) {
  return i + (c.params.causal_align == CausalAlign::bottom_right ? c.kv_len - c.q_len : 0);
}

std::string causal_is_a_mask(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.params.causal = true;
  c.params.sliding_window = {};
  c.seqused_k = false;
  FlashAttention::Params without = c.params;
  without.causal = false;
  return same_under_mask(c, run, without, [&](int64_t, int64_t i, int64_t j) { return j <= aligned(c, i); });
}

std::string window_is_a_mask(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  Random random(seed ^ 0x57494E44u);
  c.params.sliding_window = Window(random.below(c.kv_len), random.below(c.kv_len));
  c.seqused_k = false;
  FlashAttention::Params without = c.params;
  without.sliding_window = {};
  return same_under_mask(c, run, without, [&](int64_t, int64_t i, int64_t j) {
    const Window& w = c.params.sliding_window;
    return j < c.params.attention_sink_size || (aligned(c, i) - w.left <= j && j <= aligned(c, i) + w.right);
  });
}

std::string segments_are_a_mask(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.num_segments = 1 + static_cast<int64_t>(seed % 4);
  c.kv_segments = true;
  const Problem labelled = make_attention_problem(c);
  const Tensor of_query = labelled.view("q_segment_ids"), of_key = labelled.view("kv_segment_ids");
  Problem masked = labelled;
  masked.inputs[5] = masked.inputs[6] = {};
  const Tensor mask = labelled.view("attention_mask");
  put(masked, "attention_mask", DType::boolean, {c.batch, c.num_q_heads, c.q_len, c.kv_len}, [&](const Index& i) {
    const double q = at(of_query, {i[0], i[2]}), k = at(of_key, {i[0], i[3]});
    const bool allowed = !mask.present() || at(mask, i) != 0;
    return q == k && q >= 0 && allowed ? 1.0 : 0.0;
  });
  return compare_outputs(labelled, run(masked), run(labelled));
}

std::string wide_window(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.params.sliding_window = {};
  const Problem without = make_attention_problem(c);
  Problem with = without;
  FlashAttention::Params params = c.params;
  params.sliding_window = Window(c.q_len + c.kv_len, c.q_len + c.kv_len);
  set_params(with, params);
  return compare_outputs_exactly(run(with), run(without));
}

std::string doubled_values(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem once = make_attention_problem(draw_batched(seed, size));
  Problem twice = once;
  const Tensor v = once.view("value");
  put(twice, "value", v.dtype, v.shape, [&](const Index& i) { return 2 * at(v, i); });
  std::vector<Array> expected = run(once);
  const Array out = expected[0];
  expected[0] = picked(out, out.shape(), [](const Index& i) { return i; });
  fill(expected[0], [&](int64_t n) { return 2 * get(out, n); });
  // Not exactly: the smallest numbers of float16 have fewer digits than their doubles.
  return compare_outputs(once, run(twice), expected);
}

std::string shifted_logits(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.params.logits_soft_cap.reset();
  c.num_sinks = 0;
  c.bias = {};
  const Problem before = make_attention_problem(c);
  Problem after = before;
  const double shift = 3;
  put(after, "bias", DType::f32, {1, 1, 1, c.kv_len}, [&](const Index&) { return shift; });
  std::vector<Array> expected = run(before);
  const Array lse = expected[1];
  expected[1] = lse.clone();
  fill(expected[1], [&](int64_t n) { return get(lse, n) + shift; });
  return compare_outputs(before, run(after), expected);
}

/// A sink is a key without a value.
std::string sinks_are_keys(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_unordered(seed, size);
  c.params.logits_soft_cap.reset();
  c.mask = {}, c.bias = {};
  c.num_sinks = 1 + static_cast<int64_t>(seed % 3);
  c.bias_dtype = DType::f32;
  const Problem with_sinks = make_attention_problem(c);
  const Tensor sinks = with_sinks.view("softmax_aux");
  Problem with_keys = with_sinks;
  with_keys.inputs[7] = {};
  for (const char* name : {"key", "value"}) {
    const Tensor t = with_sinks.view(name);
    Shape shape = t.shape;
    shape[1] += c.num_sinks;
    put(with_keys, name, t.dtype, shape, [&](const Index& i) { return i[1] < c.kv_len ? at(t, i) : 0.0; });
  }
  put(with_keys, "bias", DType::f32, {1, c.num_q_heads, 1, c.kv_len + c.num_sinks}, [&](const Index& i) {
    if (i[3] < c.kv_len) return 0.0;
    return sinks.rank() == 1 ? at(sinks, {i[3] - c.kv_len}) : at(sinks, {i[1], i[3] - c.kv_len});
  });
  return compare_outputs(with_sinks, run(with_keys), run(with_sinks));
}

std::string repeated_heads(uint64_t seed, Size size, const KernelRunner& run) {
  const AttentionCase c = draw_batched(seed, size);
  const Problem grouped = make_attention_problem(c);
  Problem repeated = grouped;
  for (const char* name : {"key", "value"}) {
    const Tensor t = grouped.view(name);
    Shape shape = t.shape;
    shape[2] = c.num_q_heads;
    put(repeated, name, t.dtype, shape, [&](Index i) { return i[2] /= c.num_q_heads / c.num_kv_heads, at(t, i); });
  }
  return compare_outputs(grouped, run(repeated), run(grouped));
}

std::string head_major(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.random_layouts = false;
  const Problem plain = make_attention_problem(c);
  const Problem moved = relaid(plain, [&](size_t input) {
    Layout layout;
    if (input < 3) layout.order = {0, 2, 1, 3};  // query, key, value
    return layout;
  });
  return compare_outputs_exactly(run(moved), run(plain));
}

std::string packed_sequences(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_plain(seed, size);
  c.params.dropout_prob = 0;
  Random random(seed ^ 0x5041434Bu);
  c.q_lens = {c.q_len, random.below(c.q_len + 1), 1}, c.k_lens = {c.kv_len, random.below(c.kv_len + 1), c.kv_len / 2};
  const Problem packed = make_attention_problem(c);
  const std::vector<Array> together = run(packed);
  int64_t q_begin = c.unowned_rows, k_begin = c.unowned_rows;
  for (size_t n = 0; n < c.q_lens.size(); ++n) {
    Problem one = Problem::of(*packed.operation);
    one.seed = seed, one.params = packed.params;
    one.inputs[7] = packed.inputs[7];
    for (const auto& [name, begin, count] :
         {std::tuple{"query", q_begin, c.q_lens[n]}, {"key", k_begin, c.k_lens[n]}, {"value", k_begin, c.k_lens[n]}}) {
      const Tensor t = packed.view(name);
      put(one, name, t.dtype, {1, count, t.shape[1], t.shape[2]}, [&, begin = begin](const Index& i) {
        return at(t, {i[1] + begin, i[2], i[3]});
      });
    }
    std::vector<Array> alone = run(one), part = alone;
    part[0] = picked(together[0], alone[0].shape(), [&](const Index& i) { return Index{i[1] + q_begin, i[2], i[3]}; });
    part[1] = picked(together[1], alone[1].shape(), [&](const Index& i) { return Index{i[1], i[2] + q_begin}; });
    if (const std::string wrong = compare_outputs(packed, part, alone); !wrong.empty())
      return "sequence " + std::to_string(n) + ", " + wrong;
    q_begin += c.q_lens[n], k_begin += c.k_lens[n];
  }
  return {};
}

std::string one_key_gives_its_value(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_plain(seed, size);
  c.params = {};
  c.kv_len = 1;
  c.num_sinks = 0;
  const Problem p = make_attention_problem(c);
  const std::vector<Array> got = run(p);
  const Tensor v = p.view("value");
  const int64_t group = c.num_q_heads / c.num_kv_heads;
  return compare_bits(got[0], picked(v, got[0].shape(), [&](const Index& i) {
                        return Index{i[0], 0, i[2] / group, i[3]};
                      }));
}

/// Unnormalised rows are the normalised ones times a factor that is at least 1 / number of keys and the same for all d.
std::string unnormalised_is_proportional(uint64_t seed, Size size, const KernelRunner& run) {
  AttentionCase c = draw_batched(seed, size);
  c.params.out_dtype = DType::f32;
  c.num_sinks = 0;
  const Problem normalised = make_attention_problem(c);
  Problem sums = normalised;
  FlashAttention::Params params = c.params;
  params.normalize_output = false;
  set_params(sums, params);
  const std::vector<Array> a = run(normalised), b = run(sums);
  const int64_t dims = a[0].shape()[3];
  Array scaled = b[0].clone();
  for (int64_t row = 0; row < b[0].num_elements() / dims; ++row) {
    double dot = 0, squares = 0;
    for (int64_t n = row * dims; n < (row + 1) * dims; ++n)
      dot += get(a[0], n) * get(b[0], n), squares += get(a[0], n) * get(a[0], n);
    const double factor = squares == 0 ? 1 : dot / squares;
    if (!(factor > 0.999)) return "row " + std::to_string(row) + ": a sum of probabilities below 1";
    for (int64_t n = row * dims; n < (row + 1) * dims; ++n) set(scaled, n, get(b[0], n) / factor);
  }
  if (const std::string wrong = compare_bits(b[1], a[1]); !wrong.empty()) return "lse: " + wrong;
  return compare(scaled, a[0], few_steps(normalised.view("query")), 0.05);
}

}  // namespace

std::vector<Relation> flash_attention_relations() {
  return {
      {"a permuted batch permutes the outputs", permuted_batch},
      {"permuted heads permute the outputs", permuted_heads},
      {"the order of keys does not matter", permuted_keys},
      {"padding beyond the length in use changes nothing", padded_sequence},
      {"masked keys full of NaN change nothing", masked_nan_keys},
      {"parts of the keys merge by their lse", split_keys},
      {"causal is an explicit mask", causal_is_a_mask},
      {"a window is an explicit mask", window_is_a_mask},
      {"segments are a block mask", segments_are_a_mask},
      {"a window wider than the sequence is none", wide_window},
      {"doubled values double the output", doubled_values},
      {"a constant added to the logits moves only lse", shifted_logits},
      {"a sink is a key without a value", sinks_are_keys},
      {"grouped heads are repeated heads", repeated_heads},
      {"head-major strides change nothing", head_major},
      {"packed sequences are sequences alone", packed_sequences},
      {"one visible key gives its value", one_key_gives_its_value},
      {"unnormalised sums are proportional", unnormalised_is_proportional},
  };
}

}  // namespace ejk::testing
