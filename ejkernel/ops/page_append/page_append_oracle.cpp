// page_append, as the harness sees it.
#include "ejkernel/ops/page_append/page_append.h"
#include "ejkernel/ops/page_append/page_append_cases.h"
#include "ejkernel/ops/page_attention/paged_cases.h"
#include "ejkernel/ops/page_attention/paged_oracle.h"
#include "ejkernel/ops/page_attention/paged_relations.h"

namespace ejk::testing {
namespace {

std::vector<PagedCase> cases() {
  std::vector<PagedCase> all = mixed_cases(true);
  for (PagedCase& c : mixed_lattice(true)) all.push_back(std::move(c));
  return all;
}

Problem random_problem(const RandomRequest& request) {
  const PagedScope scope = {.rows = true, .writes = true};
  Problem problem = make_paged_problem<PageAppend>(random_paged_case(request, scope));
  problem.replay = replay_of(request);
  return problem;
}

}  // namespace

const TestOperation& page_append_tests() {
  static const TestOperation tests = [] {
    TestOperation t = paged_tests<PageAppend>(cases(), random_problem);
    t.oracle = page_append_answer;
    t.relations = page_append_relations();
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
