#include "examples/minilm/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <ejkernel/core/validate.h>

namespace minilm {
namespace {

class FileDescriptor {
 public:
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  explicit FileDescriptor(const std::string& path) : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

MappedFile map_file(const std::string& path) {
  const auto refuse = [&](const std::string& got) {
    ejk::throw_invalid("minilm", "file " + printable(path), "be a file that can be read", got, "check the path");
  };
  const FileDescriptor file(path);
  struct stat facts = {};
  if (file.number() < 0 || ::fstat(file.number(), &facts) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) refuse("something that is no regular file");
  const auto size = static_cast<size_t>(facts.st_size);
  if (size == 0) return {};  // nothing to map
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (data == MAP_FAILED) refuse(std::strerror(errno));
  return {.bytes = {static_cast<const std::byte*>(data), size},
          .owner = {data, [size](void* mapping) { ::munmap(mapping, size); }}};
}

std::string printable(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string result = "'";
  for (char c : text.substr(0, kShown)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > kShown ? "...'" : "'");
}

}  // namespace minilm
