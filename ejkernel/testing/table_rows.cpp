// The rows of the reliability table: targets and what their records depend on. Producers are in tools/table.
#include <algorithm>
#include <array>

#include "ejkernel/testing/table.h"

namespace ejk::testing {
namespace {

using Rows = std::vector<Row>;
// What a row rests on, and the file that produces it: a change there makes its record stale. A row's program runs no
// unit test, and a row of one platform none of the other's kernels.
using Paths = std::vector<std::string_view>;

// Every row: the program, what counts its trials, and what spreads them. Not this file: what makes records stale is no
// part of what they measured.
constexpr std::array kEvery = {std::string_view("tools/table/main.cpp"), std::string_view("tools/table/rows.h"),
                               std::string_view("tools/table/rows.cpp"), std::string_view("tools/table/helper_count.*"),
                               std::string_view(":(exclude)ejkernel/testing/table_rows.cpp")};

// What unit tests alone are written with, beside T-06, which rests on all of it.
constexpr std::string_view kNoEmulatedTiles = ":(exclude)ejkernel/testing/emulated_tiles*",
                           kNoMutants = ":(exclude)ejkernel/testing/mutants.*";

Paths kernels_and(std::string_view producer) {
  return {"ejkernel/core",
          "ejkernel/platform/cpu",
          "ejkernel/runtime",
          "ejkernel/ops",
          "ejkernel/testing",
          producer,
          kNoEmulatedTiles,
          kNoMutants,
          ":(exclude)ejkernel/*_test.cpp",
          ":(exclude)ejkernel/ops/*_cuda*",
          ":(exclude)ejkernel/ops/*_sm80*",
          ":(exclude)ejkernel/ops/*_sm90*",
          ":(exclude)ejkernel/ops/*.cu",
          ":(exclude)ejkernel/ops/*.cuh",
          ":(exclude)ejkernel/ops/*_config.h"};  // what device code is specialised for
}

/// Kernels of a GPU as well.
Paths all_kernels_and(std::string_view producer) {
  return {"ejkernel/core",  "ejkernel/platform", "ejkernel/runtime",
          "ejkernel/ops",   "ejkernel/testing",  producer,
          kNoEmulatedTiles, kNoMutants,          ":(exclude)ejkernel/*_test.cpp"};
}

constexpr std::string_view kKernelTrials = "tools/table/kernel_trials.*";

Rows rows_of_kernels() {
  Paths correctness = kernels_and("tools/table/rows_correctness.cpp");
  correctness.push_back(kKernelTrials);
  const Paths memory = kernels_and("tools/table/rows_memory.cpp"),
              determinism = kernels_and("tools/table/rows_determinism.cpp"),
              frozen = kernels_and("tools/table/rows_frozen.cpp");
  return {
      {"T-02", "Forward accuracy", "random problems, every kernel against float64: failures, quantiles of r", 10000,
       correctness},
      {"T-03", "Backward accuracy", "random problems, every gradient against float64: failures, quantiles of r", 5000,
       correctness},
      {"T-04", "Exact integer mode", "problems whose answer is exact, bit for bit", 2000, correctness},
      {"T-05", "Edge shapes", "enumerated edge cases", 600, correctness},
      {"T-07", "Metamorphic", "relations of each operation x 200 configurations", 22800, correctness},
      {"T-14", "Guard bands", "runs inside guard bands", 15000, memory},
      {"T-15", "Poisoned allocator", "runs in poisoned memory, in random order", 2000, memory},
      {"T-16", "64-bit indexing",
       "calls of every operation with strides just below and past 2^31 elements, against contiguous copies", 600,
       memory},
      {"T-17", "Layout and alignment", "layouts that are right; those refused with a typed error are a figure beside",
       1000, memory},
      {"T-19", "Allocation failure", "calls with the k-th allocation failing, k = 1, 2, …", 200,
       all_kernels_and("tools/table/rows_memory.cpp")},
      {"T-20", "Bit-equal reruns",
       "configurations of 1,000 reruns on 1 to 7 threads that did share tasks of every operation, other work beside",
       240, determinism},
      {"T-21", "Cross-process equality", "processes, each with an order of its own", 50, determinism},
      {"T-22", "Batch invariance", "calls, six rows of each alone, in their batch and in pieces of a prefill: unequal",
       2000, determinism},
      {"T-23", "Frozen configs", "problems with a stored config: the same bits in other processes that find it", 400,
       frozen},
      {"T-24", "Spread without determinism", "configurations, largest difference over reruns in ulp", 300, determinism},
  };
}

Rows rows_of_a_gpu() {
  const Paths gpu = {"ejkernel/core",
                     "ejkernel/platform/cuda",
                     "ejkernel/runtime",
                     "ejkernel/ops",
                     "ejkernel/testing",
                     "tools/table/rows_gpu.cpp",
                     kKernelTrials,
                     kNoEmulatedTiles,
                     kNoMutants,
                     ":(exclude)ejkernel/*_test.cpp",
                     ":(exclude)ejkernel/ops/*_cpu*",
                     ":(exclude)ejkernel/ops/*-inl.h"};  // SIMD code, which *_cpu.cpp files include
  const auto row = [&](std::string_view id, std::string_view category, std::string_view figure, int64_t target) {
    return Row{id, category, figure, target, gpu, "release", /*needs_gpu=*/true};
  };
  return {
      row("T-01", "Reference trust",
          "random problems, the GPU's reference against the host's: float64 results at most 1e-12 apart", 500),
      row("T-02-cuda", "Forward accuracy, GPU",
          "random problems, every kernel of a GPU against float64: failures, quantiles of r", 10000),
      row("T-03-cuda", "Backward accuracy, GPU",
          "random problems, every gradient on a GPU against float64: failures, quantiles of r", 5000),
      row("T-11", "Memcheck", "runs of every kernel of a GPU under compute-sanitizer memcheck", 120),
      row("T-12", "Initcheck and synccheck", "the same under initcheck and synccheck", 120),
      row("T-13", "Racecheck", "the same under racecheck", 60),
      row("T-16-cuda", "64-bit indexing, GPU",
          "calls with tensors of up to 2^32 elements against contiguous copies, bit for bit", 100),
      row("T-20-cuda", "Bit-equal reruns, GPU", "configurations of 1,000 reruns, other work on a second stream", 100),
      row("T-25", "Hang watchdog", "launches, the process ended after 10 s without an end", 50000),
      row("T-27", "CUDA graphs", "replays with changed contents", 1000),
  };
}

Rows rows_of_the_store() {
  const auto store_and = [](Paths others) {
    Paths all = {"ejkernel/core", "ejkernel/testing/temporary_folder.h", ":(exclude)ejkernel/*_test.cpp"};
    all.insert(all.end(), others.begin(), others.end());
    return all;
  };
  constexpr std::string_view kTrials = "tools/table/store_trials.h", kRandom = "ejkernel/testing/random.h";
  const Paths trials = store_and({kTrials, kRandom, "tools/table/rows_store.cpp"}),
              keys = store_and({"ejkernel/platform/cuda/cubin_store.*", "ejkernel/runtime",
                                "ejkernel/ops/flash_attention/flash_attention.h", kTrials, kRandom,
                                "tools/table/rows_store.cpp"}),
              faults = store_and({"ejkernel/testing/power_loss.*", "tools/table/rows_store_faults.cpp"}),
              damage = store_and({kTrials, kRandom, "tools/table/rows_store_damage.cpp"}),
              trust = store_and({kTrials, kRandom, "tools/table/rows_store_trust.cpp"});
  return {
      {"T-30", "SIGKILL during a write", "writers killed at random times; then every committed record is there", 2000,
       trials},
      {"T-31", "Crash points", "ends of the process at every call, and every disk that a power loss may leave", 300,
       faults},
      {"T-32", "I/O faults", "EIO, ENOSPC, EINTR, EROFS, EMFILE, EACCES and short counts at every call", 1000, faults},
      {"T-33", "Corrupt store", "spoilt records and archives: none crashes, none is served", 5000, damage},
      {"T-35", "16 processes x 25 keys", "records that survive a common start", 400, trials},
      {"T-37", "Environment change",
       "records of other devices, kernel sources, revisions and CUDA compilers: not found, not changed", 1000, keys},
      {"T-47", "Cache file trust", "files and folders that others made or changed, records and names that lie", 40,
       trust},
  };
}

Rows rows_of_the_tuner() {
  const Paths tuner = {"ejkernel/core",
                       "ejkernel/runtime",
                       "ejkernel/testing/toy.h",
                       "ejkernel/testing/toy_tunable.h",
                       "tools/table/rows_tuner.cpp",
                       ":(exclude)ejkernel/*_test.cpp"},
              threads = {"ejkernel/core",
                         "ejkernel/runtime",
                         "ejkernel/testing/process.*",
                         "ejkernel/testing/registers.h",
                         "ejkernel/testing/shared_caches.*",
                         "ejkernel/testing/temporary_folder.h",
                         "ejkernel/testing/toy.h",
                         "tools/table/rows_threads.cpp",
                         ":(exclude)ejkernel/*_test.cpp"},
              timed = kernels_and("tools/table/rows_tuned.cpp");
  return {
      {"T-34", "16 processes, one key", "processes that plan the same new problem at once: one measures", 160, tuner},
      {"T-36", "32 threads", "operations on the caches, the registry and the store: no update lost, no race reported",
       1000000, threads, "tsan"},
      {"T-38", "Key soundness", "parameters changed alone: another key exactly where the declaration says so", 1000,
       kernels_and("tools/table/rows_tuner.cpp")},
      {"T-39", "Broken candidates",
       "candidates that are wrong, unsteady, crash, hang or take all memory: each rejected with a reason", 200, tuner},
      {"T-40", "Never worse than default",
       "keys, tuned against default in interleaved pairs on fresh data: none slower beyond the noise", 200, timed},
      {"T-41", "Tuning repeatability",
       "keys, each tuned twice from nothing: 95th percentile of the loss against the fastest", 100, timed},
      {"T-43", "Tiers", "combinations of what the tiers hold and may do, two calls each: the first that answers wins",
       2304, tuner},
  };
}

Rows rows_of_input() {
  const Paths input = kernels_and("tools/table/rows_input.cpp"), fuzzed = {"ejkernel/core",
                                                                           "ejkernel/platform/cpu/parallel_for.*",
                                                                           "ejkernel/runtime",
                                                                           "ejkernel/testing/process.*",
                                                                           "tools/ejk/call_*",
                                                                           "tools/ejk/cases.*",
                                                                           "tools/ejk/options.*",
                                                                           "tools/fuzz",
                                                                           "tools/table/rows_fuzz.cpp",
                                                                           ":(exclude)*_test.cpp"};
  Paths texts = kernels_and("tools/table/rows_injection.cpp");
  texts.insert(texts.end(), {"ejkernel/c_api.h", "tools/ejk"});
  return {
      {"T-44", "Hostile bytes",
       "executions, guided by coverage, of the parsers of records, JSON, variables and command lines", 10000000, fuzzed,
       "asan"},
      {"T-45", "Wrong calls", "random invalid calls refused with a typed error, under the sanitizers", 20000, input,
       "asan"},
      {"T-46", "Hostile index tensors",
       "tables, lengths, offsets, sizes and ids of any value, half of them paged, ragged or grouped, on every kernel "
       "under the sanitizers",
       10000, input, "asan"},
      {"T-48", "Injection", "texts x places that take a string, in C++, in C and on the command line: none executed",
       4000, texts},
      {"T-49", "Error quality", "typed errors that say argument, expected, got and what to do", 5000, input},
  };
}

/// Rows that run other programs.
Rows rows_of_programs() {
  constexpr std::string_view kProducer = "tools/table/rows_programs.cpp";
  return {
      {"T-06",
       "Test strength",
       "seeded one-line faults, killed by the unit tests",
       60,
       {"ejkernel", "tests/mutants", kProducer}},
      {"T-18",
       "Host sanitizers",
       "tests under address, undefined-behaviour and thread sanitizers",
       300,
       {"CMakeLists.txt", "CMakePresets.json", "cmake", "ejkernel", "tools/ejk/call_*", "tools/ejk/cases.*",
        "tools/ejk/options.*", "tools/fuzz", kProducer}},
      {"T-50",
       "Supply chain",
       "equal bytes from two builds, a run without network, a bill of materials",
       3,
       {"cmake", "CMakeLists.txt", "ejkernel", "tools/ejk", kProducer}},
  };
}

}  // namespace

std::span<const Row> table_rows() {
  static const Rows all = [] {
    Rows rows;
    for (const auto group :
         {rows_of_kernels, rows_of_a_gpu, rows_of_the_store, rows_of_the_tuner, rows_of_input, rows_of_programs})
      for (Row& row : group()) {
        row.depends_on.insert(row.depends_on.end(), kEvery.begin(), kEvery.end());
        rows.push_back(std::move(row));
      }
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.id < b.id; });
    return rows;
  }();
  return all;
}

}  // namespace ejk::testing
