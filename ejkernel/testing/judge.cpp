#include "ejkernel/testing/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ejk::testing {
namespace {

double rounded_to(DType dtype, double x) {
  alignas(8) std::byte storage[8];
  store_from_double(storage, dtype, 0, x);
  return load_as_double(storage, dtype, 0);
}

/// NaN and infinities must agree. A finite reference at the edge of the dtype's range may round to either side.
bool same_class(double x, double ref, DType dtype) {
  if (std::isnan(ref) || std::isnan(x)) return std::isnan(ref) && std::isnan(x);
  if (std::isinf(ref)) return x == ref;
  if (!std::isinf(x)) return true;
  return (x > 0) == (ref > 0) && std::isinf(rounded_to(dtype, ref * (1 + 4 * unit_roundoff(dtype))));
}

/// Distance between neighbours at the bottom of the dtype's range, where errors stop shrinking with the numbers.
double smallest_step(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-1074;
    case DType::f32:
      return 0x1p-149;
    case DType::bf16:
      return 0x1p-133;
    case DType::f16:
      return 0x1p-24;
    default:
      return 0x1p-9;
  }
}

std::string place_of(const Tensor& t, int64_t flat) {
  std::string text = "]";
  for (int axis = t.rank() - 1; axis >= 0; --axis) {
    text = fmt::format("{}{}{}", axis > 0 ? ", " : "", flat % t.shape[axis], text);
    flat /= t.shape[axis];
  }
  return "[" + text;
}

/// The rule's bound on the largest error.
double allowed_error(const Expected& expected, DType dtype, double largest_spread, double largest_ref) {
  const Tolerance& t = expected.tolerance;
  return 2 * expected.base_error + t.factor * t.roundoff * (largest_spread + largest_ref) + smallest_step(dtype);
}

/// One tensor on its way to a judgement.
class Judge {
 public:
  Judge(const Expected& expected, const Tensor& got)
      : expected_(expected), got_(got), values_(convert(got, DType::f64)) {}

  Judgement run() {
    const size_t count = expected_.ref.size();
    for (size_t n = 0; n < count && result_.failure.empty(); ++n) look_at(n);
    if (expected_.at) look_for_unwritten();
    if (expected_.exact || !result_.failure.empty()) return result_;

    const Tolerance& t = expected_.tolerance;
    const double step = smallest_step(got_.dtype);
    result_.error = worst_;
    result_.allowed = allowed_error(expected_, got_.dtype, largest_spread_, largest_ref_);
    result_.ratio = worst_ == 0 ? 0 : worst_ / result_.allowed;
    if (!(result_.ratio <= 1))
      fail(worst_at_,
           fmt::format("error {:.3g} is {:.2f} times the allowed {:.3g}", worst_, result_.ratio, result_.allowed));
    const double norm = std::sqrt(error_squares_);
    const double cap =
        t.norm_cap * std::sqrt(ref_squares_ + spread_squares_) + step * std::sqrt(static_cast<double>(count));
    const double bound = std::max(cap, 2 * expected_.base_norm);
    if (result_.failure.empty() && !(norm <= bound))
      fail(worst_at_, fmt::format("error norm {:.3g} is above its cap {:.3g}", norm, bound));
    return result_;
  }

 private:
  double value(int64_t at) const { return values_.as<const double>()[at]; }
  int64_t flat(size_t n) const { return expected_.at ? (*expected_.at)[n] : static_cast<int64_t>(n); }

  void fail(size_t n, const std::string& why) {
    result_.ratio = std::max(result_.ratio, std::numeric_limits<double>::min());
    result_.failure = fmt::format("{} at {}: got {:.9g}, expected {:.9g}", why, place_of(got_, flat(n)), value(flat(n)),
                                  expected_.ref[n]);
  }

  void look_at(size_t n) {
    const double x = value(flat(n)), ref = expected_.ref[n];
    if (expected_.exact) {
      const bool equal = x == ref || (std::isnan(x) && std::isnan(ref));
      if (!equal) fail(n, "not equal"), result_.ratio = std::numeric_limits<double>::infinity();
      return;
    }
    if (!same_class(x, ref, got_.dtype)) {
      fail(n, "NaN or infinity where the reference has none, or the other way round");
      result_.ratio = std::numeric_limits<double>::infinity();
      return;
    }
    if (!std::isfinite(x) || !std::isfinite(ref)) return;
    const double error = std::abs(x - ref), spread = expected_.spread[n];
    if (error > worst_) worst_ = error, worst_at_ = n;
    largest_ref_ = std::max(largest_ref_, std::abs(ref));
    largest_spread_ = std::max(largest_spread_, spread);
    error_squares_ += error * error;
    ref_squares_ += ref * ref;
    spread_squares_ += spread * spread;
  }

  /// Elements that are not judged still have to be written: outputs were full of NaN before.
  void look_for_unwritten() {
    std::vector<bool> judged(static_cast<size_t>(got_.num_elements()));
    for (const int64_t n : *expected_.at) judged[static_cast<size_t>(n)] = true;
    for (int64_t n = 0; n < got_.num_elements() && result_.failure.empty(); ++n)
      if (!judged[static_cast<size_t>(n)] && std::isnan(value(n)))
        result_.failure = fmt::format("NaN at {}: never written", place_of(got_, n));
  }

  const Expected& expected_;
  const Tensor& got_;
  const Array values_;
  Judgement result_;
  double worst_ = 0, largest_ref_ = 0, largest_spread_ = 0;
  double error_squares_ = 0, ref_squares_ = 0, spread_squares_ = 0;
  size_t worst_at_ = 0;
};

}  // namespace

Tolerance tolerance_of(DType input, bool soft_cap) {
  const double narrow = soft_cap ? 3 : 2;
  switch (input) {
    case DType::f64:
      return {.roundoff = 0x1p-53, .factor = 16, .norm_cap = 5e-6 * 0x1p-29};
    case DType::f16:
      return {.roundoff = 0x1p-11, .factor = narrow, .norm_cap = 1.5e-3};
    case DType::bf16:
      return {.roundoff = 0x1p-8, .factor = narrow, .norm_cap = 1e-2};
    case DType::e4m3:
      return {.roundoff = 0x1p-4, .factor = narrow, .norm_cap = 1e-1};
    case DType::e5m2:
      return {.roundoff = 0x1p-3, .factor = narrow, .norm_cap = 2e-1};
    case DType::i8:
      return {.roundoff = 0x1p-8, .factor = narrow, .norm_cap = 1e-2};  // exact codes, bf16 elsewhere
    default:
      return {};
  }
}

Judgement judge(const Expected& expected, const Tensor& got) { return Judge(expected, got).run(); }

std::string compare_whole(const Expected& expected, const Tensor& a, const Tensor& b) {
  double largest = 0, spread = 0;
  for (int64_t n = 0; n < b.num_elements(); ++n)
    if (const double y = get(b, n); std::isfinite(y)) largest = std::max(largest, std::abs(y));
  for (const double s : expected.spread) spread = std::max(spread, s);
  double allowed = expected.exact ? 0 : 2 * allowed_error(expected, a.dtype, spread, largest);
  // Where nothing was judged, or only sums without a term (rows that see no key), there is no measure of what honest
  // rounding costs: sums that cancel leave a residue.
  if (!expected.exact && spread == 0) allowed = std::numeric_limits<double>::infinity();
  for (int64_t n = 0; n < a.num_elements(); ++n) {
    const double x = get(a, n), y = get(b, n);
    const bool near = std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) <= allowed : same_class(x, y, a.dtype);
    if (!near)
      return fmt::format("{:.9g} at {}, the reference has {:.9g}, allowed {:.3g}", x, place_of(a, n), y, allowed);
  }
  return {};
}

void add_baseline(Expected& expected, const std::vector<double>& x, DType dtype) {
  double squares = 0;
  for (size_t n = 0; n < expected.ref.size(); ++n) {
    if (!std::isfinite(expected.ref[n])) continue;
    const double rounded = rounded_to(dtype, x[n]);
    // A baseline that leaves the range proves nothing; the judge must not take it for leave to be wrong.
    if (!std::isfinite(rounded)) continue;
    const double error = std::abs(rounded - expected.ref[n]);
    expected.base_error = std::max(expected.base_error, error);
    squares += error * error;
  }
  expected.base_norm = std::max(expected.base_norm, std::sqrt(squares));
}

}  // namespace ejk::testing
