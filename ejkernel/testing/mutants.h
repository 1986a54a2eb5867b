// The seeded faults of tests/mutants: one-line edits of the library that its unit tests must notice.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ejk::testing {

struct Mutant {
  std::string name, file;
  std::string before, after;         ///< the text of the file that goes, and what comes in its place
  std::vector<std::string> sources;  ///< what is compiled again
};

/// In the order of the list.
std::vector<Mutant> read_mutants(const std::filesystem::path& path);

}  // namespace ejk::testing
