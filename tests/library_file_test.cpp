// The built libejkernel.so as a file: what it exports, what it needs, what it is called.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "ejkernel/c_api.h"
#include "ejkernel/core/version.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;

const std::string kLibrary = (kBinaryFolder / "lib/libejkernel.so").string();

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Demangled names of the dynamic symbols, sorted, each once.
std::set<std::string> exported_symbols() {
  const ProcessResult nm = run_process({"nm", "--dynamic", "--defined-only", "--demangle", kLibrary});
  EXPECT_EQ(nm.exit_code, 0) << nm.err;
  std::set<std::string> symbols;
  for (const std::string& line : lines_of(nm.out)) symbols.insert(line.substr(line.find_first_not_of(' ', 17) + 2));
  return symbols;
}

TEST(LibraryFile, exports_the_committed_list) {
  std::string list;
  for (const std::string& symbol : exported_symbols()) list += symbol + "\n";
  expect_up_to_date(kSourceFolder / "tests/exported_symbols.txt", list);
}

TEST(LibraryFile, exports_only_names_of_ours) {
  const std::regex ours(
      "ejk_[a-z0-9_]+|ejk::.*|(bool|void|float|double|ejk::[a-z0-9_:]+) ejk::.*|"
      "(typeinfo|typeinfo name|vtable) for ejk::[A-Za-z:]+");
  for (const std::string& symbol : exported_symbols()) EXPECT_TRUE(std::regex_match(symbol, ours)) << symbol;
}

TEST(LibraryFile, c_functions_are_those_of_the_header) {
  std::set<std::string> declared, exported;
  const std::string header = read_text(kSourceFolder / "ejkernel/c_api.h");
  const std::regex function(R"(EJK_API [a-z_* ]+[ *](ejk_[a-z0-9_]+)\()");
  for (std::sregex_iterator it(header.begin(), header.end(), function), end; it != end; ++it) declared.insert((*it)[1]);
  for (const std::string& symbol : exported_symbols())
    if (symbol.starts_with("ejk_")) exported.insert(symbol);
  EXPECT_EQ(declared, exported);
  EXPECT_GE(declared.size(), 18u);
}

TEST(LibraryFile, needs_nothing_but_the_c_and_cxx_runtime) {
  const ProcessResult ldd = run_process({"ldd", kLibrary});
  ASSERT_EQ(ldd.exit_code, 0) << ldd.err;
  const std::regex runtime(
      R"(\s*(linux-vdso|libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|/\S*ld-linux[^ ]*)\.so.*|\s*/\S*ld-linux\S+ .*)");
  for (const std::string& line : lines_of(ldd.out)) EXPECT_TRUE(std::regex_match(line, runtime)) << line;
}

TEST(LibraryFile, carries_its_major_version) {
  const ProcessResult readelf = run_process({"readelf", "--dynamic", kLibrary});
  const std::string major(kVersion.substr(0, kVersion.find('.')));
  EXPECT_THAT(readelf.out, HasSubstr("Library soname: [libejkernel.so." + major + "]"));
}

TEST(Version, is_the_same_everywhere) {
  const std::string version(kVersion);
  EXPECT_THAT(read_text(kBinaryFolder / "CMakeCache.txt"), HasSubstr("CMAKE_PROJECT_VERSION:STATIC=" + version + "\n"));
  EXPECT_EQ(EJK_VERSION, version);
  EXPECT_EQ(ejk_version(), version);
}

}  // namespace
}  // namespace ejk::testing
