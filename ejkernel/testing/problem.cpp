#include "ejkernel/testing/problem.h"

#include <numbers>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"

namespace ejk::testing {
namespace {

size_t index_of(const Operation& op, std::string_view input) {
  const int i = find_input(op, input);
  if (i < 0)
    throw InvalidArgument(std::string(op.name) + ": a test names the input " + std::string(input) +
                          ", which it does not have");
  return static_cast<size_t>(i);
}

/// Normal numbers at the price of two look-ups: the sum of two of a table's, over sqrt(2), is normal as they are. Half
/// of the time of large problems went to logarithms and cosines.
double normal_from_table(Random& random) {
  constexpr size_t kSize = 4096;
  static const std::vector<double> table = [] {
    Random source(0);
    std::vector<double> numbers(kSize);
    for (double& number : numbers) number = source.normal() * std::numbers::sqrt2 / 2;
    return numbers;
  }();
  const uint64_t bits = random.bits();
  return table[bits % kSize] + table[bits / kSize % kSize];
}

}  // namespace

std::string_view name(Size size) {
  switch (size) {
    case Size::tiny:
      return "tiny";
    case Size::small:
      return "small";
    case Size::normal:
      return "normal";
  }
  return "?";
}

Problem Problem::of(const Operation& operation) {
  Problem problem{.operation = &operation, .params = operation.default_params};
  problem.inputs.resize(operation.inputs.size());
  return problem;
}

bool promises_equal_bits(const Problem& problem) {
  for (const ParamField& field : problem.operation->params)
    if (field.name == "deterministic") return field.get(problem.params.data()) == ParamValue(true);
  return true;
}

Problem with_equal_bits(Problem problem) {
  for (const ParamField& field : problem.operation->params)
    if (field.name == "deterministic") field.set(problem.params.data(), ParamValue(true));
  return problem;
}

Tensor Problem::add(std::string_view input, DType dtype, const Shape& shape, const Layout& layout) {
  Placed& placed = inputs[index_of(*operation, input)];
  placed = place(dtype, shape, layout);
  return placed.view;
}

Tensor Problem::view(std::string_view input) const { return inputs[index_of(*operation, input)].view; }

std::vector<Tensor> Problem::views() const {
  std::vector<Tensor> all;
  for (const Placed& placed : inputs) all.push_back(placed.view);
  return all;
}

Problem relaid(const Problem& problem, const std::function<Layout(size_t input)>& layout) {
  Problem copy = problem;
  for (size_t i = 0; i < copy.inputs.size(); ++i) {
    const Tensor from = problem.inputs[i].view;
    if (!from.present()) continue;
    copy.inputs[i] = place(from.dtype, from.shape, layout(i));
    fill(copy.inputs[i].view, [&](int64_t n) { return get(from, n); });
  }
  return copy;
}

Problem converted(const Problem& problem, DType from, DType to) {
  Problem copy = problem;
  for (Placed& input : copy.inputs) {
    const Tensor old = input.view;
    if (!old.present() || old.dtype != from) continue;
    input = place(to, old.shape);
    fill(input.view, [&](int64_t n) { return get(old, n); });
  }
  return copy;
}

std::string kernel_flags(const KernelInfo& kernel) {
  return "--kernel=" + kernel.name + (kernel.backend == Backend::gpu ? " --device=cuda" : "");
}

std::string replay_command(const Problem& problem, const KernelInfo& kernel) {
  return "ejk check " + std::string(problem.operation->name) + " " + kernel_flags(kernel) + " " + problem.replay;
}

void fill_normal(const Tensor& tensor, Random& random, double deviation) {
  fill(tensor, [&](int64_t) { return deviation * normal_from_table(random); });
}

void fill_values(const Tensor& tensor, const std::vector<int64_t>& values) {
  fill(tensor, [&](int64_t n) { return values[static_cast<size_t>(n)]; });
}

}  // namespace ejk::testing
