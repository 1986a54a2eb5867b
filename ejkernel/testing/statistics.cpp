#include "ejkernel/testing/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace ejk::testing {

double quantile(std::vector<double> values, double q) {
  const auto at = static_cast<ptrdiff_t>(std::floor(q * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

double sign_test(int64_t heads, int64_t count) {
  const auto n = static_cast<double>(count);
  double p = 0;
  for (int64_t k = std::max<int64_t>(heads, 0); k <= count; ++k) {
    const auto h = static_cast<double>(k);
    p += std::exp(std::lgamma(n + 1) - std::lgamma(h + 1) - std::lgamma(n - h + 1) - n * std::log(2.0));
  }
  return std::min(p, 1.0);
}

double sign_test_above_one(std::span<const double> ratios) {
  const auto above = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio > 1; });
  const auto below = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio < 1; });
  return sign_test(above, above + below);
}

std::vector<bool> holm_rejects(std::span<const double> p_values, double alpha) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p_values[a] < p_values[b]; });
  std::vector<bool> rejects(p_values.size(), false);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (p_values[order[rank]] > alpha / static_cast<double>(order.size() - rank)) break;
    rejects[order[rank]] = true;
  }
  return rejects;
}

}  // namespace ejk::testing
