// What must hold between calls of ragged_page_attention, and between it and page_attention.
#include <algorithm>

#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

/// The newest row of every sequence that has one, as a call of page_attention over two caches.
Problem decode_call(const Problem& newest) {
  Problem to = Problem::of(declaration<PageAttention>());
  const auto from = newest.params.as<RaggedPageAttention::Params>();
  to.params = ParamsBlock::of(PageAttention::Params{.softmax_scale = from.softmax_scale,
                                                    .sliding_window = from.sliding_window,
                                                    .attention_sink_size = from.attention_sink_size,
                                                    .logits_soft_cap = from.logits_soft_cap});
  auto copy = [&](std::string_view name, std::string_view as) {
    const Tensor t = newest.view(name);
    if (t.present()) put(to, as, t.dtype, t.shape, [&](const Index& i) { return at(t, i); });
  };
  for (const auto& [name, as] : {std::pair{"queries", "query"},
                                 {"context_lens", "context_lens"},
                                 {"block_tables", "block_tables"},
                                 {"softmax_aux", "softmax_aux"},
                                 {"k_scale", "k_scale"},
                                 {"v_scale", "v_scale"}})
    copy(name, as);
  const Tensor both = newest.view("kv_pages");
  const Shape shape = {both.shape[0], both.shape[1], both.shape[2] / 2, both.shape[3]};
  for (const auto& [name, part] : {std::pair{"key_cache", 0}, std::pair{"value_cache", 1}})
    put(to, name, both.dtype, shape, [&](const Index& i) { return at(both, {i[0], i[1], 2 * i[2] + part, i[3]}); });
  return to;
}

std::string newest_rows_are_decode(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem mixed = make_paged_problem<RaggedPageAttention>(draw_paged(seed, size, kScope<RaggedPageAttention>));
  const PagedReading reading(mixed);
  std::vector<Piece> pieces;
  for (const Piece& piece : whole_sequences(reading))
    if (piece.num_rows > 0)
      pieces.push_back({.sequence = piece.sequence, .first_row = piece.num_rows - 1, .length = piece.length});
  const Problem decode = decode_call(selected(mixed, reading, pieces));
  return compare_results(mixed.view("queries"), rows_of(mixed, reading, run(mixed), pieces),
                         all_rows(decode, run_reference_of(decode)));
}

/// A chunk in two: each row sees what is before it, whichever call it is in.
std::string chunks_are_one(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem mixed = make_paged_problem<RaggedPageAttention>(draw_paged(seed, size, kScope<RaggedPageAttention>));
  const PagedReading reading(mixed);
  std::vector<Piece> halves;
  for (const Piece& piece : whole_sequences(reading)) {
    const int64_t older = piece.length - piece.num_rows, half = piece.num_rows / 2;
    if (older < 0) continue;
    halves.push_back({.sequence = piece.sequence, .num_rows = half, .length = older + half});
    halves.push_back(
        {.sequence = piece.sequence, .first_row = half, .num_rows = piece.num_rows - half, .length = piece.length});
  }
  const Problem split = selected(mixed, reading, halves);
  return compare_results(mixed.view("queries"), all_rows(split, run(split)),
                         rows_of(mixed, reading, run(mixed), halves));
}

}  // namespace

std::vector<Relation> ragged_page_attention_relations() {
  using Op = RaggedPageAttention;
  return {{"permuted_pages_change_nothing", permuted_pages<Op>},
          {"newest_rows_are_decode", newest_rows_are_decode},
          {"chunks_of_a_sequence_are_one", chunks_are_one},
          {"sequences_are_calls_of_their_own", loop_over_sequences<Op>},
          {"permuted_sequences_permute_results", permuted_sequences<Op>},
          {"batch_invariant_row_is_the_row_alone", row_alone<Op>},
          {"wide_window_is_none", wide_window<Op>},
          {"unused_slots_change_nothing", unused_slots<Op>},
          {"doubled_values_double_out", doubled_values<Op>},
          {"scaled_codes_are_numbers", scaled_codes<Op>}};
}

}  // namespace ejk::testing
