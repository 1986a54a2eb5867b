#include "ejkernel/testing/mutants.h"

#include <fstream>

namespace ejk::testing {

std::vector<Mutant> read_mutants(const std::filesystem::path& path) {
  std::vector<Mutant> mutants;
  std::ifstream lines(path);
  bool is_name = true;  // after an empty line
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      is_name = true;
    } else if (line.starts_with("# ")) {
      continue;
    } else if (is_name) {
      mutants.emplace_back().name = line;
      is_name = false;
    } else if (line.starts_with("- ")) {
      mutants.back().before = line.substr(2);
    } else if (line.starts_with("+ ")) {
      mutants.back().after = line.substr(2);
    } else if (line.starts_with("= ")) {
      mutants.back().sources.push_back(line.substr(2));
    } else {
      mutants.back().file = line;
    }
  }
  for (Mutant& mutant : mutants)
    if (mutant.sources.empty()) mutant.sources.push_back(mutant.file);
  return mutants;
}

}  // namespace ejk::testing
