// What the verbs print with: aligned tables, colour and progress on a terminal, JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::tool {

/// Rows of cells, printed with every column as wide as its widest cell.
class Table {
 public:
  /// One letter per column: l left, r right.
  explicit Table(std::string alignment, std::string separator = "  ");
  void add(std::vector<std::string> cells);
  /// A line with the trailing blanks removed, or all of them.
  std::string text(std::string_view indent = "") const;

 private:
  std::string alignment_, separator_;
  std::vector<std::vector<std::string>> rows_;
};

enum class Colour { none, green, yellow, red, bold };
/// `text` in colour when standard output is a terminal and NO_COLOR is not set.
std::string coloured(std::string_view text, Colour colour);

/// One line on standard error that is rewritten, only when that is a terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::string_view text);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

/// "1.2 ms", "34 us": a duration with three digits.
std::string duration(double seconds);
/// "64 MiB"
std::string bytes_text(double bytes);
/// One word of a shell command: quoted when it must be.
std::string shell_word(std::string_view word);

}  // namespace ejk::tool
