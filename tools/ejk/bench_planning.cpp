// ejk bench --planning: how long the first plan of a process takes, when its kernel has to be compiled, when the store
// has it, and when kernels that were compiled ahead are there. Each figure comes from processes of their own.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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

/// What the processes find besides their store, while the object lives.
class ConfigPath {
 public:
  explicit ConfigPath(const char* value) {
    if (const char* before = std::getenv(kName); before != nullptr) before_ = before;
    setenv(kName, value, 1);
  }
  ~ConfigPath() {
    if (before_)
      setenv(kName, before_->c_str(), 1);
    else
      unsetenv(kName);
  }
  ConfigPath(const ConfigPath&) = delete;
  ConfigPath& operator=(const ConfigPath&) = delete;

 private:
  static constexpr const char* kName = "EJKERNEL_CONFIG_PATH";
  std::optional<std::string> before_;
};

void measure_entry(const BenchEntry& entry, const ScratchFolder& folder, bool has_programs, Json& figures) {
  std::vector<double> compiled, stored, ahead;
  const auto first_plan = [&] { return Worker(own_program(), arguments_of(entry.call), ""); };
  for (int n = 0; n < kProcesses; ++n) {
    folder.clear();
    if (has_programs) ahead.push_back(first_plan().first_plan_seconds());
    folder.clear();
    const ConfigPath nothing("none");
    compiled.push_back(first_plan().first_plan_seconds());
    stored.push_back(first_plan().first_plan_seconds());
  }
  const Worker last = first_plan();
  figures.push_back(figure(entry, last, "compiled", compiled, kCompiled));
  figures.push_back(figure(entry, last, "from the store", stored, kStored));
  if (has_programs) figures.push_back(figure(entry, last, "compiled ahead", ahead, kStored));
}

}  // namespace

int bench_planning(const BenchFlags& flags, const std::vector<BenchEntry>& entries) {
  const ScratchFolder folder;
  setenv("EJKERNEL_CACHE_DIR", folder.path().c_str(), 1);  // the processes take it from here
  const bool has_programs = !programs_compiled_ahead().empty();
  Json figures = Json::array();
  Progress progress;
  for (const BenchEntry& entry : entries) {
    progress.show(fmt::format("{} …", entry.name));
    measure_entry(entry, folder, has_programs, figures);
  }
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
