#include "ejkernel/platform/cpu/thread_pool.h"

#include <hwy/base.h>
#include <hwy/cache_control.h>
#include <system_error>

#include "ejkernel/platform/cpu/cpu_info.h"

namespace ejk::cpu {
namespace {

/// About what waking a thread costs in a virtual machine, so that waiting awake wastes at most as much as it may save.
constexpr std::chrono::microseconds kAwake(100);

}  // namespace

void Signal::give() {
  given_.store(1);  // in one order with the look at who sleeps, or that could come first
  given_.notify_one();
}

bool Signal::take() { return given_.load(std::memory_order_relaxed) == 1 && given_.exchange(0) == 1; }

void Signal::await(std::chrono::microseconds awake) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 16;  // about 1 us
  const auto until = Clock::now() + awake;
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (take()) return;
      hwy::Pause();
    }
  } while (Clock::now() < until);
  while (!take()) given_.wait(0);
}

ThreadPool::ThreadPool(int threads) : awake_(threads > usable_cores() ? std::chrono::microseconds(0) : kAwake) {
  for (int worker = 1; worker < threads; ++worker) {
    Helper& helper = *helpers_.emplace_back(std::make_unique<Helper>());
    try {
      helper.thread = std::thread([this, &helper, worker] { help(helper, worker); });
    } catch (const std::system_error&) {  // the system has no more
      helpers_.pop_back();
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  body_ = nullptr;
  for (const auto& helper : helpers_) {
    helper->start.give();
    helper->thread.join();
  }
}

void ThreadPool::run(int workers, FunctionRef<void(int worker)> body) {
  body_ = &body;
  unfinished_.store(workers, std::memory_order_relaxed);
  for (int worker = 1; worker < workers; ++worker) helpers_[static_cast<size_t>(worker) - 1]->start.give();
  body(0);
  int finished = 1;  // or never begun: where others have the cores a thread may come milliseconds later
  for (int worker = 1; worker < workers; ++worker) finished += helpers_[static_cast<size_t>(worker) - 1]->start.take();
  if (unfinished_.fetch_sub(finished, std::memory_order_acq_rel) != finished) done_.await(awake_);
}

void ThreadPool::help(Helper& self, int worker) {
  for (;;) {
    self.start.await(awake_);
    if (body_ == nullptr) return;
    (*body_)(worker);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) done_.give();
  }
}

}  // namespace ejk::cpu
