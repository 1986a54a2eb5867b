#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include <nlohmann/json.hpp>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/store_files_internal.h"
#include "ejkernel/runtime/config.h"
#include "ejkernel/runtime/planned_call.h"
#include "ejkernel/runtime/timer.h"
#include "ejkernel/runtime/trace_internal.h"

#if EJK_WITH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace ejk::tracing {

std::atomic<State> state{State::unknown};

namespace {

/// Where ranges and events go.
class Listeners {
 public:
  static Listeners& instance() {
    static auto* listeners = new Listeners;  // never destroyed: calls may come while the process exits
    return *listeners;
  }

  void follow_environment() {
    const std::lock_guard lock(mutex_);
    const bool stamped = environment::ops_stamp() != environment::OpsStamp::none;
    // Who wants NVTX's ranges names the library that gets them before the process starts.
    ranges_ = EJK_WITH_NVTX && stamped && std::getenv("NVTX_INJECTION64_PATH") != nullptr;
    file_ = environment::trace_file();
    begun_ = false;
    state = ranges_ || !file_.empty() ? State::on : State::off;
  }

  bool wants_ranges() const { return ranges_; }

  /// One line per event. The list has no end: viewers take it so, and it is of use however the process ends.
  void write(const std::string& event) {
    const std::lock_guard lock(mutex_);
    if (file_.empty()) return;
    const store_files::File file(file_, store_files::Access::append);
    const auto info = file.is_open() ? file.info() : std::nullopt;
    const bool is_new = !begun_ && info && info->st_size == 0;
    if (file.is_open() && file.write((is_new ? "[\n" : "") + event + ",\n")) {
      begun_ = true;
      return;
    }
    log_once("trace " + file_, LogLevel::warning,
             fmt::format("the trace cannot be written to {}: {}; it ends here", file_, std::strerror(errno)));
    file_.clear();
  }

 private:
  std::mutex mutex_;
  bool ranges_ = false;
  bool begun_ = false;
  std::string file_;
};

std::string event_of(const Plan& plan, double began, double seconds) {
  const bool stamped = environment::ops_stamp() != environment::OpsStamp::none;
  nlohmann::ordered_json event = {{"name", plan.operation().name},
                                  {"cat", "ejkernel"},
                                  {"ph", "X"},
                                  {"ts", began * 1e6},
                                  {"dur", seconds * 1e6},
                                  {"pid", getpid()},
                                  {"tid", gettid()},
                                  {"args",
                                   {{"kernel", plan.kernel().name},
                                    {"config", to_string(plan.kernel(), plan.choice().config)},
                                    {"device", to_string(plan.device())}}}};
  if (stamped) event["args"]["label"] = label_of(plan);
  return event.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void settle() {
  if (state.load() == State::unknown) reload();
}
void reload() { Listeners::instance().follow_environment(); }

void Range::begin(const Plan& plan) noexcept try {
  settle();
  if (state.load() == State::off) return;
#if EJK_WITH_NVTX
  if (Listeners::instance().wants_ranges()) nvtxRangePushA(label_of(plan).c_str());
#endif
  plan_ = &plan;
  began_ = now_seconds();
} catch (...) {  // tracing never fails a call
}

void Range::end() noexcept try {
  const double seconds = now_seconds() - began_;
#if EJK_WITH_NVTX
  if (Listeners::instance().wants_ranges()) nvtxRangePop();
#endif
  Listeners::instance().write(event_of(*plan_, began_, seconds));
} catch (...) {  // nor here
}

}  // namespace ejk::tracing
