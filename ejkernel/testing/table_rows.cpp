// The rows of the reliability table: targets and what their records depend on. Producers are in tools/table.
#include <array>

#include "ejkernel/testing/table.h"

namespace ejk::testing {

std::span<const Row> table_rows() {
  // What every row about kernels rests on, and the file that produces it: a change there makes its record stale. A
  // row's program runs no unit test, and a row of one platform none of the other's kernels.
  using Paths = std::vector<std::string_view>;
  const auto kernels_and = [](std::string_view producer) {
    return Paths{"ejkernel/core",
                 "ejkernel/platform/cpu",
                 "ejkernel/runtime",
                 "ejkernel/ops",
                 "ejkernel/testing",
                 producer,
                 ":(exclude)ejkernel/*_test.cpp",
                 ":(exclude)ejkernel/ops/*_cuda*",
                 ":(exclude)ejkernel/ops/*_sm90*"};
  };
  static const Paths correctness = kernels_and("tools/table/rows_correctness.cpp"),
                     memory = kernels_and("tools/table/rows_memory.cpp"),
                     determinism = kernels_and("tools/table/rows_determinism.cpp"),
                     input = kernels_and("tools/table/rows_input.cpp"),
                     sanitizers = {"ejkernel", "examples/minilm", "tools/table/rows_programs.cpp"},
                     gpu = {"ejkernel/core",
                            "ejkernel/platform/cuda",
                            "ejkernel/runtime",
                            "ejkernel/ops",
                            "ejkernel/testing",
                            "tools/table/rows_gpu.cpp",
                            ":(exclude)ejkernel/*_test.cpp",
                            ":(exclude)ejkernel/ops/*_cpu*"},
                     tuner = {"ejkernel/core",
                              "ejkernel/runtime",
                              "ejkernel/testing/toy.h",
                              "ejkernel/testing/toy_tunable.h",
                              "tools/table/rows_tuner.cpp",
                              ":(exclude)ejkernel/*_test.cpp"},
                     keys = kernels_and("tools/table/rows_tuner.cpp"),
                     faults = {"ejkernel", "tests/mutants", "tools/table/rows_programs.cpp"},
                     store = {"ejkernel/core", "tools/table/store_trials.h", "tools/table/rows_store.cpp"},
                     store_faults = {"ejkernel/core", "ejkernel/testing/power_loss.cpp",
                                     "tools/table/rows_store_faults.cpp"},
                     store_damage = {"ejkernel/core", "tools/table/store_trials.h",
                                     "tools/table/rows_store_damage.cpp"},
                     store_trust = {"ejkernel/core", "tools/table/store_trials.h", "tools/table/rows_store_trust.cpp"};
  const auto on_gpu = [](std::string_view id, std::string_view category, std::string_view figure, int64_t target) {
    return Row{id, category, figure, target, gpu, "release", /*needs_gpu=*/true};
  };
  static const std::array rows = {
      on_gpu("T-01", "Reference trust",
             "random problems, the GPU's reference against the host's: float64 results at most 1e-12 apart", 500),
      Row{"T-02", "Forward accuracy", "random problems, every kernel against float64: failures, quantiles of r", 10000,
          correctness},
      on_gpu("T-02-cuda", "Forward accuracy, GPU",
             "random problems, every kernel of a GPU against float64: failures, quantiles of r", 10000),
      Row{"T-03", "Backward accuracy", "random problems, every gradient against float64: failures, quantiles of r",
          5000, correctness},
      on_gpu("T-03-cuda", "Backward accuracy, GPU",
             "random problems, every gradient on a GPU against float64: failures, quantiles of r", 5000),
      Row{"T-04", "Exact integer mode", "problems whose answer is exact, bit for bit", 2000, correctness},
      Row{"T-05", "Edge shapes", "enumerated edge cases", 600, correctness},
      Row{"T-06", "Test strength", "seeded one-line faults, killed by the unit tests", 20, faults},
      Row{"T-07", "Metamorphic", "relations x configurations", 2400, correctness},
      on_gpu("T-11", "Memcheck", "runs of every kernel of a GPU under compute-sanitizer memcheck", 120),
      on_gpu("T-12", "Initcheck and synccheck", "the same under initcheck and synccheck", 120),
      on_gpu("T-13", "Racecheck", "the same under racecheck", 60),
      Row{"T-14", "Guard bands", "runs inside guard bands", 15000, memory},
      Row{"T-15", "Poisoned allocator", "runs in poisoned memory, in random order", 2000, memory},
      Row{"T-16", "64-bit indexing",
          "calls of every operation with strides just below and past 2^31 elements, against contiguous copies", 600,
          memory},
      on_gpu("T-16-cuda", "64-bit indexing, GPU",
             "calls with tensors of up to 2^32 elements against contiguous copies, bit for bit", 100),
      Row{"T-17", "Layout and alignment", "layouts that are right or refused with a typed error", 1000, memory},
      Row{"T-18", "Host sanitizers", "tests under address, undefined-behaviour and thread sanitizers", 300, sanitizers},
      Row{"T-19", "Allocation failure", "calls with the k-th allocation failing, k = 1, 2, …", 200, memory},
      Row{"T-20", "Bit-equal reruns", "configurations of 1,000 reruns on 1 to 7 threads, other work beside", 100,
          determinism},
      on_gpu("T-20-cuda", "Bit-equal reruns, GPU", "configurations of 1,000 reruns, other work on a second stream",
             100),
      Row{"T-21", "Cross-process equality", "processes, each with an order of its own", 50, determinism},
      Row{"T-24", "Spread without determinism", "configurations, largest difference over reruns in ulp", 300,
          determinism},
      on_gpu("T-25", "Hang watchdog", "launches, the process ended after 10 s without an end", 50000),
      on_gpu("T-27", "CUDA graphs", "replays with changed contents", 1000),
      Row{"T-30", "SIGKILL during a write", "writers killed at random times; then every committed record is there",
          2000, store},
      Row{"T-31", "Crash points", "ends of the process at every call, and every disk that a power loss may leave", 300,
          store_faults},
      Row{"T-32", "I/O faults", "EIO, ENOSPC, EINTR, EROFS, EMFILE, EACCES and short counts at every call", 1000,
          store_faults},
      Row{"T-33", "Corrupt store", "spoilt records and archives: none crashes, none is served", 5000, store_damage},
      Row{"T-34", "16 processes, one key", "processes that plan the same new problem at once: one measures", 160,
          tuner},
      Row{"T-35", "16 processes x 25 keys", "records that survive a common start", 400, store},
      Row{"T-37", "Environment change", "records of other drivers, compilers, GPUs, versions: not found, not changed",
          1000, store},
      Row{"T-38", "Key soundness", "parameters changed alone: another key exactly where the declaration says so", 1000,
          keys},
      Row{"T-39", "Broken candidates",
          "candidates that are wrong, unsteady, crash, hang or want all memory: none selected", 200, tuner},
      Row{"T-43", "Tiers", "combinations of what the tiers hold and may do: the first that answers wins", 324, tuner},
      Row{"T-45", "Wrong calls", "random invalid calls refused with a typed error, under the sanitizers", 20000, input,
          "asan"},
      Row{"T-46", "Hostile index tensors", "lengths, offsets and ids of any value, under the sanitizers", 5000, input,
          "asan"},
      Row{"T-47", "Cache file trust", "files and folders that others made or changed, records and names that lie", 40,
          store_trust},
      Row{"T-48", "Injection", "texts x places that take a string, none executed", 300, input},
      Row{"T-49", "Error quality", "typed errors that say argument, expected, got and what to do", 5000, input},
      Row{"T-50",
          "Supply chain",
          "equal bytes from two builds, a run without network, a bill of materials",
          3,
          {"cmake", "CMakeLists.txt", "ejkernel", "tools/table/rows_programs.cpp"}},
  };
  return rows;
}

}  // namespace ejk::testing
