// Problems given to every kernel of a device, and how many each kernel was judged on.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ejkernel/testing/operations.h"
#include "tools/table/rows.h"

namespace ejk::testing {

class KernelTrials {
 public:
  KernelTrials(const std::vector<const TestOperation*>& operations, Device device, Tally& tally);

  /// One trial for each kernel but the reference that takes the problem; for the reference where no other does.
  void judge(const TestOperation& tests, const Problem& problem, const Answer& answer);
  /// The tally's, with the fewest trials that a kernel other than the reference had; below `least` each such kernel is
  /// a failure: what declines every problem has proved nothing.
  RowResult result(int64_t least) const;

 private:
  Device device_;
  Tally& tally_;
  std::mutex mutex_;
  std::map<std::string, int64_t> judged_;  ///< by "operation kernel"
};

}  // namespace ejk::testing
