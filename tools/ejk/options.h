// Where verbs declare their options. The parser behind it (CLI11) is seen by options.cpp alone, so that a verb compiles
// in seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::tool {

/// What the process returns; documented in --help and docs/command_line.md.
enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2, kRegression = 3 };

/// Options of one (sub)command. A name is "json" for --json; a placeholder is what help shows for the value.
class Options {
 public:
  struct Command;  // the parser's side
  explicit Options(std::shared_ptr<Command> command);

  /// Heads the options that follow in the help text.
  Options& group(std::string heading);

  // An option without a value, with an empty one, or given twice is refused, unless it is one of `values`.

  /// --name, or --name=false
  Options& flag(const std::string& name, bool& to, const std::string& doc);
  Options& flag(const std::string& name, std::function<void(bool)> set, const std::string& doc);
  Options& value(const std::string& name, std::string& to, const std::string& placeholder, const std::string& doc);
  Options& value(const std::string& name, int64_t& to, const std::string& placeholder, const std::string& doc);
  Options& value(const std::string& name, uint64_t& to, const std::string& placeholder, const std::string& doc);
  /// How long to go on.
  Options& seconds(double& to, const std::string& doc, const std::string& name = "seconds");
  /// Calls `set` with the text.
  Options& value(const std::string& name, std::function<void(const std::string&)> set, const std::string& placeholder,
                 const std::string& doc);
  Options& values(const std::string& name, std::vector<std::string>& to, const std::string& placeholder,
                  const std::string& doc);
  Options& positional(const std::string& name, std::string& to, const std::string& doc);

  /// A command below this one; this one's options may follow it as well.
  Options command(const std::string& name, const std::string& doc);
  /// Text below the options in help.
  Options& footer(std::string text);
  /// Called after parsing when this command was given.
  Options& on_given(std::function<void()> act);

 private:
  std::shared_ptr<Command> command_;
};

/// A verb declares its options and returns what to do once they are parsed; that returns the exit code.
using Action = std::function<int()>;
struct Verb {
  std::string_view name;
  std::string_view summary;
  std::string_view examples;
  Action (*declare)(Options& options);
};

/// Parses, runs the verb, and turns errors into one line on standard error and an exit code.
int run_command_line(std::span<const Verb> verbs, int argc, const char* const* argv);

/// The known word nearest to `word`, or "" when none is near.
std::string nearest(std::string_view word, std::span<const std::string> known);
/// `text` with control characters other than line ends spelled \xNN: what the user gave, harmless to a terminal.
std::string printable(std::string_view text);

}  // namespace ejk::tool
