// A folder of one's own, for as long as the object lives.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace ejk::testing {

/// memory: where the system has files in memory, so that a sync costs nothing. For what does not depend on a disk.
enum class Medium { disk, memory };

class TemporaryFolder {
 public:
  explicit TemporaryFolder(Medium medium = Medium::disk) {
    const std::filesystem::path in_memory = "/dev/shm";
    const bool is_there = medium == Medium::memory && access(in_memory.c_str(), W_OK) == 0;
    std::string pattern = (is_there ? in_memory : std::filesystem::temp_directory_path()) / "ejkernel_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder can be made: " + pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace ejk::testing
