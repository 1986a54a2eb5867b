// Metamorphic relations (reliability A6.7): what must hold between calls of one kernel, at any size and without an
// oracle. A relation makes its problems, runs the kernel on them and compares.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/testing/problem.h"

namespace ejk::testing {

/// Runs one kernel on a problem and hands out its outputs, contiguous. Throws RelationSkipped when the kernel declines,
/// RelationBroken when a run breaks the rules of check.h (guard bands, unwritten elements, changed inputs).
class KernelRunner {
 public:
  explicit KernelRunner(std::shared_ptr<const KernelInfo> kernel, Device device = {})
      : kernel_(std::move(kernel)), device_(device) {}
  std::vector<Array> operator()(const Problem& problem) const;
  const KernelInfo& kernel() const { return *kernel_; }

 private:
  std::shared_ptr<const KernelInfo> kernel_;
  Device device_;
};

struct RelationSkipped {
  std::string reason;
};
struct RelationBroken {
  std::string what;
};

struct Relation {
  std::string_view name;  ///< "causal_is_an_explicit_mask"
  /// Returns what is wrong, or nothing. A pure function of the seed and the kernel.
  std::string (*check)(uint64_t seed, Size size, const KernelRunner& run);
};

/// |a - b| <= relative * max(|b| over all, floor) element by element; NaN and infinities must agree. Empty: they do.
std::string compare(const Tensor& a, const Tensor& b, double relative, double floor = 0);
/// Bit for bit (NaN equals NaN).
std::string compare_bits(const Tensor& a, const Tensor& b);

}  // namespace ejk::testing
