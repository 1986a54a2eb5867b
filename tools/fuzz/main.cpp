// ejkernel_fuzz run TARGET --n N [--seed S]: N executions; one line of what came of them.
// ejkernel_fuzz replay TARGET HEX: one input again.
// ejkernel_fuzz list: the targets.
//
// A fault ends the process after the input and the command that replays it.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/validate.h"
#include "tools/fuzz/targets.h"

namespace {

using namespace ejk::fuzz;

template <class T>
T number(std::string_view option, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    ejk::throw_invalid("fuzz", option, "be a whole number", text, "for example --n 20000");
  return value;
}

int report_fault(const Target& target, const std::string& fault, const std::string& input) {
  const std::string hex = to_hex(input);
  fmt::print(stderr, "{}: {}\ninput {}\nreplay: ejkernel_fuzz replay {} {}\n", target.name, fault, hex, target.name,
             hex);
  return 1;
}

int run(const Target& target, int argc, char** argv) {
  FuzzOptions options;
  for (int i = 3; i < argc; i += 2) {
    const std::string_view option = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--n")
      options.executions = number<int64_t>(option, value);
    else if (option == "--seed")
      options.seed = number<uint64_t>(option, value);
    else
      ejk::throw_invalid("fuzz", "the option", "be --n or --seed", option, "for example --n 20000 --seed 7");
  }
  const FuzzResult result = fuzz(target, options);
  fmt::print("executions {} corpus {} edges {}\n", result.executions, result.corpus, result.edges);
  return result.fault.empty() ? 0 : report_fault(target, result.fault, result.input);
}

int act(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if (verb == "list" && argc == 2) {
    for (const Target& target : targets()) fmt::print("{}\n", target.name);
    return 0;
  }
  if (verb == "run" && argc >= 3) return run(find_target(argv[2]), argc, argv);
  if (verb == "replay" && argc == 4) {
    const Target& target = find_target(argv[2]);
    const std::string input = from_hex(argv[3]), fault = fault_of(target, input);
    return fault.empty() ? 0 : report_fault(target, fault, input);
  }
  ejk::throw_invalid("fuzz", "the command", "be list, run or replay", verb,
                     "for example ejkernel_fuzz run config --n 20000");
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", /*overwrite=*/0);
  ejk::use_store("");
  try {
    return act(argc, argv);
  } catch (const ejk::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
