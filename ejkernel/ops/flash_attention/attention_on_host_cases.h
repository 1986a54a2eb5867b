// The device code of the attention operations' `cuda_reference` as host C++, in blocks of kThreads threads. Instances
// are compiled in files of their own: there are as many as dtypes, and each is the whole formula.
#pragma once

#include <cmath>
#include <vector>

#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"
#include "ejkernel/ops/flash_attention/attention_formula.cuh"
#include "ejkernel/testing/host_block.h"

namespace ejk::attention_on_host {

using attn::BackwardInputs;
using attn::ForwardResults;
using cuda::Number;
using testing::HostBlock;

static_assert(static_cast<int>(Number::boolean) == static_cast<int>(DType::boolean));

template <class F>
void dispatch(DType dtype, F&& f) {
  switch (static_cast<Number>(dtype)) {
    case Number::f64:
      return f.template operator()<Number::f64>();
    case Number::f32:
      return f.template operator()<Number::f32>();
    case Number::f16:
      return f.template operator()<Number::f16>();
    case Number::bf16:
      return f.template operator()<Number::bf16>();
    case Number::e4m3:
      return f.template operator()<Number::e4m3>();
    case Number::e5m2:
      return f.template operator()<Number::e5m2>();
    default:
      return f.template operator()<Number::i8>();
  }
}

/// Calls work(formula) in every thread of a block, once for each of a grid's two blocks.
template <int kThreads, class Work>
void run_kernel(DType dtype, const cuda::AttentionProblem& p, Work work) {
  dispatch(dtype, [&]<Number kNumber>() {
    for (int block = 0; block < 2; ++block) {
      cuda::AttentionShared<kThreads> shared;
      testing::run_block(kThreads, [&](HostBlock threads) {
        work(cuda::AttentionFormula<kNumber, HostBlock, kThreads>(p, threads, shared), block);
      });
    }
  });
}

template <int kThreads>
void forward(const attn::Problem& problem, const ForwardResults& results, const RunContext& context) {
  const cuda::AttentionProblem p = attn::cuda_problem(problem, context.status);
  const cuda::AttentionResults to = attn::cuda_results(results);
  run_kernel<kThreads>(problem.query.dtype, p, [&](const auto& formula, int block) {
    if (block == 0) formula.raise_faults();
    formula.forward(to, block, 2);
  });
}

template <int kThreads>
void backward(const attn::Problem& problem, const BackwardInputs& in, const FlashAttentionBackward::Outputs& to,
              const RunContext& context) {
  const cuda::AttentionProblem p = attn::cuda_problem(problem, context.status);
  const cuda::AttentionGradients g = attn::cuda_gradients(problem, in, to, context.workspace.data());
  const auto run = [&](cuda::AttentionStep step) {
    run_kernel<kThreads>(problem.query.dtype, p, [&](const auto& formula, int block) {
      if (step == cuda::AttentionStep::rows && block == 0) formula.raise_faults();
      formula.backward(g, step, block, 2);
    });
  };
  run(cuda::AttentionStep::rows);
  if (g.key.present() || g.value.present()) run(cuda::AttentionStep::keys);
  if (g.bias.present()) run(cuda::AttentionStep::bias);
  if (g.sinks.present()) run(cuda::AttentionStep::sinks);
}

}  // namespace ejk::attention_on_host
