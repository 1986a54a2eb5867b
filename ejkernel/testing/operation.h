// What the harness must know about an operation. Everything else (which kernels there are, guard bands, poison, the
// error rule, reruns, layouts, finite differences, the table's rows) it does by itself, for every kernel of the
// registry.
//
// How an operation plugs in. Its folder gets
// - <op>_cases.h: a compact description (dtype, shape, options), named cases, and a random description from a seed;
// - <op>_cases.cpp: the Problem of a description;
// - <op>_oracle.cpp: the right answer in float64, S and e_base, and `const TestOperation& <op>_tests()`;
// - <op>_relations.cpp, optional: what must hold between two calls, whatever the answer is;
//
// and ejkernel/testing/operations.cpp one line. Files of these names are part of the harness, not of the library; they
// may include ejkernel/testing, which the library may not.
//
//   const TestOperation& toy_tests() {
//     static const TestOperation tests = [] {
//       TestOperation t{.declaration = &declaration<Toy>()};
//       t.cases = {{.name = "one_row", .tags = kEdge, .make = [] { return make_problem({.rows = 1}); }}};
//       t.random = [](const RandomRequest& request) { return make_problem(random_description(request)); };
//       t.oracle = [](const Problem& problem, double budget) { return answer(problem); };
//       return t;
//     }();
//     return tests;
//   }
//
// An operation with a gradient has two entries: its gradient is an operation of its own, whose problems are made from
// the forward's by `gradient_problem` (gradient_check.h).
//
// Random problems. Draw sizes log-uniformly under the cap of `size`, over-weight 0, 1, a tile's ends and primes, use
// every option and their combinations, and put NaN where the specification says that nothing reads. A problem must be a
// pure function of the request.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/testing/judge.h"
#include "ejkernel/testing/problem.h"
#include "ejkernel/testing/relation.h"

namespace ejk::testing {

/// Primary cases come from real models: benchmarks and the tuner use them. Edge cases are where kernels break, one by
/// one; the lattice enumerates sizes around the ends of tiles and vectors.
inline constexpr unsigned kPrimary = 1;
inline constexpr unsigned kEdge = 2;
inline constexpr unsigned kLattice = 4;

struct Case {
  std::string name;
  unsigned tags = 0;
  std::function<Problem()> make;
};

struct RandomRequest {
  uint64_t seed = 0;
  Size size = Size::normal;
  /// Contents of index tensors are hostile: negative, huge, unsorted. Results are defined all the same.
  bool hostile = false;
  bool differentiable = false;      ///< leave out what the operation has no gradient for
  std::optional<DType> dtype = {};  ///< of the main inputs; absent: any
  /// Only what kernels for a GPU's matrix units are made for, and larger; operations without such kernels ignore it.
  bool dense = false;
};

/// What makes the request again: "--seed=7 --size=small".
std::string replay_of(const RandomRequest& request);

/// What every output should be.
struct Answer {
  std::vector<Expected> outputs = {};  ///< in field order; of an updated input all that it holds afterwards
  uint32_t status = 0;                 ///< the status word's bits
  bool complete = true;                ///< false: only part of the elements is judged (`Expected::at`)
};

/// A problem whose answer is exact in every arithmetic the kernels may use, with that answer.
struct ExactProblem {
  Problem problem;
  Answer answer;
};

struct TestOperation {
  const Operation* declaration = nullptr;
  std::vector<Case> cases = {};
  Problem (*random)(const RandomRequest& request) = nullptr;
  /// The answer in float64. About `budget` multiply-adds are to be spent: a larger problem is judged in part.
  Answer (*oracle)(const Problem& problem, double budget) = nullptr;
  /// Exact integer mode (reliability A6.5); null: none.
  ExactProblem (*exact)(uint64_t seed) = nullptr;
  std::vector<Relation> relations = {};

  std::string_view name() const { return declaration->name; }
};

/// What tests spend on one answer, and what table rows do.
inline constexpr double kTestBudget = 3e7;

}  // namespace ejk::testing
