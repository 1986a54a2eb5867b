// flash_attention on the CPU: online softmax over blocks of keys, sums in float32.
//
// One task owns one tile of query rows (flash_attention_tile-inl.h) and writes its rows of out and lse; nothing is
// shared, so results do not depend on the number of threads. Products are of floats, or of pairs of bf16 where the
// tensors are bf16 and the config says so. Scratch is one tile of each per worker, from the workspace: memory is
// O(q_len + kv_len).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/pages.h"
#include "ejkernel/platform/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ejkernel/ops/flash_attention/flash_attention_cpu.cpp"
#include <hwy/foreach_target.h>

#include "ejkernel/platform/cpu/simd-inl.h"
// After simd-inl.h, in this order:
#include "ejkernel/platform/cpu/gemm-inl.h"
#include "ejkernel/platform/cpu/philox-inl.h"
#include "ejkernel/platform/cpu/tiles-inl.h"
// After those:
#include "ejkernel/platform/cpu/stored-inl.h"
// After that:
#include "ejkernel/ops/flash_attention/attention_tiles-inl.h"
// And after that, in this order:
#include "ejkernel/ops/flash_attention/attention_pages-inl.h"
#include "ejkernel/ops/flash_attention/flash_attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ejk::attn::HWY_NAMESPACE {
namespace {

/// Scales of a kv head's codes are folded into the logits and the output; those of groups of elements are applied when
/// rows are loaded.
void paged_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                const Tensor& lse, std::byte* memory) {
  const Sequence s = p.sequence(place.sequence, nullptr);
  const auto scale = [&](const Tensor& t) { return t.rank() == 4 ? 1 : Problem::scale_at(t, 0, 0, place.kv_head); };
  Problem scaled = p;
  scaled.scale *= scale(p.q_scale) * scale(p.k_scale);
  if (uses_pairs(p, config) && !has_tiny_values(p, s, place.kv_head, 0, s.k_len))
    return run_forward_tile<Pair>(scaled, config, scale(p.v_scale), s, place, out, lse, memory);
  run_forward_tile<float>(scaled, widened(config), scale(p.v_scale), s, place, out, lse, memory);
}

void forward_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                  const Tensor& lse, std::byte* memory) {
  if (p.pages.present) return paged_tile(p, config, place, out, lse, memory);
  const Sequence s = p.sequence(place.sequence, nullptr);
  if (uses_pairs(p, config)) return run_forward_tile<Pair>(p, config, 1, s, place, out, lse, memory);
  run_forward_tile<float>(p, config, 1, s, place, out, lse, memory);
}

size_t forward_scratch_bytes(const Problem& p, const CpuConfig& config) {
  cpu::Carver carver;
  if (uses_pairs(p, config))
    ForwardScratch<Pair>::carve(p, config, carver);
  else
    ForwardScratch<float>::carve(p, config, carver);
  return carver.used();
}

}  // namespace
}  // namespace ejk::attn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ejk::attn {
namespace {

HWY_EXPORT(forward_tile);
HWY_EXPORT(forward_scratch_bytes);

size_t map_bytes(const Problem& p) {
  cpu::Carver carver;
  carver.take<int64_t>(p.num_sequences + 1);
  return carver.used();
}

}  // namespace

size_t forward_tile_bytes(const Problem& p, const CpuConfig& config) {
  // Floats need the most: they serve whatever the contents turn out to be.
  return HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p, widened(config));
}

void forward_cpu_tile(const Problem& p, const CpuConfig& config, const BlockMap::Place& place, const Tensor& out,
                      const Tensor& lse, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(forward_tile)(p, config, place, out, lse, scratch);
}

void fill_gaps(const Problem& p, bool overlapping, const Tensor& out, const Tensor& lse) {
  for_each_gap(p, BlockMap::Side::kQueries, overlapping, [&](int64_t b, int64_t begin, int64_t end) {
    if (out.present()) clear_rows(out, b, begin, end);
    if (!lse.present()) return;
    for (int64_t h = 0; h < p.num_q_heads; ++h)
      for (int64_t row = begin; row < end; ++row)
        lse.as<float>()[stat_offset(lse, b, h, row)] = static_cast<float>(p.sinks_lse(h));
  });
}

int64_t most_forward_workers(const Problem& p, const CpuConfig& config) {
  // A double: where there are no elements, extents may be larger than their product's integer.
  const double heads = static_cast<double>(p.num_sequences) * static_cast<double>(p.num_q_heads);
  const double workers = 0x7p20 * heads / static_cast<double>(forward_tile_bytes(p, config));
  return static_cast<int64_t>(std::clamp(workers, 1.0, 0x1p31));
}

size_t forward_cpu_workspace(const Problem& p, const CpuConfig& config, const DeviceProperties& device) {
  const int64_t tiles = BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q);
  const int64_t threads = std::max(device.num_units, cpu::num_threads());
  const int64_t workers = std::min({tiles, threads, most_forward_workers(p, config)});
  return map_bytes(p) + static_cast<size_t>(workers) * forward_tile_bytes(p, config);
}

void forward_cpu(const Problem& p, const Tensor& out, const Tensor& lse, const CpuConfig& planned,
                 const RunContext& context) {
  const CpuConfig config = uses_pairs(p, planned) && is_tiny(p.value) ? widened(planned) : planned;
  cpu::Carver carver(context.workspace.data());
  BlockMap map;
  map.build(p, BlockMap::Side::kQueries, p.group(), config.block_q, carver.take<int64_t>(p.num_sequences + 1),
            context.status);
  fill_gaps(p, map.overlapping(), out, lse);
  const size_t scratch = HWY_DYNAMIC_DISPATCH(forward_scratch_bytes)(p, config);
  std::byte* memory = context.workspace.data() + carver.used();
  const int workers = map.overlapping() ? 1 : static_cast<int>((context.workspace.size() - carver.used()) / scratch);
  cpu::parallel_for(
      map.num_blocks(),
      [&](int64_t block, int worker) {
        HWY_DYNAMIC_DISPATCH(forward_tile)
        (p, config, map.find(block), out, lse, memory + static_cast<size_t>(worker) * scratch);
      },
      workers);
}

}  // namespace ejk::attn

namespace ejk {
namespace {

struct FlashAttentionCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = attn::CpuConfig;

  static Support supports(const Call<FlashAttention>& call, const DeviceProperties&) {
    return attn::supports_cpu(call.inputs);
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return attn::runs_here(config); }
  static Config heuristic(const Call<FlashAttention>& call, const DeviceProperties& device) {
    return attn::cpu_heuristic<Config>(attn::make_problem(call.inputs, call.params),
                                       attn::basis_of_choice(device, call.params.deterministic));
  }
  static std::vector<Config> candidates(const Call<FlashAttention>& call, const DeviceProperties&) {
    return attn::cpu_candidates<Config>(attn::make_problem(call.inputs, call.params));
  }
  static Cost cost(const Call<FlashAttention>& call, const Config& config, const DeviceProperties&) {
    return attn::cpu_cost(attn::make_problem(call.inputs, call.params), config);
  }
  static size_t workspace_bytes(const Call<FlashAttention>& call, const Config& config,
                                const DeviceProperties& device) {
    return attn::forward_cpu_workspace(attn::make_problem(call.inputs, call.params), config, device);
  }
  static void run(const Call<FlashAttention>& call, const Config& config, const RunContext& context) {
    attn::forward_cpu(attn::make_problem(call.inputs, call.params), call.outputs.out, call.outputs.lse, config,
                      context);
  }
};

}  // namespace

const KernelInfo& flash_attention_kernels::cpu() {
  static const KernelInfo kernel = make_kernel<FlashAttention, FlashAttentionCpu>();
  return kernel;
}

}  // namespace ejk
#endif
