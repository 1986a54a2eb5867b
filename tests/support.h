// What tests that read, compile and install the source tree share.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ejkernel/testing/process.h"

namespace ejk::testing {

inline const std::filesystem::path kSourceFolder = EJK_SOURCE_DIR;
inline const std::filesystem::path kBinaryFolder = EJK_BINARY_DIR;

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// A folder of the test's own below the build folder, empty at first and removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  operator const std::filesystem::path&() const { return path; }

  const std::filesystem::path path;
};

/// The C++ compiler of this build and, where it is installed, clang++; likewise for C.
std::vector<std::string> cxx_compilers();
std::vector<std::string> c_compilers();

/// Compiles text without making anything, the source folder on the include path; out and err tell what the compiler
/// said.
ProcessResult check_syntax(const std::string& compiler, const std::vector<std::string>& flags, const std::string& text,
                           const std::string& file_name);

/// A committed file that must equal `made`: otherwise the test fails and says how to bring it up to date.
void expect_up_to_date(const std::filesystem::path& committed, const std::string& made);

}  // namespace ejk::testing
