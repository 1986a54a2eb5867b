// page_attention, as the harness sees it.
#include "ejkernel/ops/page_attention/page_attention_cases.h"
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

std::vector<PagedCase> cases() {
  std::vector<PagedCase> all = decode_cases();
  std::erase_if(all, [](const PagedCase& c) { return c.token_axis; });
  for (PagedCase& c : decode_lattice()) all.push_back(std::move(c));
  return all;
}

Problem random_problem(const RandomRequest& request) {
  Problem problem = make_paged_problem<PageAttention>(random_paged_case(request, {}));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& page_attention_tests() {
  static const TestOperation tests = [] {
    TestOperation t = paged_tests<PageAttention>(cases(), random_problem);
    t.oracle = page_attention_answer;
    t.exact = exact_page_attention;
    t.relations = page_attention_relations();
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
