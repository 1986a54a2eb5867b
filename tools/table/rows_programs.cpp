// T-06, T-18, T-50: rows that other programs of the tree answer: its tests on mutants, its tests under sanitizers, its
// build and its library without a network.
#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/problem.h"
#include "ejkernel/testing/mutants.h"
#include "ejkernel/testing/process.h"
#include "ejkernel/testing/rebuild.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The beginning of what a compiler said, with names relative to the tree: records travel.
std::string beginning_of(std::string text, const fs::path& root) {
  const std::string prefix = root.string() + "/";
  for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
  return text.substr(0, 300);
}

/// Brings a preset's programs up to date with the tree: what lies there may be of any day.
void build_preset(const fs::path& root, const std::string& preset, const std::string& target) {
  const fs::path build = root / "build" / preset;
  const ProcessResult built = run_process({"cmake", "--build", build.string(), "--target", target});
  if (built.exit_code != 0)
    throw_invalid("table", "the folder " + build.string(), "hold a preset that builds",
                  beginning_of(built.err + built.out, root), "run ./dev test first");
}

/// The suites of a test program whose sources lie in a folder of the tree, as --gtest_filter takes them.
std::string suites_in(const std::string& folder, const fs::path& program) {
  const fs::path listing = program.string() + ".json";
  run_process({program.string(), "--gtest_list_tests", "--gtest_output=json:" + listing.string()});
  const Json list = Json::parse(read_all(listing), nullptr, /*allow_exceptions=*/false);
  std::string filter;
  for (const Json& suite : list.value("testsuites", Json::array()))
    for (const Json& test : suite.at("testsuite"))
      if (fs::path(test.value("file", "")).parent_path().string().ends_with(folder)) {
        filter += (filter.empty() ? "" : ":") + suite.at("name").get<std::string>() + ".*";
        break;
      }
  return filter;
}

/// The tests that a mutant has to pass in order to survive.
bool passes(const Rebuild& rebuild, const std::string& suites) {
  return run_process({rebuild.program().string(), "--gtest_fail_fast", "--gtest_brief=1",
                      "--gtest_filter=" + suites + "-*Long*:*DeathTest*:ParallelFor*"})
             .exit_code == 0;
}

/// The tests with the mutant in them, in a folder that mirrors the tree. Returns why they cannot be built, if so.
std::string make_mutant(const Mutant& mutant, const fs::path& root, const fs::path& overlay, Rebuild& rebuild) {
  std::string text = read_all(root / mutant.file);
  const size_t at = text.find(mutant.before);
  if (at == std::string::npos) return "its text is no longer in " + mutant.file;
  text.replace(at, mutant.before.size(), mutant.after);
  fs::remove_all(overlay);
  fs::create_directories((overlay / mutant.file).parent_path());
  std::ofstream(overlay / mutant.file, std::ios::binary) << text;
  std::string wrong;
  for (const std::string& source : mutant.sources)
    if (wrong.empty()) wrong = rebuild.compile(source, source);
  if (wrong.empty()) wrong = rebuild.link();
  return wrong.empty() ? "" : "it cannot be built: " + beginning_of(wrong, root);
}

/// Empty when the tests notice the mutant; otherwise what to say of it.
std::string survival_of(const Mutant& mutant, const fs::path& root, const fs::path& build) {
  const fs::path overlay = build / "mutants" / mutant.name;
  Rebuild rebuild(root, build, overlay);
  const std::string wrong = make_mutant(mutant, root, overlay, rebuild);
  if (!wrong.empty()) return mutant.name + ": " + wrong;
  // The tests beside the fault are likeliest to notice it: they go first.
  const std::string near = suites_in(fs::path(mutant.file).parent_path().string(), rebuild.program());
  bool survived = true;
  for (const std::string& chosen : {near, std::string("*")})
    if (survived && !chosen.empty()) survived = passes(rebuild, chosen);
  fs::remove_all(overlay);
  return survived ? mutant.name + ": survived" : "";
}

/// A mutant without a mutation: where the tests fail it as well, their failures say nothing. Empty when they pass.
std::string failure_of_control(const Mutant& like, const fs::path& root, const fs::path& build) {
  const Mutant same{.name = "control", .file = like.file, .before = "", .after = "", .sources = like.sources};
  const fs::path overlay = build / "mutants" / same.name;
  Rebuild rebuild(root, build, overlay);
  std::string wrong = make_mutant(same, root, overlay, rebuild);
  if (wrong.empty() && !passes(rebuild, "*")) wrong = "the tests fail without a fault, too";
  fs::remove_all(overlay);
  return wrong;
}

/// Tests that a build's ctest ran, and its entries (of several tests each) that failed; throws when it did not run.
std::pair<int64_t, int64_t> ctest(const fs::path& build) {
  const ProcessResult result = run_process({"ctest", "--test-dir", build.string(), "-LE", "long", "-j2", "-V"});
  std::smatch failed;
  if (!std::regex_search(result.out, failed, std::regex("(\\d+) tests failed out of \\d+")))
    throw_invalid("table", "the folder", "hold a built preset", build.string(), "run ./dev test first");
  int64_t tests = 0;
  const std::regex ran("\\[=+\\] (\\d+) tests? from .* ran");
  for (std::sregex_iterator match(result.out.begin(), result.out.end(), ran), end; match != end; ++match)
    tests += std::stoll((*match)[1]);
  return {tests, std::stoll(failed[1])};
}

/// Which tests a preset builds and what its ctest leaves out of them, from its configuration.
std::string tests_of(const fs::path& build) {
  const std::string cache = read_all(build / "CMakeCache.txt");
  std::smatch files, filter;
  std::regex_search(cache, files, std::regex("EJK_TEST_FILES:STRING=(.*)"));
  std::regex_search(cache, filter, std::regex("EJK_TEST_FILTER:STRING=-?(.*)"));
  return fmt::format("builds the test files that match {} and leaves out {} and those labelled long", files[1].str(),
                     filter[1].str());
}

}  // namespace

RowResult seeded_mutants(const RowRequest&) {
  const fs::path root = find_tree(fs::current_path()), build = root / "build/dev";
  Tally tally;
  std::atomic<int64_t> killed = 0;
  const std::vector<Mutant> mutants = read_mutants(root / "tests/mutants/mutants.txt");
  if (mutants.empty()) return {};
  build_preset(root, "dev", "ejkernel_tests");
  std::string control;
  std::atomic<bool> control_failed = false;
  for_each_trial(static_cast<int64_t>(mutants.size()) + 1, tally, [&](int64_t i) {
    if (i == 0) {  // beside the others, so that what a busy machine does to the tests it does to the control
      control = failure_of_control(mutants.front(), root, build);
      control_failed = !control.empty();
      return fmt::print(stderr, "control: {}\n", control.empty() ? "passes" : control);
    }
    if (control_failed) return;
    const Mutant& mutant = mutants[static_cast<size_t>(i - 1)];
    const std::string survival = survival_of(mutant, root, build);
    killed += survival.empty();
    fmt::print(stderr, "{}: {}\n", mutant.name, survival.empty() ? "killed" : survival);
    tally.add("");
    if (!survival.empty()) tally.note(survival);
  });
  if (control_failed) return {.failures = 1, .notes = {"control: " + control}};
  RowResult result = tally.result();
  result.figures["killed"] = static_cast<double>(killed);
  // The row fails below 95 %; survivors are listed either way.
  if (static_cast<double>(killed) < 0.95 * static_cast<double>(result.n)) result.failures = result.n - killed;
  return result;
}

RowResult host_sanitizers(const RowRequest&) {
  const fs::path root = find_tree(fs::current_path());
  RowResult result;
  for (const char* preset : {"asan", "tsan"}) {
    build_preset(root, preset, "all");
    const fs::path build = root / "build" / preset;
    const auto [tests, failed] = ctest(build);
    result.n += tests;
    result.failures += failed;
    result.figures[std::string(preset) + "_tests"] = static_cast<double>(tests);
    result.notes.push_back(fmt::format("{} {}", preset, tests_of(build)));
  }
  return result;
}

RowResult supply_chain(const RowRequest&) {
  const fs::path root = find_tree(fs::current_path());
  const fs::path scratch = root / "build/reproducible";
  Tally tally;
  // The same sources, compiled twice (no compiler cache) in folders of different names, must give the same bytes. The
  // first comes with the tool, for the run below.
  std::vector<std::string> libraries;
  for (const char* name : {"one", "another_place"}) {
    const fs::path build = scratch / name;
    const ProcessResult configured =
        run_process({"cmake", "-S", root.string(), "-B", build.string(), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                     "-DEJK_BUILD_TESTS=OFF", "-DCMAKE_CXX_COMPILER_LAUNCHER="});
    const ProcessResult built =
        run_process({"cmake", "--build", build.string(), "--target", libraries.empty() ? "ejk" : "ejkernel"});
    if (configured.exit_code != 0 || built.exit_code != 0)
      tally.add(fmt::format("{}: it does not build: {}", name, beginning_of(built.out, root)));
    libraries.push_back(read_all(build / "lib/libejkernel.so"));
  }
  tally.add(libraries[0].empty() || libraries[0] != libraries[1] ? "two builds of the same sources differ" : "");
  tally.note("XXH3-128 of libejkernel.so: " + to_string(digest_of(libraries[0])));
  // In a network namespace without any interface a run must work as ever: it needs no packet.
  const ProcessResult offline =
      run_process({"unshare", "--net", "--map-root-user", (scratch / "one/bin/ejk").string(), "run", "mean_pooling",
                   "--batch", "2", "--num_tokens", "16", "--dim", "8"});
  tally.add(offline.exit_code == 0 ? "" : "a run without network failed: " + offline.err.substr(0, 300));
  // The bill of materials that is installed with the library names everything compiled into it, with versions.
  const Json bill = Json::parse(read_all(scratch / "one/ejkernel.spdx.json"), nullptr, /*allow_exceptions=*/false);
  std::string unnamed = bill.is_object() ? "" : "there is no bill of materials";
  for (const char* name : {"highway", "fmt", "nlohmann-json", "xxhash"}) {
    bool found = false;
    if (bill.is_object())
      for (const Json& package : bill.at("packages"))
        found = found || (package.at("name") == name && package.at("versionInfo") != "NOASSERTION");
    if (!found) unnamed = fmt::format("the bill of materials has no version of {}", name);
  }
  tally.add(unnamed);
  fs::remove_all(scratch);
  return tally.result();
}

}  // namespace ejk::testing
