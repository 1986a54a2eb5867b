#include "ejkernel/testing/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace ejk::testing {

Watchdog::Watchdog(double seconds) : thread_([this, seconds] { watch(seconds); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  heard_.notify_one();
  thread_.join();
}

void Watchdog::hear(std::string next) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(next);
  ++count_;
  heard_.notify_one();
}

void Watchdog::watch(double seconds) {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    const long before = count_;
    const bool heard =
        heard_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return is_over_ || count_ != before; });
    if (heard) continue;
    std::fprintf(stderr, "hang: nothing was heard for %.0f s of %s\n", seconds, what_.c_str());
    std::fflush(nullptr);
    _exit(3);
  }
}

}  // namespace ejk::testing
