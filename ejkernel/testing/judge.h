// The error rule (reliability A6), one for every kernel, operation and platform.
//
//   allowed = 2 * e_base + c * u * (S + max|ref|),      e = max|x - ref|,      r = e / allowed <= 1
//   ||x - ref|| <= cap * sqrt(||ref||^2 + ||S||^2),     or, where that is more, twice the norm of the float32 runs'
//   errors NaN and infinities exactly where the reference has them
//
// ref is float64. e_base is the largest error of three float32 runs of the plain formula (keys and rows forward,
// reversed, shuffled), with probabilities and their gradients rounded to a 16- or 8-bit input's dtype before they are
// multiplied and the result rounded to the output's dtype. Their norm counts where those gradients lie at the bottom of
// float16's range: the plain formula itself can be beyond the cap there (test NormOfErrors). S belongs to an element:
// the square root of the sum of the squared terms it is made of; the rule takes the largest. u is the unit roundoff of
// the input dtype. Both bounds also leave one step of the output's dtype at the bottom of its range, where errors stop
// shrinking with the numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/core/tensor.h"

namespace ejk::testing {

/// The rule's constants for one output.
struct Tolerance {
  double roundoff = 0x1p-24;  ///< u
  double factor = 16;         ///< c
  double norm_cap = 5e-6;     ///< cap
};
/// For sums over inputs of this dtype. A soft cap passes the logits through one more rounded function.
Tolerance tolerance_of(DType input, bool soft_cap = false);

/// The flat indices of the elements that are judged; absent: all.
using Judged = std::optional<std::vector<int64_t>>;

/// What one output should be, as the oracle says it.
struct Expected {
  bool present = false;             ///< false: the call has no such output, or the oracle leaves it out
  bool exact = false;               ///< bit-equal to `ref` (integers, and exact mode)
  std::vector<double> ref = {};     ///< row-major, or one per entry of `at`
  std::vector<double> spread = {};  ///< S, likewise; empty when exact
  Judged at = {};
  double base_error = 0;  ///< e_base
  double base_norm = 0;   ///< the largest norm of those runs' errors
  Tolerance tolerance = {};
};

struct Judgement {
  double ratio = 0;  ///< r
  double error = 0, allowed = 0;
  std::string failure = {};  ///< empty: right
};
Judgement judge(const Expected& expected, const Tensor& got);

/// Whether two results of one call, neither of which is exact, may both be right where only part of the elements was
/// judged: every pair of elements within twice what the rule allows, by the largest number of all. Empty: they may.
std::string compare_whole(const Expected& expected, const Tensor& a, const Tensor& b);

/// Counts a float32 run of the plain formula, rounded to `dtype`, in e_base and the norm, where both are finite.
void add_baseline(Expected& expected, const std::vector<double>& x, DType dtype);

}  // namespace ejk::testing
