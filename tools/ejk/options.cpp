#include "tools/ejk/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/core/version.h"

namespace ejk::tool {

struct Options::Command {
  CLI::App* app = nullptr;
};

Options::Options(std::shared_ptr<Command> command) : command_(std::move(command)) {}

namespace {

constexpr std::string_view kExitCodes =
    "Exit codes: 0 done; 1 a check failed, or nothing here can do it; 2 the command line or an argument is wrong;\n"
    "3 slower than the baseline by more than the margin.";

std::string dashed(const std::string& name) { return "--" + name; }

/// The innermost command that was given.
const CLI::App* innermost(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
  return app;
}

/// What could stand where `word` does: commands, or options of the command and of those around it that it passes on.
std::vector<std::string> candidates(const CLI::App* app, bool option) {
  std::vector<std::string> known;
  for (; app != nullptr; app = app->get_fallthrough() ? app->get_parent() : nullptr) {
    for (const CLI::Option* o : app->get_options())
      if (option)
        for (const std::string& name : o->get_lnames()) known.push_back(dashed(name));
    for (const CLI::App* sub : app->get_subcommands(nullptr))
      if (!option) known.push_back(sub->get_name());
  }
  return known;
}

std::string path_of(const CLI::App* app) {
  return app->get_parent() == nullptr ? app->get_name() : path_of(app->get_parent()) + " " + app->get_name();
}

/// "command: what must be so, got what was given; what to do", as all errors of the library.
int refuse(const CLI::App* app, std::string_view what, std::string_view got, std::string_view hint = {}) {
  const std::string path = path_of(app);
  fmt::print(stderr, "{}: {}, got {}; {}see {} --help\n", path, what, printable(got), hint, path);
  return kUsage;
}

int refuse_unknown(const CLI::App& root) {
  const CLI::App* app = innermost(&root);
  const std::vector<std::string> rest = root.remaining(/*recurse=*/true);
  const std::string word = rest.empty() ? "" : rest.front(), name = word.substr(0, word.find('='));
  const std::string got = fmt::format("'{}'", name);
  if (word.starts_with("-")) {
    const std::string near = nearest(name, candidates(app, /*option=*/true));
    return refuse(app, "an option must be one of this command's", got,
                  near.empty() ? "" : fmt::format("did you mean {}? ", near));
  }
  if (app->get_subcommands(nullptr).empty()) return refuse(app, "a further word must be left out", got);
  const std::vector<std::string> known = candidates(app, /*option=*/false);
  const std::string near = nearest(name, known);
  return refuse(app, fmt::format("the word must be one of {}", fmt::join(known, ", ")), got,
                near.empty() ? "" : fmt::format("did you mean {}? ", near));
}

constexpr std::string_view kEmpty = "have a value", kNoFlag = "be true or false";

/// A validator of the parser's: what the value must be, or nothing where it is so.
CLI::Validator must(std::string_view expected, bool (*is)(const std::string&)) {
  return {[=](std::string& text) { return is(text) ? std::string() : std::string(expected); }, ""};
}
CLI::Validator must_have_a_value() {
  return must(kEmpty, [](const std::string& text) { return !text.empty(); });
}
CLI::Validator must_be_a_flag() {
  return must(kNoFlag, [](const std::string& text) { return text == "true" || text == "false"; });
}

/// The last value that was given to the option of that name.
std::string value_of(const CLI::App* app, std::string_view option) {
  for (; app != nullptr; app = app->get_parent())
    if (const CLI::Option* found = app->get_option_no_throw(std::string(option));
        found != nullptr && found->count() > 0)
      return found->results().back();
  return {};
}

/// What the parser found wrong: an option without its value, with a wrong one or with two, or more rarely something
/// else, in its own words.
int refuse_malformed(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* app = innermost(&root);
  const std::string_view words = error.what(), option = words.substr(0, words.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && words.starts_with("--")) {
    if (value_of(app, option).empty()) return refuse(app, fmt::format("{} must have a value", option), "none");
    return refuse(app, fmt::format("{} must be given once", option), "it twice");
  }
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr)
    for (const std::string_view expected : {kEmpty, kNoFlag})
      if (words.ends_with(expected))
        return refuse(app, fmt::format("{} must {}", option, expected), fmt::format("'{}'", value_of(app, option)));
  return refuse(innermost(&root), "the command line must be what its help says", fmt::format("'{}'", words));
}

/// The tool's own errors already begin with its name.
void complain(std::string_view text) {
  fmt::print(stderr, "{}{}\n", text.starts_with("ejk: ") ? "" : "ejk: ", printable(text));
}

/// Errors become one line and an exit code.
int guarded(const std::function<int()>& action) {
  try {
    return action();
  } catch (const InvalidArgument& error) {
    complain(error.what());
    return kUsage;
  } catch (const std::exception& error) {
    complain(error.what());
    return kFailed;
  }
}

[[noreturn]] void refuse_number(std::string_view option, std::string_view text, std::string_view expected) {
  throw_invalid("ejk", option, expected, fmt::format("'{}'", text), "write it in digits");
}

template <class T>
T parse_number(std::string_view option, std::string_view text, std::string_view expected) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) refuse_number(option, text, expected);
  return number;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> known) {
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known)
    if (const size_t distance = edit_distance(word, candidate); distance < least) {
      least = distance;
      best = candidate;
    }
  return best;
}

std::string printable(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || (byte >= 0x20 && byte != 0x7f))
      safe += c;
    else
      safe += fmt::format("\\x{:02x}", byte);
  }
  return safe;
}

Options& Options::group(std::string heading) {
  command_->app->option_defaults()->group(std::move(heading));
  return *this;
}

Options& Options::flag(const std::string& name, bool& to, const std::string& doc) {
  command_->app->add_flag(dashed(name), to, doc)->check(must_be_a_flag());
  return *this;
}

Options& Options::flag(const std::string& name, std::function<void(bool)> set, const std::string& doc) {
  command_->app
      ->add_flag_function(
          dashed(name), [set = std::move(set)](std::int64_t count) { set(count > 0); }, doc)
      ->check(must_be_a_flag());
  return *this;
}

Options& Options::value(const std::string& name, std::string& to, const std::string& placeholder,
                        const std::string& doc) {
  command_->app->add_option(dashed(name), to, doc)->type_name(placeholder)->check(must_have_a_value());
  return *this;
}

Options& Options::value(const std::string& name, int64_t& to, const std::string& placeholder, const std::string& doc) {
  return value(
      name,
      [&to, name](const std::string& text) { to = parse_number<int64_t>(dashed(name), text, "be a whole number"); },
      placeholder, doc);
}

Options& Options::value(const std::string& name, uint64_t& to, const std::string& placeholder, const std::string& doc) {
  const auto set = [&to, name](const std::string& text) {
    to = parse_number<uint64_t>(dashed(name), text, "be a whole number of at least 0");
  };
  return value(name, set, placeholder, doc);
}

Options& Options::seconds(double& to, const std::string& doc, const std::string& name) {
  const auto set = [&to, option = dashed(name)](const std::string& text) {
    constexpr std::string_view kExpected = "be a number of seconds";
    to = parse_number<double>(option, text, kExpected);
    if (!(to >= 0 && std::isfinite(to))) refuse_number(option, text, kExpected);
  };
  return value(name, set, "S", doc);
}

Options& Options::value(const std::string& name, std::function<void(const std::string&)> set,
                        const std::string& placeholder, const std::string& doc) {
  command_->app->add_option_function<std::string>(dashed(name), std::move(set), doc)
      ->type_name(placeholder)
      ->check(must_have_a_value());
  return *this;
}

Options& Options::values(const std::string& name, std::vector<std::string>& to, const std::string& placeholder,
                         const std::string& doc) {
  command_->app->add_option(dashed(name), to, doc)
      ->type_name(placeholder)
      ->allow_extra_args(false)
      ->check(must_have_a_value());
  return *this;
}

Options& Options::positional(const std::string& name, std::string& to, const std::string& doc) {
  command_->app->add_option(name, to, doc)->type_name("")->check(must_have_a_value());
  return *this;
}

Options Options::command(const std::string& name, const std::string& doc) {
  CLI::App* sub = command_->app->add_subcommand(name, doc);
  sub->fallthrough();
  return Options(std::make_shared<Command>(Command{sub}));
}

Options& Options::footer(std::string text) {
  command_->app->footer(std::move(text));
  return *this;
}

Options& Options::on_given(std::function<void()> act) {
  command_->app->callback(std::move(act));
  return *this;
}

int run_command_line(std::span<const Verb> verbs, int argc, const char* const* argv) {
  CLI::App root("The command line of ejkernel: measures, checks and explains its kernels.", "ejk");
  root.set_version_flag("--version", fmt::format("ejkernel {}", kVersion));
  root.get_formatter()->column_width(34);
  root.require_subcommand(0, 1);  // a word after the verb is the verb's, whatever other verbs there are
  root.footer(fmt::format("{}\nejk VERB --help shows a verb's options and examples.", kExitCodes));
  Action action;
  for (const Verb& verb : verbs) {
    CLI::App* sub = root.add_subcommand(std::string(verb.name), std::string(verb.summary));
    sub->require_subcommand(0, 1);  // a second operation would silently take the first one's place
    sub->footer(fmt::format("Examples:\n{}\n{}", verb.examples, kExitCodes));
    if (argc < 2 || verb.name != argv[1]) continue;  // only the verb in use looks at the operations
    Options options(std::make_shared<Options::Command>(Options::Command{sub}));
    if (const int code = guarded([&] { return action = verb.declare(options), kOk; }); code != kOk) return code;
  }
  if (argc < 2) {
    fmt::print(stderr, "{}", root.help());
    return kUsage;
  }
  return guarded([&] {
    try {
      root.parse(argc, argv);
    } catch (const CLI::ExtrasError&) {
      return refuse_unknown(root);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return root.exit(error);  // --help, --version
      return refuse_malformed(root, error);
    }
    return action ? action() : refuse(&root, "the first word must be a verb", fmt::format("'{}'", argv[1]));
  });
}

}  // namespace ejk::tool
