// The CPU kernels of the operations over a cache, as functions of a resolved PagedCall, and the struct that makes each
// of them a kernel.
//
// Work is of two kinds. Sequences with few query rows per kv head (decode) are streamed: memory is the bound, so a task
// goes once through a part of a sequence's keys, all kv heads of it, and its sums are merged with those of the other
// parts. The others (prefill) are the tiles of flash_attention over pages. One list holds both, the longest first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ejkernel/ops/flash_attention/attention_cpu_internal.h"
#include "ejkernel/ops/page_attention/paged_problem_internal.h"

namespace ejk::attn {

/// Tiles as CpuConfig has them, for prefill; and how decode is cut.
struct PagedCpuConfig : CpuConfig {
  int split_keys = 1024;
  int stream_block = 64;
  int stream_dot = 0;

  static constexpr auto fields() {
    const auto tiles = CpuConfig::fields();
    return std::array{
        tiles[0],
        tiles[1],
        tiles[2],
        config_field<&PagedCpuConfig::split_keys, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536>(
            "split_keys", "keys of a decode task; parts of a sequence are merged in order"),
        config_field<&PagedCpuConfig::stream_block, 32, 64, 128>("stream_block", "keys that decode computes together"),
        config_field<&PagedCpuConfig::stream_dot, 0, 1, 2, 3>(
            "stream_dot",
            "bf16_dot of decode: 1 multiplies bf16 queries and weights rounded to bf16 with what the cache holds, two "
            "by two, 2 does so on the matrix unit (AMX); 3 multiplies int8 caches there, as they are, with queries and "
            "weights in digits")};
  }
};
inline constexpr int kMaxStreamBlock = 128;

/// Query rows that stream through keys together, per kv head: more than that are computed in tiles.
inline constexpr int64_t kStreamRows = 16;
/// Consecutive positions of a sequence that make so many rows.
inline int64_t stream_positions(const Problem& p) { return std::max<int64_t>(kStreamRows / p.group(), 1); }

/// Whether the matrix unit can multiply the caches as they are: int8, without scales of groups, of whole tiles.
bool fits_digits(const Problem& p);
/// And whether a config has it do so.
bool takes_digits(const Problem& p, const PagedCpuConfig& config);

Support supports_paged_cpu(const PagedCall& call);
Support paged_cpu_runs_here(const PagedCpuConfig& config);
PagedCpuConfig paged_cpu_heuristic(const PagedCall& call, const DeviceProperties& device);
std::vector<PagedCpuConfig> paged_cpu_candidates(const PagedCall& call, const DeviceProperties& device);
Cost paged_cpu_cost(const PagedCall& call, const PagedCpuConfig& config);
size_t paged_cpu_workspace(const PagedCall& call, const PagedCpuConfig& config, const DeviceProperties& device);
void paged_cpu(const PagedCall& call, const PagedCpuConfig& config, const RunContext& context);

// ---- streaming ----

/// Query rows of consecutive positions of a sequence, over parts of its keys: split n holds keys n * split_keys and on.
struct StreamTask {
  int64_t sequence = 0;
  int64_t position = 0, num_positions = 0;
  int64_t split = 0, num_splits = 0;
  float* parts = nullptr;  ///< of split 0, where the sums of this one go; null: results are finished here
};

/// Floats of one row in a part: its values, then the statistics.
int64_t part_stride(const Problem& p);

size_t stream_scratch_bytes(const Problem& p, const PagedCpuConfig& config);
void stream_rows(const PagedCall& call, const PagedCpuConfig& config, const StreamTask& task, std::byte* scratch);
/// Merges the parts of a sequence's rows, all of them of one task each, and stores the rows of one kv head.
void merge_parts(const PagedCall& call, const StreamTask& all, int64_t kv_head);

template <class Op>
struct PagedCpu {
  static constexpr std::string_view kName = "cpu";
  static constexpr Platform kPlatform = Platform::cpu;
  using Config = PagedCpuConfig;

  static Support supports(const Call<Op>& call, const DeviceProperties&) {
    return supports_paged_cpu(paged_call(call));
  }
  static Support runs_here(const Config& config, const DeviceProperties&) { return paged_cpu_runs_here(config); }
  static Config heuristic(const Call<Op>& call, const DeviceProperties& device) {
    return paged_cpu_heuristic(paged_call(call), device);
  }
  static std::vector<Config> candidates(const Call<Op>& call, const DeviceProperties& device) {
    return paged_cpu_candidates(paged_call(call), device);
  }
  static Cost cost(const Call<Op>& call, const Config& config, const DeviceProperties&) {
    return paged_cpu_cost(paged_call(call), config);
  }
  static size_t workspace_bytes(const Call<Op>& call, const Config& config, const DeviceProperties& device) {
    return paged_cpu_workspace(paged_call(call), config, device);
  }
  static void run(const Call<Op>& call, const Config& config, const RunContext& context) {
    paged_cpu(paged_call(call), config, context);
  }
};

}  // namespace ejk::attn
