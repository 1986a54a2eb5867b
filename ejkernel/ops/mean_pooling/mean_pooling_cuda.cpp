// The host half of `cuda`: how mean_pooling and its gradient are cut into blocks. See mean_pooling_tiles.cuh.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_config.h"
#include "ejkernel/ops/mean_pooling/mean_pooling_cuda_internal.h"

namespace ejk {
namespace {

using pooling::CudaCall;
using pooling::Problem;

struct Programs {
  std::shared_ptr<const cuda::Program> survey, main, combine;
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t vector_length(DType dtype) { return 128 / bits(dtype); }

cuda::MeanPoolingTile tile_of(int vectors, int unroll) { return {vectors, cuda::kPoolingThreads / vectors, unroll}; }
int64_t num_column_tiles(const CudaCall& call, int vectors) {
  return divide_up(call.p.dim, vectors * vector_length(call.out.dtype));
}

/// Whether tiles of that width have few columns beyond a row's end.
bool uses_columns(const CudaCall& call, int width) {
  const int64_t vectors = divide_up(call.p.dim, vector_length(call.out.dtype));
  return divide_up(vectors, width) * width <= vectors + vectors / 8;
}
int widest_tile(const CudaCall& call) {
  for (const int wide : {128, 64, 32, 16})
    if (uses_columns(call, wide)) return wide;
  return 8;
}
/// Widths around that one, for the tuner.
std::vector<int> widths_around(int vectors) {
  return vectors == 8 ? std::vector{8, 16} : std::vector{vectors / 2, vectors, 2 * vectors};
}

/// Whether rows of this tensor begin at multiples of 16 bytes.
bool has_whole_vectors(const cuda::TensorRef& t, int64_t vector) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
         std::all_of(std::begin(t.strides), std::end(t.strides), [&](int64_t s) { return s % vector == 0; });
}
cuda::PoolingLaunch launch_of(const CudaCall& call, const cuda::PoolingProblem& problem) {
  const int64_t vector = vector_length(call.out.dtype);
  cuda::PoolingLaunch launch;
  launch.whole_vectors = has_whole_vectors(problem.x, vector) && has_whole_vectors(problem.out, vector);
  return launch;
}

constexpr int64_t kMostBlocks = INT32_MAX;  // the device counts them in 32 bits

/// Tensors that are run may have rows of several pieces where the planned ones had one.
cuda::Dim3 grid_of(int64_t blocks, const CudaCall& call) {
  if (blocks > kMostBlocks)
    throw_invalid("mean_pooling", "heads", "lie next to each other, as they did when the call was planned",
                  fmt::format("{} x {} of them apart", call.p.num_batches, call.p.num_heads),
                  "plan with the tensors that will be run");
  return {.x = static_cast<unsigned>(blocks)};
}

/// What both directions ask; `most_blocks` are those of the config that makes most of them.
Support supports_blocks(const CudaCall& call, int64_t most_blocks, const DeviceProperties& device) {
  if (call.out.dtype == DType::f64) return Support::no("its numbers are f32, f16 or bf16; f64 was given");
  if (device.compute_capability < 80) return Support::no("it needs compute capability 8.0 or more");
  if (most_blocks > kMostBlocks) return Support::no("it would take more than 2^31 blocks");
  if (call.p.num_tokens > INT32_MAX || call.p.dim > INT32_MAX)
    return Support::no("x has more than 2^31 rows or columns");
  return Support::yes();
}

/// A kernel for the call's dtype, and for `more` template arguments.
std::shared_ptr<const cuda::Program> load(std::string_view kernel, const CudaCall& call, const std::string& more,
                                          const DeviceProperties& device) {
  const std::string number = cuda::literal(static_cast<cuda::Number>(call.out.dtype));
  return cuda::load_program({.file = "ejkernel/ops/mean_pooling/mean_pooling_cuda.cu",
                             .instance = fmt::format("ejk::cuda::{}<{}{}>", kernel, number, more)},
                            device);
}
std::shared_ptr<const cuda::Program> load(std::string_view kernel, const CudaCall& call,
                                          const cuda::MeanPoolingTile& tile, const DeviceProperties& device) {
  return load(kernel, call, ", " + cuda::literal(tile), device);
}

struct Forward {
  static constexpr std::string_view kName = "cuda";
  static constexpr Platform kPlatform = Platform::cuda;

  struct Config {
    int vectors;          ///< of 16 bytes, next to each other, that a block takes of a row
    int unroll;           ///< loads of a thread that are on their way together
    int blocks_per_unit;  ///< long groups are cut into slices, no more of them than that many for each multiprocessor

    static constexpr auto fields() {
      return std::array{
          config_field<&Config::vectors, 8, 16, 32, 64, 128, 256>("vectors", "16-byte vectors of a row per block"),
          config_field<&Config::unroll, 2, 4, 8>("unroll", "loads of a thread that are on their way together"),
          config_field<&Config::blocks_per_unit, 1, 2, 3, 4, 8, 16>(
              "blocks_per_unit", "long groups are cut into no more blocks than this many for each multiprocessor")};
    }
    cuda::MeanPoolingTile tile() const { return tile_of(vectors, unroll); }
  };

  /// Rows of a group, as far as shapes tell.
  static int64_t group_rows(const Problem& p) {
    const int64_t sequences = p.packed() ? std::max<int64_t>(p.num_sequences, 1) : 1;
    const int64_t rows = divide_up(p.num_tokens, sequences);
    return p.chunked() ? std::min(p.chunk_size, rows) : rows;
  }
  static int64_t num_tiles(const CudaCall& call, const Config& config) {
    return call.p.num_batches * call.p.num_means * call.p.num_heads * num_column_tiles(call, config.vectors);
  }
  /// Parts that each group's rows are cut into: as many as run at once, none shorter than two rounds of loads. One more
  /// would leave a few blocks that run alone, too few to keep memory busy.
  static int64_t num_slices(const CudaCall& call, const Config& config, const DeviceProperties& device) {
    const int64_t at_once = int64_t{config.blocks_per_unit} * device.num_units;
    const int64_t two_rounds = int64_t{2} * config.tile().rows * config.unroll;
    return std::clamp<int64_t>(at_once / std::max<int64_t>(num_tiles(call, config), 1), 1,
                               std::max<int64_t>(group_rows(call.p) / two_rounds, 1));
  }
  /// Threads that add an element's slices, a power of two: each has a few to load at once, and not many in turn.
  static uint32_t combining(int64_t slices) {
    return static_cast<uint32_t>(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(slices / 4, 1, 32))));
  }

  static Support supports(const Call<MeanPooling>& call, const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    const Config most = {.vectors = 8, .unroll = 2, .blocks_per_unit = 16};
    return supports_blocks(c, num_tiles(c, most) * num_slices(c, most, device), device);
  }

  /// How much of the device works, on average, until the last block is done.
  static double busy(const CudaCall& call, const Config& config, const DeviceProperties& device) {
    const int64_t blocks = num_tiles(call, config) * num_slices(call, config, device);
    const int64_t at_once = int64_t{cuda::kPoolingBlocksPerUnit} * device.num_units;
    if (blocks > at_once)
      return static_cast<double>(blocks) / static_cast<double>(divide_up(blocks, at_once) * at_once);
    return std::min(1.0, static_cast<double>(blocks) / (config.blocks_per_unit * device.num_units));
  }

  static Config heuristic(const Call<MeanPooling>& call, const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    const int64_t rows = std::max<int64_t>(group_rows(c.p), 1);
    // Narrow tiles: 128 bytes of a row are as good a run as any, and groups are cut into fewer parts. But a thread has
    // 16 rows at least, or adding up the threads' sums takes longer than they do; and wider ones where the blocks of
    // narrow ones leave much of the device without work in the end.
    Config config = {.vectors = widest_tile(c), .unroll = 8, .blocks_per_unit = 2};
    double most_busy = 0;
    for (const int vectors : {8, 16, 32, 64}) {
      if (vectors * rows < int64_t{16} * cuda::kPoolingThreads || !uses_columns(c, vectors)) continue;
      const double now = busy(c, {vectors, config.unroll, config.blocks_per_unit}, device);
      if (now <= 1.1 * most_busy) continue;
      most_busy = now;
      config.vectors = vectors;
    }
    // Fewer loads at once where the last round of a group would have many too many.
    const auto loaded_rows = [&] {
      const int64_t round = int64_t{config.tile().rows} * config.unroll;
      return divide_up(rows, round) * round;
    };
    while (config.unroll > 2 && loaded_rows() > rows + rows / 4) config.unroll /= 2;
    return config;
  }

  static std::vector<Config> candidates(const Call<MeanPooling>& call, const DeviceProperties& device) {
    std::vector<Config> all = {heuristic(call, device)};
    for (const int vectors : widths_around(all.front().vectors))
      for (const int unroll : {2, 4, 8})
        for (const int blocks_per_unit : {2, 3, 4}) all.push_back({vectors, unroll, blocks_per_unit});
    return all;
  }

  static size_t workspace_bytes(const Call<MeanPooling>& call, const Config& config, const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    const int64_t slices = num_slices(c, config, device);
    const int64_t sums = slices > 1 ? slices * call.outputs.out.num_elements() : 0;
    return pooling::survey_bytes(c) + static_cast<size_t>(sums) * sizeof(double);
  }

  static std::shared_ptr<const void> prepare(const Call<MeanPooling>& call, const Config& config,
                                             const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    return std::make_shared<const Programs>(Programs{.survey = pooling::prepare_survey(c, device),
                                                     .main = load("mean_pooling", c, config.tile(), device),
                                                     .combine = load("mean_pooling_combine", c, "", device)});
  }

  static void run(const Call<MeanPooling>& call, const Config& config, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    const CudaCall c = pooling::cuda_call(call);
    const cuda::PoolingProblem problem = pooling::cuda_problem(c, context.workspace.data(), context.status);
    pooling::run_survey(programs.survey, c, problem, context);
    if (!c.out.present()) return;

    const int64_t slices = num_slices(c, config, *context.device);
    cuda::PoolingLaunch launch = launch_of(c, problem);
    launch.slices = static_cast<uint32_t>(slices);
    launch.slice_sums = reinterpret_cast<double*>(context.workspace.data() + pooling::survey_bytes(c));
    const cuda::Dim3 block = {.x = cuda::kPoolingThreads};
    cuda::launch(*programs.main, context, grid_of(num_tiles(c, config) * slices, c), block, 0, problem, launch);
    if (slices == 1) return;
    launch.combining = combining(slices);
    const int64_t blocks = divide_up(c.out.num_elements(), cuda::kPoolingThreads / launch.combining);
    cuda::launch(*programs.combine, context, grid_of(blocks, c), block, 0, problem, launch);
  }
};

struct Backward {
  static constexpr std::string_view kName = "cuda";
  static constexpr Platform kPlatform = Platform::cuda;

  struct Config {
    int vectors;          ///< of 16 bytes, next to each other, that a block writes of a row
    int rows_per_thread;  ///< that a thread writes

    static constexpr auto fields() {
      return std::array{
          config_field<&Config::vectors, 8, 16, 32, 64, 128, 256>("vectors", "16-byte vectors of a row per block"),
          config_field<&Config::rows_per_thread, 4, 8, 16, 32, 64>("rows_per_thread", "rows that a thread writes")};
    }
    cuda::MeanPoolingTile tile() const { return tile_of(vectors, 1); }
    int64_t block_rows() const { return int64_t{tile().rows} * rows_per_thread; }
  };

  static int64_t num_blocks(const CudaCall& call, const Config& config) {
    return call.p.num_batches * divide_up(call.p.num_tokens, config.block_rows()) * call.p.num_heads *
           num_column_tiles(call, config.vectors);
  }

  static Support supports(const Call<MeanPoolingBackward>& call, const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    // Narrow tensors make most blocks in wide tiles, wide ones in narrow tiles.
    return supports_blocks(c, std::max(num_blocks(c, {8, 4}), num_blocks(c, {256, 4})), device);
  }

  static Config heuristic(const Call<MeanPoolingBackward>& call, const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    // Where rows are written number by number, as wide as a warp, so that it writes as many of them beside each other.
    const int64_t vector = vector_length(c.out.dtype);
    const auto vectors = std::bit_ceil(static_cast<uint64_t>(divide_up(c.p.dim, vector)));
    const int by_number = static_cast<int>(std::clamp<uint64_t>(vectors, 8, 32));
    Config config = {.vectors = c.p.dim % vector == 0 ? widest_tile(c) : by_number, .rows_per_thread = 16};
    // Fewer rows for a thread only where a multiprocessor would have nothing to do beside its first block.
    while (config.rows_per_thread > 4 && 2 * num_blocks(c, config) < int64_t{3} * device.num_units)
      config.rows_per_thread /= 2;
    return config;
  }

  static std::vector<Config> candidates(const Call<MeanPoolingBackward>& call, const DeviceProperties& device) {
    std::vector<Config> all = {heuristic(call, device)};
    for (const int vectors : widths_around(all.front().vectors))
      for (const int rows_per_thread : {4, 8, 16, 32, 64}) all.push_back({vectors, rows_per_thread});
    return all;
  }

  static size_t workspace_bytes(const Call<MeanPoolingBackward>& call, const Config&, const DeviceProperties&) {
    return pooling::survey_bytes(pooling::cuda_call(call));
  }

  static std::shared_ptr<const void> prepare(const Call<MeanPoolingBackward>& call, const Config& config,
                                             const DeviceProperties& device) {
    const CudaCall c = pooling::cuda_call(call);
    return std::make_shared<const Programs>(Programs{.survey = pooling::prepare_survey(c, device),
                                                     .main = load("mean_pooling_backward", c, config.tile(), device),
                                                     .combine = nullptr});
  }

  static void run(const Call<MeanPoolingBackward>& call, const Config& config, const RunContext& context) {
    const auto& programs = *static_cast<const Programs*>(context.code);
    const CudaCall c = pooling::cuda_call(call);
    const cuda::PoolingProblem problem = pooling::cuda_problem(c, context.workspace.data(), context.status);
    pooling::run_survey(programs.survey, c, problem, context);
    if (!c.x.present()) return;

    cuda::PoolingLaunch launch = launch_of(c, problem);
    launch.block_rows = config.block_rows();
    cuda::launch(*programs.main, context, grid_of(num_blocks(c, config), c), {.x = cuda::kPoolingThreads}, 0, problem,
                 launch);
  }
};

}  // namespace

const KernelInfo& mean_pooling_kernels::cuda() {
  static const KernelInfo kernel = make_kernel<MeanPooling, Forward>();
  return kernel;
}

const KernelInfo& mean_pooling_kernels::backward_cuda() {
  static const KernelInfo kernel = make_kernel<MeanPoolingBackward, Backward>();
  return kernel;
}

}  // namespace ejk
