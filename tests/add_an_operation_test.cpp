// docs/add_an_operation.md, followed literally: its blocks go where their captions say, in copies of the files they
// change, are compiled with this build's own commands, linked with everything else, and meet the harness.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

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

/// A command line as the shell splits it: blanks separate, quotes and backslashes join.
std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == '"') {
      quoted = !quoted;
    } else if (c == '\\' && i + 1 < command.size()) {
      word += command[++i];
    } else if (!quoted && (c == ' ' || c == '\n')) {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

/// How this build compiles a source file, by its path in the tree.
std::string compile_command(const std::string& file) {
  const auto commands = nlohmann::json::parse(read_text(kBinaryFolder / "compile_commands.json"));
  for (const auto& entry : commands)
    if (entry["file"] == (kSourceFolder / file).string()) return entry["command"];
  return {};
}

/// Compiles folder/file the way this build compiles `like`, the folder's headers before the tree's.
fs::path compile(const fs::path& folder, const std::string& file, const std::string& like) {
  const fs::path object = folder / (file + ".o");
  std::vector<std::string> words = words_of(compile_command(like));
  EXPECT_FALSE(words.empty()) << "this build does not compile " << like;
  if (words.empty()) return object;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "-o") words[i + 1] = object.string();
    if (words[i] == "-c") words[i + 1] = (folder / file).string();
  }
  const auto first_option = std::find_if(words.begin(), words.end(), [](const auto& w) { return w.starts_with("-"); });
  words.insert(first_option, "-I" + folder.string());
  const ProcessResult result = run_process(words, {}, kBinaryFolder.string());
  EXPECT_EQ(result.exit_code, 0) << file << ":\n" << result.err;
  return object;
}

bool is_replaced_by(const std::string& word, const std::vector<fs::path>& objects, const fs::path& folder) {
  for (const fs::path& object : objects)
    if (word.ends_with(fs::relative(object, folder).string())) return true;
  return false;
}

/// The test program of this build with our objects in it, those of the same source left out.
fs::path link(const fs::path& folder, const std::vector<fs::path>& objects) {
  const fs::path program = folder / "tests";
  const ProcessResult ninja =
      run_process({"ninja", "-C", kBinaryFolder.string(), "-t", "commands", "-s", "bin/ejkernel_tests"});
  EXPECT_EQ(ninja.exit_code, 0) << ninja.err;
  const std::string command =
      ninja.out.substr(ninja.out.find(": && ") == std::string::npos ? 0 : ninja.out.find(": && ") + 5);
  std::vector<std::string> words;
  for (std::string& word : words_of(command)) {
    if (word == "&&") break;
    if (!is_replaced_by(word, objects, folder)) words.push_back(std::move(word));
  }
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "-o") words[i + 1] = program.string();
  const auto first_object = std::find_if(words.begin(), words.end(), [](const auto& w) { return w.ends_with(".o"); });
  const size_t at = static_cast<size_t>(first_object - words.begin());
  for (const fs::path& object : objects) words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), object.string());
  const ProcessResult result = run_process(words, {}, kBinaryFolder.string());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return program;
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
  std::vector<fs::path> objects;
  for (const auto& [file, like] : sources) objects.push_back(compile(scratch.path, file, like));
  ASSERT_FALSE(HasFailure());
  const fs::path program = link(scratch.path, objects);
  ASSERT_FALSE(HasFailure());

  const ProcessResult tests = run_process({program.string(), "--gtest_filter=*scaled_sum*"});
  EXPECT_EQ(tests.exit_code, 0) << tests.out;
  EXPECT_EQ(tests.out.find("Running 0 tests"), std::string::npos) << "the harness has no test of the new operation";
}

}  // namespace
}  // namespace ejk::testing
