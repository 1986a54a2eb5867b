// Host half of the backward on Hopper: launches before it, of it, and after it, over a workspace of row statistics and
// of sums in float32. Device half: flash_attention_backward_sm90.cu and flash_attention_backward_ends_sm90.cu.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

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
    int terms;  ///< blocks that share the query heads of a group: each has a term of the gradients' sum over the group
    static constexpr auto fields() {
      return std::array{
          config_field<&Config::stages, 2, 4>("stages", "blocks of queries, and of their scores, in shared memory"),
          config_field<&Config::terms, 1, 2, 4, 8>("terms", "blocks that share the query heads of a key head")};
    }
  };

  static Support supports(const Call<Op>& call, const DeviceProperties& device) {
    const auto& in = call.inputs;
    if (Support support = attn::supports_sm90(in, call.params, device); !support.ok) return support;
    if (in.query.shape[0] > kMaxGrid || in.query.shape[2] > kMaxGrid)
      return Support::no("it takes up to 65535 heads and batch entries");
    for (const Tensor* tensor : {&in.out, &in.d_out})
      if (!attn::fits_tensor_map(*tensor))
        return Support::no("it reads out and d_out from addresses and by strides that are multiples of 16 bytes");
    return Support::yes();
  }

  /// Best of the measured, see docs/kernels/flash_attention_backward_sm90.md. Blocks of causal problems differ in
  /// length, and what those that run together read and add to should stay in the cache: two query heads a block are
  /// best.
  static Config heuristic(const Call<Op>& call, const DeviceProperties&) {
    if (!call.params.causal) return {{call.inputs.query.shape[3] == 64 ? 4 : 2}, 1};
    int terms = 1;
    while (terms < 8 && group_of(call) % (4 * terms) == 0) terms *= 2;
    return {{2}, terms};
  }
  static std::vector<Config> candidates(const Call<Op>& call, const DeviceProperties&) {
    std::vector<Config> all;
    for (const int terms : {1, 2, 4, 8})
      if (group_of(call) % terms == 0) {
        all.push_back({{2}, terms});
        if (call.inputs.query.shape[3] == 64) all.push_back({{4}, terms});
      }
    return all;
  }

  /// Everything that follows from a call's shapes. Queries before the first that sees a key are left out: whatever they
  /// and their cotangents hold, nothing reads it.
  struct Sizes {
    attn::Sm90Lengths lengths;
    FlashBackwardShape shape;
    int64_t batch, heads, kv_heads, dim, first_row, rows, padded_rows, num_keys, tiles, padded_keys, terms;
    int64_t term_floats;  ///< of one term of dK, or of dV; 0: there is one, which is rounded at once
    size_t statistics_bytes, sums_bytes, turns_bytes, terms_bytes;

    Sizes(const Call<Op>& call, const Config& config)
        : lengths(call.inputs, call.params),
          shape(variant_of(call), config),
          batch(call.inputs.query.shape[0]),
          heads(call.inputs.query.shape[2]),
          kv_heads(call.inputs.key.shape[2]),
          dim(call.inputs.query.shape[3]),
          first_row(std::max<int64_t>(0, -lengths.diagonal)),
          rows(call.inputs.query.shape[1] - first_row),
          padded_rows((rows + 63) / 64 * 64),
          num_keys(call.inputs.key.shape[1]),
          tiles((num_keys + shape.keys - 1) / shape.keys),
          padded_keys(tiles * shape.keys),
          // A config of another problem may not divide this one's group.
          terms(std::gcd(config.terms, group_of(call))),
          term_floats(terms > 1 ? batch * kv_heads * padded_keys * dim : 0),
          statistics_bytes(static_cast<size_t>(batch * heads * padded_rows) * sizeof(float)),
          sums_bytes(statistics_bytes * static_cast<size_t>(dim)),
          turns_bytes(static_cast<size_t>(batch * heads * padded_rows / 64 * 2) * sizeof(int)),
          terms_bytes(static_cast<size_t>(terms * term_floats) * sizeof(float)) {}
  };
  static Cost cost(const Call<Op>& call, const Config& config, const DeviceProperties&) {
    const Sizes sizes(call, config);
    const int64_t rows = sizes.padded_rows * sizes.heads / sizes.kv_heads / sizes.terms;
    return {.tasks = static_cast<double>(sizes.tiles * sizes.kv_heads * sizes.batch * sizes.terms),
            .task_flops = 10.0 * sizes.shape.keys * static_cast<double>(rows * sizes.dim),
            .arithmetic = call.inputs.query.dtype,
            .shared_bytes = sizes.shape.shared_bytes};
  }

  static size_t workspace_bytes(const Call<Op>& call, const Config& config, const DeviceProperties&) {
    const Sizes sizes(call, config);
    return 2 * sizes.statistics_bytes + sizes.sums_bytes + 2 * sizes.terms_bytes + sizes.turns_bytes;
  }

  struct Programs {
    std::shared_ptr<const cuda::Program> prepare, backward, finish_queries, finish_keys;
  };
  static std::shared_ptr<const void> prepare(const Call<Op>& call, const Config& config,
                                             const DeviceProperties& device) {
    const FlashBackwardVariant variant = variant_of(call);
    const FlashBackwardShape shape(variant, config);
    const auto load = [&](std::string_view file, const std::string& instance, int shared_bytes) {
      return cuda::load_program(
          {.file = file, .instance = "ejk::flash_attention_backward" + instance, .shared_bytes = shared_bytes}, device);
    };
    constexpr std::string_view kEnds = "ejkernel/ops/flash_attention/flash_attention_backward_ends_sm90.cu";
    const std::string types = fmt::format("{}, {}", cuda::literal(variant.type), variant.head_dim);
    Programs programs = {
        .prepare = load(kEnds, fmt::format("_prepare<{}>", types), 0),
        .backward = load("ejkernel/ops/flash_attention/flash_attention_backward_sm90.cu",
                         fmt::format("<{}, {}>", cuda::literal(variant), cuda::literal<FlashBackwardConfig>(config)),
                         shape.shared_bytes),
        .finish_queries = load(kEnds, fmt::format("_finish<{}, {}>", types, shape.part_columns), 0),
        .finish_keys = {}};
    if (Sizes(call, config).terms > 1)
      programs.finish_keys = load(kEnds, fmt::format("_finish<{}, {}>", types, shape.columns), 0);
    return std::make_shared<const Programs>(std::move(programs));
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
    const Sizes sizes(call, config);
    const FlashBackwardShape& shape = sizes.shape;
    const Workspace memory(sizes, context.workspace);
    const auto grid = [&](int64_t x, int64_t heads) {
      return cuda::Dim3{static_cast<unsigned>(x), static_cast<unsigned>(heads), static_cast<unsigned>(sizes.batch)};
    };
    const auto finish = [&](const cuda::Program& program, int part_columns,
                            const FlashBackwardFinishArguments& arguments) {
      const int64_t parts = arguments.padded_rows / 64 * (sizes.dim / part_columns);
      cuda::launch(program, context, grid(parts + (arguments.first_row + 127) / 128, arguments.num_heads), {.x = 128},
                   0, arguments);
    };

    cuda::launch(*programs.prepare, context, grid((sizes.padded_rows * sizes.dim / 8 + 255) / 256, sizes.heads),
                 {.x = 256}, 0, prepare_arguments(call, sizes, memory));
    cuda::launch(*programs.backward, context,
                 {.x = static_cast<unsigned>(sizes.tiles * sizes.kv_heads * sizes.batch * sizes.terms)},
                 {.x = static_cast<unsigned>(shape.threads)}, shape.shared_bytes,
                 backward_arguments(call, sizes, memory, context.device->num_units));
    if (call.outputs.query.present())
      finish(*programs.finish_queries, shape.part_columns, finish_queries_arguments(call, sizes, memory));
    if (sizes.terms == 1) return;
    if (call.outputs.key.present())
      finish(*programs.finish_keys, shape.columns,
             finish_keys_arguments(call.outputs.key, sizes, memory.d_key, scale(call)));
    if (call.outputs.value.present())
      finish(*programs.finish_keys, shape.columns, finish_keys_arguments(call.outputs.value, sizes, memory.d_value, 1));
  }

 private:
  static constexpr int64_t kMaxGrid = 65535;  // of a grid's second and third axis

  struct Workspace {
    float *lse_log2, *delta, *d_query;
    float *d_key, *d_value;  ///< terms
    int* turns;
    Workspace(const Sizes& sizes, std::span<std::byte> memory) {
      std::byte* at = memory.data();
      const auto take = [&](size_t bytes) { return std::exchange(at, at + bytes); };
      lse_log2 = reinterpret_cast<float*>(take(sizes.statistics_bytes));
      delta = reinterpret_cast<float*>(take(sizes.statistics_bytes));
      d_query = reinterpret_cast<float*>(take(sizes.sums_bytes));
      d_key = reinterpret_cast<float*>(take(sizes.terms_bytes));
      d_value = reinterpret_cast<float*>(take(sizes.terms_bytes));
      turns = reinterpret_cast<int*>(take(sizes.turns_bytes));
    }
  };

  static FlashBackwardVariant variant_of(const Call<Op>& call) {
    return {.type = call.inputs.query.dtype == DType::bf16 ? cuda::HalfType::bf16 : cuda::HalfType::f16,
            .head_dim = static_cast<int>(call.inputs.query.shape[3]),
            .causal = call.params.causal,
            .ordered = call.params.deterministic};
  }
  static int64_t group_of(const Call<Op>& call) { return call.inputs.query.shape[2] / call.inputs.key.shape[2]; }
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

  static FlashBackwardArguments backward_arguments(const Call<Op>& call, const Sizes& sizes, const Workspace& memory,
                                                   int num_units) {
    const auto& in = call.inputs;
    return {.query = attn::tile_map(from_row(in.query, sizes.first_row), sizes.rows, sizes.shape.rows),
            .key = attn::tile_map(in.key, sizes.lengths.kv_len, sizes.shape.keys),
            .value = attn::tile_map(in.value, sizes.lengths.kv_len, sizes.shape.keys),
            .d_out = attn::tile_map(from_row(in.d_out, sizes.first_row), sizes.rows, sizes.shape.rows),
            .lse_log2 = memory.lse_log2,
            .delta = memory.delta,
            .d_query = memory.d_query,
            .turns = memory.turns,
            .d_key = gradient(call.outputs.key, sizes.terms > 1 ? memory.d_key : nullptr),
            .d_value = gradient(call.outputs.value, sizes.terms > 1 ? memory.d_value : nullptr),
            .schedule = {.q_len = static_cast<int>(sizes.rows),
                         .kv_len = static_cast<int>(sizes.lengths.kv_len),
                         .num_keys = static_cast<int>(sizes.num_keys),
                         .diagonal = static_cast<int>(sizes.lengths.diagonal + sizes.first_row),
                         .batch = static_cast<int>(sizes.batch),
                         .num_kv_heads = static_cast<int>(sizes.kv_heads),
                         .queries_per_kv_head = static_cast<int>(group_of(call)),
                         .terms = static_cast<int>(sizes.terms),
                         .units_per_section = units_per_section(call, sizes, num_units)},
            .padded_keys = static_cast<int>(sizes.padded_keys),
            .scale = static_cast<float>(scale(call)),
            .scale_log2 = static_cast<float>(scale(call) * std::numbers::log2e)};
  }
  /// As many as fill the device once, or twice where tiles have several heads and no order to keep (measured).
  /// The order of sums follows from it: that of deterministic calls not from which device of a machine runs them.
  static int units_per_section(const Call<Op>& call, const Sizes& sizes, int num_units) {
    constexpr int kUnits = 132;
    if (call.params.deterministic) num_units = kUnits;
    const int rounds = call.params.deterministic || group_of(call) == sizes.terms ? 1 : 2;
    return static_cast<int>((rounds * num_units + sizes.tiles - 1) / sizes.tiles);
  }
  static FlashBackwardGradient gradient(const Tensor& t, float* terms) {
    return {.rows = t.as<char>(),
            .is_aligned = attn::fits_tensor_map(t),
            .row = bytes(t, 1),
            .head = bytes(t, 2),
            .batch = bytes(t, 0),
            .terms = t.present() ? terms : nullptr};
  }

  /// The tensor without its first rows.
  static Tensor from_row(Tensor t, int64_t row) {
    t.data = t.as<char>() + row * t.strides[1] * 2;
    t.shape[1] -= row;
    return t;
  }

  static FlashBackwardFinishArguments finish_queries_arguments(const Call<Op>& call, const Sizes& sizes,
                                                               const Workspace& memory) {
    const Tensor& to = call.outputs.query;
    return {.sums = memory.d_query,
            .terms = 1,
            .term_stride = 0,
            .to = to.as<char>(),
            .is_aligned = attn::fits_tensor_map(to),
            .row = bytes(to, 1),
            .head = bytes(to, 2),
            .batch = bytes(to, 0),
            .first_row = static_cast<int>(sizes.first_row),
            .num_rows = static_cast<int>(call.inputs.query.shape[1]),
            .padded_rows = static_cast<int>(sizes.padded_rows),
            .num_heads = static_cast<int>(sizes.heads),
            .scale = static_cast<float>(scale(call))};
  }
  static FlashBackwardFinishArguments finish_keys_arguments(const Tensor& to, const Sizes& sizes, const float* terms,
                                                            double scale) {
    return {.sums = terms,
            .terms = static_cast<int>(sizes.terms),
            .term_stride = sizes.term_floats,
            .to = to.as<char>(),
            .is_aligned = attn::fits_tensor_map(to),
            .row = bytes(to, 1),
            .head = bytes(to, 2),
            .batch = bytes(to, 0),
            .first_row = 0,
            .num_rows = static_cast<int>(sizes.num_keys),
            .padded_rows = static_cast<int>(sizes.padded_keys),
            .num_heads = static_cast<int>(sizes.kv_heads),
            .scale = static_cast<float>(scale)};
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::backward_cuda_sm90() {
  static const KernelInfo kernel = make_kernel<FlashAttentionBackward, FlashAttentionBackwardSm90>();
  return kernel;
}

}  // namespace ejk
