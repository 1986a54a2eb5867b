#include "tools/table/kernel_trials.h"

#include <fmt/format.h>

#include <algorithm>

#include "ejkernel/testing/check.h"

namespace ejk::testing {
namespace {

bool is_reference(const Kernel& kernel) {
  return kernel->platform == Platform::reference || kernel->name == kDeviceReference;
}
std::string name_of(const TestOperation& tests, const Kernel& kernel) {
  return fmt::format("{} {}", tests.name(), kernel->name);
}

}  // namespace

KernelTrials::KernelTrials(const std::vector<const TestOperation*>& operations, Device device, Tally& tally)
    : device_(device), tally_(tally) {
  for (const TestOperation* tests : operations)
    for (const Kernel& kernel : kernels_of(*tests->declaration, device))
      if (!is_reference(kernel)) judged_[name_of(*tests, kernel)] = 0;
}

void KernelTrials::judge(const TestOperation& tests, const Problem& problem, const Answer& answer) {
  bool judged = false;
  for (const Kernel& kernel : kernels_of(*tests.declaration, device_)) {
    if (is_reference(kernel) && judged) continue;
    const Verdict verdict = check_kernel(problem, answer, kernel, {.seed = problem.seed, .device = device_});
    if (!verdict.supported) continue;
    judged = true;
    tally_.add(problem, kernel, verdict);
    if (is_reference(kernel)) {
      tally_.count("by_a_reference_alone");
    } else if (!verdict.vacuous) {
      const std::lock_guard lock(mutex_);
      ++judged_[name_of(tests, kernel)];
    }
  }
  if (!judged) tally_.add(problem.label + ": no kernel takes it");
}

RowResult KernelTrials::result(int64_t least) const {
  RowResult result = tally_.result();
  int64_t fewest = result.n;
  for (const auto& [name, trials] : judged_) {
    fewest = std::min(fewest, trials);
    if (trials >= least) continue;
    ++result.failures;
    result.notes.push_back(fmt::format("{} was judged {} times, not {}", name, trials, least));
  }
  result.figures["fewest_trials_of_a_kernel"] = static_cast<double>(fewest);
  return result;
}

}  // namespace ejk::testing
