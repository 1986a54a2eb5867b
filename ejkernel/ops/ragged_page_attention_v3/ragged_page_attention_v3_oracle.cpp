// ragged_page_attention_v3, as the harness sees it.
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/page_attention/paged_relations.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3_cases.h"

namespace ejk::testing {
namespace {

std::vector<PagedCase> cases() {
  std::vector<PagedCase> all = mixed_cases(true);
  for (PagedCase& c : mixed_lattice(true)) all.push_back(std::move(c));
  return all;
}

Problem random_problem(const RandomRequest& request) {
  const PagedScope scope = {.rows = true, .interleaved = true, .writes = true};
  Problem problem = make_paged_problem<RaggedPageAttentionV3>(random_paged_case(request, scope));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& ragged_page_attention_v3_tests() {
  static const TestOperation tests = [] {
    TestOperation t = paged_tests<RaggedPageAttentionV3>(cases(), random_problem);
    t.oracle = ragged_page_attention_v3_answer;
    t.relations = ragged_page_attention_v3_relations();
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
