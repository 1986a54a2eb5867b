// How long a row of problems will still take, from how long those before took.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace ejk::tool {

/// Of problems that are done one after the other, each within a budget.
class Pace {
 public:
  Pace(size_t num_problems, double budget_seconds) : num_left_(num_problems), budget_(budget_seconds) {}

  void finish(double seconds) {
    --num_left_;
    ++num_finished_;
    spent_ += seconds;
  }

  /// "about 12 s left": as many seconds a problem as it took so far; of the first only its budget is known. `elapsed`
  /// is what the present one has taken.
  std::string left(double elapsed) const {
    const double each = num_finished_ == 0 ? budget_ : spent_ / static_cast<double>(num_finished_);
    const double others = each * static_cast<double>(num_left_ - 1);
    return fmt::format("{} {:.0f} s left", num_finished_ == 0 ? "at most" : "about",
                       std::max(0.0, each - elapsed) + others);
  }

 private:
  size_t num_left_, num_finished_ = 0;
  double budget_, spent_ = 0;
};

}  // namespace ejk::tool
