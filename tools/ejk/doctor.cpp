// ejk doctor: what the library finds on this machine, line by line, with a verdict and what to do about it.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "ejkernel/c_api.h"
#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/installation.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/version.h"
#include "ejkernel/platform/cuda/driver.h"
#include "ejkernel/platform/cuda/nvrtc.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/plugins.h"
#include "ejkernel/runtime/registry.h"
#include "ejkernel/runtime/timer.h"
#include "ejkernel/testing/check.h"
#include "ejkernel/testing/operations.h"
#include "tools/ejk/bench_worker.h"
#include "tools/ejk/print.h"
#include "tools/ejk/programs.h"
#include "tools/ejk/verbs.h"

extern char** environ;

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  bool json = false, environment = false;
  double seconds = 2;
};

enum class Verdict { ok, warn, fail };
constexpr std::string_view kVerdicts[] = {"ok", "warn", "fail"};

struct Line {
  std::string what, found;
  Verdict verdict = Verdict::ok;
  std::string fix = {};  ///< what to do, unless `found` says it
};

/// A check that throws is a failed line, not the end of the examination.
void examine(std::vector<Line>& lines, std::string what, const std::function<Line()>& look) {
  Line line;
  try {
    line = look();
  } catch (const std::exception& error) {
    line = {"", error.what(), Verdict::fail};  // the sentence says what to do
  }
  line.what = std::move(what);
  lines.push_back(std::move(line));
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

Line version_line() {
#ifdef NDEBUG
  const char* build = "release";
#else
  const char* build = "with assertions";
#endif
  const std::string found = fmt::format("{}, built by {}, {}", kVersion, compiler(), build);
  if (ejk_version() == kVersion) return {"", found};
  return {"", fmt::format("{}; the loaded library is {}", found, ejk_version()), Verdict::fail,
          "install the tool and the library of one version"};
}

Line library_line() {
  const std::string library = own_library();
  return {"", library.empty() ? "part of this program" : library};
}

Line processor_line() {
  const DeviceProperties& cpu = device_properties({});
  const std::string found =
      fmt::format("{} ({}), last-level cache {}", cpu.product, cpu.architecture,
                  cpu.cache_bytes > 0 ? bytes_text(static_cast<double>(cpu.cache_bytes)) : "of unknown size");
  if (cpu.architecture.find("sse2") == std::string::npos) return {"", found};
  return {"", found, Verdict::warn,
          "kernels run with the oldest vectors only: a processor with AVX2 is several times faster"};
}

Line threads_line() {
  const int used = device_properties({}).num_units;
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const int asked = environment::num_threads();
  const std::string found = fmt::format("{} of {} processors{}", used, online,
                                        asked > 0 ? fmt::format(", EJKERNEL_NUM_THREADS={}", asked) : "");
  if (asked <= online) return {"", found};
  return {"", found, Verdict::warn, "EJKERNEL_NUM_THREADS is more than there are: threads will wait for each other"};
}

Line memory_line() {
  std::ifstream file("/proc/meminfo");
  double total = 0, available = 0;
  for (std::string key, unit; file >> key;) {
    double kib = 0;
    file >> kib;
    std::getline(file, unit);
    if (key == "MemTotal:") total = 1024 * kib;
    if (key == "MemAvailable:") available = 1024 * kib;
  }
  const std::string found = fmt::format("{} available of {}", bytes_text(available), bytes_text(total));
  if (available == 0 || available > 1 << 30) return {"", found};
  return {"", found, Verdict::warn, "less than 1 GiB is left: large calls may fail with out_of_memory"};
}

/// The driver is opened by its name: the loader knows the places.
std::string driver_places() {
  const char* path = std::getenv("LD_LIBRARY_PATH");
  return fmt::format("looked for in LD_LIBRARY_PATH ({}), ld.so.cache and the system's library folders",
                     path != nullptr && *path != '\0' ? path : "not set");
}

Line driver_line() {
  const cuda::DriverReport driver = cuda::driver_report();
  std::ifstream file("/proc/driver/nvidia/version");
  std::string module;
  std::getline(file, module);
  if (driver.error.empty())
    return {"", fmt::format("{}, CUDA {}.{}", driver.library, driver.version / 1000, driver.version % 1000 / 10)};
  // Without a kernel module there is no GPU to speak of: nothing is wrong.
  if (module.empty())
    return {"", fmt::format("none ({}; {}); calls on host tensors need none", driver.error, driver_places())};
  return {"", fmt::format("{}; {}; {}", module, driver.error, driver_places()), Verdict::warn,
          "there is a GPU's kernel module, but no device can be used: install or expose the driver's libcuda.so.1"};
}

Line device_line(int ordinal) {
  const DeviceProperties& gpu = device_properties({DeviceKind::cuda, ordinal});
  const std::string found =
      fmt::format("{} ({}), {} multiprocessors, L2 {}, {} of shared memory for a block", gpu.product, gpu.architecture,
                  gpu.num_units, bytes_text(static_cast<double>(gpu.cache_bytes)),
                  bytes_text(static_cast<double>(gpu.shared_bytes_per_block)));
  if (gpu.compute_capability >= 80) return {"", found};
  return {"", found, Verdict::warn, "kernels are written for compute capability 8.0 (A100) and newer"};
}

/// The compiler is needed where there is a device, or by `ejk compile`.
Line compiler_line() {
  const cuda::NvrtcSearch search = cuda::search_nvrtc();
  if (search.found) {
    const cuda::Nvrtc& nvrtc = cuda::nvrtc();
    return {"", fmt::format("NVRTC {}.{}, {} ({})", nvrtc.major, nvrtc.minor, nvrtc.path, search.found->place)};
  }
  const std::string looked = fmt::format("no NVRTC; looked for: {}", fmt::join(search.looked, "; "));
  if (num_cuda_devices() == 0) return {"", looked};
  return {"", looked, Verdict::fail,
          "pip install nvidia-cuda-nvrtc (or nvidia-cuda-nvrtc-cu12 for a CUDA 12 driver), or set EJKERNEL_NVRTC"};
}

/// The file and its folders that are not there: what writing it makes.
std::vector<std::filesystem::path> missing_of(std::filesystem::path file) {
  std::vector<std::filesystem::path> missing;
  for (std::error_code ignored; !file.empty() && !std::filesystem::exists(file, ignored); file = file.parent_path())
    missing.push_back(file);
  return missing;
}

/// A record is written and read, as the next process will do, and taken away again.
Line store_line() {
  const Store& kept = store();
  if (kept.root().empty())
    return {"",
            "none: EJKERNEL_CACHE_DIR is not set, and HOME is no folder of this user's; compiled kernels live as long "
            "as the process"};
  const RecordKey key = {"doctor", "doctor", "a record that ejk doctor writes and reads"};
  const std::string text(kVersion);
  const std::vector<std::filesystem::path> missing = missing_of(kept.path_of(key));
  const bool works = kept.put(key, {.value = text, .provenance = "ejk doctor"}) && kept.find(key).has_value();
  for (std::error_code ignored; const std::filesystem::path& made : missing)
    std::filesystem::remove(made, ignored);  // but folders that somebody else fills by now
  if (works) return {"", kept.root()};
  return {"", fmt::format("{} cannot be used", kept.root()), Verdict::warn,
          "make it writable for this user and nobody else (chmod 700), or set EJKERNEL_CACHE_DIR; until then every "
          "process compiles its CUDA kernels anew"};
}

/// Places of EJKERNEL_CONFIG_PATH, or tables that came with the library, which a find would pass over.
Line config_path_line() {
  const std::vector<std::string> places = environment::config_path().value_or(shipped_tables());
  if (places.empty()) return {"", "none (EJKERNEL_CONFIG_PATH names none)"};
  std::string refused;
  for (const std::string& place : places) {
    const std::string why = access(place.c_str(), F_OK) != 0 ? "is not there" : distrust_of(place);
    if (!why.empty()) refused += fmt::format("; {} {}", place, why);
  }
  const std::string_view how = environment::config_path() ? "named" : "shipped with the library";
  const std::string found = fmt::format("{} {}{}", places.size(), how, refused);
  if (refused.empty()) return {"", found};
  return {"", found, Verdict::warn, "correct EJKERNEL_CONFIG_PATH, or make a copy that you alone can write"};
}

/// Kernels that come compiled, by architecture: a device whose architecture has none compiles each when it is planned.
Line programs_line() {
  std::vector<std::string> parts;
  for (const auto& [architecture, number] : programs_compiled_ahead())
    parts.push_back(fmt::format("{} for {}", number, architecture));
  if (parts.empty())
    return {"", "none compiled ahead: a kernel is compiled when it is first planned, and kept in the store"};
  return {"", fmt::format("compiled ahead: {}", fmt::join(parts, ", "))};
}

void plugin_lines(std::vector<Line>& lines) {
  examine(lines, "plug-ins", [] {
    return Line{"", environment::plugins().empty() ? "none (EJKERNEL_PLUGINS names none)"
                                                   : fmt::format("{} named", environment::plugins().size())};
  });
  if (lines.back().verdict == Verdict::fail) return;
  for (const PluginReport& report : plugin_reports())
    lines.push_back(report.code == ErrorCode::ok
                        ? Line{"plug-in", report.path}
                        : Line{"plug-in", report.error, Verdict::fail, "mend it, or take it out of EJKERNEL_PLUGINS"});
}

Line environment_line() {
  environment::values();  // throws while one is malformed
  int set = 0;
  for (const environment::Variable& v : environment::variables())
    set += std::getenv(std::string(v.name).c_str()) != nullptr;
  const std::vector<std::string> unknown = environment::unknown_names(environ);
  const std::string found = fmt::format("{} of {} variables set", set, environment::variables().size());
  if (unknown.empty()) return {"", found + "; ejk doctor --env lists them"};
  return {"", fmt::format("{}; not known: {}", found, fmt::join(unknown, ", ")), Verdict::warn,
          "correct the names, or unset them: they have no effect"};
}

Line registry_line() {
  const KernelRegistry& registry = KernelRegistry::instance();
  size_t kernels = 0;
  for (const std::string& name : registry.names()) kernels += registry.find(name)->kernels.size();
  return {"", fmt::format("{} operations, {} kernels", registry.names().size(), kernels)};
}

/// A few random problems for every kernel, judged as the harness judges.
Line self_test_line(double seconds) {
  const double began = now_seconds();
  int64_t runs = 0;
  std::string failure;
  for (uint64_t seed = 1; failure.empty() && now_seconds() - began < seconds; ++seed)
    for (const testing::TestOperation* tests : testing::test_operations()) {
      const testing::Problem problem = tests->random({.seed = seed, .size = testing::Size::tiny});
      const testing::Answer answer = tests->oracle(problem, testing::kTestBudget);
      for (const testing::Kernel& kernel : testing::kernels_of(*tests->declaration)) {
        const testing::Verdict verdict = testing::check_kernel(problem, answer, kernel, {.seed = seed});
        runs += verdict.supported;
        if (failure.empty()) failure = testing::report(problem, kernel, verdict);
      }
    }
  if (failure.empty()) return {"", fmt::format("{} random problems right, {}", runs, duration(now_seconds() - began))};
  return {"", failure, Verdict::fail, "kernels here give wrong results: please report this text"};
}

std::vector<Line> examine_all(const Flags& flags) {
  std::vector<Line> lines;
  examine(lines, "ejkernel", version_line);
  examine(lines, "library", library_line);
  examine(lines, "environment", environment_line);
  if (lines.back().verdict == Verdict::fail) return lines;  // everything else would fail for the same reason
  examine(lines, "processor", processor_line);
  examine(lines, "threads", threads_line);
  examine(lines, "memory", memory_line);
  examine(lines, "CUDA driver", driver_line);
  for (int ordinal = 0; ordinal < num_cuda_devices(); ++ordinal)
    examine(lines, fmt::format("cuda:{}", ordinal), [&] { return device_line(ordinal); });
  examine(lines, "compiler", compiler_line);
  examine(lines, "store", store_line);
  examine(lines, "config path", config_path_line);
  examine(lines, "programs", programs_line);
  plugin_lines(lines);
  examine(lines, "registry", registry_line);
  examine(lines, "self-test", [&] { return self_test_line(flags.seconds); });
  return lines;
}

Verdict worst_of(const std::vector<Line>& lines) {
  Verdict worst = Verdict::ok;
  for (const Line& line : lines) worst = std::max(worst, line.verdict);
  return worst;
}

void print_text(const Flags& flags, const std::vector<Line>& lines) {
  static constexpr Colour kColours[] = {Colour::green, Colour::yellow, Colour::red};
  for (const Line& line : lines) {
    const auto v = static_cast<size_t>(line.verdict);
    fmt::print("{}{}  {:<11}  {}\n", coloured(kVerdicts[v], kColours[v]), std::string(4 - kVerdicts[v].size(), ' '),
               line.what, printable(line.found));
    if (!line.fix.empty()) fmt::print("                   -> {}\n", line.fix);
  }
  if (!flags.environment) return;
  Table table("llll");
  table.add({"variable", "now", "default", "meaning"});
  for (const environment::Variable& v : environment::variables()) {
    const char* now = std::getenv(std::string(v.name).c_str());
    table.add(
        {std::string(v.name), now == nullptr ? "-" : printable(now), std::string(v.default_value), std::string(v.doc)});
  }
  fmt::print("\n{}", table.text());
}

void print_json(const std::vector<Line>& lines) {
  Json json = {{"verdict", kVerdicts[static_cast<size_t>(worst_of(lines))]}, {"lines", Json::array()}};
  for (const Line& line : lines) {
    Json entry = {
        {"what", line.what}, {"found", line.found}, {"verdict", kVerdicts[static_cast<size_t>(line.verdict)]}};
    if (!line.fix.empty()) entry["fix"] = line.fix;
    json["lines"].push_back(std::move(entry));
  }
  json["environment"] = Json::array();
  for (const environment::Variable& v : environment::variables()) {
    const char* now = std::getenv(std::string(v.name).c_str());
    json["environment"].push_back({{"name", v.name},
                                   {"value", now == nullptr ? Json() : Json(now)},
                                   {"type", v.type},
                                   {"default", v.default_value},
                                   {"doc", v.doc}});
  }
  // A value that is not UTF-8 is shown as far as it is.
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Action declare_doctor(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.flag("json", flags->json, "print JSON")
      .flag("env", flags->environment, "list the environment variables as well")
      .seconds(flags->seconds, "of self-test (default: 2)");
  return [flags]() -> int {
    const std::vector<Line> lines = examine_all(*flags);
    flags->json ? print_json(lines) : print_text(*flags, lines);
    return worst_of(lines) == Verdict::fail ? kFailed : kOk;
  };
}

}  // namespace ejk::tool
