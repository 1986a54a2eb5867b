#include "ejkernel/ops/rnn/rnn_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ejk::testing {
namespace {

/// Builds one forward problem from its description.
class Builder {
 public:
  Builder(const RnnCase& c, uint64_t attempt)
      : c_(c), random_(c.seed ^ 0x524E4Eu ^ attempt << 32), problem_(Problem::of(declaration<Rnn>())) {
    problem_.seed = c.seed;
    problem_.params = ParamsBlock::of(Rnn::Params{.cell_type = c.cell_type,
                                                  .activation = c.activation,
                                                  .bidirectional = c.bidirectional,
                                                  .num_layers = c.num_layers,
                                                  .keep_gates = c.keep_gates});
    problem_.label = to_string(c);
    problem_.replay = "--case=" + c.name;
  }

  Problem build() {
    const int64_t directions = c_.bidirectional ? 2 : 1, states = c_.num_layers * directions;
    const int64_t rows = num_gates(c_.cell_type) * c_.hidden_size;
    fill_signal(add("input", {c_.batch, c_.seq_len, c_.input_size}), 1);
    const Shape of_states = c_.flat_states ? Shape{c_.batch, c_.hidden_size} : Shape{states, c_.batch, c_.hidden_size};
    if (c_.states) {
      fill_signal(add("hidden", of_states), 0.5);
      if (c_.cell_type == CellType::lstm) fill_signal(add("cell", of_states), 0.8);
    }
    fill_weights(add("weight_ih", {directions, rows, c_.input_size}));
    if (c_.num_layers > 1)
      fill_weights(add("weight_ih_upper", {states - directions, rows, directions * c_.hidden_size}));
    fill_weights(add("weight_hh", {states, rows, c_.hidden_size}));
    if (c_.bias_ih) fill_weights(add("bias_ih", {states, rows}));
    if (c_.bias_hh) fill_weights(add("bias_hh", {states, rows}));
    if (c_.has_lengths) add_lengths();
    if (c_.poison) poison();
    return std::move(problem_);
  }

 private:
  Tensor add(std::string_view name, const Shape& shape) {
    return problem_.add(name, c_.dtype, shape,
                        c_.random_layouts ? random_layout(random_, c_.dtype, shape.rank()) : Layout{});
  }
  void fill_signal(const Tensor& t, double deviation) {
    if (c_.integers) return fill(t, [&](int64_t) { return random_.between(-3, 3); });
    fill_normal(t, random_, deviation);
  }
  /// As PyTorch initialises them: states then neither explode nor vanish at once.
  void fill_weights(const Tensor& t) {
    if (c_.integers) return fill(t, [&](int64_t) { return random_.chance(0.3) ? random_.between(-1, 1) : 0; });
    const double most = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(c_.hidden_size, 1)));
    fill(t, [&](int64_t) { return most * (2 * random_.uniform() - 1); });
  }

  void add_lengths() {
    std::vector<int64_t> lengths = c_.lengths;
    for (int64_t& length : lengths)
      if (c_.hostile && random_.chance(0.5))
        length = random_.pick<int64_t>({-1, INT32_MIN, INT32_MAX, c_.seq_len + 1, random_.between(-3, c_.seq_len + 3),
                                        random_.between(INT32_MIN, INT32_MAX)});
    fill_values(problem_.add("lengths", DType::i32, {c_.batch}), lengths);
  }

  void poison() {
    const Tensor input = problem_.view("input");
    const RnnLengths lengths = rnn_lengths_of(problem_.view("lengths"), c_.batch, c_.seq_len);
    const int64_t per_row = c_.seq_len * c_.input_size;
    for (int64_t b = 0; b < c_.batch; ++b)
      for (int64_t n = lengths.steps[static_cast<size_t>(b)] * c_.input_size; n < per_row; ++n)
        set(input, b * per_row + n, std::numeric_limits<double>::quiet_NaN());
  }

  const RnnCase& c_;
  Random random_;
  Problem problem_;
};

}  // namespace

RnnLengths rnn_lengths_of(const Tensor& lengths, int64_t batch, int64_t seq_len) {
  RnnLengths result;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t claimed = lengths.present() ? static_cast<int64_t>(get(lengths, b)) : seq_len;
    result.steps.push_back(std::clamp<int64_t>(claimed, 0, seq_len));
    if (claimed != result.steps.back()) result.status = status::kLength;
  }
  return result;
}

std::string to_string(const RnnCase& c) {
  std::string text =
      fmt::format("{} {} {}x{} b={} t={} i={} h={}", ejk::name(c.dtype), name_in(enum_names(c.cell_type), c.cell_type),
                  c.num_layers, c.bidirectional ? 2 : 1, c.batch, c.seq_len, c.input_size, c.hidden_size);
  if (c.activation != CellActivation::tanh) text += fmt::format(" {}", name_in(enum_names(c.activation), c.activation));
  if (!c.states) text += " from zero";
  if (!c.bias_ih || !c.bias_hh) text += fmt::format(" biases={}{}", c.bias_ih ? "i" : "", c.bias_hh ? "h" : "");
  if (c.keep_gates) text += " keeping gates";
  if (c.has_lengths) text += fmt::format(" lengths=({})", fmt::join(c.lengths, ","));
  if (c.integers) text += " integers";
  if (c.random_layouts) text += " strided";
  if (c.hostile) text += " hostile";
  return text;
}

Problem make_rnn_problem(const RnnCase& description) {
  constexpr double kFarEnough = 1e-5;
  for (uint64_t attempt = 0;; ++attempt) {
    Problem problem = Builder(description, attempt).build();
    if (attempt == 100 || description.integers || distance_to_kink(problem) > kFarEnough) return problem;
  }
}

// ---- random problems ----

namespace {

/// Multiply-adds of a forward.
struct Limits {
  double products;
  int64_t length, size;
};
Limits limits_of(Size size) {
  if (size == Size::tiny) return {.products = 500, .length = 5, .size = 5};
  if (size == Size::small) return {.products = 1e5, .length = 40, .size = 70};
  return {.products = 1e6, .length = 200, .size = 300};
}

}  // namespace

RnnCase random_rnn_case(const RandomRequest& request) {
  Random random(request.seed);
  const Limits limits = limits_of(request.size);
  RnnCase c = {.hostile = request.hostile, .seed = request.seed};
  c.dtype = random.pick({DType::f32, DType::f32, DType::f32, DType::bf16, DType::bf16, DType::f16});
  if (random.chance(0.06)) c.dtype = DType::f64;
  if (request.dtype) c.dtype = *request.dtype;
  c.cell_type = random.pick({CellType::lstm, CellType::lstm, CellType::gru, CellType::gru, CellType::rnn});
  if (c.cell_type == CellType::rnn)
    c.activation =
        random.pick({CellActivation::tanh, CellActivation::relu, CellActivation::sigmoid, CellActivation::identity});
  c.bidirectional = random.chance(0.4);
  c.num_layers = random.pick<int64_t>({1, 1, 1, 2, 3});
  c.states = random.chance(0.7), c.bias_ih = random.chance(0.8), c.bias_hh = random.chance(0.8);
  c.hidden_size = random_length(random, limits.size, false);
  c.input_size = random_length(random, limits.size, random.chance(0.1));

  // What one step of one sequence costs decides how many there are.
  const int64_t directions = c.bidirectional ? 2 : 1;
  const double upper = static_cast<double>(c.num_layers - 1) * static_cast<double>(directions * c.hidden_size);
  const double a_step = static_cast<double>(directions * num_gates(c.cell_type) * c.hidden_size) *
                        (static_cast<double>(c.input_size + c.num_layers * c.hidden_size) + upper);
  const auto steps = static_cast<int64_t>(std::max(1.0, limits.products / a_step));
  c.seq_len = random_length(random, std::min(limits.length, steps));
  c.batch =
      random.chance(0.03) ? 0 : random.log_uniform(1, std::max<int64_t>(1, steps / std::max<int64_t>(c.seq_len, 1)));
  c.batch = std::min<int64_t>(c.batch, 60);
  c.has_lengths = request.hostile || random.chance(0.5);
  for (int64_t b = 0; b < c.batch && c.has_lengths; ++b)
    c.lengths.push_back(random.chance(0.2) ? c.seq_len : random.between(0, c.seq_len));
  c.flat_states = c.num_layers * directions == 1 && random.chance(0.3);
  c.random_layouts = random.chance(0.4);
  c.keep_gates = random.chance(0.3);
  return c;
}

}  // namespace ejk::testing
