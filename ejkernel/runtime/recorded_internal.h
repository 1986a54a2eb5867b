// How Plan::run tells of itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ejkernel/runtime/plan.h"

namespace ejk::recording {

/// unknown: until somebody asks the environment.
enum class State : uint8_t { unknown, off, on };
extern std::atomic<State> state;

/// Asks it now, so that no run has to.
void settle();

struct Recorded;  // a distinct call

/// One run of a plan, from its begin to its end. Costs one load when nothing is recorded, and never throws.
class Run {
 public:
  Run(const Plan& plan, std::span<const Tensor> inputs) noexcept {
    if (state.load(std::memory_order_relaxed) != State::off) begin(plan, inputs);
  }
  ~Run() {
    if (recorded_ != nullptr) end();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

 private:
  void begin(const Plan& plan, std::span<const Tensor> inputs) noexcept;
  void end() noexcept;

  std::shared_ptr<Recorded> recorded_;
  bool has_time_ = false;  ///< the host's clock tells how long it takes
  double began_ = 0;
};

/// All of a file that a person named. InvalidArgument of the `reader` says what is wrong with it, and `fix` what to do.
std::string contents_of(std::string_view reader, const std::string& path, std::string_view fix);

}  // namespace ejk::recording
