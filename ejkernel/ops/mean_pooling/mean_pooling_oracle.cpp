// mean_pooling and its gradient, as the harness sees them: answers from the words of operations §14, not from kernels.
//
// S of an element is the square root of the sum of its squared terms: x / count over the rows of a mean, and d_out /
// count over the means that a row takes part in.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"
#include "ejkernel/testing/gradient_check.h"

namespace ejk::testing {
namespace {

/// The order in which a float32 run of the plain formula visits its terms: forward, reversed, shuffled.
std::vector<std::vector<size_t>> orders(size_t count, uint64_t seed) {
  std::vector<size_t> forward(count);
  for (size_t n = 0; n < count; ++n) forward[n] = n;
  std::vector<size_t> reversed(forward.rbegin(), forward.rend()), shuffled = forward;
  Random random(seed ^ 0x4F524452u);
  random.shuffle(shuffled);
  return {forward, reversed, shuffled};
}

/// One element: terms are added and the sum, or each term, is divided.
struct Element {
  double ref = 0, square = 0;
  std::array<double, 3> runs = {};
};

/// What is known of an output while it is made.
class Collector {
 public:
  void add(int64_t at, const Element& e) {
    at_.push_back(at);
    expected_.ref.push_back(e.ref);
    expected_.spread.push_back(std::sqrt(e.square));
    for (size_t run = 0; run < runs_.size(); ++run) runs_[run].push_back(e.runs[run]);
  }
  Expected expected(DType dtype, bool complete) {
    expected_.present = true;
    expected_.tolerance = tolerance_of(dtype);
    for (const auto& run : runs_) add_baseline(expected_, run, dtype);
    if (!complete) expected_.at = std::move(at_);
    return std::move(expected_);
  }

 private:
  Expected expected_;
  std::vector<int64_t> at_;
  std::array<std::vector<double>, 3> runs_;
};

/// Flat positions in x and in out of the form that these were given in.
struct Places {
  int64_t num_tokens, num_heads, dim, num_means;
  int64_t row(int64_t b, int64_t row, int64_t h) const { return ((b * num_tokens + row) * num_heads + h) * dim; }
  int64_t mean(int64_t b, int64_t mean, int64_t h) const { return ((b * num_means + mean) * num_heads + h) * dim; }
};

/// The mean of terms[i], each of which is a row's element.
template <class Real>
Real mean_of(const std::vector<double>& terms, const std::vector<size_t>& order) {
  Real sum = 0;
  for (size_t n : order) sum += static_cast<Real>(terms[n]);
  return sum / static_cast<Real>(std::max<size_t>(terms.size(), 1));
}

Element forward_element(const std::vector<double>& terms, const std::vector<std::vector<size_t>>& visits, DType dtype) {
  Element e = {.ref = mean_of<double>(terms, visits[0])};
  const auto count = static_cast<double>(std::max<size_t>(terms.size(), 1));
  for (double term : terms) e.square += term / count * (term / count);
  for (size_t run = 0; run < e.runs.size(); ++run)
    e.runs[run] = dtype == DType::f64 ? mean_of<double>(terms, visits[run])
                                      : static_cast<double>(mean_of<float>(terms, visits[run]));
  return e;
}

/// What a row gets of the means it takes part in: terms[i] / counts[i].
Element backward_element(const std::vector<double>& terms, const std::vector<double>& counts,
                         const std::vector<std::vector<size_t>>& visits, DType dtype) {
  Element e;
  for (size_t n = 0; n < terms.size(); ++n) {
    e.ref += terms[n] / counts[n];
    e.square += terms[n] / counts[n] * (terms[n] / counts[n]);
  }
  for (size_t run = 0; run < e.runs.size(); ++run) {
    double exact = 0;
    float sum = 0;
    for (size_t n : visits[run]) {
      exact += terms[n] / counts[n];
      sum += static_cast<float>(terms[n]) / static_cast<float>(counts[n]);
    }
    e.runs[run] = dtype == DType::f64 ? exact : static_cast<double>(sum);
  }
  return e;
}

MeanPooling::Inputs inputs_of(const Problem& problem) { return to_struct<MeanPooling::Inputs>(problem.views()); }

Answer forward_answer(const Problem& problem, double budget) {
  const auto in = inputs_of(problem);
  const auto chunk_size = problem.params.as<MeanPooling::Params>().chunk_size;
  const bool packed = in.cu_seqlens.present();
  const int64_t num_batches = packed ? 1 : in.x.shape[0], num_tokens = in.x.shape[packed ? 0 : 1];
  const Places places = {.num_tokens = num_tokens,
                         .num_heads = chunk_size ? in.x.shape[-2] : 1,
                         .dim = in.x.shape[-1],
                         .num_means = means_per_batch(in.cu_seqlens, num_tokens, chunk_size)};
  const Pools pools = pools_of(in.mask, in.cu_seqlens, num_batches, num_tokens, chunk_size);
  const int64_t size = num_batches * places.num_means * places.num_heads * places.dim;
  const double work = 5 * static_cast<double>(in.x.num_elements() + size);
  const double share = work > budget ? budget / work : 1;
  Random random(problem.seed ^ 0x4D45414Eu);

  Answer answer = {.status = pools.status, .complete = share == 1};
  std::vector<Element> elements(static_cast<size_t>(size));  // rows past the last mean stay zero
  std::vector<bool> judged(static_cast<size_t>(size), share == 1);
  std::vector<double> terms;
  for (const Pool& pool : pools.all) {
    const auto visits = orders(pool.rows.size(), problem.seed);
    for (int64_t h = 0; h < places.num_heads; ++h)
      for (int64_t d = 0; d < places.dim; ++d) {
        const auto at = static_cast<size_t>(places.mean(pool.batch, pool.mean, h) + d);
        if (share < 1 && !random.chance(share)) continue;
        judged[at] = true;
        terms.clear();
        for (int64_t row : pool.rows) terms.push_back(get(in.x, places.row(pool.batch, row, h) + d));
        elements[at] = forward_element(terms, visits, in.x.dtype);
      }
  }
  Collector out;
  for (size_t at = 0; at < elements.size(); ++at)
    if (judged[at]) out.add(static_cast<int64_t>(at), elements[at]);
  answer.outputs = {out.expected(in.x.dtype, answer.complete), Expected{}};
  if (packed && chunk_size)
    answer.outputs[1] = {
        .present = true, .exact = true, .ref = {pools.chunk_offsets.begin(), pools.chunk_offsets.end()}};
  return answer;
}

Answer backward_answer(const Problem& problem, double budget) {
  const auto in = to_struct<MeanPoolingBackward::Inputs>(problem.views());
  const auto params = problem.params.as<MeanPoolingBackward::Params>();
  const int64_t num_batches = in.cu_seqlens.present() ? 1 : in.d_out.shape[0];
  const int64_t num_tokens = params.num_tokens ? *params.num_tokens : in.mask.shape[1];
  const Places places = {.num_tokens = num_tokens,
                         .num_heads = params.chunk_size ? in.d_out.shape[-2] : 1,
                         .dim = in.d_out.shape[-1],
                         .num_means = means_per_batch(in.cu_seqlens, num_tokens, params.chunk_size)};
  const Pools pools = pools_of(in.mask, in.cu_seqlens, num_batches, num_tokens, params.chunk_size);
  std::vector<std::vector<const Pool*>> of_row(static_cast<size_t>(num_batches * num_tokens));
  for (const Pool& pool : pools.all)
    for (int64_t row : pool.rows) of_row[static_cast<size_t>(pool.batch * num_tokens + row)].push_back(&pool);

  const double work = 5 * static_cast<double>(of_row.size()) * static_cast<double>(places.num_heads * places.dim);
  const double share = work > budget ? budget / work : 1;
  Random random(problem.seed ^ 0x53505244u);
  Answer answer = {.status = pools.status, .complete = share == 1};
  Collector d_x;
  std::vector<double> terms, counts;
  for (size_t r = 0; r < of_row.size(); ++r) {
    const auto visits = orders(of_row[r].size(), problem.seed);
    for (int64_t c = 0; c < places.num_heads * places.dim; ++c) {
      if (share < 1 && !random.chance(share)) continue;
      terms.clear(), counts.clear();
      for (const Pool* pool : of_row[r]) {
        terms.push_back(get(in.d_out, places.mean(pool->batch, pool->mean, 0) + c));
        counts.push_back(static_cast<double>(pool->rows.size()));
      }
      d_x.add(static_cast<int64_t>(r) * places.num_heads * places.dim + c,
              backward_element(terms, counts, visits, in.d_out.dtype));
    }
  }
  answer.outputs = {d_x.expected(in.d_out.dtype, answer.complete)};
  return answer;
}

/// Cotangents that belong to no selected row may hold anything.
void poison_cotangents(Problem& problem) {
  const auto in = to_struct<MeanPoolingBackward::Inputs>(problem.views());
  const auto params = problem.params.as<MeanPoolingBackward::Params>();
  const bool packed = in.cu_seqlens.present();
  const int64_t num_batches = packed ? 1 : in.d_out.shape[0], num_tokens = *params.num_tokens;
  const int64_t num_means = means_per_batch(in.cu_seqlens, num_tokens, params.chunk_size);
  const int64_t per_mean = in.d_out.shape[-1] * (params.chunk_size ? in.d_out.shape[-2] : 1);
  std::vector<bool> read(static_cast<size_t>(num_batches * num_means));
  for (const Pool& pool : pools_of(in.mask, in.cu_seqlens, num_batches, num_tokens, params.chunk_size).all)
    if (!pool.rows.empty()) read[static_cast<size_t>(pool.batch * num_means + pool.mean)] = true;
  for (size_t m = 0; m < read.size(); ++m)
    for (int64_t n = 0; n < per_mean && !read[m]; ++n)
      set(in.d_out, static_cast<int64_t>(m) * per_mean + n, std::numeric_limits<double>::quiet_NaN());
}

Problem make_backward_problem(const PoolingCase& c) {
  Problem problem = gradient_problem(make_pooling_problem(c), c.seed, c.random_layouts);
  if (c.data == PoolingData::integers)
    fill(problem.view("d_out"), [random = Random(c.seed)](int64_t) mutable { return random.between(-64, 64); });
  if (c.poison) poison_cotangents(problem);
  return problem;
}

// ---- exact mode ----

/// Small integers in groups of 2^k selected rows: sums are exact in float32, and so are means before they are rounded.
PoolingCase exact_case(uint64_t seed) {
  Random random(seed);
  auto power = [&](int64_t most) { return int64_t{1} << random.between(0, most); };
  PoolingCase c = {.dtype = random.pick({DType::f32, DType::bf16, DType::f16}),
                   .dim = random_length(random, 200, false),
                   .data = PoolingData::integers,
                   .random_layouts = random.chance(0.4),
                   .seed = seed};
  c.packed = random.chance(0.5);
  if (random.chance(0.5)) c.chunk_size = power(6), c.num_heads = random.between(1, 3);
  const int64_t whole = c.chunk_size.value_or(1);  // rows come in whole chunks, or as powers of two
  if (!c.packed) c.batch = random.between(1, 3), c.num_tokens = whole * power(c.chunk_size ? 2 : 12);
  for (int64_t n = c.packed ? random.between(1, 5) : 0; n > 0; --n)
    c.lengths.push_back(whole * power(c.chunk_size ? 2 : 8));
  return c;
}

double rounded_to(DType dtype, double x) {
  alignas(8) std::byte storage[8];
  store_from_double(storage, dtype, 0, x);
  return load_as_double(storage, dtype, 0);
}

ExactProblem exact(Problem problem, Answer answer) {
  answer.outputs[0].exact = true;
  for (double& ref : answer.outputs[0].ref) ref = rounded_to(problem.inputs[0].view.dtype, ref);
  problem.replay = "--exact --seed=" + std::to_string(problem.seed);
  return {std::move(problem), std::move(answer)};
}

// ---- what the harness gets ----

std::vector<Case> cases_of(Problem (*make)(const PoolingCase&)) {
  std::vector<Case> cases;
  for (const PoolingCase& c : pooling_cases())
    cases.push_back({.name = c.name, .tags = c.tags, .make = [=] {
                       Problem problem = make(c);
                       problem.replay = "--case=" + c.name;
                       return problem;
                     }});
  return cases;
}

template <Problem (*kMake)(const PoolingCase&)>
Problem random_problem(const RandomRequest& request) {
  Problem problem = kMake(random_pooling_case(request));
  problem.replay = replay_of(request);
  return problem;
}

constexpr double kEverything = std::numeric_limits<double>::infinity();

}  // namespace

const TestOperation& mean_pooling_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<MeanPooling>()};
    t.cases = cases_of(make_pooling_problem);
    t.random = random_problem<make_pooling_problem>;
    t.oracle = forward_answer;
    t.exact = [](uint64_t seed) {
      Problem problem = make_pooling_problem(exact_case(seed));
      Answer answer = forward_answer(problem, kEverything);
      return exact(std::move(problem), std::move(answer));
    };
    t.relations = pooling_relations();
    return t;
  }();
  return tests;
}

const TestOperation& mean_pooling_backward_tests() {
  static const TestOperation tests = [] {
    TestOperation t{.declaration = &declaration<MeanPoolingBackward>()};
    t.cases = cases_of(make_backward_problem);
    t.random = random_problem<make_backward_problem>;
    t.oracle = backward_answer;
    t.exact = [](uint64_t seed) {
      Problem problem = make_backward_problem(exact_case(seed));
      Answer answer = backward_answer(problem, kEverything);
      return exact(std::move(problem), std::move(answer));
    };
    return t;
  }();
  return tests;
}

}  // namespace ejk::testing
