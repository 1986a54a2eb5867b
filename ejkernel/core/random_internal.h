// Random numbers that are the same from a seed on every machine and with every standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace ejk {

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Bounded draws have a bias below 2^-32, which contents of tensors
/// and tests do not mind.
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
  /// [low, high]; low when high is less.
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  /// [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace ejk
