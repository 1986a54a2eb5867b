// Reader of the safetensors format: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes.
//
// A file is untrusted. Everything its header claims is checked when it is opened, before a tensor is handed out, and
// whatever is wrong becomes one InvalidArgument that says what. What is not guarded against: another process that
// truncates the file while it is mapped (the read then ends in SIGBUS, as for every mapped file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <ejkernel/core/tensor.h>

namespace minilm {

class SafeTensors {
 public:
  /// One tensor of the file: its dtype as the file spells it, its shape, and where its bytes lie.
  struct Entry {
    std::string_view dtype;
    ejk::Shape shape;
    std::span<const std::byte> bytes;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  /// Maps the file for reading. Throws ejk::InvalidArgument when there is no such file or its content lies.
  explicit SafeTensors(const std::string& path);
  /// The same for bytes in memory, which `owner` keeps alive; `name` stands for the file in messages.
  SafeTensors(std::string name, std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  const Entries& entries() const { return entries_; }

  /// The tensor of that name, without a copy: it shares the mapping, which lives as long as the last such Array and is
  /// not writable. (Where a file leaves the bytes misaligned for their dtype, it is an aligned copy.) Throws
  /// ejk::InvalidArgument when there is none, or when the library has no such dtype.
  ejk::Array tensor(std::string_view name) const;

 private:
  void read_header(std::span<const std::byte> file);

  std::string name_;
  std::shared_ptr<const void> owner_;
  Entries entries_;
};

}  // namespace minilm
