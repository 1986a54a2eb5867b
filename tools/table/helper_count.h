// What several threads did, seen from outside: the library itself does not count.
#pragma once

#include <atomic>
#include <cstdint>

namespace ejk::testing {

/// While it lives, counts the tasks of work started by this thread that other threads did.
class HelperCount {
 public:
  HelperCount();
  ~HelperCount();
  HelperCount(const HelperCount&) = delete;
  HelperCount& operator=(const HelperCount&) = delete;

  int64_t tasks() const { return tasks_; }
  /// A task of this thread's work is done, by the thread that calls it.
  void task_done();

 private:
  HelperCount* const before_;
  const void* const caller_;
  std::atomic<int64_t> tasks_{0};
};

}  // namespace ejk::testing
