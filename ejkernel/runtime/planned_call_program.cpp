// Planned calls in a program's text. Each is the content of a string literal there, so its quotes are escaped: as \22
// by MLIR, as \22 or \" by XLA, and once more where the literal stands within another one, as in a GPU's
// backend_config. The text may come from anywhere: what begins like a call of ours and is none is refused, and
// everything is read once.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/planned_call.h"
#include "ejkernel/runtime/recorded_internal.h"

namespace ejk {
namespace {

/// More than this no literal of ours takes, and no program has more of them.
constexpr size_t kMostLetters = 8 << 20;
constexpr size_t kMostCalls = 16 * kMaxInvocations;

/// How a quote of the call's JSON is spelled inside so many literals.
struct Spelling {
  std::string_view quote;
  int literals;
};
constexpr std::array<Spelling, 4> kSpellings = {{{R"(\22)", 1}, {R"(\")", 1}, {R"(\\22)", 2}, {R"(\\\")", 2}}};

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/// Whether `{"version":<digits>,"label"` or `…,"config"` stands there in this spelling.
bool begins_call(std::string_view text, const Spelling& as) {
  const auto take = [&](std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  const auto take_name = [&](std::string_view name) { return take(as.quote) && take(name) && take(as.quote); };
  if (!take("{") || !take_name("version") || !take(":") || text.empty() || !is_digit(text.front())) return false;
  text.remove_prefix(std::min(text.size(), text.find_first_not_of("0123456789")));
  return take(",") && take(as.quote) && (text.starts_with("label") || text.starts_with("config"));
}

/// What is left of the literal that the text is inside of.
std::string_view literal_at(std::string_view text) {
  for (size_t i = 0; i < std::min(text.size(), kMostLetters); ++i) {
    if (text[i] == '"') return text.substr(0, i);
    if (text[i] == '\\') ++i;
  }
  throw_invalid("planned call", "its text", fmt::format("end with a quote within {} bytes", kMostLetters), "none",
                "give all of the program's text");
}

int hex_value(char letter) {
  if (is_digit(letter)) return letter - '0';
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

std::string unescaped(std::string_view literal) {
  std::string text;
  text.reserve(literal.size());
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text += literal[i];
      continue;
    }
    const char next = literal[++i];
    const int high = hex_value(next), low = i + 1 < literal.size() ? hex_value(literal[i + 1]) : -1;
    if (high >= 0 && low >= 0) {
      text += static_cast<char>(16 * high + low);
      ++i;
    } else {
      text += next == 'n' ? '\n' : next == 't' ? '\t' : next;
    }
  }
  return text;
}

}  // namespace

std::vector<PlannedCall> planned_calls_in(std::string_view program) {
  constexpr std::string_view kWord = "version";
  std::vector<PlannedCall> calls;
  for (size_t at = 0; (at = program.find(kWord, at)) != std::string_view::npos; at += kWord.size())
    for (const Spelling& spelling : kSpellings) {
      const size_t before = 1 + spelling.quote.size();
      if (at < before || !begins_call(program.substr(at - before), spelling)) continue;
      try {
        const std::string_view literal = literal_at(program.substr(at - before));
        std::string text = unescaped(literal);
        if (spelling.literals == 2) text = unescaped(literal_at(text));
        calls.push_back(planned_call_from_json(text));
        at += literal.size() - before - kWord.size();
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(fmt::format("byte {} of the program: {}", at - before, error.what()));
      }
      if (calls.size() > kMostCalls)
        throw_invalid("planned calls", "a program", fmt::format("have no more than {}", kMostCalls), "more",
                      "give its parts one by one");
      break;
    }
  return calls;
}

std::vector<PlannedCall> load_planned_calls(const std::string& file) {
  const std::string text =
      recording::contents_of("load_planned_calls", file, "write one with jax.jit(f).lower(…).as_text()");
  try {
    return planned_calls_in(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file, error.what()));
  }
}

}  // namespace ejk
