// The typed front: plan<Op>, execute<Op>, vjp<Op>. Thin templates over the untyped runtime.
//
//   auto [out, lse] = execute<FlashAttention>({.query = q, .key = k, .value = v}, {.causal = true});
//   auto [out, pullback] = vjp<FlashAttention>({.query = q, .key = k, .value = v}, {.causal = true});
//   auto grads = pullback({.out = d_out});        // grads.query, grads.key, grads.value
//   auto plan = ejk::plan<FlashAttention>(specs, params);   // choose once …
//   plan.run(inputs, outputs, {.stream = stream});          // … launch many times: no allocation, no lock
#pragma once

#include <utility>

#include "ejkernel/core/operation.h"
#include "ejkernel/core/out_of_memory.h"
#include "ejkernel/runtime/executor.h"
#include "ejkernel/runtime/gradient.h"
#include "ejkernel/runtime/plan.h"

namespace ejk {

namespace api_detail {
template <class Results>
Results to_results(std::vector<Array> arrays) {
  return [&]<size_t... i>(std::index_sequence<i...>) { return Results{std::move(arrays[i])...}; }
  (std::make_index_sequence<sizeof(Results) / sizeof(Array)>());
}
template <class Results>
std::vector<Tensor> views(const Results& results) {
  constexpr size_t kCount = sizeof(Results) / sizeof(Array);
  const Array* first = reinterpret_cast<const Array*>(&results);  // nothing but Arrays, in field order
  return std::vector<Tensor>(first, first + kCount);
}
}  // namespace api_detail

/// A Plan that knows its operation's structs.
template <class Op>
class PlanFor : public Plan {
 public:
  explicit PlanFor(Plan plan) : Plan(std::move(plan)) {}
  void run(const typename Op::Inputs& inputs, const typename Op::Outputs& outputs,
           const RunOptions& options = {}) const {
    Plan::run(to_array(inputs), to_array(outputs), options);
  }
  typename Op::Results allocate_outputs(void* stream = nullptr) const {
    return api_detail::to_results<typename Op::Results>(Plan::allocate_outputs(stream));
  }
};

/// Chooses once for these shapes and parameters; the tensors' data may be null.
template <class Op>
PlanFor<Op> plan(const typename Op::Inputs& specs, const typename Op::Params& params = {},
                 const PlanOptions& options = {}) {
  return PlanFor<Op>(Plan::make(Op::kName, to_array(specs), ParamsBlock::of(params), options));
}

/// Validates, chooses, allocates the outputs and runs. A result that aliases an input views the caller's memory, which
/// was written in place.
template <class Op>
typename Op::Results execute(const typename Op::Inputs& inputs, const typename Op::Params& params = {},
                             const CallOptions& options = {}) {
  return api_detail::to_results<typename Op::Results>(
      execute(Op::kName, to_array(inputs), ParamsBlock::of(params), options));
}

/// The gradient of one call. Views the inputs, which must outlive it; owns the outputs it needs.
template <class Op>
class Pullback {
 public:
  using Cotangents = typename Op::Outputs;
  using Gradients = typename Op::Gradient::Results;

  Pullback(const typename Op::Inputs& inputs, const typename Op::Params& params, const typename Op::Results& results,
           CallOptions options)
      : inputs_(inputs), params_(params), results_(results), options_(std::move(options)) {}

  /// Gradients for these cotangents; one that is left out counts as zero.
  Gradients operator()(const Cotangents& cotangents) const try {
    const auto inputs = to_array(inputs_);
    const ForwardCall forward{.operation = std::string(Op::kName),
                              .inputs = {inputs.begin(), inputs.end()},
                              .params = ParamsBlock::of(params_),
                              .outputs = api_detail::views(results_)};
    return api_detail::to_results<Gradients>(pull_back(forward, to_array(cotangents), options_));
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  }

 private:
  typename Op::Inputs inputs_;
  typename Op::Params params_;
  typename Op::Results results_;
  CallOptions options_;
};

/// The forward's results and the function that pulls cotangents back.
template <class Op>
std::pair<typename Op::Results, Pullback<Op>> vjp(const typename Op::Inputs& inputs,
                                                  const typename Op::Params& params = {},
                                                  const CallOptions& options = {}) try {
  typename Op::Results results = execute<Op>(inputs, params, options);
  Pullback<Op> pullback(inputs, params, results, options);
  return {std::move(results), std::move(pullback)};
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace ejk
