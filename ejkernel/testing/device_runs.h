// What only shows when a call on a device runs often: reruns, graphs, streams and tensors of more than 2^31 elements.
// Each function says in words what was wrong; the tests on a device and the rows of the reliability table count its
// answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ejkernel/runtime/config.h"
#include "ejkernel/testing/operation.h"
#include "ejkernel/testing/resident.h"

namespace ejk::testing {

/// Operations that have a kernel for the device, whether it is here or not.
std::vector<const TestOperation*> operations_on(Device device);

/// work(i) for i in [0, n) on all of the host's threads, CPU kernels on one thread each: problems are made and judged,
/// and kernels compiled, beside each other. What work throws ends the process: catch it there.
void in_threads(int64_t n, const std::function<void(int64_t)>& work);

/// A problem and one of the kernel's candidates for it.
struct Configuration {
  Problem problem;
  Kernel kernel;
  std::optional<ConfigValues> config = {};
  double tasks = 0;          ///< independent parts of the work, as the kernel counts them; 0: it does not
  std::string text() const;  ///< with the command that replays its problem
};
/// Every candidate of the kernel for the problem; where there is nothing to choose, the one configuration.
std::vector<Configuration> candidates_for(const Problem& problem, const Kernel& kernel, Device device);

/// So that planning them again finds their code. One that does not compile is left to whoever runs it.
void compile_all(std::span<const Configuration> all, Device device);

/// The first `count` of the kernel's random problems up to 32 MB, each with a config of its own and its code compiled.
/// Dense ones in turn with others; of the normal size dense ones only, most of which are more tasks than a GPU has
/// multiprocessors. All ask for equal bits: so are the answers compared.
std::vector<Configuration> configurations(const TestOperation& tests, const Kernel& kernel, Device device, size_t count,
                                          uint64_t seed, Size size = Size::small);

/// Other work on a stream of its own for the object's lifetime: what a race needs to show.
class OtherWork {
 public:
  OtherWork(const Configuration& work, Device device);
  ~OtherWork();
  OtherWork(const OtherWork&) = delete;
  OtherWork& operator=(const OtherWork&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Reruns into poisoned outputs whose bits differ from the first run's.
int64_t unequal_reruns(const Configuration& configuration, Device device, int64_t reruns);

/// Launches of a captured graph whose results are not those of a plain run, the inputs' contents changed before each.
int64_t wrong_replays(const Configuration& configuration, Device device, int64_t replays);

/// Rounds of two calls on two streams at once in which one had other bits than alone.
int64_t wrong_beside(const Configuration& a, const Configuration& b, Device device, int64_t rounds);

/// The call with every large tensor spread so that its last row begins near element `top`, against contiguous copies,
/// bit for bit. Absent: nothing in it can be spread, all of it would take more than 64 GB, or the kernel declines.
/// Empty: equal.
std::optional<std::string> far_call(const Configuration& configuration, Device device, int64_t top);

}  // namespace ejk::testing
