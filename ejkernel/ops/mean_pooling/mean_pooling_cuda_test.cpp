// The device code of `cuda` and `cuda_reference` as host C++, with blocks of one thread and of six: on the problems
// that every kernel of the host meets, by the same rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ejkernel/ops/mean_pooling/mean_pooling_cases.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_cuda_internal.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_formula.cuh"
#include "ejkernel/ops/mean_pooling/mean_pooling_tiles.cuh"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/host_block.h"

namespace ejk {
namespace {

using cuda::MeanPoolingTile;
using cuda::Number;
using pooling::CudaCall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HostBlock;

constexpr int64_t kSlices = 3, kBlockRows = 5, kCombining = 2;

/// What both kernels do first: the survey, by the blocks that it would have. The problem for the blocks to come.
cuda::PoolingProblem surveyed(const CudaCall& call, const RunContext& context, int threads) {
  const cuda::PoolingProblem problem = pooling::cuda_problem(call, context.workspace.data(), context.status);
  const bool wanted = call.p.packed() || call.p.mask.present();
  for (int64_t b = 0; wanted && b < (call.p.packed() ? 1 : call.p.num_batches); ++b) {
    std::vector<cuda::int64> memory(static_cast<size_t>(threads));
    testing::run_block(threads, [&](HostBlock block) { survey(problem, b, block, memory.data()); });
  }
  return problem;
}

template <class Op>
bool is_wanted(const CudaCall& call) {
  return (std::is_same_v<Op, MeanPoolingBackward> ? call.x : call.out).present();
}

template <class Op, int kThreads>
struct ReferenceOnHost {
  static constexpr std::string_view kName = "reference_on_host";
  static constexpr Platform kPlatform = Platform::cpu;

  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    return pooling::survey_bytes(pooling::cuda_call(call));
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const CudaCall c = pooling::cuda_call(call);
    const cuda::PoolingProblem problem = surveyed(c, context, kThreads);
    if (!is_wanted<Op>(c)) return;
    for (int first = 0; first < 2; ++first)
      testing::run_block(kThreads, [&](HostBlock block) {
        if constexpr (std::is_same_v<Op, MeanPooling>)
          pool_rows(problem, first, 2, block);
        else
          spread_means(problem, first, 2, block);
      });
  }
};

/// `cuda` with tiles of 2 x 3 threads, and groups cut into three slices.
template <class Op>
struct TilesOnHost {
  static constexpr std::string_view kName = "tiles_on_host";
  static constexpr Platform kPlatform = Platform::cpu;
  static constexpr MeanPoolingTile kTile = {2, 3, 4};
  static constexpr int kThreads = kTile.vectors * kTile.rows;
  static constexpr bool kBackward = std::is_same_v<Op, MeanPoolingBackward>;

  static Support supports(const Call<Op>& call, const DeviceProperties&) {
    return pooling::cuda_call(call).out.dtype == DType::f64 ? Support::no("f64") : Support::yes();
  }
  static size_t workspace_bytes(const Call<Op>& call, const NoConfig&, const DeviceProperties&) {
    const CudaCall c = pooling::cuda_call(call);
    return pooling::survey_bytes(c) + static_cast<size_t>(kSlices * c.out.num_elements()) * sizeof(double);
  }
  static void run(const Call<Op>& call, const RunContext& context) {
    const CudaCall c = pooling::cuda_call(call);
    const cuda::PoolingProblem problem = surveyed(c, context, kThreads);
    if (!is_wanted<Op>(c)) return;
    switch (c.out.dtype) {
      case DType::f32:
        return run_tiles<Number::f32>(c, problem, context);
      case DType::f16:
        return run_tiles<Number::f16>(c, problem, context);
      default:
        return run_tiles<Number::bf16>(c, problem, context);
    }
  }

  template <Number kNumber>
  static void run_tiles(const CudaCall& c, const cuda::PoolingProblem& problem, const RunContext& context) {
    using Tiles = cuda::PoolingTiles<kNumber, kTile, HostBlock>;
    const auto is_aligned = [](const cuda::TensorRef& t) {
      bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
      for (const cuda::int64 stride : t.strides) aligned = aligned && stride % cuda::kVectorLength<kNumber> == 0;
      return aligned;
    };
    cuda::PoolingLaunch launch;
    launch.whole_vectors = is_aligned(problem.x) && is_aligned(problem.out);
    launch.slices = c.p.num_tokens % 2 == 0 ? kSlices : 1;
    launch.slice_sums = reinterpret_cast<double*>(context.workspace.data() + pooling::survey_bytes(c));
    launch.block_rows = kBlockRows;
    const int64_t column_tiles = (c.p.dim + Tiles::kColumns - 1) / Tiles::kColumns;
    const int64_t parts =
        kBackward ? (c.p.num_tokens + kBlockRows - 1) / kBlockRows : c.p.num_means * int64_t{launch.slices};
    const auto blocks = static_cast<cuda::uint32>(c.p.num_batches * parts * c.p.num_heads * column_tiles);

    typename Tiles::Shared shared;
    testing::run_block(kThreads, [&](HostBlock block) {
      const Tiles tiles(problem, launch, block, shared);
      for (cuda::uint32 n = 0; n < blocks; ++n)
        if constexpr (kBackward)
          tiles.spread(n);
        else
          tiles.pool(n);
    });
    if (kBackward || launch.slices == 1) return;
    launch.combining = kCombining;
    double sums[kThreads];
    const int64_t elements = kThreads / kCombining;
    testing::run_block(kThreads, [&](HostBlock block) {
      for (int64_t n = 0; n * elements < c.out.num_elements(); ++n) {
        cuda::combine_slices<kNumber>(problem, launch, static_cast<cuda::uint32>(n), block, sums);
        block.sync();
      }
    });
  }
};

template <class Kernel>
class PoolingOnHost : public ::testing::Test {
 protected:
  using Op = typename Kernel::Op;
  const testing::TestOperation& tests =
      std::is_same_v<Op, MeanPooling> ? testing::mean_pooling_tests() : testing::mean_pooling_backward_tests();
  const testing::Kernel kernel = std::make_shared<const KernelInfo>(make_kernel<Op, typename Kernel::Type>());

  void meet(const testing::Problem& problem) {
    if (testing::flops_of(problem) > Kernel::kLargest) return;
    const testing::Answer answer = tests.oracle(problem, testing::kTestBudget);
    const testing::Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed});
    EXPECT_EQ(report(problem, kernel, verdict), "");
    met += verdict.supported ? 1 : 0;
  }

  int met = 0;
};

template <class Operation, class K, int kMostFlops>
struct Tested {
  using Op = Operation;
  using Type = K;
  static constexpr double kLargest = kMostFlops;
};
using Kernels = ::testing::Types<Tested<MeanPooling, ReferenceOnHost<MeanPooling, 1>, 2'000'000>,
                                 Tested<MeanPoolingBackward, ReferenceOnHost<MeanPoolingBackward, 1>, 2'000'000>,
                                 Tested<MeanPooling, ReferenceOnHost<MeanPooling, 3>, 20'000>,
                                 Tested<MeanPoolingBackward, ReferenceOnHost<MeanPoolingBackward, 3>, 20'000>,
                                 Tested<MeanPooling, TilesOnHost<MeanPooling>, 20'000>,
                                 Tested<MeanPoolingBackward, TilesOnHost<MeanPoolingBackward>, 20'000>>;
TYPED_TEST_SUITE(PoolingOnHost, Kernels);

TYPED_TEST(PoolingOnHost, meets_the_named_cases) {
  for (const testing::Case& one : this->tests.cases)
    if ((one.tags & testing::kPrimary) == 0) this->meet(one.make());  // the others are large
  EXPECT_GE(this->met, 150);
}

TYPED_TEST(PoolingOnHost, meets_random_problems) {
  for (uint64_t seed = 1; seed <= 200 && !this->HasFailure(); ++seed)
    this->meet(this->tests.random({.seed = seed, .size = testing::Size::small, .hostile = seed % 2 == 0}));
  EXPECT_GE(this->met, 100);
}

// ---- what is launched ----

constexpr Device kGpu = {DeviceKind::cuda, 0};

/// The kernels that calls launch on a device that is not there, by their names without template arguments.
class PoolingLaunches : public ::testing::Test {
 protected:
  static Array on_gpu(DType dtype, const Shape& shape) { return Array::zeros(dtype, shape, kGpu); }

  std::vector<std::string> launched() const {
    std::vector<std::string> names;
    for (const testing::FakeCuda::Launch& launch : fake.launches()) {
      const std::string_view name = launch.instance.substr(std::string_view("ejk::cuda::").size());
      names.emplace_back(name.substr(0, name.find('<')));
    }
    return names;
  }

  testing::FakeCuda fake;
};

TEST_F(PoolingLaunches, one_launch_pools_many_groups_and_two_pool_a_few_long_ones) {
  mean_pooling({.x = on_gpu(DType::bf16, {200, 64, 4096})});
  EXPECT_THAT(launched(), ElementsAre("mean_pooling"));
  EXPECT_EQ(fake.launches()[0].grid[0], 200u * 8);  // 4096 columns of bf16 are eight tiles of 64 vectors
  mean_pooling({.x = on_gpu(DType::bf16, {2, 8192, 512})});
  EXPECT_THAT(launched(), ElementsAre("mean_pooling", "mean_pooling", "mean_pooling_combine"));
  EXPECT_EQ(fake.launches()[1].grid[0], 2u * 8 * 16)
      << "no slice shorter than 512 rows, two rounds of loads for each thread";
  mean_pooling({.x = on_gpu(DType::bf16, {5, 8192, 1024})});
  EXPECT_EQ(fake.launches()[3].grid[0], 5u * 16 * 3)
      << "one slice more would be blocks beyond two for each multiprocessor";
}

TEST_F(PoolingLaunches, tiles_are_as_narrow_as_leaves_the_device_busy_and_threads_enough_rows) {
  const auto tile_of = [&](const Shape& shape) {
    const size_t before = fake.launches().size();
    mean_pooling({.x = on_gpu(DType::bf16, shape)});
    return std::string(fake.launches()[before].instance);
  };
  EXPECT_THAT(tile_of({4, 4096, 4096}), HasSubstr("Tile{8, 32, 8}")) << "256 blocks, two for most multiprocessors";
  EXPECT_THAT(tile_of({8, 2048, 4096}), HasSubstr("Tile{16, 16, 8}")) << "512 would be a third more than run at once";
  EXPECT_THAT(tile_of({1000, 64, 768}), HasSubstr("Tile{32, 8, 8}")) << "tiles of 64 vectors would be half empty";
  EXPECT_THAT(tile_of({1000, 77, 1280}), HasSubstr("Tile{32, 8, 4}")) << "ten rows a thread are two and a half rounds";
}

TEST_F(PoolingLaunches, gradients_are_written_number_by_number_a_warp_wide_where_vectors_are_not_filled) {
  const auto tile_of = [&](int64_t dim) {
    const size_t before = fake.launches().size();
    execute<MeanPoolingBackward>({.d_out = on_gpu(DType::bf16, {64, dim})}, {.num_tokens = 1000});
    return std::string(fake.launches()[before].instance);
  };
  EXPECT_THAT(tile_of(304), HasSubstr("Tile{8, 32, 1}")) << "38 vectors, of which wider tiles would leave many empty";
  EXPECT_THAT(tile_of(301), HasSubstr("Tile{32, 8, 1}"));
  EXPECT_THAT(tile_of(100), HasSubstr("Tile{16, 16, 1}")) << "13 vectors";
}

TEST_F(PoolingLaunches, index_tensors_are_surveyed_when_kernels_need_to_know) {
  const Array x = on_gpu(DType::f32, {40, 24, 96}), packed = on_gpu(DType::f32, {40, 96});
  const Array chunked = on_gpu(DType::f32, {40, 2, 96}), cu_seqlens = on_gpu(DType::i32, {9});
  mean_pooling({.x = x, .mask = on_gpu(DType::boolean, {40, 24})});
  EXPECT_THAT(launched(), ElementsAre("mean_pooling_survey", "mean_pooling"));
  EXPECT_EQ(fake.launches()[0].grid[0], 40u) << "a block for each entry of the batch";
  mean_pooling({.x = chunked, .cu_seqlens = cu_seqlens}, {.chunk_size = 4});
  EXPECT_EQ(launched()[2], "mean_pooling_survey");
  EXPECT_EQ(fake.launches()[2].grid[0], 1u);
  const size_t before = launched().size();
  mean_pooling({.x = packed, .cu_seqlens = cu_seqlens});
  EXPECT_EQ(launched()[before], "mean_pooling") << "whole sequences need none";
  execute<MeanPoolingBackward>({.d_out = on_gpu(DType::f32, {8, 96}), .cu_seqlens = cu_seqlens}, {.num_tokens = 40});
  const std::vector<std::string> all = launched();
  EXPECT_THAT(std::vector(all.end() - 2, all.end()), ElementsAre("mean_pooling_survey", "mean_pooling_backward"));
}

TEST_F(PoolingLaunches, what_the_fast_kernel_declines_is_pooled_in_double) {
  mean_pooling({.x = on_gpu(DType::f64, {3, 5, 7})});
  EXPECT_THAT(launched(), ElementsAre("mean_pooling_reference"));
  EXPECT_EQ(fake.launches()[0].grid[0], 3u);
}

}  // namespace
}  // namespace ejk
