// The unit-test program of a build folder, linked again with a few sources changed, by that build's own commands: how a
// page of documentation is followed literally and how mutants are made.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ejk::testing {

class Rebuild {
 public:
  /// `overlay` mirrors the source tree and holds what is changed or new; its headers come before the tree's.
  Rebuild(std::filesystem::path source, std::filesystem::path build, std::filesystem::path overlay);

  /// Compiles a source of the overlay, or of the tree against the overlay's headers, the way the build compiles `like`.
  /// Returns what the compiler said when it failed.
  std::string compile(const std::string& file, const std::string& like);
  /// Links; what was compiled replaces the build's object of the same source. Returns what the linker said when it
  /// failed.
  std::string link();
  std::filesystem::path program() const { return overlay_ / "tests"; }

 private:
  std::filesystem::path source_, build_, overlay_;
  std::vector<std::filesystem::path> objects_;
};

/// A command line as the shell splits it: blanks separate, quotes and backslashes join.
std::vector<std::string> words_of(const std::string& command);

}  // namespace ejk::testing
