// Runs a target on mutations of a corpus; an input that runs edges as none before it did joins the corpus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::fuzz {

/// Something that takes bytes from outside. It may throw ejk::Error; whatever else it throws is a fault, as is what a
/// sanitizer reports.
struct Target {
  std::string_view name;
  std::vector<std::string> seeds;
  std::vector<std::string> words;  ///< that its inputs are made of
  void (*run)(const std::string& input);
};

struct FuzzOptions {
  int64_t executions = 0;
  uint64_t seed = 1;
  bool guided = true;  ///< false: no input joins the corpus
};

struct FuzzResult {
  int64_t executions = 0, corpus = 0, edges = 0;
  std::string fault = {};  ///< what was thrown; empty: nothing
  std::string input = {};  ///< that it was thrown for
};

/// The seeds, then mutations until `executions` are made or a fault is found. The same options run the same inputs.
FuzzResult fuzz(const Target& target, const FuzzOptions& options);

/// One input; what it throws besides ejk::Error, empty for nothing. When the process ends in it (a sanitizer's report,
/// a minute without an end) the last that it says is the input and the command that replays it.
std::string fault_of(const Target& target, const std::string& input);

std::string to_hex(std::string_view bytes);
/// InvalidArgument for what is no hexadecimal text.
std::string from_hex(std::string_view text);

}  // namespace ejk::fuzz
