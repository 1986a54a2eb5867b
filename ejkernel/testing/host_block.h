// A block of device code's threads on the host: what device code takes for a `Block` (platform/cuda/device/block.cuh).
// Its warps have one lane.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

namespace ejk::testing {

class HostBlock {
 public:
  HostBlock(int thread, int threads, std::barrier<>* all) : thread_(thread), threads_(threads), all_(all) {}

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
  std::barrier<>* all_;
};

/// Calls f(block) in every thread of a block.
template <class F>
void run_block(int threads, F&& f) {
  std::barrier<> all(threads);
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([&f, &all, t, threads] { f(HostBlock(t, threads, &all)); });
  f(HostBlock(0, threads, &all));
}

}  // namespace ejk::testing
