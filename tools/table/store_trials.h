// What the rows about the store share: records that are their own witnesses, and files as bytes.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "ejkernel/core/store.h"
#include "ejkernel/testing/random.h"

namespace ejk::testing {

inline RecordKey key_of(int64_t i) {
  return {
      .environment = "cpu|some processor", .group = i % 2 == 0 ? "op" : "other_op", .text = "key " + std::to_string(i)};
}

/// Long enough for several writes, and its own witness: what is read back is whole or it is not.
inline std::string value_of(int64_t sequence, size_t size = 20000) {
  std::string value = std::to_string(sequence) + ":";
  Random random(static_cast<uint64_t>(sequence));
  while (value.size() < size) value += static_cast<char>(random.below(256));
  return value;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// For this user alone, as records are.
inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace ejk::testing
