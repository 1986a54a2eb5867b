#include "ejkernel/testing/gradient_check.h"

#include <fmt/format.h>

#include <cmath>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/gradient.h"
#include "ejkernel/runtime/registry.h"

namespace ejk::testing {
namespace {

std::vector<Array> run_plain(const Problem& problem, const Kernel& kernel) {
  Outcome outcome = run_guarded(problem, kernel, {.plain = true});
  if (!outcome.supported || !outcome.faults.empty())
    throw Internal(fmt::format("{}: the {} kernel was expected to run, but: {}{}", problem.operation->name,
                               kernel->name, outcome.declined, outcome.faults.empty() ? "" : outcome.faults.front()));
  return std::move(outcome.outputs);
}

Placed placed_copy(const Tensor& from, const Layout& layout) {
  Placed placed = place(from.dtype, from.shape, layout);
  fill(placed.view, [&](int64_t n) { return get(from, n); });
  return placed;
}

/// True when the gradient operation may be called without this input.
bool is_optional(const TensorField& field, int form) {
  for (const Alternative& alternative : field.contract)
    if (field.contract.applies(alternative, form)) return alternative.optional;
  return true;
}

/// Any right kernel serves: its outputs are inputs here. The reference does unless the problem is too large for it.
Kernel forward_kernel(const Problem& forward) {
  const std::vector<Kernel> kernels = kernels_of(*forward.operation);
  if (flops_of(forward) > kReferenceFlops)
    for (const Kernel& kernel : kernels)
      if (supports(forward, kernel).ok) return kernel;
  return kernels.back();
}

}  // namespace

Problem gradient_problem(const Problem& forward, uint64_t seed, bool random_layouts) {
  const Operation& op = *forward.operation;
  const Operation& gradient = *KernelRegistry::instance().find(op.gradient)->declaration;
  const std::vector<Array> outputs = run_plain(forward, forward_kernel(forward));
  const ForwardCall call{.operation = std::string(op.name),
                         .inputs = forward.views(),
                         .params = forward.params,
                         .outputs = {outputs.begin(), outputs.end()}};
  const std::vector<Tensor> no_cotangents(outputs.size());

  Random random(seed ^ 0x47524144u);
  Problem problem = Problem::of(gradient);
  problem.label = forward.label;
  problem.replay = forward.replay;
  problem.seed = forward.seed;
  problem.params = gradient_call(call, no_cotangents).params;
  const int form = op.form(call.inputs, forward.params);
  auto layout = [&](const Tensor& t) { return random_layouts ? random_layout(random, t.dtype, t.rank()) : Layout{}; };
  for (size_t i = 0; i < gradient.inputs.size(); ++i) {
    const TensorField& field = gradient.inputs[i];
    if (const int in = find_input(op, field.name); in >= 0) {
      problem.inputs[i] = forward.inputs[static_cast<size_t>(in)];
    } else if (const int o = find_output(op, field.name); o >= 0) {
      const Tensor& out = outputs[static_cast<size_t>(o)];
      if (out.present()) problem.inputs[i] = placed_copy(out, layout(out));
    } else {
      const int d = field.name.starts_with("d_") ? find_output(op, field.name.substr(2)) : -1;
      if (d < 0 || !outputs[static_cast<size_t>(d)].present()) continue;
      if (is_optional(field, form) && random.chance(0.5)) continue;
      const Tensor& out = outputs[static_cast<size_t>(d)];
      problem.inputs[i] = place(out.dtype, out.shape, layout(out));
      fill_normal(problem.inputs[i].view, random);
    }
  }
  return problem;
}

namespace {

/// The forward as a function of its inputs' memory, bound once.
class Loss {
 public:
  Loss(const Problem& forward, const Kernel& kernel, const std::vector<Tensor>& cotangents)
      : inputs_(forward.views()),
        cotangents_(cotangents),
        plan_(bind(forward, kernel, inputs_)),
        outputs_(plan_.allocate_outputs()) {}

  double operator()() {
    const std::vector<Tensor> views(outputs_.begin(), outputs_.end());
    run_with_workspace(plan_, inputs_, views);
    double sum = 0;
    for (size_t o = 0; o < views.size(); ++o)
      for (int64_t n = 0; n < cotangents_[o].num_elements(); ++n)
        if (const double y = get(views[o], n); std::isfinite(y)) sum += get(cotangents_[o], n) * y;
    return sum;
  }

 private:
  static Plan bind(const Problem& forward, const Kernel& kernel, const std::vector<Tensor>& inputs) {
    auto alone = std::make_shared<RegisteredOperation>();
    alone->declaration = forward.operation;
    alone->kernels = {kernel};
    return Plan::make(std::move(alone), inputs, forward.params, {.platform = kernel->platform, .kernel = kernel->name});
  }

  std::vector<Tensor> inputs_;
  std::vector<Tensor> cotangents_;
  Plan plan_;
  std::vector<Array> outputs_;
};

constexpr double kStep = 1e-6, kAbsolute = 1e-5, kRelative = 1e-3;

double central_difference(Loss& loss, const Tensor& x, int64_t n) {
  const double at = get(x, n);
  set(x, n, at + kStep);
  const double above = loss();
  set(x, n, at - kStep);
  const double below = loss();
  set(x, n, at);
  return (above - below) / (2 * kStep);
}

}  // namespace

GradientCheck check_gradient(const Problem& forward, const Kernel& forward_kernel, const Kernel& gradient_kernel,
                             uint64_t seed, int64_t max_elements) {
  const Operation& op = *forward.operation;
  const Problem gradient = gradient_problem(forward, seed, false);
  const std::vector<Array> gradients = run_plain(gradient, gradient_kernel);
  std::vector<Tensor> cotangents(op.outputs.size());
  for (size_t o = 0; o < cotangents.size(); ++o)
    if (const int i = find_input(*gradient.operation, fmt::format("d_{}", op.outputs[o].name)); i >= 0)
      cotangents[o] = gradient.inputs[static_cast<size_t>(i)].view;

  Loss loss(forward, forward_kernel, cotangents);
  GradientCheck result;
  Random random(seed ^ 0x46444946u);
  for (size_t g = 0; g < gradients.size(); ++g) {
    const std::string_view input = gradient.operation->outputs[g].name;
    const Tensor x = forward.view(input);
    const int64_t count = gradients[g].num_elements();
    for (int64_t k = 0; k < std::min(count, max_elements); ++k) {
      const int64_t n = count <= max_elements ? k : random.below(count);
      const double numeric = central_difference(loss, x, n), analytic = get(gradients[g], n);
      ++result.elements;
      if (std::abs(numeric - analytic) <= kAbsolute + kRelative * std::abs(numeric)) continue;
      result.failure = fmt::format("gradient of {} at element {}: {:.9g}, central difference {:.9g}\n  problem: {}",
                                   input, n, analytic, numeric, forward.label);
      return result;
    }
  }
  return result;
}

}  // namespace ejk::testing
