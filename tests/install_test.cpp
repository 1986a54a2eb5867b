// Programs of the outside world, each configured, built and run against the installed library (tests/consumers/). What
// a consumer prints is compared as a whole: the library says nothing of its own accord.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ejkernel/core/version.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// The install tree, moved after installing: nothing in it may know where it was.
class Consumer : public ::testing::Test {
 protected:
  void SetUp() override {
    ok({EJK_CMAKE, "--install", kBinaryFolder.string(), "--prefix", (scratch.path / "first").string()});
    fs::rename(scratch.path / "first", prefix);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(prefix)) {
      const std::string name = entry.path().filename();
      if (name == "libejkernel.so") library_folder = entry.path().parent_path();
      if (name == "ejkernel.pc") pkgconfig_folder = entry.path().parent_path();
    }
    ASSERT_FALSE(library_folder.empty());
    ASSERT_FALSE(pkgconfig_folder.empty());
  }

  /// Runs a command that must succeed.
  static ProcessResult ok(const std::vector<std::string>& command, const std::vector<std::string>& environment = {}) {
    ProcessResult result = run_process(command, environment);
    EXPECT_EQ(result.exit_code, 0) << ::testing::PrintToString(command) << "\n" << result.out << result.err;
    return result;
  }

  fs::path configure(const std::string& consumer, const std::vector<std::string>& options) {
    const fs::path build = scratch.path / consumer;
    std::vector<std::string> command = {EJK_CMAKE,
                                        "-G",
                                        "Ninja",
                                        "-S",
                                        (kConsumers / consumer).string(),
                                        "-B",
                                        build.string(),
                                        "-DCMAKE_CXX_COMPILER=" EJK_CXX_COMPILER};
    command.insert(command.end(), options.begin(), options.end());
    ok(command);
    return build;
  }

  fs::path configure_and_build(const std::string& consumer, const std::vector<std::string>& options) {
    const fs::path build = configure(consumer, options);
    ok({EJK_CMAKE, "--build", build.string(), "-j", "2"});
    return build;
  }

  /// Says what it should and nothing else, on either stream.
  void expect_all_right(const fs::path& program, const std::vector<std::string>& environment = {}) {
    const ProcessResult run = ok({program.string()}, environment);
    EXPECT_EQ(run.out, "all right\n");
    EXPECT_EQ(run.err, "");
  }

  std::vector<std::string> pkg_config(const std::string& what) {
    const ProcessResult flags = ok({"pkg-config", what, "ejkernel"}, {"PKG_CONFIG_PATH=" + pkgconfig_folder.string()});
    std::vector<std::string> words;
    std::istringstream stream(flags.out);
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }

  /// Compiler, its own flags, one source file, and the rest from pkg-config.
  void build_with_pkg_config(std::vector<std::string> command, const fs::path& source, const fs::path& program) {
    for (const std::string& flag : pkg_config("--cflags")) command.push_back(flag);
    command.insert(command.end(), {source.string(), "-o", program.string()});
    for (const std::string& flag : pkg_config("--libs")) command.push_back(flag);
    command.insert(command.end(), {"-lm", "-Wl,-rpath," + library_folder.string()});
    ok(command);
  }

  const fs::path kConsumers = kSourceFolder / "tests/consumers";
  const ScratchFolder scratch{"install"};
  const fs::path prefix = scratch.path / "moved";
  fs::path library_folder, pkgconfig_folder;
};

TEST_F(Consumer, in_cxx20_finds_the_package) {
  const fs::path build = configure_and_build("cmake", {"-DCMAKE_PREFIX_PATH=" + prefix.string()});
  expect_all_right(build / "consumer");
}

TEST_F(Consumer, in_c99_uses_pkg_config) {
  EXPECT_EQ(pkg_config("--modversion"), std::vector<std::string>{std::string(kVersion)});
  for (const std::string& compiler : c_compilers()) {
    const fs::path program = scratch.path / "c99";
    // aligned_alloc is C11's; everything else is C99.
    build_with_pkg_config({compiler, "-std=c99", "-D_ISOC11_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic"},
                          kConsumers / "c99/main.c", program);
    expect_all_right(program);
  }
}

TEST_F(Consumer, without_exceptions_and_rtti_uses_the_c_header) {
  for (const std::string& compiler : cxx_compilers()) {
    const fs::path program = scratch.path / "no_exceptions";
    build_with_pkg_config(
        {compiler, "-std=c++11", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror", "-pedantic"},
        kConsumers / "no_exceptions/main.cpp", program);
    expect_all_right(program);
  }
}

TEST_F(Consumer, with_a_plugin_adds_a_kernel_and_an_operation) {
  const fs::path build = configure_and_build("plugin", {"-DCMAKE_PREFIX_PATH=" + prefix.string()});
  // Where nobody but this user can write, whatever the modes above the build folder are.
  char folder[] = "/tmp/ejkernel_consumer_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const fs::path plugin = fs::path(folder) / "my_plugin.so";
  fs::copy_file(build / "libmy_plugin.so", plugin);
  fs::permissions(plugin, fs::perms(0755));
  expect_all_right(build / "program", {"EJKERNEL_PLUGINS=" + plugin.string()});

  const ProcessResult without = run_process({(build / "program").string()});
  EXPECT_NE(without.exit_code, 0);
  fs::remove_all(folder);
}

/// The project checks that nothing of ours reaches it.
TEST_F(Consumer, may_be_a_project_that_adds_ours_as_a_folder) {
  configure("subdirectory", {"-DEJKERNEL_SOURCE=" + kSourceFolder.string()});
}

class ConsumerLong : public Consumer {};

TEST_F(ConsumerLong, builds_and_runs_with_ours_as_a_folder) {
  // Static, which nothing else here builds.
  std::vector<std::string> options = {"-DEJKERNEL_SOURCE=" + kSourceFolder.string(), "-DBUILD_SHARED_LIBS=OFF"};
  // The whole library is compiled here: no optimisation, one instruction set, and a cache where there is one.
  if (run_process({"ccache", "--version"}).exit_code == 0) options.push_back("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache");
  const fs::path build = configure_and_build("subdirectory", options);
  expect_all_right(build / "consumer");
}

TEST_F(Consumer, tools_run_from_the_install_tree) {
  const ProcessResult version = ok({(prefix / "bin/ejk").string(), "--version"});
  EXPECT_THAT(version.out, HasSubstr(std::string(kVersion)));
}

/// The bill of materials names all foreign code inside, with versions.
TEST_F(Consumer, may_read_what_the_library_is_made_of) {
  const auto bill = nlohmann::json::parse(read_text(prefix / "share/doc/ejkernel/ejkernel.spdx.json"));
  std::vector<std::string> names;
  for (const auto& package : bill.at("packages")) {
    names.push_back(package.at("name"));
    EXPECT_THAT(package.at("versionInfo").get<std::string>(), ::testing::ContainsRegex("^[0-9]+\\.[0-9]+"))
        << names.back();
  }
  EXPECT_THAT(names, ::testing::ElementsAre("ejkernel", "highway", "fmt", "nlohmann-json", "xxhash"));
  EXPECT_EQ(bill.at("packages")[0].at("versionInfo"), kVersion);
  EXPECT_EQ(bill.at("relationships").size(), names.size() - 1);
}

TEST_F(Consumer, finds_no_header_that_is_not_for_it) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(prefix / "include")) {
    const std::string name = fs::relative(entry.path(), prefix / "include");
    EXPECT_THAT(name,
                ::testing::Not(::testing::AnyOf(HasSubstr("platform/"), HasSubstr("testing/"), HasSubstr("_internal.h"),
                                                HasSubstr("-inl.h"), HasSubstr("_cases.h"))));
  }
}

/// What is installed needs nothing that is not.
TEST_F(Consumer, may_include_every_installed_header) {
  std::string all;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(prefix / "include"))
    if (entry.path().extension() == ".h")
      all += "#include <" + fs::relative(entry.path(), prefix / "include").string() + ">\n";
  write_text(scratch.path / "all.cpp", all);
  ok({EJK_CXX_COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
      "-I" + (prefix / "include").string(), (scratch.path / "all.cpp").string()});
}

}  // namespace
}  // namespace ejk::testing
