#include "ejkernel/testing/rebuild.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ejkernel/testing/process.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

std::string compile_command(const fs::path& build, const fs::path& file) {
  std::ifstream stream(build / "compile_commands.json");
  const auto commands = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!commands.is_array()) return {};
  for (const auto& entry : commands)
    if (entry["file"] == file.string()) return entry["command"];
  return {};
}

void replace_after(std::vector<std::string>& words, const std::string& option, const std::string& value) {
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == option) words[i + 1] = value;
}

}  // namespace

Rebuild::Rebuild(fs::path source, fs::path build, fs::path overlay)
    : source_(std::move(source)), build_(std::move(build)), overlay_(std::move(overlay)) {}

std::string Rebuild::compile(const std::string& file, const std::string& like) {
  std::vector<std::string> words = words_of(compile_command(build_, source_ / like));
  if (words.empty()) return "the build in " + build_.string() + " does not compile " + like;
  const fs::path object = overlay_ / (file + ".o");
  fs::create_directories(object.parent_path());
  replace_after(words, "-o", object.string());
  replace_after(words, "-c", (fs::exists(overlay_ / file) ? overlay_ / file : source_ / file).string());
  const auto first_option =
      std::find_if(words.begin(), words.end(), [](const auto& word) { return word.starts_with("-"); });
  words.insert(first_option, "-I" + overlay_.string());
  const ProcessResult result = run_process(words, {}, build_.string());
  objects_.push_back(object);
  return result.exit_code == 0 ? "" : file + ":\n" + result.err;
}

std::string Rebuild::link() {
  const ProcessResult ninja =
      run_process({"ninja", "-C", build_.string(), "-t", "commands", "-s", "bin/ejkernel_tests"});
  if (ninja.exit_code != 0) return ninja.err;
  const auto is_replaced = [&](const std::string& word) {
    return std::any_of(objects_.begin(), objects_.end(),
                       [&](const fs::path& object) { return word.ends_with(fs::relative(object, overlay_).string()); });
  };
  // ": && compiler … && :"
  std::vector<std::string> words;
  for (std::string& word : words_of(ninja.out)) {
    if (word == ":" || word == "&&") {
      if (words.empty()) continue;
      break;
    }
    if (word.starts_with("ninja:") || is_replaced(word)) continue;
    words.push_back(std::move(word));
  }
  replace_after(words, "-o", program().string());
  const auto first_object =
      std::find_if(words.begin(), words.end(), [](const auto& word) { return word.ends_with(".o"); });
  std::vector<std::string> objects;
  for (const fs::path& object : objects_) objects.push_back(object.string());
  words.insert(first_object, objects.begin(), objects.end());
  const ProcessResult result = run_process(words, {}, build_.string());
  return result.exit_code == 0 ? "" : result.err;
}

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

}  // namespace ejk::testing
