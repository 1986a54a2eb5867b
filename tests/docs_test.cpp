// The generated pages are what the declarations say now, and what they show compiles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ejkernel/runtime/registry.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

const std::string kEjk = kBinaryFolder / "bin/ejk";

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
