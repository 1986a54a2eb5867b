// Plans timed side by side on the same data. Drift of the machine is the same for all of them in a round, so that what
// is concluded is concluded from ratios within rounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ejkernel/runtime/plan.h"

namespace ejk::testing {

struct SideBySideOptions {
  double max_seconds = 0.5;  ///< no further round then
  int64_t min_rounds = 31;   ///< but these
  int64_t max_rounds = 400;
  double sample_seconds = 200e-6;  ///< of one plan in one round
};

/// Where plans of one call write.
struct CallMemory {
  explicit CallMemory(std::span<const Plan> plans);
  std::vector<Array> outputs;
  Array workspace;
};

/// Seconds of one run: [plan][round]. Every other round goes through the plans backwards. The plans are of one call on
/// the host, with different configs.
std::vector<std::vector<double>> time_side_by_side(std::span<const Plan> plans, std::span<const Tensor> inputs,
                                                   const CallMemory& memory, const SideBySideOptions& options = {});

/// Time of the second in terms of the first's, round by round.
std::vector<double> ratios_of(std::span<const double> first, std::span<const double> second);

}  // namespace ejk::testing
