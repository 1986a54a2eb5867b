#include "ejkernel/core/installation.h"

#include <dlfcn.h>

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
    if (prefix.has_relative_path()) prefixes.push_back(prefix.string());
}

}  // namespace

std::vector<std::string> installation_prefixes() {
  std::vector<std::string> prefixes;
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error) add_prefixes_of(program, prefixes);
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&installation_prefixes), &info) != 0 && info.dli_fname != nullptr)
    if (const fs::path library = fs::canonical(info.dli_fname, error); !error) add_prefixes_of(library, prefixes);
  return prefixes;
}

std::vector<std::string> shipped_tables() {
  std::vector<std::string> tables;
  std::error_code error;
  for (const std::string& prefix : installation_prefixes()) {
    const fs::path folder = prefix + "/share/ejkernel/tables";
    if (!fs::is_directory(folder, error)) continue;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".ejk") tables.push_back(entry.path().string());
    break;
  }
  std::sort(tables.begin(), tables.end());
  return tables;
}

}  // namespace ejk
