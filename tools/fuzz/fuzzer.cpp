#include "tools/fuzz/fuzzer.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "tools/fuzz/coverage.h"
#include "tools/fuzz/mutate.h"

/// A failed assertion and an exception that nobody catches are reported as a bad address is. The other sanitizer, which
/// has an end of its own, aborts as well.
extern "C" const char* __asan_default_options() { return "handle_abort=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1"; }
extern "C" void __sanitizer_set_death_callback(void (*callback)());

namespace ejk::fuzz {
namespace {

const Target* running_target = nullptr;
const std::string* running_input = nullptr;

/// What the process says when it ends in an input.
void print_replay() {
  if (running_input == nullptr) return;
  const std::string hex = to_hex(*running_input);
  const std::string text =
      fmt::format("input {}\nreplay: ejkernel_fuzz replay {} {}\n", hex, running_target->name, hex);
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(1);
}

void end_hanging(int) {
  print_replay();
  _exit(1);
}

void print_replay_at_the_end() {
  static const bool done = [] {
    __sanitizer_set_death_callback(print_replay);
    ::signal(SIGALRM, end_hanging);
    return true;
  }();
  (void)done;
}

/// Half of the time one of the newest: what it reached has been tried least.
const std::string& pick(const std::vector<std::string>& corpus, testing::Random& random) {
  constexpr size_t kNewest = 16;
  const size_t from = random.chance(0.5) ? corpus.size() - std::min(kNewest, corpus.size()) : 0;
  return corpus[from + static_cast<size_t>(random.below(static_cast<int64_t>(corpus.size() - from)))];
}

}  // namespace

std::string fault_of(const Target& target, const std::string& input) {
  print_replay_at_the_end();
  running_target = &target;
  running_input = &input;
  std::string fault;
  try {
    target.run(input);
  } catch (const Error&) {
  } catch (const std::exception& error) {
    fault = error.what();
  }
  running_input = nullptr;
  return fault;
}

FuzzResult fuzz(const Target& target, const FuzzOptions& options) {
  constexpr unsigned kSecondsUntilHanging = 60;  // for this many inputs
  constexpr int64_t kInputs = 256;
  forget_coverage();
  testing::Random random(options.seed);
  std::vector<std::string> corpus = target.seeds;
  if (corpus.empty()) corpus.emplace_back();
  FuzzResult result;
  while (result.executions < options.executions && result.fault.empty()) {
    if (result.executions % kInputs == 0) alarm(kSecondsUntilHanging);
    const bool is_seed = result.executions < static_cast<int64_t>(corpus.size()) &&
                         result.executions < static_cast<int64_t>(target.seeds.size());
    result.input = is_seed ? corpus[static_cast<size_t>(result.executions)]
                           : mutated(pick(corpus, random), pick(corpus, random), target.words, random);
    ++result.executions;
    begin_coverage();
    result.fault = fault_of(target, result.input);
    const bool is_new = end_coverage();
    if (is_new && !is_seed && options.guided) corpus.push_back(result.input);
  }
  alarm(0);
  result.corpus = static_cast<int64_t>(corpus.size());
  result.edges = num_edges();
  return result;
}

std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex.empty() ? "-" : hex;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  if (text == "-") return bytes;
  for (size_t at = 0; at < text.size(); at += 2) {
    unsigned value = 0;
    const std::string_view digits = text.substr(at, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || digits.size() != 2 || end != digits.data() + 2)
      throw_invalid("fuzz", "the input", "be pairs of hexadecimal digits, or -", text, "copy it whole");
    bytes += static_cast<char>(value);
  }
  return bytes;
}

}  // namespace ejk::fuzz
