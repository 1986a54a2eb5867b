// ejk bench --planning: how long the first plan of a process takes, when its kernel has to be compiled, when the store
// has it, and when kernels that were compiled ahead are there. Each figure comes from processes of their own.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "ejkernel/core/error.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/bench_worker.h"
#include "tools/ejk/print.h"
#include "tools/ejk/programs.h"
#include "tools/ejk/scratch_folder.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProcesses = 5;  // for each figure
/// Seconds that the first plan may take.
constexpr double kCompiled = 0.8, kStored = 5e-3;

double median(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

Json figure(const BenchEntry& entry, const Worker& worker, std::string_view what, const std::vector<double>& seconds,
            double target) {
  return {{"case", entry.name},
          {"kernel", worker.kernel()},
          {"config", worker.config()},
          {"what", what},
          {"seconds", median(seconds)},
          {"least", *std::min_element(seconds.begin(), seconds.end())},
          {"most", *std::max_element(seconds.begin(), seconds.end())},
          {"target", target},
          {"met", median(seconds) <= target}};
}

Worker first_plan(const BenchEntry& entry) { return Worker(own_program(), arguments_of(entry.call), ""); }

void measure_compiled_and_stored(const BenchEntry& entry, const ScratchFolder& folder, Json& figures) {
  std::vector<double> compiled, stored;
  for (int n = 0; n < kProcesses; ++n) {
    folder.clear();
    compiled.push_back(first_plan(entry).first_plan_seconds());
    stored.push_back(first_plan(entry).first_plan_seconds());
  }
  const Worker last = first_plan(entry);
  figures.push_back(figure(entry, last, "compiled", compiled, kCompiled));
  figures.push_back(figure(entry, last, "from the store", stored, kStored));
}

void measure_compiled_ahead(const BenchEntry& entry, const ScratchFolder& folder, Json& figures) {
  std::vector<double> ahead;
  for (int n = 0; n < kProcesses; ++n) {
    folder.clear();
    ahead.push_back(first_plan(entry).first_plan_seconds());
  }
  figures.push_back(figure(entry, first_plan(entry), "compiled ahead", ahead, kStored));
}

}  // namespace

int bench_planning(const BenchFlags& flags, const std::vector<BenchEntry>& entries) {
  const ScratchFolder folder;
  setenv("EJKERNEL_CACHE_DIR", folder.path().c_str(), 1);  // the processes take it from here
  Json figures = Json::array();
  Progress progress;
  const auto measure_all = [&](auto measure) {
    for (const BenchEntry& entry : entries) {
      progress.show(fmt::format("{} …", entry.name));
      measure(entry, folder, figures);
    }
  };
  if (!programs_compiled_ahead().empty()) measure_all(measure_compiled_ahead);
  setenv("EJKERNEL_CONFIG_PATH", "none", 1);  // what the others find is in their store
  measure_all(measure_compiled_and_stored);
  progress.clear();
  bool met = true;
  Table table("llllrlr", " | ");
  table.add({"case", "kernel", "config", "first plan", "ms", "least to most", "target ms"});
  for (const Json& f : figures) {
    met = met && f["met"].get<bool>();
    const auto ms = [&](const char* name) { return 1e3 * f[name].get<double>(); };
    table.add({f["case"], f["kernel"], f["config"], f["what"], fmt::format("{:#.4g}", ms("seconds")),
               fmt::format("{:#.4g} to {:#.4g}", ms("least"), ms("most")), fmt::format("{:.4g}", ms("target"))});
  }
  if (flags.json)
    fmt::print("{}\n", Json{{"planning", figures}}.dump(2));
  else
    fmt::print("{}", table.text());
  return met ? kOk : kFailed;
}

}  // namespace ejk::tool
