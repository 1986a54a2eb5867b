// What rows of the reliability table depend on, against the includes of the files that produce them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "ejkernel/testing/table.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

/// Whether a row's paths name the file: it, a folder above it, or a pattern that ends in '*'.
bool covers(std::string_view path, const std::string& file) {
  if (path.ends_with('*')) return file.starts_with(path.substr(0, path.size() - 1));
  return file == path || file.starts_with(std::string(path) + "/");
}

std::set<std::string> includes_of(const std::string& file) {
  const std::string text = read_text(kSourceFolder / file);
  static const std::regex include(R"re(#include "([^"]+)")re");
  std::set<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match)
    found.insert((*match)[1]);
  return found;
}

/// A file makes several rows, not all of which rest on all that it includes.
TEST(RowsOfTheTable, depend_on_what_their_producers_include) {
  std::map<std::string, std::set<std::string_view>> paths_of;
  for (const Row& row : table_rows())
    for (std::string_view path : row.depends_on)
      if (path.starts_with("tools/table/rows_"))
        paths_of[std::string(path)].insert(row.depends_on.begin(), row.depends_on.end());
  ASSERT_GE(paths_of.size(), 14u);
  for (const auto& [producer, paths] : paths_of)
    for (const std::string& file : includes_of(producer))
      EXPECT_TRUE(std::any_of(paths.begin(), paths.end(), [&](auto path) { return covers(path, file); }))
          << producer << " includes " << file;
}

TEST(RowsOfTheTable, depend_on_files_that_are_there) {
  for (const Row& row : table_rows())
    for (std::string_view path : row.depends_on) {
      if (path.starts_with(":(exclude)")) continue;
      const fs::path file = kSourceFolder / std::string(path.substr(0, path.find('*')));
      const std::string beginning = file.filename().string();
      const fs::directory_iterator beside(file.parent_path());
      EXPECT_TRUE(std::any_of(begin(beside), end(beside),
                              [&](const fs::directory_entry& entry) {
                                const std::string name = entry.path().filename().string();
                                return path.find('*') == path.npos ? name == beginning : name.starts_with(beginning);
                              }))
          << row.id << " depends on " << path;
    }
}

TEST(RowsOfTheTable, all_depend_on_the_program_that_counts_their_trials) {
  for (const Row& row : table_rows())
    for (const char* file : {"tools/table/main.cpp", "tools/table/rows.h", "tools/table/rows.cpp"})
      EXPECT_TRUE(std::any_of(row.depends_on.begin(), row.depends_on.end(),
                              [&](std::string_view path) { return covers(path, file); }))
          << row.id << " does not depend on " << file;
}

}  // namespace
}  // namespace ejk::testing
