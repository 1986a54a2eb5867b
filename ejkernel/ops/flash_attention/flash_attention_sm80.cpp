// Host half of the kernel for Ampere and newer: what it can do, which config, the arguments of a launch. Device half:
// flash_attention_sm80.cu.
#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/attention_cuda_internal.h"
#include "ejkernel/ops/flash_attention/attention_cuda_reference_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/flash_attention/flash_attention_sm80.cuh"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace {

/// Whether every row starts at a multiple of so many bytes.
bool rows_are_aligned(const Tensor& t, uintptr_t bytes) {
  if (reinterpret_cast<uintptr_t>(t.data) % bytes != 0) return false;
  for (int axis = 0; axis + 1 < t.rank(); ++axis)
    if (t.shape[axis] > 1 && t.strides[axis] * 2 % static_cast<int64_t>(bytes) != 0) return false;
  return true;
}

int64_t tiles_of(int64_t num_rows, int64_t rows) { return (num_rows + rows - 1) / rows; }
int64_t num_tiles(const attn::Problem& p, int64_t rows) {
  return tiles_of(p.q_rows, rows) * p.num_q_heads * (p.packed ? 1 : p.num_sequences);
}
/// Of a packed call: as many as there can be tiles while sequences do not overlap, nobody's among them.
int64_t blocks_per_head(const attn::Problem& p, int64_t rows) { return 2 * tiles_of(p.q_rows, rows) + p.num_sequences; }

struct FlashAttentionSm80 {
  static constexpr std::string_view kName = "cuda_sm80";
  static constexpr Platform kPlatform = Platform::cuda;

  struct Config : FlashSm80Config {
    static constexpr auto fields() {
      return std::array{config_field<&Config::warps, 4, 8>("warps", "of a block"),
                        config_field<&Config::row_tiles, 1, 2>("row_tiles", "of 16 query rows for each warp"),
                        config_field<&Config::block_k, 32, 48, 64, 128>("block_k", "keys per step")};
    }
  };

  static Support supports(const Call<FlashAttention>& call, const DeviceProperties& device) {
    const auto no = [](std::string reason) { return Support::no(std::move(reason)); };
    const auto& in = call.inputs;
    const auto& params = call.params;
    if (device.compute_capability < 80) return no("it is written for compute capability 8.0 (Ampere) and newer");
    if (in.query.dtype != DType::bf16 && in.query.dtype != DType::f16) return no("it takes bf16 and f16");
    if (in.bias.present() || in.attention_mask.present() || in.q_segment_ids.present())
      return no("it takes no bias, boolean mask or segments");
    if (params.attention_sink_size > 0 && !params.sliding_window.unbounded())
      return no("its windows have no keys exempt from them");
    if (params.dropout_prob > 0) return no("it has no dropout");
    if (!params.normalize_output) return no("it normalises its output");
    if (params.out_dtype && *params.out_dtype != in.query.dtype) return no("its output has the query's dtype");
    if (params.softmax_scale && !attn::is_factor(*params.softmax_scale * std::numbers::log2e))
      return no(attn::kScaleIsFactor);
    for (const int64_t dim : {in.query.shape[-1], in.value.shape[-1]})
      if (dim % 8 != 0 || dim > 256) return no("its head_dim and value_dim are multiples of 8, at most 256");
    // Sums of rows, keys and the far end of a window stay below 2^31, and so do those of all tiles of all sequences,
    // even where each claims every row.
    constexpr int64_t kMostRows = 1 << 29, kMostTiles = 1 << 30, kFewestRows = 64;
    const attn::Problem p = attn::make_problem(in, params);
    // Its tanh is right to 3e-7, absolutely, and is multiplied with the cap.
    constexpr double kMostCap = 1000;
    if (p.soft_cap > kMostCap || (p.soft_cap > 0 && !attn::is_factor(p.scale / p.soft_cap)))
      return no("its logits_soft_cap is at most 1000, and softmax_scale over it a normal number in float32");
    if (p.q_rows >= kMostRows || p.k_rows >= kMostRows ||
        (tiles_of(p.q_rows, kFewestRows) + 2) * (p.num_sequences + 1) >= kMostTiles / p.num_q_heads)
      return no("it counts rows and keys with 29 bits, and tiles with 30");
    for (const Tensor* tensor : {&in.query, &in.key, &in.value})
      if (!rows_are_aligned(*tensor, 16)) return no("it copies rows that start at multiples of 16 bytes");
    return Support::yes();
  }

  /// docs/kernels/flash_attention_sm80.md.
  static Config heuristic(const Call<FlashAttention>& call, const DeviceProperties& device) {
    const attn::Problem p = attn::make_problem(call.inputs, call.params);
    // Small tiles where large ones would leave units without work.
    const bool is_short = num_tiles(p, 128) < device.num_units;
    for (const Config& config : candidates(call, device))
      if (!is_short || shape(call, config).rows <= 64) return config;
    return {4, 1, 32};
  }
  /// In the order of preference.
  static std::vector<Config> candidates(const Call<FlashAttention>& call, const DeviceProperties& device) {
    const bool is_wide = std::max(call.inputs.query.shape[-1], call.inputs.value.shape[-1]) > 128;
    std::vector<Config> all = is_wide
                                  ? std::vector<Config>{{8, 1, 64}, {4, 1, 64}, {8, 1, 32}, {4, 1, 32}}
                                  : std::vector<Config>{{4, 2, 64}, {4, 1, 128}, {4, 2, 48}, {4, 1, 64}, {8, 1, 64}};
    std::erase_if(all, [&](const Config& config) {
      const FlashSm80Shape tile = shape(call, config);
      return !tile.registers_suffice || tile.shared_bytes > device.shared_bytes_per_block;
    });
    return all;
  }

  static Cost cost(const Call<FlashAttention>& call, const Config& config, const DeviceProperties&) {
    const FlashSm80Shape tile = shape(call, config);
    const auto tasks = static_cast<double>(num_tiles(attn::make_problem(call.inputs, call.params), tile.rows));
    return {.tasks = tasks,
            .task_flops = tasks == 0 ? 0 : attn::forward_work(call.inputs, call.params).flops / tasks,
            .arithmetic = call.inputs.query.dtype,
            .shared_bytes = tile.shared_bytes};
  }

  static FlashSm80Variant variant(const Call<FlashAttention>& call) {
    const auto rounded = [](int64_t dim) { return static_cast<int>((dim + 15) / 16 * 16); };
    return {.type = call.inputs.query.dtype == DType::bf16 ? cuda::HalfType::bf16 : cuda::HalfType::f16,
            .head_dim = rounded(call.inputs.query.shape[-1]),
            .value_dim = rounded(call.inputs.value.shape[-1]),
            .soft_cap = call.params.logits_soft_cap.has_value()};
  }
  static FlashSm80Shape shape(const Call<FlashAttention>& call, const Config& config) {
    return {variant(call), config};
  }

  static std::shared_ptr<const void> prepare(const Call<FlashAttention>& call, const Config& config,
                                             const DeviceProperties& device) {
    const FlashSm80Shape tile = shape(call, config);
    if (!tile.registers_suffice)
      throw cuda::CompileError(
          fmt::format("cuda_sm80 has 255 registers for a thread, which do not hold scores of {} "
                      "keys beside outputs of {} numbers in {} row tiles",
                      tile.keys, tile.value_dim, tile.row_tiles));
    return cuda::load_program(
        {.file = "ejkernel/ops/flash_attention/flash_attention_sm80.cu",
         .instance = fmt::format("ejk::flash_attention_sm80<{}, {}>", cuda::literal(variant(call)),
                                 cuda::literal(static_cast<const FlashSm80Config&>(config))),
         .shared_bytes = tile.shared_bytes},
        device);
  }

  static void run(const Call<FlashAttention>& call, const Config& config, const RunContext& context) {
    const auto& in = call.inputs;
    for (const auto& [name, tensor] : {std::pair{"query", &in.query}, {"key", &in.key}, {"value", &in.value}})
      if (!rows_are_aligned(*tensor, 16))
        throw_invalid(FlashAttention::kName, name,
                      "start at a multiple of 16 bytes, as it did when the call was planned",
                      fmt::format("address {}", tensor->data), "plan with the tensor that will be run");
    const attn::Problem p = attn::make_problem(in, call.params);
    const FlashSm80Shape tile = shape(call, config);
    const int64_t blocks = p.packed ? blocks_per_head(p, tile.rows) * p.num_q_heads : num_tiles(p, tile.rows);
    const double scale_log2 = p.scale * std::numbers::log2e;
    const bool capped = p.soft_cap > 0;
    const FlashSm80Arguments args = {
        .problem = attn::cuda_problem(p, context.status),
        .to = attn::cuda_results({.out = call.outputs.out, .lse = call.outputs.lse}),
        .num_blocks = static_cast<int>(blocks),
        .blocks_per_head = static_cast<int>(p.packed ? blocks_per_head(p, tile.rows) : 0),
        .tiles = cuda::Divisor(static_cast<int>(std::max<int64_t>(tiles_of(p.q_rows, tile.rows), 1))),
        .heads = cuda::Divisor(static_cast<int>(p.num_q_heads)),
        .scale_log2 = capped ? 1 : static_cast<float>(scale_log2),
        .cap_in = capped ? static_cast<float>(p.scale / p.soft_cap) : 0,
        .cap_out = static_cast<float>(p.soft_cap * std::numbers::log2e),
        .out_is_aligned = call.outputs.out.present() && rows_are_aligned(call.outputs.out, 16)};
    // An empty call still looks for faults.
    cuda::launch(context, {.x = static_cast<unsigned>(std::max<int64_t>(blocks, 1))},
                 {.x = static_cast<unsigned>(tile.threads)}, args);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::cuda_sm80() {
  static const KernelInfo kernel = make_kernel<FlashAttention, FlashAttentionSm80>();
  return kernel;
}

}  // namespace ejk
