// Problems of the operations over a cache. One description serves all five: page_attention, page_append,
// ragged_decode_attention, ragged_page_attention and ragged_page_attention_v3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ejkernel/ops/flash_attention/flash_attention_cases.h"
#include "ejkernel/ops/page_attention/page_attention.h"
#include "ejkernel/testing/operation.h"

namespace ejk::testing {

/// How codes of a cache are scaled. Grouped: a factor for each `PagedCase::group` elements of a slot.
enum class CacheScale : uint8_t { none, one, per_head, grouped };

struct PagedCase {
  std::string name = {};
  unsigned tags = 0;
  DType dtype = DType::bf16, cache = DType::bf16;
  int64_t num_q_heads = 1, num_kv_heads = 1, head_dim = 64;
  int64_t value_dim = 0;  ///< 0: head_dim
  int64_t page_size = 16;
  std::vector<int64_t> lens = {};    ///< tokens of each sequence, the new ones included
  std::vector<int64_t> q_lens = {};  ///< query rows of each sequence; empty: one each
  PageAttention::Params params = {};

  int64_t spare_pages = 2;     ///< that no sequence uses; slots, in a contiguous cache
  int64_t spare_entries = 1;   ///< of the table, past the longest sequence
  int64_t most_entries = -1;   ///< width of the table at most: what is longer is cut; -1: whatever is needed
  int64_t idle_sequences = 0;  ///< past the sequences in use
  int64_t unowned_rows = 0;    ///< rows before the first and after the last sequence
  double missing = 0;          ///< share of entries that name no page
  double shared = 0;           ///< share of pages, full of older tokens, that are another page of the cache as well

  CacheScale scales = CacheScale::none;
  int64_t group = 0;  ///< 0: all elements
  int64_t num_sinks = 0;
  bool shared_sinks = false;  ///< rank 1
  DType sinks_dtype = DType::f32;
  bool q_scale = false;     ///< of ragged_page_attention_v3
  bool token_axis = false;  ///< ragged_decode_attention: query [batch, 1, num_q_heads, head_dim]

  Data data = Data::normal;
  bool random_layouts = false;
  bool poison = true;  ///< NaN wherever nothing may read
  bool hostile = false;
  uint64_t seed = 0;
};

/// "bf16 over i8 lens=(17,33) heads=4/2 d=64 page=16 …"
std::string to_string(const PagedCase& description);

/// The problem of a description; `Op` is one of the five.
template <class Op>
Problem make_paged_problem(const PagedCase& description);

/// What varies with the operation that draws a description.
struct PagedScope {
  bool rows = false;         ///< several query rows a sequence, rows of none, sequences that are not in use
  bool interleaved = false;  ///< one tensor of keys and values: head sizes are equal
  bool writes = false;       ///< the cache is written: no i4, no grouped scales
};
PagedCase random_paged_case(const RandomRequest& request, const PagedScope& scope);

/// One token a sequence: what page_attention and ragged_decode_attention are made for.
std::vector<PagedCase> decode_cases();
/// Lengths around the ends of pages, vectors and tiles, page sizes, head sizes, every dtype of a cache.
std::vector<PagedCase> decode_lattice();
/// Prefill and decode in one call. `writes`: the call writes the cache.
std::vector<PagedCase> mixed_cases(bool writes);
std::vector<PagedCase> mixed_lattice(bool writes);

/// The entry of an operation but for its oracle, exact mode and relations.
template <class Op>
TestOperation paged_tests(const std::vector<PagedCase>& cases, Problem (*random)(const RandomRequest& request)) {
  TestOperation t{.declaration = &declaration<Op>()};
  for (const PagedCase& c : cases)
    t.cases.push_back({.name = c.name, .tags = c.tags, .make = [=] { return make_paged_problem<Op>(c); }});
  t.random = random;
  return t;
}

}  // namespace ejk::testing
