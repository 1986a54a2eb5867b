// An input made from another one.
#pragma once

#include <string>
#include <vector>

#include "ejkernel/testing/random.h"

namespace ejk::fuzz {

inline constexpr size_t kLongestInput = 1024;

/// One to eight random changes: bits, bytes, numbers at the ends of their ranges (in binary and in digits), pieces
/// removed, repeated or inserted, `words` inserted or written over, the end of `other` in place of the own.
std::string mutated(std::string input, const std::string& other, const std::vector<std::string>& words,
                    testing::Random& random);

}  // namespace ejk::fuzz
