// T-44: the parsers of what others wrote, fuzzed by a program of its own (tools/fuzz).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <thread>

#include "ejkernel/platform/cpu/parallel_for.h"
#include "ejkernel/testing/process.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

/// What a target gets of a thousand executions. A record takes some microseconds, a command line a millisecond.
struct Share {
  std::string_view target;
  int64_t per_mille;
};
constexpr std::array kShares = {Share{"record", 470}, Share{"environment", 250},  Share{"archive", 180},
                                Share{"config", 60},  Share{"recorded_call", 20}, Share{"command_line", 10},
                                Share{"call", 10}};

struct Fuzzed {
  double executions = 0, corpus = 0, edges = 0;
  std::string fault;
};

Fuzzed run(const std::string& program, std::string_view target, int64_t executions, uint64_t seed) {
  const ProcessResult process = run_process(
      {program, "run", std::string(target), "--n", std::to_string(executions), "--seed", std::to_string(seed)});
  Fuzzed fuzzed;
  std::istringstream line(process.out);
  std::string word;
  line >> word >> fuzzed.executions >> word >> fuzzed.corpus >> word >> fuzzed.edges;
  // A sanitizer's report may be long; what replays it stands at its end.
  if (process.exit_code != 0)
    fuzzed.fault = fmt::format("{}: {}…{}", target, process.err.substr(0, 1000),
                               process.err.substr(process.err.size() - std::min<size_t>(process.err.size(), 9000)));
  return fuzzed;
}

}  // namespace

/// A process per processor for each target, with a seed of its own.
RowResult hostile_bytes(const RowRequest& request) {
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "ejkernel_fuzz").string();
  const auto processes = static_cast<int64_t>(cpu::default_num_threads());
  RowResult result;
  for (const Share& share : kShares) {
    std::vector<Fuzzed> all(static_cast<size_t>(processes));
    std::vector<std::thread> threads;
    for (size_t n = 0; n < all.size(); ++n)
      threads.emplace_back([&, n] {
        const int64_t executions = (request.n * share.per_mille / 1000 + processes - 1) / processes;
        all[n] = run(program, share.target, executions, request.seed * 1000 + n);
      });
    for (std::thread& thread : threads) thread.join();
    const std::string name(share.target);
    for (const Fuzzed& fuzzed : all) {
      result.n += static_cast<int64_t>(fuzzed.executions);
      result.figures[name + "_executions"] += fuzzed.executions;
      result.figures[name + "_corpus"] += fuzzed.corpus;
      result.figures[name + "_edges"] = std::max(result.figures[name + "_edges"], fuzzed.edges);
      result.failures += !fuzzed.fault.empty();
      if (!fuzzed.fault.empty()) result.notes.push_back(fuzzed.fault);
    }
  }
  return result;
}

}  // namespace ejk::testing
