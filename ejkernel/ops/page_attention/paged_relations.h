// Relations of the operations over a cache: what must hold between calls of one kernel (reliability A6.7). Those here
// hold for several of them.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "ejkernel/ops/flash_attention/move_tensors_relations.h"
#include "ejkernel/ops/page_append/page_append.h"
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"

namespace ejk::testing {

template <class Op>
inline constexpr PagedScope kScope = {
    .rows = !std::is_same_v<Op, PageAttention> && !std::is_same_v<Op, RaggedDecodeAttention>,
    .interleaved = std::is_same_v<Op, RaggedPageAttention> || std::is_same_v<Op, RaggedPageAttentionV3>,
    .writes = std::is_same_v<Op, PageAppend> || std::is_same_v<Op, RaggedPageAttentionV3>};

/// A description of ordinary numbers with at least one token.
PagedCase draw_paged(uint64_t seed, Size size, const PagedScope& scope);

/// Part of a sequence as a sequence of another call: some of its rows, the first `length` of its tokens.
struct Piece {
  int64_t sequence = 0, first_row = 0, num_rows = 1, length = 0;
};
/// Every sequence in use, whole.
std::vector<Piece> whole_sequences(const PagedReading& reading);
/// A call of these pieces over the same cache; its table is no wider than they need.
Problem selected(const Problem& from, const PagedReading& reading, const std::vector<Piece>& pieces);
/// out and lse of these pieces, row by row, from the results of the call they come from.
std::vector<Array> rows_of(const Problem& problem, const PagedReading& reading, const std::vector<Array>& results,
                           const std::vector<Piece>& pieces);
/// out and lse of all rows, row by row.
std::vector<Array> all_rows(const Problem& problem, const std::vector<Array>& results);

/// Two times out and lse, from calls with this query.
std::string compare_results(const Tensor& query, const std::vector<Array>& a, const std::vector<Array>& b);
std::string compare_results_exactly(const std::vector<Array>& a, const std::vector<Array>& b);

/// Pages in another order, here and in the table.
Problem with_permuted_pages(const Problem& before, uint64_t seed);
/// Tensors whose first axis is that of pages, by the names that the operation has of them.
std::vector<std::string_view> tensors_of_pages(const Problem& problem);
/// The same call over a float32 cache of what codes and scales say.
Problem dequantised(const Problem& problem);
/// Results of the operation's reference kernel.
std::vector<Array> run_reference_of(const Problem& problem);

// ---- relations ----

std::string check_permuted_pages(const Problem& problem, uint64_t seed, const KernelRunner& run);
std::string check_loop(const Problem& problem, uint64_t seed, const KernelRunner& run);
std::string check_permuted_sequences(const Problem& problem, uint64_t seed, const KernelRunner& run);
std::string check_alone(const Problem& problem, uint64_t seed, const KernelRunner& run);
std::string check_doubled_values(const Problem& problem, const KernelRunner& run);

template <class Op>
std::string permuted_pages(uint64_t seed, Size size, const KernelRunner& run) {
  return check_permuted_pages(make_paged_problem<Op>(draw_paged(seed, size, kScope<Op>)), seed, run);
}

/// Each sequence by itself.
template <class Op>
std::string loop_over_sequences(uint64_t seed, Size size, const KernelRunner& run) {
  return check_loop(make_paged_problem<Op>(draw_paged(seed, size, kScope<Op>)), seed, run);
}

template <class Op>
std::string permuted_sequences(uint64_t seed, Size size, const KernelRunner& run) {
  return check_permuted_sequences(make_paged_problem<Op>(draw_paged(seed, size, kScope<Op>)), seed, run);
}

/// `batch_invariant`: a row's bits are those of the row alone; of a chunk's row too, as the newest token of what is
/// before it.
template <class Op>
std::string row_alone(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw_paged(seed, size, kScope<Op>);
  c.params.batch_invariant = true;
  return check_alone(make_paged_problem<Op>(c), seed, run);
}

template <class Op>
std::string wide_window(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw_paged(seed, size, kScope<Op>);
  c.params.sliding_window = {};
  const Problem without = make_paged_problem<Op>(c);
  c.params.sliding_window = Window(100000 + static_cast<int64_t>(seed));
  const Problem with = make_paged_problem<Op>(c);
  return compare_results(without.view(kScope<Op>.rows ? "queries" : "query"), all_rows(with, run(with)),
                         all_rows(without, run(without)));
}

/// What the slots hold that nothing may read.
template <class Op>
std::string unused_slots(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw_paged(seed, size, kScope<Op>);
  c.poison = false;
  const Problem clean = make_paged_problem<Op>(c);
  c.poison = true;
  const Problem poisoned = make_paged_problem<Op>(c);
  return compare_results_exactly(all_rows(poisoned, run(poisoned)), all_rows(clean, run(clean)));
}

template <class Op>
std::string doubled_values(uint64_t seed, Size size, const KernelRunner& run) {
  return check_doubled_values(make_paged_problem<Op>(draw_paged(seed, size, kScope<Op>)), run);
}

template <class Op>
std::string scaled_codes(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw_paged(seed, size, kScope<Op>);
  if (bits(c.cache) > 8) c.cache = seed % 2 == 0 ? DType::i8 : DType::e4m3;
  c.scales = seed % 3 == 0 ? CacheScale::per_head : CacheScale::grouped;
  const Problem problem = make_paged_problem<Op>(c);
  const Problem plain = dequantised(problem);
  return compare_results(problem.view(kScope<Op>.rows ? "queries" : "query"), all_rows(problem, run(problem)),
                         all_rows(plain, run(plain)));
}

std::vector<Relation> page_attention_relations();
std::vector<Relation> page_append_relations();
std::vector<Relation> ragged_decode_attention_relations();
std::vector<Relation> ragged_page_attention_relations();
std::vector<Relation> ragged_page_attention_v3_relations();

}  // namespace ejk::testing
