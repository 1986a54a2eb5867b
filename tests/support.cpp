#include "tests/support.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace ejk::testing {
namespace {

// The programs that tests start inherit these: they are not about tuning, and what the user keeps is no business of
// theirs. Before main, so before anything reads it.
[[maybe_unused]] const int kPolicy = ::setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", /*overwrite=*/0);
[[maybe_unused]] const int kNoTables = ::setenv("EJKERNEL_CONFIG_PATH", "none", /*overwrite=*/0);
[[maybe_unused]] const int kStore = ::setenv("EJKERNEL_CACHE_DIR", EJK_BINARY_DIR "/store", /*overwrite=*/1);

bool is_installed(const std::string& program) { return run_process({program, "--version"}).exit_code == 0; }

std::vector<std::string> installed(std::vector<std::string> programs) {
  std::erase_if(programs, [](const std::string& program) { return !is_installed(program); });
  return programs;
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

ScratchFolder::ScratchFolder(const std::string& name)
    : path(kBinaryFolder / "scratch" / (name + std::to_string(::getpid()))) {
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
}
ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::vector<std::string> cxx_compilers() { return installed({EJK_CXX_COMPILER, "clang++"}); }
std::vector<std::string> c_compilers() { return installed({"cc", "clang"}); }

ProcessResult check_syntax(const std::string& compiler, const std::vector<std::string>& flags, const std::string& text,
                           const std::string& file_name) {
  const ScratchFolder scratch("syntax");
  write_text(scratch.path / file_name, text);
  std::vector<std::string> command = {compiler};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"-fsyntax-only", "-I" + kSourceFolder.string(), (scratch.path / file_name).string()});
  return run_process(command);
}

void expect_up_to_date(const std::filesystem::path& committed, const std::string& made) {
  if (std::filesystem::exists(committed) && read_text(committed) == made) return;
  const std::filesystem::path fresh = kBinaryFolder / committed.filename();
  write_text(fresh, made);
  const ProcessResult difference = run_process({"diff", "-u", committed.string(), fresh.string()});
  ADD_FAILURE() << committed << " is not up to date; after checking the difference: cp " << fresh.string() << " "
                << committed.string() << "\n"
                << difference.out.substr(0, 4000);
}

}  // namespace ejk::testing
