// What must hold between calls of page_attention, and between it and the operations over keys in a row.
#include <algorithm>
#include <cmath>

#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

PagedCase draw(uint64_t seed, Size size) { return draw_paged(seed, size, kScope<PageAttention>); }

/// Every sequence's tokens in a row of their own, from a slot that is not the first.
Problem contiguous_call(const Problem& problem) {
  constexpr int64_t kFirst = 3;
  const PagedReading reading(problem);
  Problem to = Problem::of(declaration<RaggedDecodeAttention>());
  const auto from = problem.params.as<PageAttention::Params>();
  to.params = ParamsBlock::of(RaggedDecodeAttention::Params{.softmax_scale = from.softmax_scale,
                                                            .sliding_window = from.sliding_window,
                                                            .attention_sink_size = from.attention_sink_size,
                                                            .logits_soft_cap = from.logits_soft_cap});
  const auto count = static_cast<int64_t>(reading.sequences().size());
  int64_t longest = 0;
  for (const auto& s : reading.sequences()) longest = std::max(longest, s.length());
  auto copy = [&](std::string_view name) {
    const Tensor t = problem.view(name);
    if (t.present()) put(to, name, t.dtype, t.shape, [&](const Index& i) { return at(t, i); });
  };
  copy("query"), copy("softmax_aux");
  for (const auto& [name, scale_name, rows] :
       {std::tuple{"key", "k_scale", &reading.keys()}, std::tuple{"value", "v_scale", &reading.values()}}) {
    auto gather = [&](std::string_view input, DType dtype, int64_t last, auto&& element) {
      const Tensor t = to.add(input, dtype, {count, longest + kFirst, rows->num_heads(), last});
      fill(t, [](int64_t) { return 0; });
      for (const auto& s : reading.sequences())
        for (int64_t j = 0; j < s.length(); ++j)
          for (int64_t g = 0; g < rows->num_heads(); ++g)
            for (int64_t d = 0; d < last; ++d)
              set(t, (((s.index * t.shape[1]) + kFirst + j) * t.shape[2] + g) * last + d,
                  element(s.slots[static_cast<size_t>(j)], g, d));
    };
    gather(name, rows->codes.dtype, rows->dims(),
           [&](const Slot& slot, int64_t g, int64_t d) { return get(rows->codes, rows->flat(slot, g, d)); });
    if (!rows->scale.present() || rows->scale.rank() < 4) {
      copy(scale_name);
    } else {
      const int64_t groups = rows->scale.shape[3], size = rows->dims() / groups;
      gather(scale_name, DType::f32, groups,
             [&](const Slot& slot, int64_t g, int64_t d) { return rows->scale_at(slot, g, d * size); });
    }
  }
  const Tensor lens = problem.view("context_lens");
  put(to, "sequence_start", DType::i32, lens.shape, [](const Index&) { return kFirst; });
  put(to, "sequence_end", DType::i32, lens.shape, [&](const Index& i) { return kFirst + at(lens, i); });
  return to;
}

std::string paged_is_contiguous(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  c.missing = 0;
  const Problem paged = make_paged_problem<PageAttention>(c);
  const Problem gathered = contiguous_call(paged);
  return compare_results(paged.view("query"), all_rows(paged, run(paged)),
                         all_rows(gathered, run_reference_of(gathered)));
}

/// The same tokens in pages of another size.
std::string other_page_size(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  c.missing = 0, c.shared = 0;
  c.scales = c.scales == CacheScale::grouped ? CacheScale::per_head : c.scales;
  const Problem before = make_paged_problem<PageAttention>(c);
  c.page_size = c.page_size == 16 ? 5 : 16;
  const Problem after = make_paged_problem<PageAttention>(c);
  const PagedReading from(before), to(after);
  for (size_t n = 0; n < from.sequences().size(); ++n)
    for (size_t t = 0; t < from.sequences()[n].slots.size(); ++t)
      for (const auto& [a, b] : {std::pair{&from.keys(), &to.keys()}, std::pair{&from.values(), &to.values()}})
        for (int64_t g = 0; g < a->num_heads(); ++g)
          for (int64_t d = 0; d < a->dims(); ++d)
            set(b->codes, b->flat(to.sequences()[n].slots[t], g, d),
                get(a->codes, a->flat(from.sequences()[n].slots[t], g, d)));
  Problem moved = before;  // query, sinks and scales of the first; cache and table of the second
  for (const std::string_view name : {"key_cache", "value_cache", "block_tables"}) {
    const Tensor t = after.view(name);
    put(moved, name, t.dtype, t.shape, [&](const Index& i) { return at(t, i); });
  }
  return compare_results(before.view("query"), all_rows(moved, run(moved)), all_rows(before, run(before)));
}

/// Pages before and after a cut, whose results are merged by their lse.
std::string split_keys(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  c.params.sliding_window = {};
  const Problem whole = make_paged_problem<PageAttention>(c);
  const Tensor lens = whole.view("context_lens"), table = whole.view("block_tables");
  auto cut = [&](int64_t n) {  // in pages
    return static_cast<int64_t>(at(lens, {n})) / c.page_size * static_cast<int64_t>(1 + seed % 3) / 3;
  };
  Problem first = whole, second = whole;
  put(first, "context_lens", DType::i32, lens.shape, [&](const Index& i) { return cut(i[0]) * c.page_size; });
  put(second, "context_lens", DType::i32, lens.shape,
      [&](const Index& i) { return at(lens, i) - static_cast<double>(cut(i[0]) * c.page_size); });
  put(second, "block_tables", DType::i32, table.shape, [&](const Index& i) {
    const int64_t entry = i[1] + cut(i[0]);
    return entry < table.shape[1] ? at(table, {i[0], entry}) : -1;
  });
  second.inputs[5] = {};  // the sinks count once
  const auto a = all_rows(first, run(first)), b = all_rows(second, run(second)), expected = all_rows(whole, run(whole));
  const Array out = expected[0].clone(), lse = expected[1].clone();
  const int64_t dims = out.shape()[2];
  fill(lse, [&](int64_t n) {
    const double x = get(a[1], n), y = get(b[1], n), most = std::max(x, y);
    return most == -kInfinity ? most : most + std::log(std::exp(x - most) + std::exp(y - most));
  });
  fill(out, [&](int64_t n) {
    const double x = get(a[1], n / dims), y = get(b[1], n / dims), most = std::max(x, y);
    if (most == -kInfinity) return 0.0;
    const double ex = std::exp(x - most), ey = std::exp(y - most);
    return (ex * get(a[0], n) + ey * get(b[0], n)) / (ex + ey);
  });
  return compare_results(whole.view("query"), {out, lse}, expected);
}

std::string head_major(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  c.params.cache_layout = CacheLayout::page_major;
  c.random_layouts = false;
  const Problem pages = make_paged_problem<PageAttention>(c);
  Problem heads = pages;
  auto params = pages.params.as<PageAttention::Params>();
  params.cache_layout = CacheLayout::head_major;
  heads.params = ParamsBlock::of(params);
  for (const std::string_view name : {"key_cache", "value_cache"}) {
    const Tensor t = pages.view(name);
    put(heads, name, t.dtype, {t.shape[0], t.shape[2], t.shape[1], t.shape[3]}, [&](const Index& i) {
      return at(t, {i[0], i[2], i[1], i[3]});
    });
  }
  return compare_results_exactly(all_rows(heads, run(heads)), all_rows(pages, run(pages)));
}

}  // namespace

std::vector<Relation> page_attention_relations() {
  using Op = PageAttention;
  return {{"permuted_pages_change_nothing", permuted_pages<Op>},
          {"pages_are_keys_in_a_row", paged_is_contiguous},
          {"page_size_changes_nothing", other_page_size},
          {"head_major_is_page_major", head_major},
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
