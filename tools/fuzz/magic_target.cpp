// A target to test the fuzzer with: a fault behind six bytes, each of which is compared only when those before it fit.
// No blind change finds all at once; who keeps an input for each further byte finds one after the other.
#include <stdexcept>

#include "tools/fuzz/targets.h"

namespace ejk::fuzz {
namespace {

void run_magic(const std::string& input) {
  if (input.size() < 6) return;
  if (input[0] != 'j') return;
  if (input[1] != 'X') return;
  if (input[2] != '3') return;
  if (input[3] != '\x80') return;
  if (input[4] != '~') return;
  if (input[5] != '\x1b') return;
  throw std::logic_error("the magic value was found");
}

}  // namespace

Target magic_target() { return {.name = "magic", .seeds = {"......"}, .words = {}, .run = run_magic}; }

}  // namespace ejk::fuzz
