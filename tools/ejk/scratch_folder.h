// A folder of this user's that is gone with the object: beside the store, where there is one, else among the system's
// temporary files.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "ejkernel/core/store.h"

namespace ejk::tool {

class ScratchFolder {
 public:
  ScratchFolder() : path_(fmt::format("{}/bench_{}", parent(), getpid())) {}
  ~ScratchFolder() { clear(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  void clear() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  static std::string parent() {
    const std::string& root = ejk::store().root();
    return root.empty() ? std::filesystem::temp_directory_path().string() : root;
  }
  std::string path_;
};

}  // namespace ejk::tool
