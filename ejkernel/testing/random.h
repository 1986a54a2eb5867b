// The harness's random numbers: the same from a seed on every machine and standard library, so that a seed printed by a
// failing test replays it anywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace ejk::testing {

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Bounded draws have a bias below 2^-32, which tests do not mind.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  /// [0, n); 0 for n <= 1.
  int64_t below(int64_t n) { return n <= 1 ? 0 : static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  /// [low, high].
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  /// [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
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

 private:
  uint64_t state_;
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
