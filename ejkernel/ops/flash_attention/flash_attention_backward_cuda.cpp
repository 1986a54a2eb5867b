// Host half of the backward on Hopper: three launches over a workspace of row statistics and of dQ's sums. Device half:
// flash_attention_backward_sm90.cu.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ejkernel/ops/flash_attention/attention_cuda_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/flash_attention/flash_attention_arguments.cuh"
#include "ejkernel/ops/flash_attention/flash_attention_config.h"
#include "ejkernel/platform/cuda/program.h"

namespace ejk {
namespace {

struct FlashAttentionBackwardSm90 {
  static constexpr std::string_view kName = "cuda_sm90";
  static constexpr Platform kPlatform = Platform::cuda;
  using Op = FlashAttentionBackward;

  struct Config : FlashBackwardConfig {
    static constexpr auto fields() {
      return std::array{config_field<&Config::stages, 2, 3>(
          "stages", "blocks of queries, and of their cotangents, in shared memory")};
    }
  };

  static Support supports(const Call<Op>& call, const DeviceProperties& device) {
    const auto& in = call.inputs;
    if (Support support = attn::supports_sm90(in, call.params, device); !support.ok) return support;
    if (in.query.shape[3] > 128) return Support::no("its head_dim is 64 or 128");
    if (in.query.shape[0] > kMaxGrid || in.query.shape[2] > kMaxGrid)
      return Support::no("it takes up to 65535 heads and batch entries");
    for (const Tensor* tensor : {&in.out, &in.d_out})
      if (!attn::fits_tensor_map(*tensor))
        return Support::no("it reads out and d_out from addresses and by strides that are multiples of 16 bytes");
    return Support::yes();
  }

  static Config heuristic(const Call<Op>& call, const DeviceProperties&) {
    return {call.inputs.query.shape[3] == 64 ? 3 : 2};
  }
  static std::vector<Config> candidates(const Call<Op>& call, const DeviceProperties&) {
    if (call.inputs.query.shape[3] == 64) return {{2}, {3}};
    return {{2}};
  }

  /// Everything that follows from a call's shapes. Queries before the first that sees a key are left out: whatever they
  /// and their cotangents hold, nothing reads it.
  struct Sizes {
    attn::Sm90Lengths lengths;
    int64_t batch, heads, kv_heads, dim, first_row, rows, padded_rows;
    size_t statistics_bytes, sums_bytes, turns_bytes;

    explicit Sizes(const Call<Op>& call)
        : lengths(call.inputs, call.params),
          batch(call.inputs.query.shape[0]),
          heads(call.inputs.query.shape[2]),
          kv_heads(call.inputs.key.shape[2]),
          dim(call.inputs.query.shape[3]),
          first_row(std::max<int64_t>(0, -lengths.diagonal)),
          rows(call.inputs.query.shape[1] - first_row),
          padded_rows((rows + 63) / 64 * 64),
          statistics_bytes(static_cast<size_t>(batch * heads * padded_rows) * sizeof(float)),
          sums_bytes(statistics_bytes * static_cast<size_t>(dim)),
          turns_bytes(static_cast<size_t>(batch * heads * padded_rows / 64 * 2) * sizeof(int)) {}
  };
  static size_t workspace_bytes(const Call<Op>& call, const Config&, const DeviceProperties&) {
    const Sizes sizes(call);
    return 2 * sizes.statistics_bytes + sizes.sums_bytes + sizes.turns_bytes;
  }

  struct Programs {
    std::shared_ptr<const cuda::Program> prepare, backward, finish;
  };
  static std::shared_ptr<const void> prepare(const Call<Op>& call, const Config& config,
                                             const DeviceProperties& device) {
    const FlashBackwardVariant variant = variant_of(call);
    const auto load = [&](const std::string& instance, int shared_bytes) {
      return cuda::load_program({.file = "ejkernel/ops/flash_attention/flash_attention_backward_sm90.cu",
                                 .instance = "ejk::flash_attention_backward" + instance,
                                 .shared_bytes = shared_bytes},
                                device);
    };
    const std::string types = fmt::format("<{}, {}>", cuda::literal(variant.type), variant.head_dim);
    return std::make_shared<const Programs>(Programs{
        .prepare = load("_prepare" + types, 0),
        .backward = load(fmt::format("<{}, {}>", cuda::literal(variant), cuda::literal<FlashBackwardConfig>(config)),
                         FlashBackwardShape(variant, config).shared_bytes),
        .finish = load("_finish" + types, 0)});
  }

  static void run(const Call<Op>& call, const Config& config, const RunContext& context) {
    const auto& in = call.inputs;
    for (const auto& [name, tensor] : {std::pair("query", &in.query),
                                       {"key", &in.key},
                                       {"value", &in.value},
                                       {"out", &in.out},
                                       {"d_out", &in.d_out}})
      attn::require_alignment(Op::kName, name, *tensor);
    const cuda::CurrentDevice current(context.device->device);
    const auto& programs = *static_cast<const Programs*>(context.code);
    const Sizes sizes(call);
    const FlashBackwardShape shape(variant_of(call), config);
    const Workspace to(sizes, context.workspace);
    const auto grid = [&](int64_t x) {
      return cuda::Dim3{static_cast<unsigned>(x), static_cast<unsigned>(sizes.heads),
                        static_cast<unsigned>(sizes.batch)};
    };

    cuda::launch(*programs.prepare, context, grid((sizes.padded_rows * sizes.dim / 8 + 255) / 256), {.x = 256}, 0,
                 prepare_arguments(call, sizes, to));
    const int64_t tiles = (in.key.shape[1] + shape.keys - 1) / shape.keys;
    cuda::launch(*programs.backward, context, {.x = static_cast<unsigned>(tiles * sizes.kv_heads * sizes.batch)},
                 {.x = static_cast<unsigned>(shape.threads)}, shape.shared_bytes,
                 backward_arguments(call, sizes, shape, to, tiles, context.device->num_units));
    if (call.outputs.query.present())
      cuda::launch(*programs.finish, context, grid(sizes.padded_rows / 64 * 2 + (sizes.first_row + 127) / 128),
                   {.x = 128}, 0, finish_arguments(call, sizes, to));
  }

 private:
  static constexpr int64_t kMaxGrid = 65535;  // of a grid's second and third axis

  struct Workspace {
    float *lse_log2, *delta, *d_query;
    int* turns;
    Workspace(const Sizes& sizes, std::span<std::byte> memory)
        : lse_log2(reinterpret_cast<float*>(memory.data())),
          delta(reinterpret_cast<float*>(memory.data() + sizes.statistics_bytes)),
          d_query(reinterpret_cast<float*>(memory.data() + 2 * sizes.statistics_bytes)),
          turns(reinterpret_cast<int*>(memory.data() + 2 * sizes.statistics_bytes + sizes.sums_bytes)) {}
  };

  static FlashBackwardVariant variant_of(const Call<Op>& call) {
    return {.type = call.inputs.query.dtype == DType::bf16 ? cuda::HalfType::bf16 : cuda::HalfType::f16,
            .head_dim = static_cast<int>(call.inputs.query.shape[3]),
            .causal = call.params.causal};
  }
  static double scale(const Call<Op>& call) {
    return call.params.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(call.inputs.query.shape[3])));
  }
  /// Stride of an axis of a [batch, rows, heads, dim] tensor in bytes; 0 of an absent one.
  static int64_t bytes(const Tensor& t, int axis) { return t.present() ? t.strides[axis] * 2 : 0; }
  /// Stride of an axis of a [batch, heads, rows] tensor.
  static int64_t stride(const Tensor& t, int axis) { return t.present() ? t.strides[axis] : 0; }

  static FlashBackwardPrepareArguments prepare_arguments(const Call<Op>& call, const Sizes& sizes,
                                                         const Workspace& to) {
    const auto& in = call.inputs;
    return {.out = in.out.as<const char>(),
            .d_out = in.d_out.as<const char>(),
            .lse = in.lse.as<const float>(),
            .d_lse = in.d_lse.as<const float>(),
            .out_row = bytes(in.out, 1),
            .out_head = bytes(in.out, 2),
            .out_batch = bytes(in.out, 0),
            .d_out_row = bytes(in.d_out, 1),
            .d_out_head = bytes(in.d_out, 2),
            .d_out_batch = bytes(in.d_out, 0),
            .lse_row = stride(in.lse, 2),
            .lse_head = stride(in.lse, 1),
            .lse_batch = stride(in.lse, 0),
            .d_lse_row = stride(in.d_lse, 2),
            .d_lse_head = stride(in.d_lse, 1),
            .d_lse_batch = stride(in.d_lse, 0),
            .lse_log2 = to.lse_log2,
            .delta = to.delta,
            .d_query = to.d_query,
            .turns = to.turns,
            .first_row = static_cast<int>(sizes.first_row),
            .q_len = static_cast<int>(in.query.shape[1]),
            .padded_rows = static_cast<int>(sizes.padded_rows),
            .num_heads = static_cast<int>(sizes.heads)};
  }

  static FlashBackwardArguments backward_arguments(const Call<Op>& call, const Sizes& sizes,
                                                   const FlashBackwardShape& shape, const Workspace& to, int64_t tiles,
                                                   int num_units) {
    const auto& in = call.inputs;
    const Tensor &d_key = call.outputs.key, &d_value = call.outputs.value;
    return {.query = attn::tile_map(from_row(in.query, sizes.first_row), sizes.rows, shape.rows),
            .key = attn::tile_map(in.key, sizes.lengths.kv_len, shape.keys),
            .value = attn::tile_map(in.value, sizes.lengths.kv_len, shape.keys),
            .d_out = attn::tile_map(from_row(in.d_out, sizes.first_row), sizes.rows, shape.rows),
            .lse_log2 = to.lse_log2,
            .delta = to.delta,
            .d_query = to.d_query,
            .turns = to.turns,
            .d_key = d_key.as<char>(),
            .d_value = d_value.as<char>(),
            .d_key_is_aligned = attn::fits_tensor_map(d_key),
            .d_value_is_aligned = attn::fits_tensor_map(d_value),
            .d_key_row = bytes(d_key, 1),
            .d_key_head = bytes(d_key, 2),
            .d_key_batch = bytes(d_key, 0),
            .d_value_row = bytes(d_value, 1),
            .d_value_head = bytes(d_value, 2),
            .d_value_batch = bytes(d_value, 0),
            .q_len = static_cast<int>(sizes.rows),
            .padded_rows = static_cast<int>(sizes.padded_rows),
            .kv_len = static_cast<int>(sizes.lengths.kv_len),
            .num_keys = static_cast<int>(in.key.shape[1]),
            .diagonal = static_cast<int>(sizes.lengths.diagonal + sizes.first_row),
            .batch = static_cast<int>(sizes.batch),
            .num_kv_heads = static_cast<int>(sizes.kv_heads),
            .queries_per_kv_head = static_cast<int>(sizes.heads / sizes.kv_heads),
            .heads_per_section = static_cast<int>((2 * num_units + tiles - 1) / tiles),
            .scale = static_cast<float>(scale(call)),
            .scale_log2 = static_cast<float>(scale(call) * std::numbers::log2e)};
  }

  /// The tensor without its first rows.
  static Tensor from_row(Tensor t, int64_t row) {
    t.data = t.as<char>() + row * t.strides[1] * 2;
    t.shape[1] -= row;
    return t;
  }

  static FlashBackwardFinishArguments finish_arguments(const Call<Op>& call, const Sizes& sizes,
                                                       const Workspace& from) {
    const Tensor& d_query = call.outputs.query;
    return {.sums = from.d_query,
            .d_query = d_query.as<char>(),
            .is_aligned = attn::fits_tensor_map(d_query),
            .row = bytes(d_query, 1),
            .head = bytes(d_query, 2),
            .batch = bytes(d_query, 0),
            .first_row = static_cast<int>(sizes.first_row),
            .q_len = static_cast<int>(call.inputs.query.shape[1]),
            .padded_rows = static_cast<int>(sizes.padded_rows),
            .num_heads = static_cast<int>(sizes.heads),
            .scale = static_cast<float>(scale(call))};
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::backward_cuda_sm90() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, FlashAttentionBackwardSm90>();
  return kernel;
}

}  // namespace ejk
