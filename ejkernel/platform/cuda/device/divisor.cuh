// Division by a number that is known before the launch: a product and a shift in place of some twenty instructions.
#pragma once

#include "ejkernel/platform/cuda/device/target.cuh"

namespace ejk::cuda {

/// A divisor from 1 to 2^30, and what it takes to divide by it (Granlund and Montgomery, "Division by invariant
/// integers using multiplication", 1994).
struct Divisor {
  int value;
  int shift;      ///< log2 of the divisor, rounded up
  uint32 factor;  ///< (2^shift / value - 1) * 2^32, rounded up

  constexpr explicit Divisor(int divisor) : value(divisor), shift(0), factor(0) {
    while ((1 << shift) < value) ++shift;
    factor = static_cast<uint32>(((static_cast<uint64>((1 << shift) - value)) << 32) / static_cast<uint64>(value) + 1);
  }

  /// n / value, rounded down, of n >= 0.
  EJK_DEVICE int quotient(int n) const {
    const auto numerator = static_cast<uint32>(n);
    const auto product = static_cast<uint32>(static_cast<uint64>(numerator) * factor >> 32);
    return static_cast<int>((product + numerator) >> shift);
  }
};

}  // namespace ejk::cuda
