#include "ejkernel/testing/side_by_side.h"

#include <algorithm>

#include "ejkernel/runtime/timer.h"

namespace ejk::testing {

CallMemory::CallMemory(std::span<const Plan> plans) : outputs(plans[0].allocate_outputs()) {
  size_t bytes = 1;
  for (const Plan& plan : plans) bytes = std::max(bytes, plan.workspace_bytes());
  workspace = Array(DType::u8, {static_cast<int64_t>(bytes)});
}

std::vector<std::vector<double>> time_side_by_side(std::span<const Plan> plans, std::span<const Tensor> inputs,
                                                   const CallMemory& memory, const SideBySideOptions& options) {
  const std::vector<Tensor> outputs(memory.outputs.begin(), memory.outputs.end());
  const RunOptions run{
      .workspace = {memory.workspace.as<std::byte>(), static_cast<size_t>(memory.workspace.shape()[0])}};

  std::vector<Sampler> samplers;
  for (const Plan& plan : plans)
    samplers.push_back(make_sampler([&](int64_t) { plan.run(inputs, outputs, run); }, options.sample_seconds));
  std::vector<std::vector<double>> seconds(plans.size());
  const double until = now_seconds() + options.max_seconds;
  for (int64_t round = 0; round < options.max_rounds; ++round) {
    if (round >= options.min_rounds && now_seconds() >= until) break;
    for (size_t turn = 0; turn < plans.size(); ++turn) {
      const size_t plan = round % 2 == 0 ? turn : plans.size() - 1 - turn;
      plans[plan].run(inputs, outputs, run);  // threads that fell asleep beside another are not this one's to wake
      seconds[plan].push_back(samplers[plan]());
    }
  }
  return seconds;
}

std::vector<double> ratios_of(std::span<const double> first, std::span<const double> second) {
  std::vector<double> ratios;
  for (size_t round = 0; round < first.size(); ++round) ratios.push_back(second[round] / first[round]);
  return ratios;
}

}  // namespace ejk::testing
