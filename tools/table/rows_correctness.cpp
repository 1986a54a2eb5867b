// T-02 to T-05 and T-07: every kernel of every operation against float64 answers, exact answers, and itself.
#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <optional>
#include <set>

#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"
#include "tools/table/kernel_trials.h"
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

/// Every fourth round over the operations has problems of normal size.
RowResult accuracy(const RowRequest& request, bool gradients) {
  const std::vector<const TestOperation*> all = operations(gradients);
  Tally tally;
  KernelTrials trials(all, {}, tally);
  count_trials(request.n, tally, [&](int64_t i) {
    const auto place = static_cast<size_t>(i) % all.size(), round = static_cast<size_t>(i) / all.size();
    const TestOperation& tests = *all[place];
    const Problem problem = tests.random({.seed = request.seed * 1000003 + static_cast<uint64_t>(i),
                                          .size = round % 4 == 3 ? Size::normal : Size::small});
    trials.judge(tests, problem, tests.oracle(problem, kBudget));
  });
  return trials.result(request.n / 100);
}

}  // namespace

RowResult forward_accuracy(const RowRequest& request) { return accuracy(request, false); }
RowResult backward_accuracy(const RowRequest& request) { return accuracy(request, true); }

RowResult exact_mode(const RowRequest& request) {
  std::vector<const TestOperation*> all;
  for (const TestOperation* tests : test_operations())
    if (tests->exact != nullptr) all.push_back(tests);
  Tally tally;
  KernelTrials trials(all, {}, tally);
  count_trials(request.n, tally, [&](int64_t i) {
    const TestOperation& tests = *all[static_cast<size_t>(i) % all.size()];
    const ExactProblem exact = tests.exact(request.seed * 1000003 + static_cast<uint64_t>(i));
    trials.judge(tests, exact.problem, exact.answer);
  });
  return trials.result(request.n / 100);
}

RowResult edge_shapes(const RowRequest& request) {
  struct Item {
    const TestOperation* tests;
    const Case* one;
  };
  const std::vector<const TestOperation*> all(test_operations().begin(), test_operations().end());
  std::vector<Item> items;
  for (const TestOperation* tests : all)
    for (const Case& one : tests->cases)
      if ((one.tags & (kEdge | kLattice)) != 0) items.push_back({tests, &one});
  Tally tally;
  KernelTrials trials(all, {}, tally);
  for_each_trial(static_cast<int64_t>(items.size()), tally, [&](int64_t i) {
    const Item& item = items[static_cast<size_t>(i)];
    Problem problem = item.one->make();
    problem.seed = request.seed;
    problem.replay += fmt::format(" --seed={}", request.seed);
    trials.judge(*item.tests, problem, item.tests->oracle(problem, kBudget));
  });
  return trials.result(1);  // an operation has as many edges as it has
}

namespace {

/// A relation of an operation, on its first kernel.
struct Related {
  const TestOperation* tests;
  const Relation* relation;
  Kernel kernel;
};

/// What is wrong, or nothing; no value where the kernel declines this configuration, which then counts for nothing.
std::optional<std::string> check_relation(const Related& item, uint64_t seed) {
  std::string wrong;
  try {
    wrong = item.relation->check(seed, Size::normal, KernelRunner(item.kernel));
  } catch (const RelationSkipped&) {
    return std::nullopt;
  } catch (const RelationBroken& broken) {
    wrong = broken.what;
  }
  if (wrong.empty()) return wrong;
  return fmt::format("{}: {}; reproduce: ejk check {} --kernel={} --relation='{}' --seed={}", item.relation->name,
                     wrong, item.tests->name(), item.kernel->name, item.relation->name, seed);
}

/// The relations that are wanted, of each operation that has them as many configurations: n in all.
RowResult check_relations(const RowRequest& request, const std::function<bool(const Relation&)>& is_wanted) {
  std::vector<Related> items;
  std::set<std::string_view> names;
  for (const TestOperation* tests : test_operations())
    for (const Relation& relation : tests->relations)
      if (is_wanted(relation)) {
        items.push_back({tests, &relation, kernels_of(*tests->declaration).front()});
        names.insert(relation.name);
      }
  const auto num_items = static_cast<int64_t>(items.size()), wanted = (request.n + num_items - 1) / num_items;
  const int64_t most_attempts = 50 * wanted;
  std::vector<int64_t> attempts(items.size());
  std::vector<std::atomic<int64_t>> counted(items.size());
  Tally tally;
  // Of each item what is still missing, again and again.
  for (;;) {
    struct Attempt {
      size_t item;
      int64_t number;
    };
    std::vector<Attempt> missing;
    for (size_t item = 0; item < items.size(); ++item)
      for (int64_t n = counted[item]; n < wanted && attempts[item] < most_attempts; ++n)
        missing.push_back({item, attempts[item]++});
    if (missing.empty()) break;
    for_each_trial(static_cast<int64_t>(missing.size()), tally, [&](int64_t i) {
      const auto [item, number] = missing[static_cast<size_t>(i)];
      const auto seed = request.seed * 1000003 + static_cast<uint64_t>(number * num_items) + item;
      if (const auto wrong = check_relation(items[item], seed)) tally.add(*wrong), ++counted[item];
    });
  }
  for (size_t item = 0; item < items.size(); ++item)
    if (counted[item] < wanted)
      tally.add(fmt::format("{} {}: {} configurations of {}", items[item].tests->name(), items[item].relation->name,
                            counted[item].load(), wanted));
  RowResult result = tally.result();
  result.figures["relations"] = static_cast<double>(names.size());
  result.figures["relations_of_operations"] = static_cast<double>(num_items);
  result.figures["configurations_of_each"] = static_cast<double>(wanted);
  return result;
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
