// A file's bytes, mapped for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace minilm {

struct MappedFile {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  ///< of the mapping; empty for an empty file

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

/// Throws ejk::InvalidArgument when `path` is no regular file that can be read.
MappedFile map_file(const std::string& path);

/// Text from a file as a message may show it: short, and nothing that a terminal would obey.
std::string printable(std::string_view text);

}  // namespace minilm
