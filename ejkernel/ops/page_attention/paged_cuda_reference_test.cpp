// The device code of the operations over a cache as host C++, with blocks of one thread and of three: on the problems
// that every kernel of the host meets, by the same rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"
#include "ejkernel/ops/flash_attention/formula_on_host_cases.h"
#include "ejkernel/ops/page_append/page_append_formula.cuh"
#include "ejkernel/ops/page_attention/page_attention_formula.cuh"
#include "ejkernel/ops/page_attention/paged_cuda_reference_internal.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/host_block.h"

namespace ejk {
namespace {

using cuda::Number;
using ::testing::ElementsAre;
using testing::HostBlock;

/// Calls work(threads, block) in every thread of each of a grid's two blocks.
template <int kThreads, class Shared, class Work>
void run_grid(Work work) {
  for (int block = 0; block < 2; ++block) {
    Shared shared;
    testing::run_block(kThreads, [&](HostBlock threads) { work(threads, shared, block); });
  }
}

template <int kThreads, Number kNumber>
void attend(const attn::PagedCall& call, const RunContext& context) {
  const cuda::PagedAttentionProblem p = attn::cuda_paged_problem(call.problem, context.status);
  const cuda::AttentionResults to = attn::cuda_results({.out = call.out, .lse = call.lse});
  using Shared = cuda::PagedAttentionShared<kThreads>;
  run_grid<kThreads, Shared>([&](HostBlock threads, Shared& shared, int block) {
    const cuda::PagedAttentionFormula<kNumber, HostBlock, kThreads> formula(p, threads, shared);
    if (block == 0) formula.raise_faults();
    formula.forward(to, block, 2);
  });
}
template <int kThreads>
void attend(const attn::PagedCall& call, const RunContext& context) {
  switch (static_cast<Number>(call.problem.query.dtype)) {
    case Number::f64:
      return attend<kThreads, Number::f64>(call, context);
    case Number::f32:
      return attend<kThreads, Number::f32>(call, context);
    case Number::f16:
      return attend<kThreads, Number::f16>(call, context);
    default:
      return attend<kThreads, Number::bf16>(call, context);
  }
}

template <int kThreads>
void append(const attn::Append& append, const RunContext& context) {
  const cuda::PageAppendProblem p = attn::cuda_append_problem(append, context.status);
  using Formula = cuda::PageAppendFormula<HostBlock, kThreads>;
  struct Shared {
    typename Formula::Shared owners;
  };
  run_grid<kThreads, Shared>([&](HostBlock threads, Shared& shared, int block) {
    const Formula formula(p, threads, shared.owners);
    if (block == 0) formula.raise_faults();
    formula.write(block, 2);
  });
}

/// The kernel as the harness asks for it.
template <class Op, int kThreads>
struct OnHost {
  static constexpr std::string_view kName = kThreads == 1 ? "one_thread" : "many_threads";
  static constexpr Platform kPlatform = Platform::cpu;

  static void run(const Call<Op>& call, const RunContext& context) {
    const attn::PagedCall paged = attn::paged_call(call);
    if constexpr (std::is_same_v<Op, RaggedPageAttentionV3>)
      append<kThreads>({call.inputs.keys, call.inputs.values, paged.problem}, context);
    attend<kThreads>(paged, context);
  }
};

template <class Op>
using PagedFormulaOnHost = testing::FormulaOnHost<Op, OnHost<Op, 1>, OnHost<Op, 3>>;

using Operations = ::testing::Types<PageAttention, RaggedDecodeAttention, RaggedPageAttention, RaggedPageAttentionV3>;
struct OperationName {
  template <class Op>
  static std::string GetName(int) {
    return std::string(Op::kName);
  }
};
TYPED_TEST_SUITE(PagedFormulaOnHost, Operations, OperationName);

TYPED_TEST(PagedFormulaOnHost, meets_the_named_cases) { EXPECT_GE(this->meets_named(this->one_thread, 2e6), 15); }

TYPED_TEST(PagedFormulaOnHost, meets_random_problems) {
  EXPECT_EQ(this->meets_some(300, testing::Size::small, this->one_thread, 1e7), 300);
}

TYPED_TEST(PagedFormulaOnHost, does_not_depend_on_the_order_of_its_threads) {
  EXPECT_EQ(this->meets_some(60, testing::Size::tiny, this->many_threads, 1e5), 60);
}

TEST(PagedCudaReference, writes_before_it_attends) {
  const testing::FakeCuda fake;
  constexpr Device kGpu = {DeviceKind::cuda, 0};
  const auto on_gpu = [&](DType dtype, const Shape& shape) { return Array::zeros(dtype, shape, kGpu); };
  const auto ints = [&](const Shape& shape) { return on_gpu(DType::i32, shape); };
  const Array queries = on_gpu(DType::bf16, {7, 4, 16}), keys = on_gpu(DType::bf16, {7, 2, 16});
  const Array cache = on_gpu(DType::i8, {5, 8, 4, 16}), lens = ints({3}), tables = ints({6}), starts = ints({4}),
              distribution = ints({3});
  execute<RaggedPageAttentionV3>({.queries = queries,
                                  .keys = keys,
                                  .values = keys,
                                  .kv_cache = cache,
                                  .context_lens = lens,
                                  .block_tables = tables,
                                  .query_start_loc = starts,
                                  .distribution = distribution},
                                 {});
  std::vector<std::string> launches;
  for (const testing::FakeCuda::Launch& launch : fake.launches())
    launches.push_back(std::string(launch.instance) + " " + std::to_string(launch.grid[0]));
  // A block per new row; a block per row and query head.
  EXPECT_THAT(launches,
              ElementsAre("ejk::cuda::page_append 7", "ejk::cuda::paged_attention_forward<ejk::cuda::Number(3)> 28"));
}

}  // namespace
}  // namespace ejk
