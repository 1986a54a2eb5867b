// A kernel that hangs must not hang its test: the process ends, and says where.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace ejk::testing {

/// Ends the process with exit code 3 when nothing is heard for `seconds`.
class Watchdog {
 public:
  explicit Watchdog(double seconds = 10);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// All is well; `next` is what would hang from now on.
  void hear(std::string next);

 private:
  void watch(double seconds);

  std::mutex mutex_;
  std::condition_variable heard_;
  std::string what_ = "the start";
  bool is_over_ = false;
  long count_ = 0;
  std::thread thread_;
};

}  // namespace ejk::testing
