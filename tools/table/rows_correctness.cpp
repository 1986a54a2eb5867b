// T-02 to T-05 and T-07: every kernel of every operation against float64 answers, exact answers, and itself.
#include <fmt/format.h>

#include <functional>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

constexpr double kBudget = 2e6;  // multiply-adds of one answer

std::vector<const TestOperation*> operations(bool gradients) {
  std::vector<const TestOperation*> chosen;
  for (const TestOperation* tests : test_operations())
    if (is_gradient(*tests) == gradients) chosen.push_back(tests);
  return chosen;
}

/// One trial for each kernel but the reference that supports the problem; the reference when it is the only one.
void judge_problem(const TestOperation& tests, const Problem& problem, const Answer& answer, Tally& tally) {
  const std::vector<Kernel> kernels = kernels_of(*tests.declaration);
  bool judged = false;
  for (const Kernel& kernel : kernels) {
    if (kernel->platform == Platform::reference && judged) break;
    const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    if (!verdict.supported) continue;
    judged = true;
    tally.ratio(verdict.ratio());
    tally.add(report(problem, kernel, verdict));
  }
}

RowResult accuracy(const RowRequest& request, bool gradients) {
  const std::vector<const TestOperation*> all = operations(gradients);
  Tally tally;
  for_each_trial(request.n, tally, [&](int64_t i) {
    const TestOperation& tests = *all[static_cast<size_t>(i) % all.size()];
    const Problem problem =
        tests.random({.seed = request.seed * 1000003 + static_cast<uint64_t>(i), .size = Size::small});
    judge_problem(tests, problem, tests.oracle(problem, kBudget), tally);
  });
  return tally.result();
}

}  // namespace

RowResult forward_accuracy(const RowRequest& request) { return accuracy(request, false); }
RowResult backward_accuracy(const RowRequest& request) { return accuracy(request, true); }

RowResult exact_mode(const RowRequest& request) {
  std::vector<const TestOperation*> all;
  for (const TestOperation* tests : test_operations())
    if (tests->exact != nullptr) all.push_back(tests);
  Tally tally;
  for_each_trial(request.n, tally, [&](int64_t i) {
    const TestOperation& tests = *all[static_cast<size_t>(i) % all.size()];
    const ExactProblem exact = tests.exact(request.seed * 1000003 + static_cast<uint64_t>(i));
    judge_problem(tests, exact.problem, exact.answer, tally);
  });
  return tally.result();
}

RowResult edge_shapes(const RowRequest& request) {
  struct Item {
    const TestOperation* tests;
    const Case* one;
  };
  std::vector<Item> items;
  for (const TestOperation* tests : test_operations())
    for (const Case& one : tests->cases)
      if ((one.tags & (kEdge | kLattice)) != 0) items.push_back({tests, &one});
  Tally tally;
  for_each_trial(static_cast<int64_t>(items.size()), tally, [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i)];
    Problem problem = item.one->make();
    problem.seed = request.seed;
    problem.replay += fmt::format(" --seed={}", request.seed);
    judge_problem(*item.tests, problem, item.tests->oracle(problem, kBudget), tally);
  });
  return tally.result();
}

namespace {

/// n trials of the relations that are wanted, on the first kernel of each operation.
RowResult check_relations(const RowRequest& request, const std::function<bool(const Relation&)>& is_wanted) {
  struct Item {
    const TestOperation* tests;
    const Relation* relation;
    Kernel kernel;
  };
  std::vector<Item> items;
  for (const TestOperation* tests : test_operations())
    for (const Relation& relation : tests->relations)
      if (is_wanted(relation)) items.push_back({tests, &relation, kernels_of(*tests->declaration).front()});
  Tally tally;
  const auto trial = [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i) % items.size()];
    const uint64_t seed = request.seed * 1000003 + static_cast<uint64_t>(i);
    std::string wrong;
    try {
      wrong = item.relation->check(seed, Size::normal, KernelRunner(item.kernel));
    } catch (const RelationSkipped&) {
      return;  // the kernel declines this configuration: it counts for nothing
    } catch (const RelationBroken& broken) {
      wrong = broken.what;
    }
    tally.add(wrong.empty() ? ""
                            : fmt::format("{}: {}; reproduce: ejk check {} --kernel={} --relation='{}' --seed={}",
                                          item.relation->name, wrong, item.tests->name(), item.kernel->name,
                                          item.relation->name, seed));
  };
  // Declined trials count for nothing, so that it may take a few rounds more than n needs.
  const auto round = static_cast<int64_t>(items.size());
  for (int64_t begin = 0; begin < 2 * request.n && tally.result().n < request.n; begin += round)
    for_each_trial(round, tally, [&](int64_t i) { trial(begin + i); });
  return tally.result();
}

}  // namespace

RowResult metamorphic_relations(const RowRequest& request) {
  return check_relations(request, [](const Relation&) { return true; });
}

/// Calls with batch_invariant: six rows or runs of rows of each, alone and as a prefill in pieces would have them, bit
/// for bit what they are in the call.
RowResult batch_invariance(const RowRequest& request) {
  return check_relations(request, [](const Relation& r) { return r.name == "batch_invariant_row_is_the_row_alone"; });
}

}  // namespace ejk::testing
