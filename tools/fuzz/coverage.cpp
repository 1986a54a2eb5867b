#include "tools/fuzz/coverage.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace {

constexpr size_t kSize = size_t{1} << 16;  // a few thousand edges rarely collide

std::array<uint8_t, kSize> counts, seen;
std::array<uint32_t, kSize> touched;
size_t num_touched = 0;
uintptr_t previous = 0;
bool is_recording = false;

/// The bit of a count's class.
uint8_t class_of(uint8_t count) {
  constexpr std::array<uint8_t, 8> kLeast = {1, 2, 3, 4, 8, 16, 32, 128};
  size_t n = kLeast.size();
  while (count < kLeast[n - 1]) --n;
  return static_cast<uint8_t>(1 << (n - 1));
}

}  // namespace

extern "C" const char __executable_start;

/// Called by every basic block. Where it came from is taken relative to the program, which lies elsewhere in every
/// process.
extern "C" __attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc() {
  if (!is_recording) return;
  const uintptr_t block =
      (reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - reinterpret_cast<uintptr_t>(&__executable_start)) *
      0x9E3779B97F4A7C15u;
  const auto edge = static_cast<uint32_t>(((block >> 40) ^ previous) % kSize);
  previous = block >> 41;  // shifted, so that the way back is another edge
  if (counts[edge] == 0) touched[num_touched++] = edge;
  if (counts[edge] < UINT8_MAX) ++counts[edge];
}

namespace ejk::fuzz {

void begin_coverage() {
  previous = 0;
  is_recording = true;
}

bool end_coverage() {
  is_recording = false;
  bool is_new = false;
  for (size_t n = 0; n < num_touched; ++n) {
    uint8_t& count = counts[touched[n]];
    uint8_t& known = seen[touched[n]];
    const uint8_t seen_now = class_of(count);
    is_new = is_new || (known & seen_now) == 0;
    known |= seen_now;
    count = 0;
  }
  num_touched = 0;
  return is_new;
}

int64_t num_edges() {
  return std::count_if(seen.begin(), seen.end(), [](uint8_t known) { return known != 0; });
}

void forget_coverage() { seen.fill(0); }

}  // namespace ejk::fuzz
