// The generated pages are what the declarations say now, and what they show compiles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>
#include <sstream>

#include "ejkernel/runtime/registry.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

const std::string kEjk = kBinaryFolder / "bin/ejk";

/// What a person reads: the pages at the top and those below docs/.
std::vector<fs::path> pages() {
  std::vector<fs::path> found;
  for (const fs::path& folder : {kSourceFolder, kSourceFolder / "docs", kSourceFolder / "docs/operations"})
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".md") found.push_back(entry.path());
  return found;
}

/// The first group of every match.
std::vector<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) found.push_back((*it)[1]);
  return found;
}

TEST(Docs, generated_pages_are_up_to_date) {
  const ProcessResult result = run_process({kEjk, "docs", "--check", kSourceFolder / "docs"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err << "./dev docs writes them";
}

/// The lines between "```language" and "```" on an operation's page, its includes left out.
std::string block_of(const std::string& operation, const std::string& language) {
  const std::string page = read_text(kSourceFolder / "docs/operations" / (operation + ".md"));
  const size_t begin = page.find("```" + language + "\n");
  if (begin == std::string::npos) return "";
  const size_t first = page.find("\n\n", begin), end = page.find("```", begin + 3);
  return page.substr(first, end - first);
}

/// Every tensor that an example may name, declared as `type`.
std::string tensors_of(const Operation& op, const std::string& type) {
  std::set<std::string> names = {"result"};
  for (const TensorField& field : op.inputs) names.insert(std::string(field.name));
  for (const std::string& name : KernelRegistry::instance().names()) {
    const Operation& other = *KernelRegistry::instance().find(name)->declaration;
    if (other.gradient != op.name) continue;
    for (const TensorField& field : other.inputs) names.insert(std::string(field.name));
    for (const TensorField& field : other.outputs) names.insert("d_" + std::string(field.name));
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + type + " " + name;
  return text;
}

std::string program_of(const std::string& language, const std::string& include, const std::string& type) {
  std::string program = "#include <" + include + ">\n";
  for (const std::string& name : KernelRegistry::instance().names()) {
    const std::string block = block_of(name, language);
    EXPECT_FALSE(block.empty()) << name << " has no example in " << language;
    const Operation& op = *KernelRegistry::instance().find(name)->declaration;
    program += "void use_" + name + "(" + tensors_of(op, type) + ");\n";
    program += "void use_" + name + "(" + tensors_of(op, type) + ") {" + block + "}\n";
  }
  return program;
}

const std::vector<std::string> kWarnings = {"-Wall", "-Wextra", "-Werror", "-Wno-unused"};

TEST(Docs, cxx_examples_compile) {
  const std::string program = program_of("cpp", "ejkernel/ejkernel.h", "ejk::Tensor");
  for (const std::string& compiler : cxx_compilers()) {
    std::vector<std::string> flags = kWarnings;
    flags.insert(flags.end(), {"-std=c++20", "-Wno-unused-parameter"});
    const ProcessResult result = check_syntax(compiler, flags, program, "examples.cpp");
    EXPECT_EQ(result.exit_code, 0) << compiler << "\n" << result.err;
  }
}

TEST(Docs, c_examples_compile) {
  const std::string program = program_of("c", "ejkernel/ejkernel_ops.h", "DLTensor");
  for (const std::string& compiler : c_compilers()) {
    std::vector<std::string> flags = kWarnings;
    flags.insert(flags.end(), {"-std=c99", "-Wno-unused-parameter"});
    const ProcessResult result = check_syntax(compiler, flags, program, "examples.c");
    EXPECT_EQ(result.exit_code, 0) << compiler << "\n" << result.err;
  }
}

TEST(Docs, the_readmes_program_compiles_without_a_warning_and_runs) {
  const std::string readme = read_text(kSourceFolder / "README.md");
  const size_t begin = readme.find("```cpp\n") + 7;
  const std::string program = readme.substr(begin, readme.find("```\n", begin) - begin);
  ASSERT_THAT(program, ::testing::HasSubstr("int main()"));
  const ScratchFolder scratch("readme");
  write_text(scratch.path / "main.cpp", program);
  const std::string libraries = kBinaryFolder / "lib";
  for (const std::string& compiler : cxx_compilers()) {
    const ProcessResult built =
        run_process({compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I" + kSourceFolder.string(),
                     scratch.path / "main.cpp", "-o", scratch.path / "main", "-L" + libraries, "-lejkernel",
                     "-Wl,-rpath," + libraries});
    ASSERT_EQ(built.exit_code, 0) << compiler << "\n" << built.err;
    const ProcessResult run = run_process({scratch.path / "main"});
    EXPECT_EQ(run.exit_code, 0) << compiler;
    EXPECT_EQ(run.out + run.err, "") << "the library says nothing of its own accord";
  }
}

TEST(Docs, the_readme_names_every_operation) {
  const std::string readme = read_text(kSourceFolder / "README.md");
  int operations = 0;
  for (const fs::directory_entry& page : fs::directory_iterator(kSourceFolder / "docs/operations")) {
    const std::string name = page.path().stem();
    if (name == "index" || name.ends_with("_backward")) continue;  // a gradient stands in its operation's row
    ++operations;
    EXPECT_THAT(readme, ::testing::HasSubstr("[`" + name + "`](docs/operations/" + name + ".md)"));
  }
  EXPECT_GT(operations, 10);
}

TEST(Docs, every_rule_names_tests_and_every_named_test_exists) {
  std::set<std::string> tests;
  const std::regex definition(R"(\nTEST(?:_[FP])?\((\w+,\s*\w+)\))"), comma(R"(,\s*)");
  for (const char* folder : {"ejkernel", "tests"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kSourceFolder / folder))
      if (entry.path().string().ends_with("_test.cpp"))
        for (const std::string& test : all_matches(read_text(entry.path()), definition))
          tests.insert(std::regex_replace(test, comma, "."));
  EXPECT_GT(tests.size(), 300u);

  const std::regex reference(R"(`([A-Z]\w+\.\w+)`)");
  for (const fs::path& page : pages())
    for (const std::string& name : all_matches(read_text(page), reference))
      EXPECT_TRUE(tests.contains(name) || name == "Suite.name") << page << " names " << name;

  // A rule is a numbered or dashed paragraph of the page.
  std::istringstream lines(read_text(kSourceFolder / "docs/semantics.md"));
  const std::regex begins(R"((\d+\.|-) .*)");
  std::string rule;
  int rules = 0;
  const auto finish = [&] {
    if (rule.empty()) return;
    ++rules;
    EXPECT_TRUE(std::regex_search(rule, reference)) << "no test is named: " << rule;
    rule.clear();
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("#") || std::regex_match(line, begins)) finish();
    if (!rule.empty() || std::regex_match(line, begins)) rule += line + "\n";
  }
  finish();
  EXPECT_GE(rules, 25);
}

TEST(Docs, every_error_code_has_its_entry) {
  const std::string header = read_text(kSourceFolder / "ejkernel/c_api.h"),
                    page = read_text(kSourceFolder / "docs/errors.md");
  const std::regex code(R"(\n  EJK_([A-Z_]+ = [1-9])\b)");
  int entries = 0;
  for (std::string entry : all_matches(header.substr(0, header.find("typedef struct ejk_params_t")), code)) {
    std::transform(entry.begin(), entry.end(), entry.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t equals = entry.find(" = ");
    EXPECT_THAT(page, ::testing::HasSubstr("## " + entry.substr(equals + 3) + " · " + entry.substr(0, equals)));
    ++entries;
  }
  EXPECT_EQ(entries, 5);
}

TEST(Docs, links_lead_somewhere) {
  const std::regex link(R"(\]\(([^)#:]+)(?:#[^)]*)?\))");
  int links = 0;
  for (const fs::path& page : pages())
    for (const std::string& target : all_matches(read_text(page), link)) {
      ++links;
      EXPECT_TRUE(fs::exists(page.parent_path() / target)) << page << " links to " << target;
    }
  EXPECT_GT(links, 30);
}

/// `./dev peers` runs what may be executed, and its page lists it.
TEST(Docs, every_comparison_with_peers_can_be_run) {
  const std::string page = read_text(kSourceFolder / "benchmarks/peers/README.md");
  int comparisons = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(kSourceFolder / "benchmarks/peers")) {
    if (read_text(entry.path()).find("__main__") == std::string::npos) continue;
    ++comparisons;
    EXPECT_NE(entry.status().permissions() & fs::perms::owner_exec, fs::perms::none) << entry.path();
    EXPECT_THAT(page, ::testing::HasSubstr("`" + entry.path().filename().string() + "`"));
  }
  EXPECT_GE(comparisons, 8);
}

TEST(Docs, shell_examples_name_verbs_and_operations_that_exist) {
  for (const std::string& name : KernelRegistry::instance().names()) {
    const std::string page = read_text(kSourceFolder / "docs/operations" / (name + ".md"));
    for (const char* verb : {"explain", "run", "check", "bench"}) {
      EXPECT_THAT(page, ::testing::HasSubstr("ejk " + std::string(verb) + " " + name));
      EXPECT_EQ(run_process({kEjk, verb, "--help"}).exit_code, 0) << verb;
    }
    EXPECT_EQ(run_process({kEjk, "explain", name, "--dtype", "bf16"}).exit_code, 0) << name;
  }
}

}  // namespace
}  // namespace ejk::testing
