// ejk bench --baseline…: two programs, or two choices of one, measured in turns. A saved baseline is FILE, which is
// data and nothing else, and FILE.program, the program and the library that made it: times from another run say nothing
// about a difference of a few percent, so the old code runs again beside the new. What runs is named by the user's
// argument, never by the contents of FILE, and must belong to the user or root with nobody else able to write it.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/registry.h"
#include "tools/ejk/bench.h"
#include "tools/ejk/bench_worker.h"
#include "tools/ejk/print.h"

namespace ejk::tool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(std::string_view argument, std::string_view expected, std::string_view got,
                         std::string_view fix) {
  throw_invalid("ejk", argument, expected, got, fix);
}

/// The program to run as the baseline, and where its library is.
struct BaselineProgram {
  std::string program, library_folder;
  Identity expected;  ///< empty: any
};

/// The rule of plug-ins (runtime/plugins.h): the file and every folder above it belong to the user or root, and nobody
/// else can write there; a folder with the sticky bit may be written by others.
void require_safe(const fs::path& file) {
  std::error_code missing;
  fs::path path = fs::canonical(file, missing);
  if (missing)
    refuse("--baseline", "have the program that made it beside it", fmt::format("no {}", file.string()),
           "make it with ejk bench --save, or name a program with --baseline-program");
  for (;; path = path.parent_path()) {
    struct stat info = {};
    const bool known = stat(path.c_str(), &info) == 0;
    const bool ours = known && (info.st_uid == geteuid() || info.st_uid == 0);
    const bool sticky = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
    if (!ours || (!sticky && (info.st_mode & (S_IWGRP | S_IWOTH)) != 0))
      refuse("--baseline", "be safe to run: owned by you or root and writable by nobody else", path.string(),
             "check where it comes from, then chown or chmod go-w it");
    if (path == path.root_path()) return;
  }
}

Json read_baseline(const std::string& file) {
  std::ifstream stream(file);
  if (!stream || !fs::is_regular_file(file))
    refuse("--baseline", "be a file that ejk bench --save made", fmt::format("no {}", file), "check the path");
  const Json json = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array() || !json.contains("identity") ||
      !json["identity"].is_object())
    refuse("--baseline", "be a file that ejk bench --save made", file, "make it again");
  return json;
}

std::string text_in(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

bool is_backward(const Json& known) {
  return known.contains("backward") && known["backward"].is_boolean() && known["backward"].get<bool>();
}

BaselineProgram program_of(const BenchFlags& flags, const Json& baseline) {
  if (!flags.baseline_program.empty()) return {fs::absolute(flags.baseline_program).string(), "", {}};
  if (flags.baseline.empty()) return {own_program(), "", {}};
  const fs::path folder = fs::absolute(flags.baseline + ".program");
  require_safe(folder / "ejk");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) require_safe(entry.path());
  return {(folder / "ejk").string(),
          folder.string(),
          {text_in(baseline["identity"], "program"), text_in(baseline["identity"], "library")}};
}

void require_same_machine(const Json& baseline, Device device) {
  const DeviceProperties& here = device_properties(device);
  const Json there = baseline.value("device", Json::object());
  const std::string product = text_in(there, "product"), architecture = text_in(there, "architecture");
  if (product != here.product || architecture != here.architecture)
    refuse("--baseline", fmt::format("be of this machine, {} ({})", here.product, here.architecture),
           fmt::format("one of {} ({})", product, architecture), "measure a baseline here");
}

/// The entries of the file that this run asks for: all of its cases, or those of the operation and names given.
std::vector<BenchEntry> chosen_entries(const BenchFlags& flags, const std::vector<BenchEntry>& wanted,
                                       const Json& baseline) {
  const bool everything = flags.call.operation.empty() && flags.cases.empty() && !names_a_problem(flags.call);
  std::vector<BenchEntry> chosen;
  for (const BenchEntry& entry : wanted)
    for (const Json& known : baseline["cases"])
      if (known.is_object() && text_in(known, "operation") == entry.call.operation &&
          text_in(known, "case") == entry.name && is_backward(known) == entry.call.backward) {
        chosen.push_back(entry);
        break;
      }
  if (chosen.empty())
    refuse("--baseline", "hold what is to be compared", fmt::format("{} other cases", baseline["cases"].size()),
           "name its operation, cases and --backward as they were given to --save");
  if (!everything && chosen.size() < wanted.size())
    fmt::print(stderr, "ejk: {} of {} cases are not in the baseline and are left out\n", wanted.size() - chosen.size(),
               wanted.size());
  return chosen;
}

struct Verdict {
  std::string text;
  Colour colour = Colour::none;
  bool regression = false;
};

Verdict verdict_of(const Summary& ratio, double margin) {
  if (ratio.low > 1 + margin && ratio.low > 1)
    return {fmt::format("{:.1f} % slower", 100 * (ratio.median - 1)), Colour::red, true};
  if (ratio.low > 1) return {fmt::format("{:.1f} % slower", 100 * (ratio.median - 1)), Colour::yellow};
  if (ratio.high < 1) return {fmt::format("{:.1f} % faster", 100 * (1 - ratio.median)), Colour::green};
  return {"no difference"};
}

std::vector<std::string> worker_arguments(const BenchFlags& flags, const CallFlags& call) {
  std::vector<std::string> arguments = arguments_of(call);
  if (flags.warm) arguments.emplace_back("--warm");
  if (flags.threads > 0) arguments.push_back(fmt::format("--threads={}", flags.threads));
  return arguments;
}

/// What the baseline's side runs: the same call with its own kernel and config.
CallFlags baseline_call(const BenchFlags& flags, const CallFlags& call) {
  CallFlags other = call;
  if (!flags.baseline_kernel.empty()) {
    other.kernel = flags.baseline_kernel;
    other.config.clear();
  }
  if (!flags.baseline_config.empty()) other.config = flags.baseline_config;
  return other;
}

void check_identity(const Identity& expected, const Identity& got) {
  if (expected.program.empty() || (expected.program == got.program && expected.library == got.library)) return;
  refuse("--baseline", "run the program and library it was saved with",
         "others: FILE.program has changed, or another library was loaded", "make the baseline again");
}

Json compare_entry(const BenchFlags& flags, const BenchEntry& entry, const BaselineProgram& baseline,
                   Verdict& verdict) {
  const std::string self = own_program();
  Worker old_side(baseline.program, worker_arguments(flags, baseline_call(flags, entry.call)), baseline.library_folder);
  check_identity(baseline.expected, old_side.identity());
  Worker new_side(self, worker_arguments(flags, entry.call), "");
  const double margin = flags.fail_over.empty() ? 0 : parse_percent("--fail-over", flags.fail_over);
  const Comparison c = compare([&] { return old_side.sample(); }, [&] { return new_side.sample(); },
                               {.max_seconds = 4 * flags.seconds,
                                .spread = margin > 0 ? std::min(margin / 5, 0.005) : 0.0025,
                                .min_samples = 15,
                                .confidence = 0.99});
  verdict = verdict_of(c.ratio, margin);
  return {{"case", entry.name},
          {"operation", entry.call.operation},
          {"kernel", new_side.kernel()},
          {"config", new_side.config()},
          {"baseline_kernel", old_side.kernel()},
          {"baseline_config", old_side.config()},
          {"seconds", c.b.median},
          {"baseline_seconds", c.a.median},
          {"ratio", c.ratio.median},
          {"ratio_low", c.ratio.low},
          {"ratio_high", c.ratio.high},
          {"confidence", 0.99},
          {"pairs", c.ratio.num_samples},
          {"verdict", verdict.text},
          {"regression", verdict.regression && !flags.fail_over.empty()}};
}

void print_comparison(const Json& c, const Verdict& verdict, size_t width) {
  fmt::print("{:<{}} | {:>10.4g} | {:>10.4g} | {:.4f} [{:.4f}, {:.4f}] | {}\n", c["case"].get<std::string>(), width,
             1e3 * c["baseline_seconds"].get<double>(), 1e3 * c["seconds"].get<double>(), c["ratio"].get<double>(),
             c["ratio_low"].get<double>(), c["ratio_high"].get<double>(), coloured(verdict.text, verdict.colour));
  std::fflush(stdout);
}

}  // namespace

int bench_against_baseline(const BenchFlags& flags, std::vector<BenchEntry> entries) {
  Json baseline;
  if (!flags.baseline.empty()) {
    baseline = read_baseline(flags.baseline);
    require_same_machine(baseline, flags.call.device);
    entries = chosen_entries(flags, entries, baseline);
  }
  for (const BenchEntry& entry : entries) {
    require_plan(entry.call);
    // Another program may have other kernels and configs; it will say so itself.
    if (flags.baseline_program.empty() && flags.baseline.empty()) require_plan(baseline_call(flags, entry.call));
  }
  const BaselineProgram program = program_of(flags, baseline);
  size_t width = 4;
  for (const BenchEntry& entry : entries) width = std::max(width, entry.name.size());
  if (!flags.json)
    fmt::print(
        "in turns with the baseline; ratio of times with its 99 % interval, above 1 is slower\n\n"
        "{:<{}} | {:>10} | {:>10} | {:<24} | verdict\n",
        "case", width, "baseline ms", "now ms", "ratio");
  Json report = {{"baseline", flags.baseline}, {"cases", Json::array()}};
  int regressions = 0;
  Progress progress;
  for (const BenchEntry& entry : entries) {
    progress.show(fmt::format("{} …", entry.name));
    Verdict verdict;
    Json compared = compare_entry(flags, entry, program, verdict);
    progress.clear();
    regressions += compared["regression"].get<bool>();
    if (!flags.json) print_comparison(compared, verdict, width);
    report["cases"].push_back(std::move(compared));
  }
  report["regressions"] = regressions;
  if (flags.json) fmt::print("{}\n", report.dump(2));
  if (regressions > 0)
    fmt::print(stderr, "ejk: {} of {} cases are slower than the baseline by more than {}\n", regressions,
               entries.size(), flags.fail_over);
  return regressions > 0 ? kRegression : kOk;
}

void require_writable(const std::string& file) {
  std::error_code failed;
  const fs::path folder = file + ".program";
  fs::create_directories(folder, failed);
  if (!failed) fs::permissions(folder, fs::perms::owner_all, failed);
  if (failed) refuse("--save", "be a file that can be written", file, "check the folder and the disk");
}

void save_baseline(const std::string& file, Json results) {
  const Identity self = own_identity();
  results["identity"] = {{"program", self.program}, {"library", self.library}};
  const fs::path folder = file + ".program";
  require_writable(file);
  const auto copy = [&](const std::string& from, const fs::path& to) {
    fs::copy_file(from, to, fs::copy_options::overwrite_existing);
    fs::permissions(to, fs::perms::owner_all);
  };
  copy(own_program(), folder / "ejk");
  if (const std::string library = own_library(); !library.empty()) {
    // Under the name that the program asks the loader for.
    const std::string name = fs::path(library).filename().string();
    const size_t version = name.find(".so.");
    const size_t minor = version == std::string::npos ? version : name.find('.', version + 4);
    copy(library, folder / name.substr(0, minor));
  }
  std::ofstream stream(file);
  stream << results.dump(2) << "\n";
  if (!stream.flush()) refuse("--save", "be a file that can be written", file, "check the folder and the disk");
}

}  // namespace ejk::tool
