// How the CPU kernels of the operations over a cache split their work.
#include <algorithm>
#include <cmath>
#include <string>

#include "ejkernel/core/untrusted.h"
#include "ejkernel/ops/page_attention/paged_cpu_internal.h"
#include "ejkernel/platform/cpu/amx.h"
#include "ejkernel/platform/cpu/bf16_dot.h"
#include "ejkernel/platform/cpu/layout.h"
#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/platform/cpu/simd_target.h"

namespace ejk::attn {

Support supports_paged_cpu(const PagedCall& call) {
  const Problem& p = call.problem;
  for (const auto& [name, dtype] : {std::pair{"query", p.query.dtype}, {"cache", p.key.dtype}})
    if (dtype == DType::f64)
      return Support::no(std::string(name) + " dtype must not be f64: this kernel accumulates in float32");
  return Support::yes();
}

Support paged_cpu_runs_here(const PagedCpuConfig& config) {
  const Support tiles = runs_here(config);
  return tiles.ok ? cpu::bf16_dot_runs_here(config.stream_dot, "stream_dot") : tiles;
}

bool fits_digits(const Problem& p) {
  const auto fits = [](const Tensor& codes, const Tensor& scale) {
    constexpr int64_t kTileBytes = 64;
    return codes.dtype == DType::i8 && codes.shape[-1] % kTileBytes == 0 && (scale.rank() != 4 || scale.shape[3] == 1);
  };
  return fits(p.key, p.k_scale) && fits(p.value, p.v_scale);
}
bool takes_digits(const Problem& p, const PagedCpuConfig& config) {
  return config.stream_dot == 3 && config.stream_block % cpu::kDigitDepth == 0 && fits_digits(p);
}

namespace {

/// What parts of sequences may take. Sequences that find no room are computed by one task each, with the same result.
constexpr int64_t kMostPartBytes = int64_t{128} << 20;

int64_t splits_of(int64_t keys, const PagedCpuConfig& config) {
  return std::max<int64_t>(cpu::ceil_div(keys, config.split_keys), 1);
}

/// Rows that are computed in tiles: none where every sequence has one row, and none where results may not depend on how
/// many rows a sequence has, because tiles round otherwise than streams.
bool may_use_tiles(const PagedCall& call) { return call.problem.cu_seqlens_q.present() && !call.batch_invariant; }
bool uses_tiles(const PagedCall& call, const Sequence& s) {
  return may_use_tiles(call) && s.q_len > stream_positions(call.problem);
}

/// A tile or a stream.
struct Task {
  double cost = 0;
  bool is_tile = false;
  BlockMap::Place tile = {};
  StreamTask stream = {};
};

/// Sizes of what is carved from the workspace, from shapes alone.
struct Sizes {
  int64_t tasks = 0, part_floats = 0;

  Sizes(const PagedCall& call, const PagedCpuConfig& config) {
    const Problem& p = call.problem;
    const int64_t positions = stream_positions(p), splits = splits_of(p.k_rows, config);
    const int64_t part_rows = std::min(p.q_rows, p.num_sequences * positions) * p.num_q_heads;
    const int64_t part_bytes = static_cast<int64_t>(sizeof(float)) * part_stride(p);
    if (splits > 1) {
      const int64_t most = kMostPartBytes / part_bytes;
      part_floats = (part_rows > most / splits ? most : part_rows * splits) * part_stride(p);
    }
    tasks = p.num_sequences + part_floats / part_stride(p) / p.num_q_heads;
    if (may_use_tiles(call)) tasks += BlockMap::most_blocks(p, BlockMap::Side::kQueries, p.group(), config.block_q);
    if (call.batch_invariant) tasks += cpu::ceil_div(p.q_rows, positions);
  }
};

size_t task_scratch(const PagedCall& call, const PagedCpuConfig& config) {
  const size_t stream = stream_scratch_bytes(call.problem, config);
  return may_use_tiles(call) ? std::max(stream, forward_tile_bytes(call.problem, config)) : stream;
}

/// The tasks of some sequences of a call, and where parts of them lie. There is room for all sequences of a call whose
/// rows are in order, and for any one of a call whose are not.
struct Schedule {
  Task* tasks = nullptr;
  int64_t num_tasks = 0;
  StreamTask* merged = nullptr;  ///< of each sequence: all of it; num_splits 0 where nothing is to be merged
  float* parts = nullptr;

  static Schedule carve(const PagedCall& call, const PagedCpuConfig& config, cpu::Carver& carver) {
    const Sizes sizes(call, config);
    Schedule s;
    s.tasks = carver.take<Task>(sizes.tasks);
    s.merged = carver.take<StreamTask>(call.problem.num_sequences);
    s.parts = carver.take<float>(sizes.part_floats);
    s.part_floats_ = sizes.part_floats;
    return s;
  }

  void build(const PagedCall& call, const PagedCpuConfig& config, int64_t begin, int64_t end, uint32_t* status) {
    const Problem& p = call.problem;
    int64_t used = 0;
    num_tasks = 0;
    for (int64_t n = begin; n < end; ++n) {
      const Sequence s = p.sequence(n, status);
      p.report_pages(s, status);
      merged[n] = {.sequence = n};
      if (s.q_len == 0) continue;
      if (uses_tiles(call, s))
        add_tiles(p, config, s);
      else
        add_streams(p, config, s, used);
    }
    // The longest first, so that threads finish together.
    std::sort(tasks, tasks + num_tasks, [](const Task& x, const Task& y) {
      const auto order = [](const Task& t) {
        return t.is_tile ? std::pair{t.tile.sequence, t.tile.block} : std::pair{t.stream.sequence, t.stream.split};
      };
      return x.cost != y.cost ? x.cost > y.cost : order(x) < order(y);
    });
  }

 private:
  // Costs are in keys that one kv head's rows stream through; a tile of 12 rows takes as long for one.
  void add_tiles(const Problem& p, const PagedCpuConfig& config, const Sequence& s) {
    const int64_t rows = s.q_len * p.group(), blocks = cpu::ceil_div(rows, config.block_q);
    for (int64_t g = 0; g < p.num_kv_heads; ++g)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t last = std::min((blocks - b) * config.block_q, rows) - 1;
        const auto range = p.key_range(s, last / p.group());
        tasks[num_tasks++] = {.cost = static_cast<double>(range.end - range.begin) * config.block_q / 12,
                              .is_tile = true,
                              .tile = {.sequence = s.index, .kv_head = g, .block = b, .num_blocks = blocks}};
      }
  }

  void add_streams(const Problem& p, const PagedCpuConfig& config, const Sequence& s, int64_t& used) {
    const int64_t splits = splits_of(s.k_len, config), positions = stream_positions(p);
    const int64_t floats = s.q_len * p.num_q_heads * part_stride(p);
    if (splits > 1 && s.q_len <= positions && used + splits * floats <= part_floats_) {
      merged[s.index] = {.sequence = s.index, .num_positions = s.q_len, .num_splits = splits, .parts = parts + used};
      used += splits * floats;
      for (int64_t n = 0; n < splits; ++n) {
        StreamTask part = merged[s.index];
        part.split = n, part.num_splits = 1;
        add_stream(p, config, s, part);
      }
      return;
    }
    for (int64_t i = 0; i < s.q_len; i += positions)
      add_stream(p, config, s,
                 {.sequence = s.index,
                  .position = i,
                  .num_positions = std::min(positions, s.q_len - i),
                  .num_splits = splits});
  }

  void add_stream(const Problem& p, const PagedCpuConfig& config, const Sequence& s, const StreamTask& task) {
    const int64_t first = task.split * config.split_keys;
    const int64_t keys = std::min<int64_t>(task.num_splits * config.split_keys, s.k_len - first);
    tasks[num_tasks++] = {.cost = static_cast<double>(std::max<int64_t>(keys, 0) * p.num_kv_heads), .stream = task};
  }

  int64_t part_floats_ = 0;
};

/// Whether offsets that do not ascend give rows to two sequences.
bool claims_rows_twice(const Problem& p) {
  if (!p.cu_seqlens_q.present()) return false;
  int64_t owned = 0;
  const int64_t sequences = p.sequences_in_use(nullptr);
  for (int64_t n = 0; n < sequences; ++n) {
    const untrusted::Span rows = untrusted::packed_span(p.cu_seqlens_q, n, p.q_rows, nullptr);
    if (rows.length == 0) continue;
    if (rows.begin < owned) return true;
    owned = rows.begin + rows.length;
  }
  return false;
}

/// What multiplies the products of decode.
int best_stream_dot(const PagedCall& call) {
  const Problem& p = call.problem;
  const bool is_bf16 = p.query.dtype == DType::bf16;
  if (cpu::matrix_unit() == nullptr) return is_bf16 && cpu::has_bf16_dot() ? 1 : 0;
  if (!is_bf16 && !fits_digits(p)) return 0;
  // Rows of a kv head that stream together; under batch_invariant those of one position, whatever the batch.
  const int64_t positions =
      call.batch_invariant
          ? 1
          : std::min(stream_positions(p), cpu::ceil_div(p.q_rows, std::max<int64_t>(p.num_sequences, 1)));
  const int64_t rows = p.group() * positions;
  // The unit takes digits of four rows in the time of one, pairs of 16; vectors take four at a time. Processors that
  // have it multiply pairs in vectors at half the rate of floats, which gains nothing beyond noise.
  constexpr int64_t kFewestOfDigits = 3, kFewestOfPairs = 5;
  if (fits_digits(p) && rows >= kFewestOfDigits && (rows < kFewestOfPairs || !is_bf16)) return 3;
  return is_bf16 && rows >= kFewestOfPairs ? 2 : 0;
}

}  // namespace

PagedCpuConfig paged_cpu_heuristic(const PagedCall& call, const DeviceProperties& device) {
  const Problem& p = call.problem;
  PagedCpuConfig config;
  config.stream_dot = best_stream_dot(call);
  if (config.stream_dot == 3) config.stream_block = kMaxStreamBlock;
  if (call.batch_invariant) {  // nothing that depends on the batch
    config.split_keys = 512;
    return config;
  }
  static_cast<CpuConfig&>(config) = cpu_heuristic<CpuConfig>(p, device);
  // Sequences that stream have no tiles, and one may have all the other rows: so many tiles there are in any case.
  const auto tiles = [&](int block_q) {
    return p.num_kv_heads * cpu::ceil_div(p.q_rows * p.group(), int64_t{block_q});
  };
  while (config.block_q > 32 && tiles(config.block_q) < (config.block_q > 128 ? 4 : 1) * device.num_units)
    config.block_q /= 2;
  config.split_keys = 2048;
  while (config.split_keys > 256 &&
         static_cast<double>(p.num_sequences) * static_cast<double>(splits_of(p.k_rows, config)) < 8 * device.num_units)
    config.split_keys /= 2;
  return config;
}

std::vector<PagedCpuConfig> paged_cpu_candidates(const PagedCall& call, const DeviceProperties& device) {
  const PagedCpuConfig best = paged_cpu_heuristic(call, device);
  if (call.batch_invariant) return {best};
  std::vector<PagedCpuConfig> all;
  const auto streams = [&](const CpuConfig& tiles, std::initializer_list<int> splits,
                           std::initializer_list<int> blocks) {
    for (const int split : splits)
      for (const int block : blocks) {
        PagedCpuConfig& config = all.emplace_back(best);
        static_cast<CpuConfig&>(config) = tiles;
        config.split_keys = split, config.stream_block = block;
      }
  };
  streams(best, {256, 512, 1024, 2048, 4096, 16384}, {32, 64, 128});
  const bool has_unit = cpu::matrix_unit() != nullptr, has_pairs = call.problem.query.dtype == DType::bf16;
  const auto is_possible = [&](int dot) {
    return dot == 0 || (dot == 3 ? has_unit && fits_digits(call.problem) : has_pairs && (dot == 1 || has_unit));
  };
  for (int dot = 0; dot <= 3; ++dot)
    if (dot != best.stream_dot && is_possible(dot)) all.emplace_back(best).stream_dot = dot;
  if (!may_use_tiles(call)) return all;
  for (const CpuConfig& tiles : cpu_candidates<CpuConfig>(call.problem))
    if (tiles.block_q >= 64 && tiles.block_k >= 64) streams(tiles, {best.split_keys}, {best.stream_block});
  return all;
}

Cost paged_cpu_cost(const PagedCall& call, const PagedCpuConfig& config) {
  const Problem& p = call.problem;
  const Work work = paged_work(call, 0);
  if (may_use_tiles(call) && p.q_rows > p.num_sequences * stream_positions(p)) {
    Cost cost = cpu_cost(p, config);
    cost.bytes = work.bytes;
    return cost;
  }
  const double tasks =
      std::max(static_cast<double>(p.num_sequences) * static_cast<double>(splits_of(p.k_rows, config)), 1.0);
  return {.tasks = tasks, .task_flops = work.flops / tasks, .bytes = work.bytes};
}

size_t paged_cpu_workspace(const PagedCall& call, const PagedCpuConfig& config, const DeviceProperties& device) {
  cpu::Carver carver;
  Schedule::carve(call, config, carver);
  const int64_t tasks = std::max<int64_t>(Sizes(call, config).tasks, 1);
  const int64_t workers = std::min<int64_t>(tasks, std::max(device.num_units, cpu::num_threads()));
  return carver.used() + static_cast<size_t>(workers) * task_scratch(call, config);
}

void paged_cpu(const PagedCall& call, const PagedCpuConfig& config, const RunContext& context) {
  const Problem& p = call.problem;
  cpu::Carver carver(context.workspace.data());
  Schedule schedule = Schedule::carve(call, config, carver);
  const bool overlapping = claims_rows_twice(p);
  fill_gaps(p, overlapping, call.out, call.lse);
  const size_t scratch = task_scratch(call, config);
  std::byte* memory = context.workspace.data() + carver.used();
  const int workers = static_cast<int>((context.workspace.size() - carver.used()) / scratch);
  // Of rows that two sequences claim, the last one's result stays: then they are computed one after another.
  const int64_t sequences = p.sequences_in_use(context.status);
  const int64_t step = overlapping ? 1 : std::max<int64_t>(sequences, 1);
  for (int64_t begin = 0; begin < sequences; begin += step) {
    schedule.build(call, config, begin, begin + step, context.status);
    if (schedule.num_tasks == 0) continue;
    cpu::parallel_for(
        schedule.num_tasks,
        [&](int64_t n, int worker) {
          const Task& task = schedule.tasks[n];
          std::byte* mine = memory + static_cast<size_t>(worker) * scratch;
          if (task.is_tile)
            forward_cpu_tile(p, config, task.tile, call.out, call.lse, mine);
          else
            stream_rows(call, config, task.stream, mine);
        },
        workers);
    cpu::parallel_for(
        step * p.num_kv_heads,
        [&](int64_t n, int) {
          const StreamTask& all = schedule.merged[begin + n / p.num_kv_heads];
          if (all.num_splits > 0) merge_parts(call, all, n % p.num_kv_heads);
        },
        workers);
  }
}

}  // namespace ejk::attn
