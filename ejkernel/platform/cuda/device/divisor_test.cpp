#include "ejkernel/platform/cuda/device/divisor.cuh"

#include <gtest/gtest.h>

#include <limits>

namespace ejk {
namespace {

void expect_division(int n, int divisor) {
  ASSERT_EQ(cuda::Divisor(divisor).quotient(n), n / divisor) << n << " / " << divisor;
}

TEST(Divisor, divides_small_numbers_by_small_ones) {
  for (int divisor = 1; divisor <= 300; ++divisor)
    for (int n = 0; n <= 2000; ++n) expect_division(n, divisor);
}

TEST(Divisor, divides_beside_multiples_and_powers_of_two) {
  constexpr int kLargest = std::numeric_limits<int>::max();
  for (int bits = 0; bits <= 30; ++bits)
    for (int near = -1; near <= 1; ++near) {
      const int divisor = (1 << bits) + near;
      if (divisor < 1 || divisor > 1 << 30) continue;
      for (const int64_t quotient : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{kLargest} / divisor})
        for (const int64_t n : {quotient * divisor - 1, quotient * divisor, quotient * divisor + 1})
          if (n <= kLargest) expect_division(static_cast<int>(n), divisor);
      expect_division(kLargest, divisor);
      expect_division(kLargest - 1, divisor);
    }
}

}  // namespace
}  // namespace ejk
