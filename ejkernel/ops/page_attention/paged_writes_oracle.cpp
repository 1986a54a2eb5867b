// What the operations that write leave in a cache (operations §5, §8): x / scale in the cache's dtype, in the slot of
// each new token's position.
#include <algorithm>

#include "ejkernel/ops/page_attention/paged_oracle.h"

namespace ejk::testing {
namespace {

size_t index(int64_t n) { return static_cast<size_t>(n); }

/// Calls f(row, slot) for every new token that has one.
template <class F>
void for_new_tokens(const PagedReading& reading, F&& f) {
  for (const auto& s : reading.sequences())
    for (int64_t r = 0; r < s.q_len; ++r)
      if (s.position(r) >= 0 && s.slots[index(s.position(r))].exists()) f(s.q_begin + r, s.slots[index(s.position(r))]);
}

}  // namespace

WrittenCache::WrittenCache(const Problem& problem) : after_(relaid(problem, [](size_t) { return Layout{}; })) {
  const PagedReading reading(after_);
  status_ = reading.status();
  for (const auto& s : reading.sequences())
    for (int64_t r = 0; r < s.q_len; ++r) {
      if (s.position(r) < 0)
        status_ |= status::kLength;
      else if (!s.slots[index(s.position(r))].exists())
        status_ |= status::kPageId;
    }
  write(reading, problem.view("keys"), reading.keys());
  write(reading, problem.view("values"), reading.values());
}

void WrittenCache::write(const PagedReading& reading, const Tensor& from, const StoredRows& to) {
  const int64_t heads = to.num_heads(), dims = to.dims();
  std::vector<bool> written(index(to.codes.shape[0] * to.codes.shape[to.slot_axis]));
  for_new_tokens(reading, [&](int64_t row, const Slot& at) {
    const bool again = written[reading.slot_index(at)];
    written[reading.slot_index(at)] = true;
    has_conflicts_ = has_conflicts_ || again;
    for (int64_t g = 0; g < heads; ++g)
      for (int64_t d = 0; d < dims; ++d) {
        const int64_t element = to.flat(at, g, d);
        set(to.codes, element, get(from, (row * heads + g) * dims + d) / to.scale_at(at, g, d));
        if (again) undefined_.emplace_back(to.codes.data, element);
      }
  });
}

Expected WrittenCache::expected(std::string_view input) const {
  const Tensor cache = after_.view(input);
  std::vector<bool> is_defined(index(cache.num_elements()), true);
  for (const auto& [data, element] : undefined_)
    if (data == cache.data) is_defined[index(element)] = false;
  Expected e{.present = true, .exact = true};
  if (has_conflicts_) e.at.emplace();
  for (int64_t n = 0; n < cache.num_elements(); ++n) {
    if (!is_defined[index(n)]) continue;
    e.ref.push_back(get(cache, n));
    if (e.at) e.at->push_back(n);
  }
  return e;
}

Answer page_append_answer(const Problem& problem, double) {
  const WrittenCache cache(problem);
  return {.outputs = {cache.expected("key_cache"), cache.expected("value_cache")},
          .status = cache.status(),
          .complete = !cache.has_conflicts()};
}

Answer ragged_page_attention_v3_answer(const Problem& problem, double budget) {
  const WrittenCache cache(problem);
  Answer answer = {
      .outputs = {Expected{}, cache.expected("kv_cache"), Expected{}}, .status = cache.status(), .complete = false};
  if (cache.has_conflicts()) return answer;
  PagedAnswer attention = attention_answer(PagedReading(cache.after()), budget, problem.seed, false);
  answer.outputs[0] = std::move(attention.out), answer.outputs[2] = std::move(attention.lse);
  answer.complete = attention.complete;
  return answer;
}

}  // namespace ejk::testing
