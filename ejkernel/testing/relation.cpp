#include "ejkernel/testing/relation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ejkernel/testing/check.h"

namespace ejk::testing {
namespace {

bool same_special(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::isinf(a) || std::isinf(b) ? a == b : true;
}

}  // namespace

std::vector<Array> KernelRunner::operator()(const Problem& problem) const {
  Outcome outcome = run_guarded(problem, kernel_, {.seed = problem.seed, .device = device_});
  if (!outcome.supported) throw RelationSkipped{outcome.declined};
  if (!outcome.faults.empty()) throw RelationBroken{outcome.faults.front()};
  return std::move(outcome.outputs);
}

std::string compare(const Tensor& a, const Tensor& b, double relative, double floor) {
  if (!(a.shape == b.shape)) return fmt::format("shapes {} and {}", to_string(a.shape), to_string(b.shape));
  double scale = floor;
  for (int64_t n = 0; n < b.num_elements(); ++n)
    if (const double y = get(b, n); std::isfinite(y)) scale = std::max(scale, std::abs(y));
  for (int64_t n = 0; n < a.num_elements(); ++n) {
    const double x = get(a, n), y = get(b, n);
    if (same_special(x, y) && !(std::abs(x - y) > relative * scale)) continue;
    return fmt::format("element {}: {:.9g} and {:.9g}, allowed {:.3g}", n, x, y, relative * scale);
  }
  return {};
}

std::string compare_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape == b.shape)) return fmt::format("shapes {} and {}", to_string(a.shape), to_string(b.shape));
  for (int64_t n = 0; n < a.num_elements(); ++n) {
    const double x = get(a, n), y = get(b, n);
    const bool equal = std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y);
    if (!equal) return fmt::format("element {}: {:.17g} and {:.17g}", n, x, y);
  }
  return {};
}

}  // namespace ejk::testing
