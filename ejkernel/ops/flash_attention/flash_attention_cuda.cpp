// Host half of the Hopper kernel: what it can do, which config, the arguments of a launch. Device half:
// flash_attention_sm90.cu.
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "ejkernel/ops/flash_attention/attention_cuda_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/flash_attention/flash_attention_arguments.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct FlashAttentionSm90 {
  static constexpr std::string_view kName = "cuda_sm90";
  static constexpr Platform kPlatform = Platform::cuda;

  struct Config : FlashForwardConfig {
    static constexpr auto fields() {
      return std::array{
          config_field<&Config::consumers, 2, 3, 4>("consumers", "warpgroups that compute, 64 query rows each"),
          config_field<&Config::block_k, 64, 80, 96, 112, 128, 144, 160, 176>("block_k", "keys per step"),
          config_field<&Config::stages, 2, 3, 4, 6>("stages", "blocks of keys, and of values, in shared memory"),
          config_field<&Config::lazy_rescale, 0, 1>(
              "lazy_rescale", "1: the running maximum follows only when it falls behind by a factor of 2^8"),
          config_field<&Config::across_tiles, 0, 1>(
              "across_tiles", "1: one loop over the blocks of all tiles, which compiles faster; 0: one for each tile")};
    }
  };

  static Support supports(const Call<FlashAttention>& call, const DeviceProperties& device) {
    return attn::supports_sm90(call.inputs, call.params, device);
  }

  /// Best of the measured, see docs/kernels/flash_attention_sm90.md.
  static Config heuristic(const Call<FlashAttention>& call, const DeviceProperties& device) {
    const Shape &query = call.inputs.query.shape, &key = call.inputs.key.shape;
    const int64_t dim = query[3], kv_len = key[1];
    const bool causal = call.params.causal;
    // Rows that a block computes in all rounds: larger tiles may leave the last round emptier.
    const auto rows_in_rounds = [&](int64_t rows) {
      const int64_t tiles = divide_up(query[1], rows) * query[0] * query[2];
      return static_cast<double>(divide_up(tiles, device.num_units) * rows);
    };
    if (dim == 256) return {2, 64, 2, true, false};
    if (dim == 64) return causal || kv_len < 8192 ? Config{4, 64, 6, true, false} : Config{3, 128, 2, true, false};
    if (causal && kv_len >= 8192) return {2, 160, 2, false, false};
    if (!causal && kv_len >= 2048 && rows_in_rounds(192) <= 1.04 * rows_in_rounds(128)) return {3, 80, 2, true, false};
    return {2, 128, 2, false, true};
  }
  /// All that were the best of some shape, or close.
  static std::vector<Config> candidates(const Call<FlashAttention>& call, const DeviceProperties&) {
    switch (call.inputs.query.shape[3]) {
      case 256:
        return {{2, 64, 2, true, false}, {2, 64, 2, false, false}, {2, 80, 2, true, false}};
      case 128:
        return {{2, 128, 2, false, true},
                {2, 128, 2, false, false},
                {2, 128, 2, true, false},
                {2, 160, 2, false, false},
                {3, 80, 2, true, false}};
      default:
        return {{4, 64, 6, true, false},
                {4, 64, 6, true, true},
                {4, 64, 6, false, false},
                {3, 128, 2, true, false},
                {3, 128, 2, true, true}};
    }
  }

  static Cost cost(const Call<FlashAttention>& call, const Config& config, const DeviceProperties&) {
    const auto& in = call.inputs;
    const FlashForwardShape shape(variant(call), code_of(config));
    const int64_t batch = in.query.shape[0], heads = in.query.shape[2];
    const int64_t tiles = divide_up(in.query.shape[1], shape.rows);
    const int64_t steps = divide_up(in.key.shape[1], shape.keys);
    return {.tasks = static_cast<double>(tiles * heads * batch),
            .task_flops = 4.0 * shape.rows * static_cast<double>(steps) * shape.keys * shape.dim,
            .arithmetic = in.query.dtype,
            .shared_bytes = FlashForwardMemory(shape, config.stages).bytes};
  }

  static FlashForwardVariant variant(const Call<FlashAttention>& call) {
    return {.type = call.inputs.query.dtype == DType::bf16 ? cuda::HalfType::bf16 : cuda::HalfType::f16,
            .head_dim = static_cast<int>(call.inputs.query.shape[3]),
            .causal = call.params.causal};
  }

  static std::shared_ptr<const void> prepare(const Call<FlashAttention>& call, const Config& config,
                                             const DeviceProperties& device) {
    // Configs that differ in their stages share a program, which is made ready for the most that a block has.
    const int64_t most = std::min<int64_t>(FlashForwardMemory::kMostBytes, device.shared_bytes_per_block - 1024);
    const FlashForwardShape shape(variant(call), code_of(config));
    const FlashForwardMemory memory(shape, config.stages);
    if (!shape.registers_suffice)
      throw cuda::CompileError(
          fmt::format("cuda_sm90 has {} registers for a thread of {} consumers, which do not hold "
                      "scores of {} keys beside outputs of {} numbers{}",
                      shape.consumer_registers, shape.consumers, shape.keys, shape.dim,
                      config.across_tiles ? " across tiles" : ""));
    if (memory.bytes > most)
      throw cuda::CompileError(
          fmt::format("cuda_sm90 needs {} bytes of shared memory with {} stages, and {} has {} for "
                      "a block",
                      memory.bytes, config.stages, device.product, most));
    return cuda::load_program({.file = "ejkernel/ops/flash_attention/flash_attention_sm90.cu",
                               .instance = fmt::format("ejk::flash_attention_forward<{}, {}>",
                                                       cuda::literal(variant(call)), cuda::literal(code_of(config))),
                               .shared_bytes = static_cast<int>(most)},
                              device);
  }

  static void run(const Call<FlashAttention>& call, const Config& config, const RunContext& context) {
    const auto& in = call.inputs;
    const Tensor &out = call.outputs.out, &lse = call.outputs.lse;
    attn::require_alignment(FlashAttention::kName, "query", in.query);
    attn::require_alignment(FlashAttention::kName, "key", in.key);
    attn::require_alignment(FlashAttention::kName, "value", in.value);
    const cuda::CurrentDevice current(context.device->device);
    const FlashForwardShape shape(variant(call), code_of(config));
    const FlashForwardMemory memory(shape, config.stages);
    const attn::Sm90Lengths lengths(in, call.params);
    const int64_t q_len = in.query.shape[1], heads = in.query.shape[2], batch = in.query.shape[0];
    const int64_t group = heads / in.key.shape[2], tiles_per_head = divide_up(q_len, shape.rows);
    const double scale = call.params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(shape.dim)));
    const FlashForwardArguments args = {
        .query = attn::tile_map(in.query, q_len, shape.rows),
        .key = attn::tile_map(in.key, lengths.kv_len, shape.keys),
        .value = attn::tile_map(in.value, lengths.kv_len, shape.keys),
        .out = out.as<char>(),
        .out_is_aligned = attn::fits_tensor_map(out),
        .lse = lse.as<float>(),
        .out_row = out.strides[1] * 2,
        .out_head = out.strides[2] * 2,
        .out_batch = out.strides[0] * 2,
        .lse_row = lse.present() ? lse.strides[2] : 0,
        .lse_head = lse.present() ? lse.strides[1] : 0,
        .lse_batch = lse.present() ? lse.strides[0] : 0,
        .schedule = {{.q_len = static_cast<int>(q_len),
                      .kv_len = static_cast<int>(lengths.kv_len),
                      .diagonal = static_cast<int>(lengths.diagonal),
                      .batch = static_cast<int>(batch),
                      .num_heads = static_cast<int>(heads),
                      .heads_per_section = attn::heads_per_section(tiles_per_head, group, context.device->num_units)},
                     shape.rows},
        .memory = memory,
        .queries_per_kv_head = cuda::Divisor(static_cast<int>(group)),
        .scale_log2 = static_cast<float>(scale * std::numbers::log2e)};
    const int64_t blocks = std::min<int64_t>(context.device->num_units, tiles_per_head * heads * batch);
    cuda::launch(*static_cast<const cuda::Program*>(context.code), context, {.x = static_cast<unsigned>(blocks)},
                 {.x = static_cast<unsigned>(shape.threads)}, memory.bytes, args);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::cuda_sm90() {
  static const KernelInfo kernel = make_kernel<FlashAttention, FlashAttentionSm90>();
  return kernel;
}

}  // namespace ejk
