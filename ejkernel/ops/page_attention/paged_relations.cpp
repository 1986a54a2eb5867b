#include "ejkernel/ops/page_attention/paged_relations.h"

#include <algorithm>

#include "ejkernel/core/validate.h"
#include "ejkernel/testing/check.h"

namespace ejk::testing {
namespace {

size_t index(int64_t n) { return static_cast<size_t>(n); }

bool has(const Problem& problem, std::string_view input) {
  return find_input(*problem.operation, input) >= 0 && problem.view(input).present();
}
bool is_ranges(const Problem& problem) { return problem.operation->name == RaggedDecodeAttention::kName; }
bool is_by_row(const Problem& problem) { return is_ranges(problem) || problem.operation->name == PageAttention::kName; }
Tensor query_of(const Problem& problem) { return problem.view(has(problem, "queries") ? "queries" : "query"); }

/// Rows of a tensor's first axis, by number.
void take_rows(Problem& to, const Problem& from, std::string_view name, const std::vector<int64_t>& rows) {
  const Tensor t = from.view(name);
  Shape shape = t.shape;
  shape[0] = static_cast<int64_t>(rows.size());
  put(to, name, t.dtype, shape, [&](Index i) { return i[0] = rows[index(i[0])], at(t, i); });
}

void put_values(Problem& to, std::string_view name, const Shape& shape, const std::vector<int64_t>& values) {
  fill_values(to.add(name, DType::i32, shape), values);
}

const PagedReading::Sequence& sequence_of(const PagedReading& reading, const Piece& piece) {
  return reading.sequences()[index(piece.sequence)];
}

/// Query rows of pieces, one piece after the other.
std::vector<int64_t> rows_of_pieces(const PagedReading& reading, const std::vector<Piece>& pieces) {
  std::vector<int64_t> rows;
  for (const Piece& piece : pieces)
    for (int64_t r = 0; r < piece.num_rows; ++r)
      rows.push_back(sequence_of(reading, piece).q_begin + piece.first_row + r);
  return rows;
}

void select_ranges(Problem& to, const Problem& from, const PagedReading& reading, const std::vector<Piece>& pieces) {
  std::vector<int64_t> entries, starts, ends;
  for (const Piece& piece : pieces) {
    const auto& slots = sequence_of(reading, piece).slots;
    entries.push_back(piece.sequence);
    starts.push_back(slots.empty() ? 0 : slots.front().slot);
    ends.push_back(starts.back() + piece.length);
  }
  for (const std::string_view name : tensors_of_pages(from)) take_rows(to, from, name, entries);
  const auto count = static_cast<int64_t>(pieces.size());
  put_values(to, "sequence_start", {count}, starts);
  put_values(to, "sequence_end", {count}, ends);
}

void select_pages(Problem& to, const Problem& from, const PagedReading& reading, const std::vector<Piece>& pieces) {
  const Tensor table = from.view("block_tables");
  const int64_t sequences = from.view("context_lens").shape[0], count = static_cast<int64_t>(pieces.size());
  const int64_t old_width = sequences == 0 ? 0 : table.num_elements() / sequences;
  std::vector<int64_t> lens, offsets = {0}, entries;
  int64_t width = 0;
  for (const Piece& piece : pieces) {
    lens.push_back(piece.length);
    offsets.push_back(offsets.back() + piece.num_rows);
    width = std::max(width, (piece.length + reading.page_size() - 1) / std::max<int64_t>(reading.page_size(), 1));
  }
  for (const Piece& piece : pieces)
    for (int64_t e = 0; e < width; ++e)
      entries.push_back(static_cast<int64_t>(get(table, sequence_of(reading, piece).index * old_width + e)));
  put_values(to, "context_lens", {count}, lens);
  put_values(to, "block_tables", table.rank() == 1 ? Shape{count * width} : Shape{count, width}, entries);
  if (has(from, "query_start_loc")) put_values(to, "query_start_loc", {count + 1}, offsets);
  if (has(from, "num_seqs")) put_values(to, "num_seqs", {1}, {count});
  if (has(from, "distribution")) put_values(to, "distribution", {3}, {0, 0, count});
}

}  // namespace

PagedCase draw_paged(uint64_t seed, Size size, const PagedScope& scope) {
  PagedCase c = random_paged_case({.seed = seed, .size = size}, scope);
  if (c.dtype == DType::f64) c.dtype = DType::f32;
  if (c.cache == DType::f64) c.cache = c.dtype;
  c.data = Data::normal;
  c.most_entries = -1;
  if (c.lens.empty()) {
    c.lens = {5, 40};
    if (scope.rows) c.q_lens = {1, 3};
  }
  return c;
}

std::vector<Piece> whole_sequences(const PagedReading& reading) {
  std::vector<Piece> pieces;
  for (const auto& s : reading.sequences())
    pieces.push_back({.sequence = s.index, .num_rows = s.q_len, .length = s.length()});
  return pieces;
}

Problem selected(const Problem& from, const PagedReading& reading, const std::vector<Piece>& pieces) {
  Problem to = from;
  const std::vector<int64_t> rows = rows_of_pieces(reading, pieces);
  for (const std::string_view name : {"query", "queries", "keys", "values"})
    if (has(from, name)) take_rows(to, from, name, rows);
  is_ranges(from) ? select_ranges(to, from, reading, pieces) : select_pages(to, from, reading, pieces);
  return to;
}

namespace {

std::vector<Array> take_results(const Problem& problem, const std::vector<Array>& results,
                                const std::vector<int64_t>& rows) {
  const Array &out = results.front(), &lse = results.back();
  const int64_t heads = out.shape()[-2], size = heads * out.shape()[-1];
  const int64_t total = query_of(problem).shape[0], count = static_cast<int64_t>(rows.size());
  Array of_out(out.dtype(), {count, heads, out.shape()[-1]}), of_lse(lse.dtype(), {count, heads});
  fill(of_out, [&](int64_t n) { return get(out, rows[index(n / size)] * size + n % size); });
  fill(of_lse, [&](int64_t n) {
    const int64_t row = rows[index(n / heads)], h = n % heads;
    return get(lse, is_by_row(problem) ? row * heads + h : h * total + row);
  });
  return {of_out, of_lse};
}

}  // namespace

std::vector<Array> rows_of(const Problem& problem, const PagedReading& reading, const std::vector<Array>& results,
                           const std::vector<Piece>& pieces) {
  return take_results(problem, results, rows_of_pieces(reading, pieces));
}

std::vector<Array> all_rows(const Problem& problem, const std::vector<Array>& results) {
  std::vector<int64_t> rows(index(query_of(problem).shape[0]));
  for (size_t n = 0; n < rows.size(); ++n) rows[n] = static_cast<int64_t>(n);
  return take_results(problem, results, rows);
}

std::string compare_results(const Tensor& query, const std::vector<Array>& a, const std::vector<Array>& b) {
  if (const std::string wrong = compare(a[0], b[0], std::max(few_steps(query), few_steps(b[0])), 0.05); !wrong.empty())
    return "out: " + wrong;
  const std::string wrong = compare(a[1], b[1], few_steps(b[1]), 1.0);
  return wrong.empty() ? wrong : "lse: " + wrong;
}

std::string compare_results_exactly(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t o = 0; o < a.size(); ++o)
    if (const std::string wrong = compare_bits(a[o], b[o]); !wrong.empty()) return (o == 0 ? "out: " : "lse: ") + wrong;
  return {};
}

std::vector<std::string_view> tensors_of_pages(const Problem& problem) {
  std::vector<std::string_view> names;
  for (const std::string_view name : {"key_cache", "value_cache", "key", "value", "kv_pages", "kv_cache"})
    if (has(problem, name)) names.push_back(name);
  for (const std::string_view name : {"k_scale", "v_scale"})
    if (has(problem, name) && problem.view(name).rank() == 4) names.push_back(name);
  return names;
}

Problem with_permuted_pages(const Problem& before, uint64_t seed) {
  Problem after = before;
  const Tensor table = before.view("block_tables");
  const int64_t num_pages = before.view(tensors_of_pages(before).front()).shape[0];
  const std::vector<int64_t> source = permutation(num_pages, seed);  // of each new page
  std::vector<int64_t> target(source.size());
  for (int64_t page = 0; page < num_pages; ++page) target[index(source[index(page)])] = page;
  for (const std::string_view name : tensors_of_pages(before)) take_rows(after, before, name, source);
  put(after, "block_tables", DType::i32, table.shape, [&](const Index& i) {
    const auto page = static_cast<int64_t>(at(table, i));
    return page >= 0 && page < num_pages ? target[index(page)] : page;
  });
  return after;
}

Problem dequantised(const Problem& problem) {
  Problem plain = problem;
  const PagedReading reading(problem);
  for (const std::string_view name : tensors_of_pages(problem))
    if (const Tensor t = problem.view(name); name != "k_scale" && name != "v_scale")
      fill(plain.add(name, DType::f32, t.shape), [](int64_t) { return 0; });
  for (const std::string_view name : {"k_scale", "v_scale"})
    if (const int i = find_input(*problem.operation, name); i >= 0) plain.inputs[index(i)] = {};
  const PagedReading to(plain);
  for (const auto& [from_rows, to_rows] :
       {std::pair{&reading.keys(), &to.keys()}, std::pair{&reading.values(), &to.values()}}) {
    const int64_t slots = from_rows->codes.shape[from_rows->slot_axis];
    for (int64_t n = 0; n < from_rows->codes.shape[0] * slots; ++n) {
      const Slot slot{n / slots, n % slots};
      for (int64_t g = 0; g < from_rows->num_heads(); ++g)
        for (int64_t d = 0; d < from_rows->dims(); ++d)
          set(to_rows->codes, to_rows->flat(slot, g, d), from_rows->value(slot, g, d));
    }
  }
  return plain;
}

std::vector<Array> run_reference_of(const Problem& problem) {
  Outcome outcome = run_guarded(problem, kernels_of(*problem.operation).back(), {.plain = true});
  if (!outcome.faults.empty()) throw RelationBroken{"the reference: " + outcome.faults.front()};
  return std::move(outcome.outputs);
}

std::string check_permuted_pages(const Problem& problem, uint64_t seed, const KernelRunner& run) {
  const Problem permuted = with_permuted_pages(problem, seed);
  return compare_results_exactly(all_rows(problem, run(permuted)), all_rows(problem, run(problem)));
}

std::string check_loop(const Problem& problem, uint64_t, const KernelRunner& run) {
  const PagedReading reading(problem);
  const std::vector<Array> whole = run(problem);
  for (const Piece& piece : whole_sequences(reading)) {
    const Problem one = selected(problem, reading, {piece});
    const std::string wrong =
        compare_results(query_of(problem), all_rows(one, run(one)), rows_of(problem, reading, whole, {piece}));
    if (!wrong.empty()) return "sequence " + std::to_string(piece.sequence) + ": " + wrong;
  }
  return {};
}

std::string check_permuted_sequences(const Problem& problem, uint64_t seed, const KernelRunner& run) {
  const PagedReading reading(problem);
  std::vector<Piece> pieces = whole_sequences(reading);
  Random(seed).shuffle(pieces);
  const Problem permuted = selected(problem, reading, pieces);
  return compare_results(query_of(problem), all_rows(permuted, run(permuted)),
                         rows_of(problem, reading, run(problem), pieces));
}

std::string check_alone(const Problem& problem, uint64_t seed, const KernelRunner& run) {
  constexpr int kTries = 6;
  const PagedReading reading(problem);
  const std::vector<Array> whole = run(problem);
  const std::vector<Piece> pieces = whole_sequences(reading);
  const bool writes = has(problem, "keys");  // then a row's cache is not there without the other rows
  Random random(seed);
  for (int n = 0; n < kTries; ++n) {
    Piece piece = random.pick(pieces);
    const int64_t older = piece.length - piece.num_rows;
    if (!writes && piece.num_rows > 1 && older >= 0 && random.chance(0.8)) {
      piece.first_row = random.below(piece.num_rows);
      piece.num_rows = random.chance(0.7) ? 1 : random.between(1, piece.num_rows - piece.first_row);
      piece.length = older + piece.first_row + piece.num_rows;
    }
    const Problem alone = selected(problem, reading, {piece});
    const std::string wrong =
        compare_results_exactly(all_rows(alone, run(alone)), rows_of(problem, reading, whole, {piece}));
    if (!wrong.empty())
      return "rows " + std::to_string(piece.first_row) + " to " + std::to_string(piece.first_row + piece.num_rows) +
             " of sequence " + std::to_string(piece.sequence) + ", alone: " + wrong;
  }
  return {};
}

std::string check_doubled_values(const Problem& once, const KernelRunner& run) {
  Problem twice = once;
  const Tensor scale = once.view("v_scale");
  put(twice, "v_scale", DType::f32, scale.present() ? scale.shape : Shape{},
      [&](const Index& i) { return scale.present() ? 2 * at(scale, i) : 2; });
  std::vector<Array> expected = all_rows(once, run(once));
  const Array out = expected[0].clone();
  fill(expected[0], [&](int64_t n) { return 2 * get(out, n); });
  return compare_results(query_of(once), all_rows(twice, run(twice)), expected);
}

}  // namespace ejk::testing
