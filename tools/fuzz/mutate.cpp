#include "tools/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace ejk::fuzz {
namespace {

using testing::Random;

/// [0, end), or 0 where that is empty.
size_t position(Random& random, size_t end) {
  return end == 0 ? 0 : static_cast<size_t>(random.below(static_cast<int64_t>(end)));
}

/// Most pieces are short.
size_t length(Random& random, size_t most) {
  return most == 0 ? 0 : static_cast<size_t>(random.log_uniform(1, static_cast<int64_t>(most)));
}

void write_over(std::string& input, size_t at, std::string_view piece) {
  if (input.size() < at + piece.size()) input.resize(at + piece.size());
  std::memcpy(input.data() + at, piece.data(), piece.size());
}

/// 1, 2, 4 or 8 bytes of a number at the end of a range.
void set_binary_number(std::string& input, Random& random) {
  constexpr std::array<int64_t, 12> kNumbers = {0,         1,         -1,        16,        INT8_MAX, INT16_MAX,
                                                INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1 << 20,  UINT32_MAX};
  const int64_t number = kNumbers[position(random, kNumbers.size())];
  const size_t size = size_t{1} << random.below(4);
  if (input.size() < size) return;
  std::memcpy(input.data() + position(random, input.size() - size + 1), &number, size);
}

/// Another number in place of a run of digits.
void set_decimal_number(std::string& input, Random& random) {
  static const std::vector<std::string> numbers = {"0",          "-1",    "1", "65536", "9223372036854775807",
                                                   "4294967296", "1e999", "-", "00",    "18446744073709551616",
                                                   "0.5",        "nan"};
  const size_t from = position(random, input.size());
  const size_t begin = std::min(input.find_first_of("0123456789", from), input.size());
  const size_t end = std::min(input.find_first_not_of("0123456789", begin), input.size());
  input.replace(begin, end - begin, random.pick(numbers));
}

void change(std::string& input, const std::string& other, const std::vector<std::string>& words, Random& random) {
  const size_t at = position(random, input.size());
  switch (random.below(11)) {
    case 0:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << random.below(8)));
      break;
    case 1:
    case 2:
      if (!input.empty()) input[at] = static_cast<char>(random.below(256));
      break;
    case 3:
      if (!input.empty()) input[at] = static_cast<char>(input[at] + random.between(-16, 16));
      break;
    case 4:
      set_binary_number(input, random);
      break;
    case 5:
      set_decimal_number(input, random);
      break;
    case 6:
      input.erase(at, length(random, input.size() - at));
      break;
    case 7:
      input.insert(position(random, input.size() + 1), input.substr(at, length(random, input.size() - at)));
      break;
    case 8:
      for (size_t n = length(random, 8); n > 0; --n) input.insert(at, 1, static_cast<char>(random.below(256)));
      break;
    case 9:
      if (!words.empty() && random.chance(0.5))
        write_over(input, at, random.pick(words));
      else if (!words.empty())
        input.insert(position(random, input.size() + 1), random.pick(words));
      break;
    default:
      input = input.substr(0, at) + other.substr(position(random, other.size() + 1));
      break;
  }
}

}  // namespace

std::string mutated(std::string input, const std::string& other, const std::vector<std::string>& words,
                    Random& random) {
  for (int64_t changes = random.log_uniform(1, 8); changes > 0; --changes) change(input, other, words, random);
  if (input.size() > kLongestInput) input.resize(kLongestInput);
  return input;
}

}  // namespace ejk::fuzz
