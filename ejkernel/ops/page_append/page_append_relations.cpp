// What must hold between calls of page_append.
#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

PagedCase draw(uint64_t seed, Size size) { return draw_paged(seed, size, kScope<PageAppend>); }

std::string same_caches(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (size_t o = 0; o < 2; ++o)
    if (const std::string wrong = compare_bits(a[o], b[o]); !wrong.empty())
      return (o == 0 ? "keys: " : "values: ") + wrong;
  return {};
}

std::string permuted_pages(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem before = make_paged_problem<PageAppend>(draw(seed, size));
  const std::vector<int64_t> source = permutation(before.view("key_cache").shape[0], seed);
  std::vector<Array> expected = run(before);
  for (Array& cache : expected)
    cache = picked(cache, cache.shape(), [&](Index i) { return i[0] = source[static_cast<size_t>(i[0])], i; });
  return same_caches(run(with_permuted_pages(before, seed)), expected);
}

/// The first rows of every sequence in one call, the others in the next.
std::string two_calls(uint64_t seed, Size size, const KernelRunner& run) {
  PagedCase c = draw(seed, size);
  for (size_t n = 0; n < c.q_lens.size(); ++n) c.q_lens[n] = std::min(c.q_lens[n], c.lens[n]);
  const Problem once = make_paged_problem<PageAppend>(c);
  const PagedReading reading(once);
  std::vector<Piece> first, second;
  for (const Piece& whole : whole_sequences(reading)) {
    const int64_t half = whole.num_rows / 2, older = whole.length - whole.num_rows;
    first.push_back({.sequence = whole.sequence, .num_rows = half, .length = older + half});
    second.push_back(
        {.sequence = whole.sequence, .first_row = half, .num_rows = whole.num_rows - half, .length = whole.length});
  }
  const std::vector<Array> between = run(selected(once, reading, first));
  Problem rest = selected(once, reading, second);
  for (size_t o = 0; o < 2; ++o) {
    const Array& cache = between[o];
    put(rest, o == 0 ? "key_cache" : "value_cache", cache.dtype(), cache.shape(),
        [&](const Index& i) { return at(cache, i); });
  }
  return same_caches(run(rest), run(once));
}

std::string again(uint64_t seed, Size size, const KernelRunner& run) {
  const Problem once = make_paged_problem<PageAppend>(draw(seed, size));
  const std::vector<Array> written = run(once);
  Problem twice = once;
  for (size_t o = 0; o < 2; ++o) {
    const Array& cache = written[o];
    put(twice, o == 0 ? "key_cache" : "value_cache", cache.dtype(), cache.shape(),
        [&](const Index& i) { return at(cache, i); });
  }
  return same_caches(run(twice), written);
}

}  // namespace

std::vector<Relation> page_append_relations() {
  return {{"permuted_pages_permute_the_cache", permuted_pages},
          {"two_calls_are_one", two_calls},
          {"a_second_time_changes_nothing", again}};
}

}  // namespace ejk::testing
