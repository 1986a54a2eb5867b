// ejk docs: writes the generated pages, or says which of them are stale.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include "ejkernel/core/validate.h"
#include "tools/ejk/docs_pages.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string folder = "docs";
  bool check = false;
};

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// Pages of ours that no operation stands behind any more.
std::vector<fs::path> orphans(const fs::path& folder, const std::map<std::string, std::string>& pages) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "operations", ignored)) {
    const std::string name = "operations/" + entry.path().filename().string();
    if (pages.contains(name) || entry.path().extension() != ".md") continue;
    if (read_file(entry.path()).value_or("").starts_with(kGeneratedMark)) found.push_back(entry.path());
  }
  return found;
}

int check(const fs::path& folder, const std::map<std::string, std::string>& pages) {
  int stale = 0;
  for (const auto& [name, contents] : pages) {
    const std::optional<std::string> now = read_file(folder / name);
    if (now == contents) continue;
    ++stale;
    fmt::print("{}: {}\n", (folder / name).string(), now ? "stale" : "missing");
  }
  for (const fs::path& path : orphans(folder, pages)) {
    ++stale;
    fmt::print("{}: no operation of this name\n", path.string());
  }
  if (stale == 0) return kOk;
  fmt::print("{} pages are not what the declarations say; run ./dev docs\n", stale);
  return kFailed;
}

void write(const fs::path& path, const std::string& contents) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << contents;
  if (!file.flush())
    throw_invalid("ejk", "the folder", "be one that pages can be written to", fmt::format("'{}'", path.string()),
                  "check its permissions and the disk");
}

int update(const fs::path& folder, const std::map<std::string, std::string>& pages) {
  for (const auto& [name, contents] : pages) {
    if (read_file(folder / name) == contents) continue;
    write(folder / name, contents);
    fmt::print("wrote {}\n", (folder / name).string());
  }
  for (const fs::path& path : orphans(folder, pages)) {
    fs::remove(path);
    fmt::print("removed {}\n", path.string());
  }
  return kOk;
}

}  // namespace

Action declare_docs(Options& options) {
  const auto flags = std::make_shared<Flags>();
  options.positional("DIR", flags->folder, "where the documentation is (default: docs)")
      .flag("check", flags->check, "write nothing; fail when a page is not what would be written");
  return [flags]() -> int {
    const auto pages = documentation_pages();
    return flags->check ? check(flags->folder, pages) : update(flags->folder, pages);
  };
}

}  // namespace ejk::tool
