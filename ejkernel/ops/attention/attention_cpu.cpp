// attention on the CPU, from flash_attention's kernels and tiles.
//
// Forward: out and lse as flash_attention computes them; then one task per tile of query rows computes the logits again
// and writes the weights, e^(logit - lse) times the factor of dropout. Backward: out and lse anew, in float32 whatever
// the dtype of the call, then flash_attention's gradient with the weights' cotangents joining dP.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/attention/attention_internal.h"
#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/attention/attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And after that:
#include "ejkernel/ops/flash_attention/attention_gradient_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

struct WeightsScratch : GradientScratch<float> {
  float* queries;  ///< panel
  float* keys;     ///< rows of a block
  float* by_row;   ///< [lane][block_k]

  static WeightsScratch carve(const Problem& p, const CpuConfig& config, cpu::Carver& carver) {
    WeightsScratch s;
    s.GradientScratch::carve(p, config, carver);
    s.queries = carver.take<float>(p.head_dim * panel_rows());
    s.keys = carver.take<float>(config.block_k * padded(p.head_dim));
    s.by_row = carver.take<float>(panel_rows() * config.block_k);
    return s;
  }
};

size_t weights_scratch_bytes(const Problem& p, const CpuConfig& config) {
  cpu::Carver carver;
  WeightsScratch::carve(p, config, carver);
  return carver.used();
}

/// Offset of the weights of row r of a panel.
int64_t weights_offset(const Tensor& weights, const Panel& t, int64_t r) {
  return Problem::broadcast_offset(weights, t.batch, t.h[r], t.i[r], 0);
}

void store_weights(const Tensor& weights, const Panel& t, const KeyBlock& block, const WeightsScratch& s) {
  const int64_t stride = padded(block.count);
  transpose(s.scores, panel_rows(), block.count, t.count, s.by_row, stride);
  for (int64_t r = 0; r < t.count; ++r)
    store_row(s.by_row + r * stride, 1, block.count, weights.data, weights.dtype,
              weights_offset(weights, t, r) + block.first);
}

/// The weights of one panel of rows.
void store_panel_weights(const BackwardCall& call, const Panel& t, const Tensor& weights, const WeightsScratch& s) {
  const Problem& p = call.problem;
  const auto row_bytes = static_cast<size_t>(p.k_rows * bits(weights.dtype) / 8);
  for (int64_t r = 0; r < t.count; ++r)  // zeros where no block of keys is computed
    std::memset(weights.as<std::byte>() + weights_offset(weights, t, r) * bits(weights.dtype) / 8, 0, row_bytes);
  GradientTile<float> tile(call, t, s, {.probabilities = true, .d_scores = false});
  load_panel(p.query, p.q, t, s.rows, s.queries);
  for_each_key_block({&t, 1}, call.config.block_k, [&](int64_t first, int64_t count) {
    KeyBlock block;
    block.first = first, block.count = count;
    load_key_rows(p.key, p.k, t, first, count, s.keys);
    if (tile.compute(block, s.keys, nullptr, s.queries, nullptr)) store_weights(weights, t, block, s);
  });
}

/// The weights of tile `block` of the rows of all query heads that share a kv head.
void weights_tile(const BackwardCall& call, const BlockMap::Place& place, const Tensor& weights, std::byte* memory) {
  const Problem& p = call.problem;
  cpu::Carver carver(memory);
  const WeightsScratch s = WeightsScratch::carve(p, call.config, carver);
  const Sequence sequence = p.sequence(place.sequence, nullptr);
  const int64_t first = place.block * call.config.block_q;
  const int64_t past = std::min(first + call.config.block_q, sequence.q_len * p.group());
  for (int64_t row = first; row < past; row += panel_rows()) {
    Panel t;
    set_rows(call, sequence, place.kv_head, row, std::min(panel_rows(), past - row), t);
    store_panel_weights(call, t, weights, s);
  }
}

}  // namespace
}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attn {
namespace {

HWY_EXPORT(weights_scratch_bytes);
HWY_EXPORT(weights_tile);

/// The workspace: what flash_attention's kernel gave, in float32, and then room for whatever runs.
struct Memory {
  Tensor out, lse;
  int64_t* first_block;
  size_t used;

  Memory(const Problem& p, bool keeps_out, std::byte* memory) {
    cpu::Carver carver(memory);
    const Shape out_shape = {p.num_sequences, p.q_rows, p.num_q_heads, p.value_dim};
    const Shape lse_shape = {p.num_sequences, p.num_q_heads, p.q_rows};
    if (keeps_out) out = Tensor(carver.take<float>(out_shape.num_elements()), DType::f32, out_shape);
    lse = Tensor(carver.take<float>(lse_shape.num_elements()), DType::f32, lse_shape);
    first_block = carver.take<int64_t>(p.num_sequences + 1);
    used = carver.used();
  }
  RunContext rest(const RunContext& context) const {
    return {.stream = context.stream, .workspace = context.workspace.subspan(used), .status = context.status};
  }
};

size_t weights_workspace(const Problem& p, const CpuConfig& config, const DeviceProperties& device) {
  const int64_t tiles = BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q);
  const int64_t workers = std::min<int64_t>(tiles, std::max(device.num_units, cpu::num_threads()));
  return static_cast<size_t>(workers) * HWY_DYNAMIC_DISPATCH(weights_scratch_bytes)(p, config);
}

void store_all_weights(const Problem& p, const Memory& memory, const Tensor& weights, const CpuConfig& config,
                       const RunContext& context) {
  BlockMap map;
  map.build(p, BlockMap::Side::kQueries, p.group(), config.block_q, memory.first_block, nullptr);
  const Cotangents given = {.lse = memory.lse};
  const FlashAttentionBackward::Outputs nothing;
  const BackwardCall call = {.problem = p, .given = given, .wanted = nothing, .config = config};
  const size_t scratch = HWY_DYNAMIC_DISPATCH(weights_scratch_bytes)(p, config);
  const std::span<std::byte> room = memory.rest(context).workspace;
  cpu::parallel_for(
      map.num_blocks(),
      [&](int64_t block, int worker) {
        HWY_DYNAMIC_DISPATCH(weights_tile)
        (call, map.find(block), weights, room.data() + static_cast<size_t>(worker) * scratch);
      },
      static_cast<int>(room.size() / scratch));
}

/// What both directions have in common.
template <class Op, class ConfigOf>
struct AttentionCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = ConfigOf;

  static Support supports(const Call<Op>& call, const DeviceProperties&) {
    return supports_cpu(flash_inputs(call.inputs));
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return attn::runs_here(config); }
  static Config heuristic(const Call<Op>& call, const DeviceProperties& device) {
    return cpu_heuristic<Config>(make_problem(call.inputs, call.params),
                                 basis_of_choice(device, call.params.deterministic));
  }
  static std::vector<Config> candidates(const Call<Op>& call, const DeviceProperties&) {
    return cpu_candidates<Config>(make_problem(call.inputs, call.params));
  }
};

struct Forward : AttentionCpu<Attention, CpuConfig> {
  /// The weights' logits are computed once more, in float32 whatever the config: counted so, they never speak for one.
  static Cost cost(const Call<Attention>& call, const Config& config, const DeviceProperties&) {
    const Problem p = make_problem(call.inputs, call.params);
    Cost cost = cpu_cost(p, config);
    if (call.outputs.weights.num_elements() == 0) return cost;
    cost.task_flops *= 1 + static_cast<double>(p.head_dim) / static_cast<double>(p.head_dim + p.value_dim);
    cost.arithmetic = DType::f32;
    return cost;
  }
  static size_t workspace_bytes(const Call<Attention>& call, const Config& config, const DeviceProperties& device) {
    const Problem p = make_problem(call.inputs, call.params);
    return Memory(p, false, nullptr).used +
           std::max(forward_cpu_workspace(p, config, device), weights_workspace(p, config, device));
  }
  static void run(const Call<Attention>& call, const Config& config, const RunContext& context) {
    const Problem p = make_problem(call.inputs, call.params);
    const Memory memory(p, false, context.workspace.data());
    forward_cpu(p, call.outputs.out, memory.lse, config, memory.rest(context));
    if (call.outputs.weights.num_elements() > 0) store_all_weights(p, memory, call.outputs.weights, config, context);
  }
};

struct Backward : AttentionCpu<AttentionBackward, CpuBackwardConfig> {
  /// With the forward's share, which is computed in float32 whatever the config: counted so, it never speaks for one.
  static Cost cost(const Call<AttentionBackward>& call, const Config& config, const DeviceProperties&) {
    const Problem p = make_problem(call.inputs, call.params);
    const Cost forward = cpu_cost(p, widened<CpuConfig>(config));
    Cost cost = cpu_cost(p, config);
    cost.task_flops += forward.tasks * forward.task_flops / std::max(cost.tasks, 1.0);
    cost.arithmetic = DType::f32;
    return cost;
  }
  static size_t workspace_bytes(const Call<AttentionBackward>& call, const Config& config,
                                const DeviceProperties& device) {
    const Problem p = make_problem(call.inputs, call.params);
    return Memory(p, true, nullptr).used +
           std::max(forward_cpu_workspace(p, widened(config), device), backward_cpu_workspace(p, config, device));
  }
  static void run(const Call<AttentionBackward>& call, const Config& config, const RunContext& context) {
    const Problem p = make_problem(call.inputs, call.params);
    const auto& to = call.outputs;
    const Memory memory(p, true, context.workspace.data());
    // What the forward gives to the backward is float32: weights are not rounded on the way.
    forward_cpu(p, memory.out, memory.lse, widened(config), memory.rest(context));
    backward_cpu(p,
                 {.out = memory.out, .lse = memory.lse, .d_out = call.inputs.d_out, .d_weights = call.inputs.d_weights},
                 {.query = to.query, .key = to.key, .value = to.value, .bias = to.bias, .softmax_aux = to.softmax_aux},
                 config, memory.rest(context));
  }
};

}  // namespace
}  // namespace ejk::attn

namespace ejk {

const KernelInfo& attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<Attention, attn::Forward>();
  return kernel;
}

const KernelInfo& attention_kernels::backward_cpu() {
  static const KernelInfo kernel = make_kernel<AttentionBackward, attn::Backward>();
  return kernel;
}

}  // namespace ejk
#endif
