// A block of device code's threads on the host: what device code takes for a `Block` (platform/cuda/device/block.cuh).
// Its warps have one lane.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ejk::testing {

/// std::barrier's threads yield before they sleep: beside other programs each wait costs a time slice, and a test
/// thirty times as long.
class HostBarrier {
 public:
  explicit HostBarrier(int threads) : threads_(threads), missing_(threads) {}

  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (--missing_ == 0) {
      missing_ = threads_;
      ++round_;
      all_are_here_.notify_all();
    } else {
      all_are_here_.wait(lock, [&] { return round_ != round; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_are_here_;
  const int threads_;
  int missing_;
  int64_t round_ = 0;
};

class HostBlock {
 public:
  HostBlock(int thread, int threads, HostBarrier* all) : thread_(thread), threads_(threads), all_(all) {}

  int thread() const { return thread_; }
  int threads() const { return threads_; }
  int lane() const { return 0; }
  int lanes() const { return 1; }
  int warp() const { return thread_; }
  int warps() const { return threads_; }
  void sync() const {
    if (threads_ > 1) all_->arrive_and_wait();
  }
  double warp_sum(double x) const { return x; }

 private:
  int thread_, threads_;
  HostBarrier* all_;
};

/// Calls f(block) in every thread of a block.
template <class F>
void run_block(int threads, F&& f) {
  HostBarrier all(threads);
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([&f, &all, t, threads] { f(HostBlock(t, threads, &all)); });
  f(HostBlock(0, threads, &all));
}

}  // namespace ejk::testing
