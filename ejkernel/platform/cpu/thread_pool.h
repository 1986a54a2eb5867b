// Threads that wait for work: awake for a moment, since calls come in rows, then asleep.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "ejkernel/platform/cpu/function_ref.h"

namespace ejk::cpu {

/// Given by one thread and taken by one, again and again.
class Signal {
 public:
  void give();
  /// Takes it if it is there. When two threads try, one of them gets it.
  bool take();
  /// Returns when it was given and this thread took it. Looks for it for as long as `awake` says, then sleeps.
  void await(std::chrono::microseconds awake);

 private:
  std::atomic<uint32_t> given_{0};
};

/// A fixed number of threads. Only one thread may use the pool at a time.
class ThreadPool {
 public:
  /// `threads` of them, the caller of run() among them; fewer where the system has no more.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }
  /// Calls body(0) in the caller and body(worker) in threads, for each worker in [1, workers) whose thread comes before
  /// body(0) returns; returns when all that began are done. `workers` are no more than num_threads().
  void run(int workers, FunctionRef<void(int worker)> body);

 private:
  struct alignas(64) Helper {  // a cache line of its own for each signal
    Signal start;
    std::thread thread;
  };

  void help(Helper& self, int worker);

  const std::chrono::microseconds awake_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  const FunctionRef<void(int)>* body_ = nullptr;  ///< nothing: the threads are to end
  alignas(64) std::atomic<int> unfinished_{0};
  Signal done_;
};

}  // namespace ejk::cpu
