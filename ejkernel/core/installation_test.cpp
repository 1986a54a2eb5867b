#include "ejkernel/core/installation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ejkernel/testing/temporary_folder.h"

namespace ejk {
namespace {

namespace fs = std::filesystem;

TEST(Installation, what_lies_where_anyone_can_add_to_is_not_looked_for_by_guessing) {
  const testing::TemporaryFolder scratch{testing::Medium::memory};
  const fs::path folder = scratch / "folder";
  fs::create_directory(folder);
  fs::permissions(folder, fs::perms::owner_all | fs::perms::group_all);
  EXPECT_FALSE(anyone_can_add_to(folder));
  fs::permissions(folder, fs::perms::all | fs::perms::sticky_bit);
  EXPECT_TRUE(anyone_can_add_to(folder)) << "as to /tmp";
  EXPECT_FALSE(anyone_can_add_to(folder / "missing"));
}

TEST(Installation, prefixes_are_above_what_runs) {
  const std::vector<std::string> prefixes = installation_prefixes();
  const fs::path above = fs::read_symlink("/proc/self/exe").parent_path().parent_path();
  EXPECT_NE(std::find(prefixes.begin(), prefixes.end(), above), prefixes.end());
  for (const std::string& prefix : prefixes) EXPECT_FALSE(anyone_can_add_to(prefix)) << prefix;
}

}  // namespace
}  // namespace ejk
