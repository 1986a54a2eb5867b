// What must hold between calls of ragged_page_attention_v3, and between it and the two operations that it is made of.
#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

using Op = RaggedPageAttentionV3;

PagedCase draw(uint64_t seed, Size size) { return draw_paged(seed, size, kScope<Op>); }

void copy_to(Problem& to, std::string_view as, const Tensor& t) {
  if (t.present()) put(to, as, t.dtype, t.shape, [&](const Index& i) { return at(t, i); });
}

/// The table as [sequences, pages].
void copy_table(Problem& to, const Problem& from) {
  const Tensor flat = from.view("block_tables");
  const int64_t sequences = from.view("context_lens").shape[0];
  const int64_t width = sequences == 0 ? 0 : flat.shape[0] / sequences;
  put(to, "block_tables", DType::i32, {sequences, width},
      [&](const Index& i) { return at(flat, {i[0] * width + i[1]}); });
}

/// page_append of the same rows, into caches of their own.
Problem append_call(const Problem& problem) {
  Problem to = Problem::of(declaration<PageAppend>());
  for (const std::string_view name : {"keys", "values", "context_lens", "query_start_loc", "k_scale", "v_scale"})
    copy_to(to, name, problem.view(name));
  copy_table(to, problem);
  const Tensor both = problem.view("kv_cache");
  for (const auto& [name, part] : {std::pair{"key_cache", 0}, std::pair{"value_cache", 1}})
    put(to, name, both.dtype, {both.shape[0], both.shape[1], both.shape[2] / 2, both.shape[3]}, [&](const Index& i) {
      return at(both, {i[0], i[1], 2 * i[2] + part, i[3]});
    });
  return to;
}

/// ragged_page_attention over this cache.
Problem attention_call(const Problem& problem, const Tensor& cache) {
  Problem to = Problem::of(declaration<RaggedPageAttention>());
  const auto from = problem.params.as<Op::Params>();
  to.params = ParamsBlock::of(RaggedPageAttention::Params{.softmax_scale = from.softmax_scale,
                                                          .sliding_window = from.sliding_window,
                                                          .attention_sink_size = from.attention_sink_size,
                                                          .logits_soft_cap = from.logits_soft_cap});
  for (const std::string_view name :
       {"queries", "context_lens", "query_start_loc", "softmax_aux", "k_scale", "v_scale"})
    copy_to(to, name, problem.view(name));
  copy_table(to, problem);
  copy_to(to, "kv_pages", cache);
  put(to, "num_seqs", DType::i32, {1}, [&](const Index&) { return at(problem.view("distribution"), {2}); });
  return to;
}

std::string append_then_attend(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  c.idle_sequences = 0;  // page_append has no count
  c.q_scale = false;
  const Problem problem = make_paged_problem<Op>(c);
  const std::vector<Array> got = run(problem), caches = run_reference_of(append_call(problem));
  const Array both = picked(got[1], got[1].shape(), [](const Index& i) { return i; });
  fill(both, [&](int64_t n) {
    const Index i = index_of(both, n);
    return at(caches[static_cast<size_t>(i[2] % 2)], {i[0], i[1], i[2] / 2, i[3]});
  });
  if (const std::string wrong = compare_bits(got[1], both); !wrong.empty()) return "kv_cache: " + wrong;
  const Problem attention = attention_call(problem, both);
  return compare_results(problem.view("queries"), all_rows(problem, got),
                         all_rows(attention, run_reference_of(attention)));
}

/// q_scale is a factor of softmax_scale.
std::string query_scale(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  c.q_scale = true;
  const Problem with = make_paged_problem<Op>(c);
  auto params = with.params.as<Op::Params>();
  const double scale = params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim)));
  params.softmax_scale = scale * get(with.view("q_scale"), 0);
  Problem without = with;
  put(without, "q_scale", DType::f32, {}, [](const Index&) { return 1; });
  without.params = ParamsBlock::of(params);
  return compare_results(with.view("queries"), all_rows(without, run(without)), all_rows(with, run(with)));
}

/// Of distribution only the total counts.
std::string distribution_hints(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem problem = make_paged_problem<Op>(draw(seed, size));
  Problem hinted = problem;
  const double total = at(problem.view("distribution"), {2});
  put(hinted, "distribution", DType::i32, {3}, [&](const Index& i) {
    return i[0] == 2 ? total
                     : static_cast<double>(Random(seed + static_cast<uint64_t>(i[0])).between(INT32_MIN, INT32_MAX));
  });
  const std::vector<Array> a = run(hinted), b = run(problem);
  for (size_t o = 0; o < a.size(); ++o)
    if (const std::string wrong = compare_bits(a[o], b[o]); !wrong.empty()) return wrong;
  return {};
}

}  // namespace

std::vector<Relation> ragged_page_attention_v3_relations() {
  return {{"append_then_attend", append_then_attend},
          {"q_scale_is_a_factor_of_the_logits", query_scale},
          {"distribution_is_a_hint_but_for_the_total", distribution_hints},
          {"permuted_pages_change_nothing", permuted_pages<Op>},
          {"sequences_are_calls_of_their_own", loop_over_sequences<Op>},
          {"permuted_sequences_permute_results", permuted_sequences<Op>},
          {"batch_invariant_row_is_the_row_alone", row_alone<Op>},
          {"wide_window_is_none", wide_window<Op>},
          {"unused_slots_change_nothing", unused_slots<Op>}};
}

}  // namespace ejk::testing
