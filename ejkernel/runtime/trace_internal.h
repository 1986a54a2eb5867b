// What a run tells profilers: an NVTX range with the call's label, and an event in the Chrome trace that EJKERNEL_TRACE
// names, which Perfetto and chrome://tracing show. Both are of the host: on a GPU they say when a kernel was launched;
// a profiler relates the kernel's own time to the range.
#pragma once

#include <atomic>
#include <cstdint>

#include "ejkernel/runtime/plan.h"

namespace ejk::tracing {

/// unknown: until somebody asks the environment. On where a trace is named, and where a profiler that wants NVTX's
/// ranges started this process, unless EJKERNEL_OPS_STAMP is none.
enum class State : uint8_t { unknown, off, on };
extern std::atomic<State> state;

/// Asks it now, so that no run has to.
void settle();
/// Asks it again: for tests.
void reload();

/// One run of a plan, from its begin to its end. Costs one load when nobody listens, and never throws.
class Range {
 public:
  explicit Range(const Plan& plan) noexcept {
    if (state.load(std::memory_order_relaxed) != State::off) begin(plan);
  }
  ~Range() {
    if (plan_ != nullptr) end();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  void begin(const Plan& plan) noexcept;
  void end() noexcept;

  const Plan* plan_ = nullptr;
  double began_ = 0;
};

}  // namespace ejk::tracing
