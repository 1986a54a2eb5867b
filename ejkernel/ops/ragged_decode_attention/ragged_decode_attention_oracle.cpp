// ragged_decode_attention, as the harness sees it.
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/page_attention/paged_relations.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention_cases.h"

namespace ejk::testing {
namespace {

bool is_about_pages(const PagedCase& c) {
  return c.missing > 0 || c.shared > 0 || c.most_entries >= 0 || c.page_size == 0 ||
         c.params.cache_layout == CacheLayout::head_major;
}

std::vector<PagedCase> cases() {
  std::vector<PagedCase> all = decode_cases();
  std::erase_if(all, is_about_pages);
  for (PagedCase& c : decode_lattice())
    if (c.page_size == 16 || c.page_size == 8) all.push_back(std::move(c));
  return all;
}

Problem random_problem(const RandomRequest& request) {
  Problem problem = make_paged_problem<RaggedDecodeAttention>(random_paged_case(request, {}));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& ragged_decode_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t = paged_tests<RaggedDecodeAttention>(cases(), random_problem);
    t.oracle = page_attention_answer;
    t.exact = exact_ragged_decode_attention;
    t.relations = ragged_decode_attention_relations();
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
