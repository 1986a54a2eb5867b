// What must hold between calls of ragged_decode_attention, and between it and flash_attention.
#include <algorithm>
#include <cmath>

#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

/// One query a batch entry over the tokens in use, shifted to the front, as float32.
Problem flash_call(const Problem& problem) {
  const Problem plain = dequantised(problem);
  const PagedReading reading(plain);
  Problem to = Problem::of(declaration<FlashAttention>());
  const auto from = problem.params.as<RaggedDecodeAttention::Params>();
  to.params = ParamsBlock::of(FlashAttention::Params{.softmax_scale = from.softmax_scale,
                                                     .causal = true,
                                                     .sliding_window = from.sliding_window,
                                                     .attention_sink_size = from.attention_sink_size,
                                                     .logits_soft_cap = from.logits_soft_cap});
  const Tensor query = reading.query(), key = plain.view("key"), sinks = problem.view("softmax_aux");
  put(to, "query", DType::f32, {query.shape[0], 1, query.shape[1], query.shape[2]}, [&](const Index& i) {
    return at(query, {i[0], i[2], i[3]});
  });
  for (const auto& [name, rows] : {std::pair{"key", &reading.keys()}, std::pair{"value", &reading.values()}})
    put(to, name, DType::f32, {key.shape[0], key.shape[1], key.shape[2], rows->dims()}, [&](const Index& i) {
      const auto& slots = reading.sequences()[static_cast<size_t>(i[0])].slots;
      const auto t = static_cast<size_t>(i[1]);
      return t < slots.size() ? rows->value(slots[t], i[2], i[3]) : std::nan("");
    });
  put(to, "seqused_k", DType::i32, {key.shape[0]},
      [&](const Index& i) { return reading.sequences()[static_cast<size_t>(i[0])].length(); });
  if (sinks.present()) put(to, "softmax_aux", sinks.dtype, sinks.shape, [&](const Index& i) { return at(sinks, i); });
  return to;
}

std::string decode_is_flash(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem decode =
      make_paged_problem<RaggedDecodeAttention>(draw_paged(seed, size, kScope<RaggedDecodeAttention>));
  const Problem flash = flash_call(decode);
  std::vector<Array> expected = run_reference_of(flash);  // [batch, 1, heads, dim] and [batch, heads, 1]
  const std::vector<Array> got = all_rows(decode, run(decode));
  for (size_t o = 0; o < 2; ++o) {
    const Array from = expected[o];
    expected[o] = Array(from.dtype(), got[o].shape());
    fill(expected[o], [&](int64_t n) { return get(from, n); });
  }
  return compare_results(decode.view("query"), got, expected);
}

/// Tokens before and after a cut, whose results are merged by their lse.
std::string split_keys(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw_paged(seed, size, kScope<RaggedDecodeAttention>);
  c.params.sliding_window = {};
  const Problem whole = make_paged_problem<RaggedDecodeAttention>(c);
  const Tensor start = whole.view("sequence_start"), end = whole.view("sequence_end");
  auto cut = [&](const Index& i) {
    const double length = std::max(at(end, i) - at(start, i), 0.0);
    return at(start, i) + std::floor(length * static_cast<double>(seed % 5) / 5);
  };
  Problem first = whole, second = whole;
  put(first, "sequence_end", DType::i32, end.shape, cut);
  put(second, "sequence_start", DType::i32, start.shape, cut);
  second.inputs[5] = {};  // the sinks count once
  const auto a = all_rows(first, run(first)), b = all_rows(second, run(second)), expected = all_rows(whole, run(whole));
  const Array out = expected[0].clone();
  const int64_t dims = out.shape()[2];
  fill(out, [&](int64_t n) {
    const double x = get(a[1], n / dims), y = get(b[1], n / dims), most = std::max(x, y);
    if (most == -kInfinity) return 0.0;
    const double ex = std::exp(x - most), ey = std::exp(y - most);
    return (ex * get(a[0], n) + ey * get(b[0], n)) / (ex + ey);
  });
  return compare_results(whole.view("query"), {out, expected[1]}, expected);
}

}  // namespace

std::vector<Relation> ragged_decode_attention_relations() {
  using Op = RaggedDecodeAttention;
  return {{"decode_is_flash_attention", decode_is_flash},
          {"split_keys_merge_by_lse", split_keys},
          {"sequences_are_calls_of_their_own", loop_over_sequences<Op>},
          {"permuted_sequences_permute_results", permuted_sequences<Op>},
          {"batch_invariant_row_is_the_row_alone", row_alone<Op>},
          {"wide_window_is_none", wide_window<Op>},
          {"unused_slots_change_nothing", unused_slots<Op>},
          {"doubled_values_double_out", doubled_values<Op>},
          {"scaled_codes_are_numbers", scaled_codes<Op>}};
}

}  // namespace ejk::testing
