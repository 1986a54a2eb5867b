#include "ejkernel/ops/recurrent_attention/recurrent_attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ejkernel/core/validate.h"
#include "ejkernel/testing/check.h"

namespace ejk::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double draw_gate(Decays decays, Random& random) {
  // log sigmoid(x + 2) / 4: decays of 0.9 to 1, as gated linear attention is trained to have them.
  const auto of_model = [&] { return -std::log1p(std::exp(-random.normal() - 2)) / 4; };
  switch (decays) {
    case Decays::model:
      return of_model();
    case Decays::wide:
      return -std::exp(static_cast<double>(random.between(-9, 4)) + random.uniform());
    case Decays::resets:
      return random.chance(0.1) ? random.pick({-1e4, -1e4, -kInfinity, -200.0, -90.0}) : of_model();
    case Decays::forget:
      return -1e4;
    case Decays::zeros:
      return 0;
    case Decays::growing:
      return 0.02 * random.normal();
    case Decays::switches:
      return random.chance(0.2) ? random.pick({-1e4, -kInfinity}) : 0;
  }
  return 0;
}

/// Builds one forward problem from its description.
class Builder {
 public:
  explicit Builder(const RecurrenceCase& c)
      : c_(c), random_(c.seed ^ 0x52454355u), problem_(Problem::of(declaration<RecurrentAttention>())) {
    problem_.seed = c.seed;
    problem_.params = ParamsBlock::of(c.params);
    problem_.label = to_string(c);
  }

  Problem build() {
    const DType gate_dtype = c_.gate_dtype.value_or(wide()), state_dtype = c_.initial_dtype.value_or(wide());
    add_numbers("query", rows({c_.num_q_heads, c_.key_dim}));
    add_numbers("key", rows({c_.num_kv_heads, c_.key_dim}));
    add_numbers("value", rows({c_.num_kv_heads, c_.value_dim}));
    if (c_.g) add_gates("g", gate_dtype, rows({c_.num_q_heads}));
    if (c_.g_gamma) add_gates("g_gamma", gate_dtype, {c_.num_q_heads});
    if (c_.gk) add_gates("gk", gate_dtype, rows({c_.num_q_heads, c_.key_dim}));
    if (c_.gv) add_gates("gv", gate_dtype, rows({c_.num_q_heads, c_.value_dim}));
    if (c_.initial_state) {
      const int64_t count = c_.packed ? static_cast<int64_t>(c_.lengths.size()) : c_.batch;
      fill_numbers(add("initial_state", state_dtype, {count, c_.num_q_heads, c_.key_dim, c_.value_dim}));
    }
    if (c_.packed) add_offsets();
    if (c_.poison) poison();
    return std::move(problem_);
  }

 private:
  DType wide() const { return c_.dtype == DType::f64 ? DType::f64 : DType::f32; }

  int64_t num_rows() const {
    if (!c_.packed) return c_.seq_len;
    return std::accumulate(c_.lengths.begin(), c_.lengths.end(), int64_t{0}) + 2 * c_.unowned_rows;
  }
  Shape rows(std::initializer_list<int64_t> rest) const {
    Shape shape;
    if (!c_.packed) shape.push_back(c_.batch);
    shape.push_back(num_rows());
    for (const int64_t extent : rest) shape.push_back(extent);
    return shape;
  }
  Tensor add(std::string_view name, DType dtype, const Shape& shape) {
    return problem_.add(name, dtype, shape, c_.random_layouts ? random_layout(random_, dtype, shape.rank()) : Layout{});
  }

  void fill_numbers(const Tensor& t) {
    if (!c_.integers) return fill_normal(t, random_);
    fill(t, [&](int64_t) { return random_.between(-2, 2); });
  }
  void add_numbers(std::string_view name, const Shape& shape) { fill_numbers(add(name, c_.dtype, shape)); }
  void add_gates(std::string_view name, DType dtype, const Shape& shape) {
    fill(add(name, dtype, shape), [&](int64_t) { return draw_gate(c_.decays, random_); });
  }

  void add_offsets() {
    std::vector<int64_t> offsets = {c_.unowned_rows};
    for (int64_t length : c_.lengths) offsets.push_back(offsets.back() + length);
    for (int64_t& offset : offsets)
      if (c_.hostile && random_.chance(0.5))
        offset = random_.pick<int64_t>({-1, INT32_MIN, INT32_MAX, 0, offset + 1, offset - 1, num_rows(), num_rows() + 1,
                                        random_.between(-3, num_rows() + 3), random_.between(INT32_MIN, INT32_MAX)});
    fill_values(add("cu_seqlens", DType::i32, {static_cast<int64_t>(offsets.size())}), offsets);
  }

  /// NaN (or infinity) in the rows of no sequence.
  void poison() {
    const double bad = random_.chance(0.7) ? kNaN : kInfinity;
    for (const char* name : {"query", "key", "value", "g", "gk", "gv"}) spoil_unowned(problem_, name, bad);
  }

 public:
  static void spoil_unowned(const Problem& problem, std::string_view name, double bad) {
    const Tensor cu_seqlens = problem.view("cu_seqlens"), t = problem.view(name);
    if (!cu_seqlens.present() || !t.present() || t.num_elements() == 0) return;
    std::vector<bool> owned(static_cast<size_t>(t.shape[0]));
    for (const TokenRun& run : token_runs(problem.view("query"), cu_seqlens).all)
      for (int64_t row = run.begin; row < run.begin + run.length; ++row) owned[static_cast<size_t>(row)] = true;
    const int64_t per_row = t.num_elements() / t.shape[0];
    for (size_t r = 0; r < owned.size(); ++r)
      for (int64_t n = 0; n < per_row && !owned[r]; ++n) set(t, static_cast<int64_t>(r) * per_row + n, bad);
  }

 private:
  const RecurrenceCase& c_;
  Random random_;
  Problem problem_;
};

}  // namespace

TokenRuns token_runs(const Tensor& query, const Tensor& cu_seqlens) {
  TokenRuns runs;
  if (!cu_seqlens.present()) {
    for (int64_t b = 0; b < query.shape[0]; ++b) runs.all.push_back({.batch = b, .begin = 0, .length = query.shape[1]});
    return runs;
  }
  const int64_t num_rows = query.shape[0];
  std::vector<int> owners(static_cast<size_t>(num_rows));
  for (int64_t n = 0; n + 1 < cu_seqlens.shape[0]; ++n) {
    const auto first = static_cast<int64_t>(get(cu_seqlens, n)), past = static_cast<int64_t>(get(cu_seqlens, n + 1));
    if (first < 0 || first > num_rows || past < first || past > num_rows) runs.status |= status::kOffsets;
    const int64_t begin = std::clamp<int64_t>(first, 0, num_rows), end = std::clamp<int64_t>(past, begin, num_rows);
    runs.all.push_back({.batch = 0, .begin = begin, .length = end - begin});
    for (int64_t row = begin; row < end; ++row)
      if (++owners[static_cast<size_t>(row)] > 1) runs.overlapping = true;
  }
  return runs;
}

std::string to_string(const RecurrenceCase& c) {
  std::string text = std::string(ejk::name(c.dtype));
  text +=
      c.packed ? fmt::format(" packed ({})", fmt::join(c.lengths, ",")) : fmt::format(" b={} t={}", c.batch, c.seq_len);
  text += fmt::format(" heads={}/{} k={} v={}", c.num_q_heads, c.num_kv_heads, c.key_dim, c.value_dim);
  static constexpr std::string_view kDecays[] = {"", " wide", " resets", " forget", " zeros", " growing", " switches"};
  for (const auto& [has, what] : {std::pair{c.g, " g"}, {c.g_gamma, " g_gamma"}, {c.gk, " gk"}, {c.gv, " gv"}})
    if (has) text += what;
  if (c.g || c.g_gamma || c.gk || c.gv) text += kDecays[static_cast<size_t>(c.decays)];
  if (c.gate_dtype) text += fmt::format(" gates={}", ejk::name(*c.gate_dtype));
  if (c.initial_state) text += c.initial_dtype ? fmt::format(" h0={}", ejk::name(*c.initial_dtype)) : " h0";
  if (c.params.state_dtype) text += fmt::format(" state={}", ejk::name(*c.params.state_dtype));
  if (c.params.softmax_scale) text += fmt::format(" scale={:.3g}", *c.params.softmax_scale);
  if (c.params.reverse) text += " reverse";
  if (c.unowned_rows > 0) text += fmt::format(" unowned={}", c.unowned_rows);
  if (c.integers) text += " integers";
  if (c.random_layouts) text += " strided";
  if (c.hostile) text += " hostile";
  return text;
}

Problem make_recurrence_problem(const RecurrenceCase& description) {
  Problem problem = Builder(description).build();
  problem.replay = "--case=" + description.name;
  return problem;
}

Problem make_recurrence_backward_problem(const RecurrenceCase& c) {
  Problem problem = gradient_problem(make_recurrence_problem(c), c.seed, c.random_layouts);
  Random random(c.seed ^ 0x424B5744u);
  for (const char* name : {"d_out", "d_final_state"})
    if (const Tensor t = problem.view(name); t.present() && c.integers)
      fill(t, [&](int64_t) { return random.between(-2, 2); });
  if (c.poison) Builder::spoil_unowned(problem, "d_out", kNaN);
  return problem;
}

// ---- the same of operations with some of the inputs ----

Problem narrowed(const Problem& recurrent, const Operation& to, const ParamsBlock& params) {
  Problem problem = Problem::of(to);
  for (size_t i = 0; i < to.inputs.size(); ++i)
    problem.inputs[i] = recurrent.inputs[static_cast<size_t>(find_input(*recurrent.operation, to.inputs[i].name))];
  problem.params = params;
  problem.label = recurrent.label, problem.replay = recurrent.replay, problem.seed = recurrent.seed;
  return problem;
}

Answer narrowed(Answer recurrent_backward, const Operation& to) {
  Answer answer = {.status = recurrent_backward.status, .complete = recurrent_backward.complete};
  for (const TensorField& field : to.outputs) {
    const int from = find_output(declaration<RecurrentAttentionBackward>(), field.name);
    answer.outputs.push_back(std::move(recurrent_backward.outputs[static_cast<size_t>(from)]));
  }
  return answer;
}

KernelRunner runner_of_recurrence(const KernelRunner& run) {
  const Device device = run.kernel().platform == Platform::cuda ? Device{DeviceKind::cuda, 0} : Device{};
  for (const Kernel& kernel : kernels_of(declaration<RecurrentAttention>(), device))
    if (kernel->name == run.kernel().name) return KernelRunner(kernel, device);
  throw RelationSkipped{"recurrent_attention has no kernel of this name"};
}

// ---- random problems ----

namespace {

struct Limits {
  double updates;  ///< elements of states times tokens
  int64_t length, dim, count, heads;
};
Limits limits_of(Size size) {
  if (size == Size::tiny) return {.updates = 400, .length = 7, .dim = 5, .count = 3, .heads = 2};
  if (size == Size::small) return {.updates = 6e4, .length = 200, .dim = 70, .count = 4, .heads = 4};
  return {.updates = 3e5, .length = 2000, .dim = 200, .count = 12, .heads = 8};
}

void draw_gates(RecurrenceCase& c, Random& random) {
  c.g = random.chance(0.4), c.g_gamma = random.chance(0.3), c.gk = random.chance(0.4), c.gv = random.chance(0.25);
  c.decays = random.pick({Decays::model, Decays::model, Decays::model, Decays::wide, Decays::resets, Decays::resets,
                          Decays::forget, Decays::zeros, Decays::growing});
  if (random.chance(0.2)) c.gate_dtype = c.dtype;
}

void draw_states(RecurrenceCase& c, Random& random) {
  c.initial_state = random.chance(0.5);
  const bool is_double = c.dtype == DType::f64;
  if (random.chance(0.2)) c.initial_dtype = is_double ? DType::f64 : random.pick({DType::bf16, DType::f16, c.dtype});
  if (random.chance(0.2))
    c.params.state_dtype = is_double ? DType::f64 : random.pick({DType::bf16, DType::f32, DType::f16});
}

}  // namespace

RecurrenceCase random_recurrence_case(const RandomRequest& request) {
  Random random(request.seed);
  const Limits limits = limits_of(request.size);
  RecurrenceCase c = {.hostile = request.hostile, .seed = request.seed};
  c.dtype = random.pick({DType::f32, DType::f32, DType::f32, DType::bf16, DType::bf16, DType::bf16, DType::f16});
  if (random.chance(0.06)) c.dtype = DType::f64;
  if (request.dtype) c.dtype = *request.dtype;

  c.num_kv_heads = random.between(1, std::max<int64_t>(limits.heads / 2, 1));
  c.num_q_heads = c.num_kv_heads * random.pick<int64_t>({1, 1, 2, 3});
  const auto dim = [&] {
    return random.chance(0.4) ? random.pick<int64_t>({1, 2, limits.dim / 5, limits.dim})
                              : random.log_uniform(1, limits.dim);
  };
  c.key_dim = std::max<int64_t>(dim(), 1);
  c.value_dim = random.chance(0.4) ? c.key_dim : std::max<int64_t>(dim(), 1);
  double left = limits.updates / static_cast<double>(c.num_q_heads * c.key_dim * c.value_dim);
  const auto length = [&] {
    const auto most = static_cast<int64_t>(std::min(left, static_cast<double>(limits.length)));
    const int64_t drawn = most < 1 ? random.between(0, 1) : std::min(random_length(random, most), most);
    left -= static_cast<double>(drawn);
    return drawn;
  };
  c.packed = request.hostile || random.chance(0.4);
  if (c.packed) {
    for (int64_t n = random.between(0, limits.count); n > 0; --n) c.lengths.push_back(length());
    if (random.chance(0.3)) c.unowned_rows = random.between(1, 3);
  } else {
    c.batch = random.chance(0.03) ? 0 : random.between(1, 3);
    left /= static_cast<double>(std::max<int64_t>(c.batch, 1));
    c.seq_len = length();
  }
  draw_gates(c, random);
  draw_states(c, random);
  c.params.reverse = random.chance(0.3);
  if (random.chance(0.3)) c.params.softmax_scale = random.pick({1.0, -0.5, 0.125, 2.0});
  c.random_layouts = random.chance(0.4);
  return c;
}

RecurrenceCase exact_recurrence_case(uint64_t seed, bool backward) {
  Random random(seed);
  const int64_t length = backward ? 12 : 130, dim = backward ? 8 : 20;
  RecurrenceCase c = {.dtype = random.pick({DType::f32, DType::bf16, DType::f16}),
                      .num_kv_heads = random.between(1, 2),
                      .key_dim = random.between(1, dim),
                      .value_dim = random.between(1, dim),
                      .decays = Decays::switches,
                      .integers = true,
                      .random_layouts = random.chance(0.4),
                      .seed = seed};
  c.num_q_heads = c.num_kv_heads * random.between(1, 3);
  c.g = random.chance(0.5), c.g_gamma = random.chance(0.3), c.gk = random.chance(0.5), c.gv = random.chance(0.3);
  c.initial_state = random.chance(0.5);
  c.params = {.softmax_scale = 1, .reverse = random.chance(0.3)};
  c.packed = random.chance(0.4);
  if (c.packed)
    for (int64_t n = random.between(1, 3); n > 0; --n) c.lengths.push_back(random.between(0, length));
  else
    c.batch = random.between(1, 2), c.seq_len = random.between(0, length);
  return c;
}

}  // namespace ejk::testing
