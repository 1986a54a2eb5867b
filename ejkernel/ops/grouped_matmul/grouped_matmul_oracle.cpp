// grouped_matmul and its gradients, as the harness sees them: answers from the words of operations §15 and §16, not
// from kernels.
//
// S of an element is the square root of the sum of its squared terms: the products that it is the sum of, and what is
// there before. Codes of 8 bits are numbers that float32 and bf16 hold exactly, so that what they cost is what bf16
// does.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "ejkernel/core/validate.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul_cases.h"

namespace ejk::testing {
namespace {

using Orders = std::array<std::vector<size_t>, 3>;

/// The order in which a float32 run of the plain formula visits its terms: forward, reversed, shuffled.
const Orders& orders(std::map<size_t, Orders>& known, size_t count) {
  Orders& o = known[count];
  if (o[0].size() == count) return o;
  for (size_t n = 0; n < count; ++n) o[0].push_back(n);
  o[1].assign(o[0].rbegin(), o[0].rend());
  o[2] = o[0];
  Random random(count ^ 0x4F524452u);
  random.shuffle(o[2]);
  return o;
}

/// Products to be added, and what they are added to.
struct Terms {
  std::vector<double> a = {}, b = {};
  double existing = 0;
  void clear() { a.clear(), b.clear(), existing = 0; }
  void add(double x, double y) { a.push_back(x), b.push_back(y); }

  template <class Real>
  double sum(const std::vector<size_t>& order) const {
    Real sum = 0;
    for (size_t n : order) sum += static_cast<Real>(a[n]) * static_cast<Real>(b[n]);
    return static_cast<double>(sum + static_cast<Real>(existing));
  }
  double spread() const {
    double squares = existing * existing;
    for (size_t n = 0; n < a.size(); ++n) squares += a[n] * b[n] * (a[n] * b[n]);
    return std::sqrt(squares);
  }
};

/// A call's tensors and parameters, whichever of the three operations it belongs to, read by the letters of §15.
class Words {
 public:
  explicit Words(const Problem& problem) : problem_(problem) {
    for (const char* name : {"transpose_rhs", "group_offset", "block_m", "block_k", "block_n", "num_groups"})
      for (const ParamField& field : problem.operation->params)
        if (field.name == name) params_[name] = field.get(problem.params.data());
    lhs = tensor("lhs"), rhs = tensor("rhs"), d_out = tensor("d_out"), existing_out = tensor("existing_out");
    lhs_scale = tensor("lhs_scale"), rhs_scale = tensor("rhs_scale");
    rhs_mask = tensor("rhs_mask"), out_mask = tensor("out_mask");
    transposed = std::get<bool>(params_["transpose_rhs"]);
    batched = lhs.rank() == 4;
    batch = batched ? lhs.shape[0] : 1;
    m = lhs.shape[-2], k = lhs.shape[-1];
    n = rhs.present() ? rhs.shape[transposed ? -2 : -1] : d_out.shape[-1];
    if (batched) {
      groups = lhs.shape[1];
      return;
    }
    const Tensor sizes = tensor("group_sizes");
    const int64_t offset = integer("group_offset", 0);
    groups = rhs.present() ? rhs.shape[0] : integer("num_groups", sizes.shape[0] - offset);
    if (!rhs.present() && rhs_mask.present()) groups = rhs_mask.shape[0];
    const GroupRows all = rows_of_groups(sizes, m);
    status = all.status;
    rows.assign(all.all.begin() + offset, all.all.begin() + offset + groups);
    owners = owners_of_rows(sizes, m, offset, groups);
  }

  Tensor lhs, rhs, d_out, existing_out, lhs_scale, rhs_scale, rhs_mask, out_mask;
  bool transposed = false, batched = false;
  int64_t batch = 1, groups = 0, m = 0, k = 0, n = 0;
  std::vector<GroupRows::Rows> rows = {};  ///< ragged: of the groups that have a matrix
  std::vector<int64_t> owners = {};        ///< ragged: of each row
  uint32_t status = 0;

  double lhs_at(int64_t b, int64_t g, int64_t i, int64_t p) const {
    return row_at(lhs, b, g, i, p) * scale_at(lhs_scale, i, i, p / 128);
  }
  double rhs_at(int64_t b, int64_t g, int64_t p, int64_t j) const {
    const int64_t r = transposed ? j : p, c = transposed ? p : j;
    const double code = batched ? at(rhs, {b, g, r, c}) : at(rhs, {g, r, c});
    if (rhs_scale.present() && rhs_scale.rank() == 3) return code * at(rhs_scale, {g, p / 128, j / 128});
    return code * scale_at(rhs_scale, g, g, j);
  }
  /// An element of out, existing_out or d_out.
  double row_at(const Tensor& t, int64_t b, int64_t g, int64_t i, int64_t c) const {
    return batched ? at(t, {b, g, i, c}) : at(t, {i, c});
  }
  bool has_rhs_block(int64_t g, int64_t p, int64_t j) const {
    return !rhs_mask.present() || at(rhs_mask, {g, p / integer("block_k", 1), j / integer("block_n", 1)}) != 0;
  }
  bool has_out_block(int64_t i, int64_t j) const {
    return !out_mask.present() || at(out_mask, {i / integer("block_m", 1), j / integer("block_n", 1)}) != 0;
  }

 private:
  Tensor tensor(std::string_view name) const {
    for (size_t i = 0; i < problem_.inputs.size(); ++i)
      if (problem_.operation->inputs[i].name == name) return problem_.inputs[i].view;
    return {};
  }
  int64_t integer(const char* name, int64_t otherwise) const {
    const auto found = params_.find(name);
    const int64_t* value = found == params_.end() ? nullptr : std::get_if<int64_t>(&found->second);
    return value == nullptr ? otherwise : *value;
  }
  static double at(const Tensor& t, std::initializer_list<int64_t> index) {
    int64_t offset = 0;
    int axis = 0;
    for (int64_t i : index) offset += i * t.strides[axis++];
    return load_as_double(t.data, t.dtype, offset);
  }
  /// A scale by its rank: one for all, [first] or [first, second]; of rank 2 for rhs, [group, column].
  static double scale_at(const Tensor& t, int64_t first, int64_t row, int64_t second) {
    if (!t.present()) return 1;
    return t.rank() == 0 ? at(t, {}) : t.rank() == 1 ? at(t, {first}) : at(t, {row, second});
  }

  const Problem& problem_;
  std::map<std::string, ParamValue, std::less<>> params_;
};

/// One output while it is made: which of its elements are judged, and what they should be.
class Collector {
 public:
  Collector(DType sums, DType out) : sums_(sums), out_(out) {
    expected_.present = true;
    expected_.tolerance = tolerance_of((set_of(sums) & kQuantised8) != 0 ? DType::bf16 : sums);
  }

  void add(int64_t at, const Terms& terms) {
    const Orders& visits = orders(orders_, terms.a.size());
    at_.push_back(at);
    expected_.ref.push_back(terms.sum<double>(visits[0]));
    expected_.spread.push_back(terms.spread());
    for (size_t run = 0; run < runs_.size(); ++run)
      runs_[run].push_back(sums_ == DType::f64 ? terms.sum<double>(visits[run]) : terms.sum<float>(visits[run]));
  }

  Expected expected(bool complete) {
    for (const auto& run : runs_) add_baseline(expected_, run, out_);
    if (!complete) expected_.at = std::move(at_);
    return std::move(expected_);
  }

 private:
  DType sums_, out_;
  Expected expected_;
  std::vector<int64_t> at_;
  std::array<std::vector<double>, 3> runs_;
  std::map<size_t, Orders> orders_;
};

/// An element of an output by batch entry, group (ragged rows: -1 where none owns the row), row and column.
struct Place {
  int64_t b, g, r, c;
};

/// Rows of out or of lhs's gradient.
Place place_in_rows(const Words& w, int64_t at, int64_t columns) {
  const int64_t c = at % columns, r = at / columns % w.m;
  if (!w.batched) return {0, w.owners[static_cast<size_t>(r)], r, c};
  const int64_t matrix = at / columns / w.m;
  return {matrix / w.groups, matrix % w.groups, r, c};
}

void terms_of_out(const Words& w, int64_t at, Terms& terms) {
  const auto [b, g, i, j] = place_in_rows(w, at, w.n);
  if (w.existing_out.present()) terms.existing = w.row_at(w.existing_out, b, g, i, j);
  if (g < 0 || !w.has_out_block(i, j)) return;
  for (int64_t p = 0; p < w.k; ++p)
    if (w.has_rhs_block(g, p, j)) terms.add(w.lhs_at(b, g, i, p), w.rhs_at(b, g, p, j));
}

void terms_of_d_lhs(const Words& w, int64_t at, Terms& terms) {
  const auto [b, g, i, p] = place_in_rows(w, at, w.k);
  if (g < 0) return;
  for (int64_t j = 0; j < w.n; ++j)
    if (w.has_out_block(i, j) && w.has_rhs_block(g, p, j))
      terms.add(w.row_at(w.d_out, b, g, i, j), w.rhs_at(b, g, p, j));
}

void terms_of_d_rhs(const Words& w, int64_t at, Terms& terms) {
  const int64_t columns = w.transposed ? w.k : w.n, rows = w.transposed ? w.n : w.k;
  const int64_t c = at % columns, r = at / columns % rows, matrix = at / columns / rows;
  const int64_t b = matrix / w.groups, g = matrix % w.groups;
  const int64_t p = w.transposed ? c : r, j = w.transposed ? r : c;
  if (!w.has_rhs_block(g, p, j)) return;
  const auto [begin, end] = w.batched ? GroupRows::Rows{0, w.m} : w.rows[static_cast<size_t>(g)];
  for (int64_t i = begin; i < end; ++i)
    if (w.has_out_block(i, j)) terms.add(w.lhs_at(b, g, i, p), w.row_at(w.d_out, b, g, i, j));
}

void terms_of_d_existing(const Words& w, int64_t at, Terms& terms) {
  const auto [b, g, i, j] = place_in_rows(w, at, w.n);
  terms.existing = w.row_at(w.d_out, b, g, i, j);
}

/// Elements drawn for a share of them; all for 1.
class Draw {
 public:
  Draw(double share, uint64_t seed) : share_(share), random_(seed ^ 0x44524157u) {}
  bool operator()() { return share_ == 1 || random_.chance(share_); }

 private:
  double share_;
  Random random_;
};

Expected answer_of(const Words& w, int64_t elements, DType out, Draw draw, bool complete,
                   void (*terms_of)(const Words&, int64_t, Terms&)) {
  Collector collector(w.lhs.dtype, out);
  Terms terms;
  for (int64_t at = 0; at < elements; ++at) {
    if (!draw()) continue;
    terms.clear();
    terms_of(w, at, terms);
    collector.add(at, terms);
  }
  return collector.expected(complete);
}

DType result_dtype(const Problem& problem, DType lhs) {
  for (const ParamField& field : problem.operation->params)
    if (field.name == "out_dtype")
      if (const ParamValue chosen = field.get(problem.params.data()); std::holds_alternative<std::string>(chosen))
        return *parse_dtype(std::get<std::string>(chosen));
  return (set_of(lhs) & kQuantised8) != 0 ? DType::bf16 : lhs;
}

/// The part of the elements that a budget of multiply-adds pays for: each is summed four times and squared once.
double share_of(const Words& w, double budget, double products) {
  const double matrices = static_cast<double>(w.batched ? w.batch * w.groups : 1);
  const double work =
      5 * products * matrices * static_cast<double>(w.m) * static_cast<double>(w.k) * static_cast<double>(w.n);
  return work > budget ? budget / work : 1;
}

Answer forward_answer(const Problem& problem, double budget) {
  const Words w(problem);
  const double share = share_of(w, budget, 1);
  const int64_t elements = (w.batched ? w.batch * w.groups : 1) * w.m * w.n;
  return {.outputs = {answer_of(w, elements, result_dtype(problem, w.lhs.dtype), Draw(share, problem.seed), share == 1,
                                terms_of_out)},
          .status = w.status,
          .complete = share == 1};
}

Answer backward_answer(const Problem& problem, double budget) {
  const Words w(problem);
  const double share = share_of(w, budget, 2);
  const int64_t matrices = w.batched ? w.batch * w.groups : 1;
  const bool complete = share == 1;
  const Draw draw(share, problem.seed);
  Answer answer = {.status = w.status, .complete = complete};
  answer.outputs = {answer_of(w, matrices * w.m * w.k, w.lhs.dtype, draw, complete, terms_of_d_lhs),
                    answer_of(w, w.rhs.num_elements(), w.rhs.dtype, draw, complete, terms_of_d_rhs), Expected{}};
  if (w.existing_out.present()) {
    answer.outputs[2] = answer_of(w, matrices * w.m * w.n, w.existing_out.dtype, draw, complete, terms_of_d_existing);
    answer.outputs[2].exact = true;
  }
  return answer;
}

Answer transposed_answer(const Problem& problem, double budget) {
  const Words w(problem);
  const double share = share_of(w, budget, 1);
  return {.outputs = {answer_of(w, w.groups * w.k * w.n, result_dtype(problem, w.lhs.dtype), Draw(share, problem.seed),
                                share == 1, terms_of_d_rhs)},
          .status = w.status,
          .complete = share == 1};
}

// ---- exact mode ----

double rounded_to(DType dtype, double x) {
  alignas(8) std::byte storage[8];
  store_from_double(storage, dtype, 0, x);
  return load_as_double(storage, dtype, 0);
}

/// Products of small integers, and scales that are powers of two: every sum is exact in float32.
template <Problem (*kMake)(const MatmulCase&), Answer (*kAnswer)(const Problem&, double)>
ExactProblem exact_problem(uint64_t seed) {
  MatmulCase c = random_matmul_case({.seed = seed, .size = Size::small});
  c.data = MatmulData::integers;
  Problem problem = kMake(c);
  problem.replay = "--exact --seed=" + std::to_string(seed);
  Answer answer = kAnswer(problem, std::numeric_limits<double>::infinity());
  const Problem& made = problem;
  for (size_t o = 0; o < answer.outputs.size(); ++o) {
    Expected& expected = answer.outputs[o];
    if (!expected.present) continue;
    const std::vector<OutputSpec> specs = check_call(*made.operation, made.views(), made.params).outputs;
    expected.exact = true;
    for (double& ref : expected.ref) ref = rounded_to(specs[o].dtype, ref);
  }
  return {std::move(problem), std::move(answer)};
}

// ---- what the harness gets ----

template <Problem (*kMake)(const MatmulCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_matmul_case(request));
  problem.replay = replay_of(request);
  return problem;
}

template <Problem (*kMake)(const MatmulCase&), Answer (*kAnswer)(const Problem&, double)>
TestOperation tests_of(const Operation& operation, std::vector<Relation> relations) {
  TestOperation t{.declaration = &operation};
  for (const MatmulCase& c : matmul_cases()) t.cases.push_back({c.name, c.tags, [c] { return kMake(c); }});
  t.random = random_problem<kMake>;
  t.oracle = kAnswer;
  t.exact = exact_problem<kMake, kAnswer>;
  t.relations = std::move(relations);
  return t;
}

}  // namespace

const TestOperation& grouped_matmul_tests() {
  static const TestOperation tests =
      tests_of<make_matmul_problem, forward_answer>(declaration<GroupedMatmul>(), matmul_relations());
  return tests;
}

const TestOperation& grouped_matmul_backward_tests() {
  static const TestOperation tests = tests_of<make_matmul_backward_problem, backward_answer>(
      declaration<GroupedMatmulBackward>(), matmul_backward_relations());
  return tests;
}

const TestOperation& transposed_grouped_matmul_tests() {
  static const TestOperation tests = tests_of<make_transposed_matmul_problem, transposed_answer>(
      declaration<TransposedGroupedMatmul>(), transposed_matmul_relations());
  return tests;
}

}  // namespace ejk::testing
