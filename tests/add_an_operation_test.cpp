// docs/add_an_operation.md, followed literally: its blocks go where their captions say, in copies of the files they
// change, are compiled with this build's own commands, linked with everything else, and meet the harness.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "ejkernel/testing/rebuild.h"
#include "tests/support.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

/// One captioned block of the page.
struct Block {
  std::string file;
  std::string after;  ///< the text whose line the block follows; empty: the block is the whole file
  std::string text;
};

std::vector<Block> blocks_of(const std::string& page) {
  std::vector<Block> blocks;
  const std::regex whole("<!-- file: (\\S+) -->"), insertion("<!-- after `([^`]+)` in (\\S+) -->");
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    Block block;
    if (std::regex_match(line, match, whole)) {
      block.file = match[1];
    } else if (std::regex_match(line, match, insertion)) {
      block.after = match[1];
      block.file = match[2];
    } else {
      continue;
    }
    std::getline(lines, line);
    EXPECT_EQ(line, "```cpp") << "a caption must stand right above its block: " << block.file;
    while (std::getline(lines, line) && line != "```") block.text += line + "\n";
    blocks.push_back(std::move(block));
  }
  return blocks;
}

/// Puts a block into `folder`, on top of the source tree's file where it changes one.
void apply(const Block& block, const fs::path& folder) {
  const fs::path target = folder / block.file;
  if (block.after.empty()) return write_text(target, block.text);
  std::string text = read_text(fs::exists(target) ? target : kSourceFolder / block.file);
  const size_t found = text.find(block.after);
  ASSERT_NE(found, std::string::npos) << block.file << " has no line with '" << block.after << "'";
  text.insert(text.find('\n', found) + 1, block.text);
  write_text(target, text);
}

TEST(Documentation, an_operation_is_added_by_following_the_page) {
  const std::vector<Block> blocks = blocks_of(read_text(kSourceFolder / "docs/add_an_operation.md"));
  ASSERT_GE(blocks.size(), 9u);
  const ScratchFolder scratch("add_an_operation");
  for (const Block& block : blocks) apply(block, scratch.path);

  // New sources, and the lists that the page changes; headers are found through the include path.
  std::map<std::string, std::string> sources;
  for (const Block& block : blocks)
    if (block.file.ends_with(".cpp"))
      sources[block.file] = block.file.ends_with("_cases.cpp") || block.file.starts_with("ejkernel/testing/")
                                ? "ejkernel/testing/operations.cpp"
                                : "ejkernel/ops/operations.cpp";
  Rebuild rebuild(kSourceFolder, kBinaryFolder, scratch.path);
  for (const auto& [file, like] : sources) ASSERT_EQ(rebuild.compile(file, like), "");
  ASSERT_EQ(rebuild.link(), "");

  const ProcessResult tests = run_process({rebuild.program().string(), "--gtest_filter=*scaled_sum*"});
  EXPECT_EQ(tests.exit_code, 0) << tests.out;
  EXPECT_EQ(tests.out.find("Running 0 tests"), std::string::npos) << "the harness has no test of the new operation";
}

}  // namespace
}  // namespace ejk::testing
