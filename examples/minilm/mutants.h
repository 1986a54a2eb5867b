// For the tests of the readers: what a broken disk, a broken download or a malicious author makes of a good file.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace minilm {

/// Changes one thing. `words` are pieces of the format, which turn up where they do not belong.
inline void mutate(std::string& file, std::span<const std::string_view> words, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  if (file.empty()) file = words[below(words.size())];
  switch (below(6)) {
    case 0:  // a bit flips
      file[below(file.size())] ^= static_cast<char>(1 << below(8));
      break;
    case 1:  // a byte becomes another
      file[below(file.size())] = static_cast<char>(random());
      break;
    case 2:  // the end is missing
      file.resize(below(file.size()));
      break;
    case 3:  // a piece is missing
      file.erase(below(file.size()), below(40));
      break;
    case 4:  // a piece is there twice
      file.insert(below(file.size()), file.substr(below(file.size()), below(40)));
      break;
    default:
      file.insert(below(file.size()), words[below(words.size())]);
  }
}

/// The bytes in a block of exactly their size, so that AddressSanitizer sees any step beyond it.
struct ExactCopy {
  explicit ExactCopy(const std::string& bytes) : size(bytes.size()) {
    auto copy = std::make_unique<std::byte[]>(size);
    std::memcpy(copy.get(), bytes.data(), size);
    block = std::move(copy);
  }
  std::span<const std::byte> bytes() const { return {block.get(), size}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(block.get()), size}; }

  std::shared_ptr<const std::byte[]> block;
  size_t size;
};

}  // namespace minilm
