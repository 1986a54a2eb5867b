// The arrows of the house, read from the includes, and the lists, read from the files they list.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "ejkernel/runtime/registry.h"
#include "ejkernel/testing/mutants.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;
const fs::path kLibrary = kSourceFolder / "ejkernel";

struct SourceFile {
  std::string name;  // below the source folder: "ejkernel/core/tensor.h"
  std::string text;
  std::set<std::string> includes() const {
    std::set<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("#include ")) continue;  // as clang-format writes it
      const size_t begin = line.find_first_of("<\"") + 1;
      found.insert(line.substr(begin, line.find_first_of(">\"", begin) - begin));
    }
    return found;
  }
  bool is_test() const { return name.ends_with("_test.cpp"); }
};

const std::set<std::string> kExtensions = {".h", ".cpp", ".cuh", ".cu"};

std::vector<SourceFile> sources_below(const std::string& folder) {
  std::vector<SourceFile> files;
  if (!fs::exists(kSourceFolder / folder)) return files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kSourceFolder / folder)) {
    const std::string extension = entry.path().extension();
    if (kExtensions.contains(extension))
      files.push_back({fs::relative(entry.path(), kSourceFolder).string(), read_text(entry.path())});
  }
  return files;
}

/// The layer that a path of ours belongs to. The headers at the top are the users' doors: c_api.h needs no more than
/// core, and the other two see everything.
std::string layer_of(const std::string& path) {
  if (path == "ejkernel/c_api.h") return "core";
  if (path == "ejkernel/ejkernel.h" || path == "ejkernel/ejkernel_ops.h") return "ops";
  // What an operation's folder gives to the harness (cmake/targets.cmake).
  if (std::regex_match(path, std::regex(R"(ejkernel/ops/.*_(cases|oracle|relations)\.(h|cpp))"))) return "testing";
  const std::regex below(R"(ejkernel/([a-z]+)/.*)");
  std::smatch match;
  if (std::regex_match(path, match, below)) return match[1];
  return path.substr(0, path.find('/'));
}

/// What each layer may include: itself and those it stands on.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {"core"}},
    {"platform", {"core", "platform"}},
    {"runtime", {"core", "platform", "runtime"}},
    {"ops", {"core", "platform", "runtime", "ops"}},
    {"testing", {"core", "platform", "runtime", "ops", "testing"}},
    {"tools", {"core", "platform", "runtime", "ops", "testing", "tools"}},
    {"examples", {"core", "runtime", "ops", "examples"}},
};

/// What of ours a file includes, by path from the root.
std::vector<std::string> own_includes(const SourceFile& file) {
  static const std::regex ours("(ejkernel|tools|tests|python|examples)/.*");
  std::vector<std::string> found;
  for (const std::string& include : file.includes())
    if (std::regex_match(include, ours)) found.push_back(include);
  return found;
}

/// Includes that point the other way. A test stands beside what it tests, and may use the harness.
std::vector<std::string> wrong_arrows(const SourceFile& file) {
  std::vector<std::string> wrong;
  const auto allowed = kMayInclude.find(layer_of(file.name));
  if (allowed == kMayInclude.end()) return {"anything: " + file.name + " belongs to no layer"};
  if (file.is_test()) return wrong;
  for (const std::string& include : own_includes(file))
    if (!allowed->second.contains(layer_of(include))) wrong.push_back(include);
  return wrong;
}

TEST(Layering, arrows_point_one_way) {
  std::map<std::string, size_t> arrows;  // by extension
  for (const std::string folder : {"ejkernel", "tools", "examples"})
    for (const SourceFile& file : sources_below(folder)) {
      EXPECT_THAT(wrong_arrows(file), ::testing::IsEmpty()) << "included by " << file.name;
      arrows[fs::path(file.name).extension()] += own_includes(file).size();
    }
  for (const std::string& extension : kExtensions) EXPECT_GT(arrows[extension], 20) << extension;
}

TEST(Layering, an_arrow_that_points_the_other_way_is_noticed) {
  const auto wrong = [](const std::string& name, const std::string& include) {
    return !wrong_arrows({name, "#include \"" + include + "\"\n"}).empty();
  };
  EXPECT_FALSE(wrong("ejkernel/ops/toy/toy_sm90.cu", "ejkernel/platform/cuda/device/types.cuh"));
  EXPECT_TRUE(wrong("ejkernel/platform/cuda/device/types.cuh", "ejkernel/ops/toy/toy_config.h"));
  EXPECT_TRUE(wrong("ejkernel/core/tensor.h", "ejkernel/runtime/plan.h"));
  EXPECT_TRUE(wrong("ejkernel/ops/toy/toy.cpp", "ejkernel/ops/toy/toy_cases.h")) << "the harness's";
  for (const char* above : {"python/native/toy.h", "tools/ejk/verbs.h", "tests/support.h", "examples/minilm/layers.h"})
    EXPECT_TRUE(wrong("ejkernel/ops/toy/toy_sm90.cu", above)) << above;
  EXPECT_TRUE(wrong("ejkernel/toy.h", "ejkernel/core/tensor.h")) << "it belongs to no layer";
}

TEST(Layering, ours_are_included_by_their_path_from_the_root) {
  for (const SourceFile& file : sources_below("ejkernel"))
    for (const std::string& include : file.includes())
      EXPECT_FALSE(fs::exists((kSourceFolder / file.name).parent_path() / include))
          << file.name << " includes " << include;
}

/// Headers that users see carry none of the libraries that the build takes from outside.
TEST(Layering, public_headers_are_light) {
  const std::regex heavy(R"((nlohmann|CLI|fmt|hwy|gtest|gmock|benchmark)/.*|xxhash\.h|regex|iostream|ranges|format)");
  const std::regex hidden(R"(.*(_cases|-inl|_internal)\.h)");  // not installed
  for (const SourceFile& file : sources_below("ejkernel")) {
    const std::string layer = layer_of(file.name);
    if (!file.name.ends_with(".h") || std::regex_match(file.name, hidden)) continue;
    if (layer != "core" && layer != "runtime" && layer != "ops") continue;
    for (const std::string& include : file.includes())
      EXPECT_FALSE(std::regex_match(include, heavy)) << file.name << " includes " << include;
  }
}

/// Kernels of an operation's folder by the names of the functions that return them.
std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

/// Functions of one folder's files that return a kernel, and those whose kernel stands in a list.
struct Kernels {
  std::set<std::string> defined, listed;

  explicit Kernels(const std::vector<SourceFile>& files) {
    static const std::regex definition(R"(\nconst KernelInfo& (?:\w+::)?(\w+)\(\) \{)");
    static const std::regex list(R"(::kernels\(\) \{([^}]*\{[^}]*\}))"), line(R"(&(?:\w+::)?(\w+)\(\))");
    for (const SourceFile& file : files) {
      if (file.is_test()) continue;
      const std::set<std::string> here = matches(file.text, definition);
      defined.insert(here.begin(), here.end());
      for (const std::string& body : matches(file.text, list)) listed.merge(matches(body, line));
      const bool makes_kernels = file.name.ends_with(".cpp") && file.text.find("make_kernel<") != std::string::npos;
      if (makes_kernels && here.empty()) defined.insert("something in " + file.name);
    }
  }
};

TEST(Lists, have_a_line_for_every_kernel_and_a_kernel_for_every_line) {
  for (const fs::directory_entry& folder : fs::directory_iterator(kLibrary / "ops")) {
    if (!folder.is_directory()) continue;
    const Kernels kernels(sources_below(fs::relative(folder.path(), kSourceFolder)));
    EXPECT_EQ(kernels.defined, kernels.listed) << "kernels defined and listed in " << folder.path();
    EXPECT_FALSE(kernels.listed.empty()) << folder.path();
  }
}

TEST(Lists, that_lack_a_line_are_noticed) {
  const SourceFile list = {"toy.cpp",
                           "X Toy::kernels() {\n  static const K* const list[] = {&cpu(), &ns::reference()};\n"};
  const SourceFile reference = {"toy_reference.cpp", "\nconst KernelInfo& toy_kernels::reference() {\n make_kernel<"};
  const SourceFile cpu = {"toy_cpu.cpp", "\nconst KernelInfo& toy_kernels::cpu() {\n make_kernel<"};
  const SourceFile cuda = {"toy_cuda.cpp", "\nconst KernelInfo& toy_kernels::cuda() {\n make_kernel<"};
  const SourceFile loose = {"toy_loose.cpp", "auto kernel = make_kernel<"};
  const auto complete = [](std::vector<SourceFile> files) {
    const Kernels kernels(files);
    return kernels.defined == kernels.listed;
  };
  EXPECT_TRUE(complete({list, reference, cpu}));
  EXPECT_FALSE(complete({list, reference, cpu, cuda})) << "a kernel without its line";
  EXPECT_FALSE(complete({list, reference})) << "a line without its kernel";
  EXPECT_FALSE(complete({list, reference, cpu, loose})) << "a kernel that nobody can list";
}

/// Rows of the reliability table do not become stale by these, so no row's program may be made with them.
TEST(Layering, what_rows_leave_out_is_of_unit_tests_alone) {
  const std::string emulated = "ejkernel/testing/emulated_tiles", mutants = "ejkernel/testing/mutants";
  size_t users = 0;
  for (const std::string folder : {"ejkernel", "tools"})
    for (const SourceFile& file : sources_below(folder)) {
      const auto includes = file.includes();
      if (std::none_of(includes.begin(), includes.end(), [&](const std::string& included) {
            return included.starts_with(emulated) || included.starts_with(mutants);
          }))
        continue;
      ++users;
      EXPECT_TRUE(file.is_test() || file.name.starts_with(emulated) || file.name.starts_with(mutants) ||
                  file.name == "tools/table/rows_programs.cpp")
          << file.name;
    }
  EXPECT_GT(users, 4u);
}

/// A seeded fault whose text has gone counts against T-06, half an hour after somebody asks for that row.
TEST(Lists, of_mutants_quote_their_files) {
  const std::vector<Mutant> mutants = read_mutants(kSourceFolder / "tests/mutants/mutants.txt");
  EXPECT_GE(mutants.size(), 20u);
  for (const Mutant& mutant : mutants) {
    const std::string text = read_text(kSourceFolder / mutant.file);
    EXPECT_FALSE(mutant.before.empty()) << mutant.name << " has no text that goes";
    EXPECT_NE(text.find(mutant.before), text.npos)
        << mutant.name << ": " << mutant.file << " has no '" << mutant.before << "'";
    for (const std::string& source : mutant.sources)
      EXPECT_TRUE(fs::exists(kSourceFolder / source)) << mutant.name << ": " << source;
  }
}

TEST(Lists, have_a_line_for_every_operation_folder) {
  const std::string list = read_text(kLibrary / "ops/operations.h");
  size_t folders = 0;
  for (const fs::directory_entry& folder : fs::directory_iterator(kLibrary / "ops")) {
    if (!folder.is_directory()) continue;
    ++folders;
    const std::string name = folder.path().filename();
    EXPECT_THAT(list, ::testing::HasSubstr("#include \"ejkernel/ops/" + name + "/" + name + ".h\""));
    EXPECT_NO_THROW(KernelRegistry::instance().find(name)) << "a folder is named after its operation";
  }
  EXPECT_GE(builtin_operations().size(), folders);
}

}  // namespace
}  // namespace ejk::testing
