// What the rows about times conclude with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ejk::testing {

/// The value below which the q-th part of the values lies: the one there, not one in between. `values` is not empty.
double quantile(std::vector<double> values, double q);
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

/// One-sided sign test: how likely it is that of `count` fair coins at least `heads` show heads.
double sign_test(int64_t heads, int64_t count);
/// The same of ratios above 1, where above and below would be equally likely. It assumes no distribution. Ratios of
/// exactly 1 say nothing.
double sign_test_above_one(std::span<const double> ratios);

/// Holm's step-down: which of the hypotheses are rejected, so that with probability 1 - alpha no true one is.
std::vector<bool> holm_rejects(std::span<const double> p_values, double alpha);

}  // namespace ejk::testing
