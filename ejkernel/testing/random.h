// The harness's random numbers: the same from a seed on every machine and standard library, so that a seed printed by a
// failing test replays it anywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "ejkernel/core/random_internal.h"

namespace ejk::testing {

/// What the harness draws besides the numbers themselves.
class Random : public ejk::Random {
 public:
  using ejk::Random::Random;

  bool chance(double probability) { return uniform() < probability; }
  /// [low, high] with every power of two equally likely: small sizes are as interesting as large ones. low >= 1.
  int64_t log_uniform(int64_t low, int64_t high) {
    if (high <= low) return low;
    const double x =
        std::exp(std::log(static_cast<double>(low)) +
                 uniform() * (std::log(static_cast<double>(high) + 1) - std::log(static_cast<double>(low))));
    const auto n = static_cast<int64_t>(x);
    return n < low ? low : n > high ? high : n;
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<int64_t>(choices.size()))];
  }
  template <class T>
  const T& pick(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(below(static_cast<int64_t>(choices.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
  }
  /// An independent stream, so that what one part draws does not move another part's draws.
  Random fork(uint64_t stream) { return Random(bits() ^ (stream * 0xD1342543DE82EF95u)); }
};

/// A length: log-uniform up to `most`, with the values where kernels go wrong over-weighted: 0, 1, one off a tile's
/// end, primes.
inline int64_t random_length(Random& random, int64_t most, bool zero_allowed = true) {
  if (random.chance(0.4)) {
    const int64_t tile = random.pick<int64_t>({8, 16, 32, 64, 128, 256});
    const int64_t edge =
        random.pick<int64_t>({0, 1, 2, 3, 7, 13, 31, 97, 127, 131, tile - 1, tile, tile + 1, 2 * tile + 1});
    if (edge <= most && (edge > 0 || zero_allowed)) return edge;
  }
  return random.log_uniform(1, most < 1 ? 1 : most);
}

}  // namespace ejk::testing
