#include "ejkernel/core/installation.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace ejk {
namespace {

namespace fs = std::filesystem;

/// Of a file in bin/, in lib/ or in lib/x86_64-linux-gnu.
void add_prefixes_of(const fs::path& file, std::vector<std::string>& prefixes) {
  const fs::path above = file.parent_path().parent_path();
  for (const fs::path& prefix : {above, above.parent_path()})
    if (prefix.has_relative_path() && !anyone_can_add_to(prefix.string())) prefixes.push_back(prefix.string());
}

}  // namespace

bool anyone_can_add_to(const std::string& folder) {
  struct stat info = {};
  return ::stat(folder.c_str(), &info) == 0 && (info.st_mode & S_IWOTH) != 0;
}

std::vector<std::string> installation_prefixes() {
  std::vector<std::string> prefixes;
  std::error_code error;
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&installation_prefixes), &info) != 0 && info.dli_fname != nullptr)
    if (const fs::path library = fs::canonical(info.dli_fname, error); !error) add_prefixes_of(library, prefixes);
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error) add_prefixes_of(program, prefixes);
  return prefixes;
}

std::vector<std::string> shipped_tables() {
  std::vector<std::string> tables;
  std::error_code error;
  for (const std::string& prefix : installation_prefixes()) {
    const fs::path folder = prefix + "/share/ejkernel/tables";
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
      if (entry->path().extension() == ".ejk") tables.push_back(entry->path().string());
    if (!tables.empty()) break;
  }
  std::sort(tables.begin(), tables.end());
  return tables;
}

}  // namespace ejk
