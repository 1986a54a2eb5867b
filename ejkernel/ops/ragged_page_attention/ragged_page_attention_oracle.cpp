// ragged_page_attention, as the harness sees it.
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/page_attention/paged_relations.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention_cases.h"

namespace ejk::testing {
namespace {

std::vector<PagedCase> cases() {
  std::vector<PagedCase> all = mixed_cases(false);
  for (PagedCase& c : mixed_lattice(false)) all.push_back(std::move(c));
  return all;
}

Problem random_problem(const RandomRequest& request) {
  const PagedScope scope = {.rows = true, .interleaved = true};
  Problem problem = make_paged_problem<RaggedPageAttention>(random_paged_case(request, scope));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& ragged_page_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t = paged_tests<RaggedPageAttention>(cases(), random_problem);
    t.oracle = ragged_page_attention_answer;
    t.exact = exact_ragged_page_attention;
    t.relations = ragged_page_attention_relations();
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
