#include "ejkernel/runtime/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ejk {
namespace {

bool fits(const Cost& cost, const DeviceProperties& device) {
  return device.shared_bytes_per_block == 0 || cost.shared_bytes <= device.shared_bytes_per_block;
}

}  // namespace

ConfigBlock heuristic_that_fits(const KernelInfo& kernel, const CallView& call, const DeviceProperties& device) {
  const ConfigBlock usual = kernel.heuristic(call, device);
  if (kernel.cost == nullptr || fits(kernel.cost(call, usual, device), device)) return usual;
  for (const ConfigBlock& candidate : kernel.candidates(call, device))
    if (fits(kernel.cost(call, candidate, device), device)) return candidate;
  return usual;
}

double predicted_seconds(const Cost& cost, const DeviceProperties& device, const Peaks& peaks) {
  const double units = std::max(1, device.num_units);
  const double waves = std::ceil(cost.tasks / units);
  return roofline_seconds(peaks, cost.arithmetic, waves * units * cost.task_flops, cost.bytes);
}

std::vector<std::string> hopeless(const KernelInfo& kernel, const CallView& call, const DeviceProperties& device,
                                  const Peaks& peaks, std::span<const ConfigBlock> candidates) {
  std::vector<std::string> reasons(candidates.size());
  if (kernel.cost == nullptr) return reasons;
  std::vector<double> seconds;
  double best = std::numeric_limits<double>::infinity();
  for (size_t n = 0; n < candidates.size(); ++n) {
    const Cost cost = kernel.cost(call, candidates[n], device);
    seconds.push_back(predicted_seconds(cost, device, peaks));
    if (!fits(cost, device))
      reasons[n] = fmt::format("it needs {} bytes of shared memory, and the device has {} for a block",
                               cost.shared_bytes, device.shared_bytes_per_block);
    else
      best = std::min(best, seconds[n]);
  }
  for (size_t n = 0; n < candidates.size(); ++n)
    if (reasons[n].empty() && seconds[n] > kHopeless * best)
      reasons[n] = fmt::format("it is predicted to take {:.1f} times as long as another", seconds[n] / best);
  reasons.front().clear();
  return reasons;
}

}  // namespace ejk
