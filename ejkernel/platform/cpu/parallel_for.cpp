// All workers take tasks from one counter, which gives the order and the worker limit that the header promises.
#include "ejkernel/platform/cpu/parallel_for.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>

#include "ejkernel/core/environment.h"
#include "ejkernel/platform/cpu/cpu_info.h"
#include "ejkernel/platform/cpu/thread_pool.h"

namespace ejk::cpu {
namespace {

using Body = FunctionRef<void(int64_t, int)>;

thread_local int scoped_threads = 0;  // 0: none
thread_local int most_threads = std::numeric_limits<int>::max();
thread_local bool in_task = false;
thread_local LentThreads* lent_threads = nullptr;

/// The tasks of one parallel_for, which any number of threads take from.
class Tasks {
 public:
  Tasks(Body body, int64_t num_tasks) : body_(body), num_tasks_(num_tasks) {}

  void work(int worker) {
    in_task = true;
    while (!failed_.load(std::memory_order_relaxed)) {
      const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks_) break;
      try {
        body_(task, worker);
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
    in_task = false;
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const Body body_;
  const int64_t num_tasks_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

/// What lent threads share. They may come when the caller has left: it is kept until the last one has seen that.
class OpenJob : public Tasks {
 public:
  using Tasks::Tasks;

  void help() {
    uint32_t seen = state_.load(std::memory_order_relaxed);
    do {
      if (seen & kClosed) return;
    } while (!state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel));
    work(1 + helpers_.fetch_add(1, std::memory_order_relaxed));
    if (state_.fetch_sub(1, std::memory_order_acq_rel) == (kClosed | 1)) state_.notify_one();
  }

  /// Lets nobody in any more, and waits for those inside.
  void close() {
    uint32_t seen = state_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
    while (seen != kClosed) {
      state_.wait(seen, std::memory_order_acquire);
      seen = state_.load(std::memory_order_acquire);
    }
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  std::atomic<int> helpers_{0};
  std::atomic<uint32_t> state_{0};  ///< how many are inside, and kClosed
};

/// The library's threads.
class Pool {
 public:
  static Pool& instance() {
    static Pool pool;
    return pool;
  }

  /// False when somebody else has the pool.
  bool try_lock() { return !busy_.exchange(true, std::memory_order_acquire); }
  void unlock() { busy_.store(false, std::memory_order_release); }

  /// Needs the lock. A pool of at least that many threads, if the system has them.
  ThreadPool& threads(int workers) {
    if (threads_ == nullptr || asked_for_ < workers) {
      delete threads_;
      threads_ = nullptr;
      asked_for_ = std::max(workers, num_threads());
      threads_ = new ThreadPool(asked_for_);
    }
    return *threads_;
  }

 private:
  Pool() {
    pthread_atfork(nullptr, nullptr, [] { instance().forget_threads(); });
  }

  /// At exit, and before the library is unloaded. The lock is kept: whoever comes later works alone.
  ~Pool() {
    if (try_lock()) delete threads_;
  }

  /// In a forked child: only the forking thread exists, so the pool's memory is abandoned (but stays reachable for leak
  /// checkers), and so is the lock if another thread had it.
  void forget_threads() {
    abandoned_ = threads_;
    threads_ = nullptr;
    busy_.store(false, std::memory_order_relaxed);
  }

  std::atomic<bool> busy_{false};
  int asked_for_ = 0;
  ThreadPool* threads_ = nullptr;
  ThreadPool* abandoned_ = nullptr;
};

void run_alone(int64_t num_tasks, Body body) {
  for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

void run_with_lent_threads(int64_t num_tasks, Body body, int workers) {
  const auto job = std::make_shared<OpenJob>(body, num_tasks);
  try {
    for (int n = 1; n < workers; ++n) lent_threads->schedule([job] { job->help(); });
  } catch (...) {  // fewer helpers then; those that were asked must find the job closed in the end
  }
  job->work(0);
  job->close();
  job->rethrow();
}

}  // namespace

int num_threads() {
  if (scoped_threads > 0) return scoped_threads;
  const int here = std::min(default_num_threads(), most_threads);
  return lent_threads == nullptr ? here : std::clamp(lent_threads->count(), 1, here);
}

int default_num_threads() {
  const int wanted = environment::num_threads();
  return wanted > 0 ? wanted : usable_cores();
}

int worthwhile_threads(double flops, double bytes) {
  constexpr double kFlops = 2e6, kBytes = 256 << 10;
  return static_cast<int>(std::clamp(1 + flops / kFlops + bytes / kBytes, 1.0, 1e6));
}

void parallel_for(int64_t num_tasks, Body body, int max_workers) {
  if (num_tasks <= 1 || max_workers <= 1 || in_task) return run_alone(num_tasks, body);
  const int workers = static_cast<int>(std::min<int64_t>({num_tasks, max_workers, num_threads()}));
  if (workers <= 1) return run_alone(num_tasks, body);
  if (lent_threads != nullptr) return run_with_lent_threads(num_tasks, body, workers);
  Pool& pool = Pool::instance();
  if (!pool.try_lock()) return run_alone(num_tasks, body);
  struct Unlock {
    Pool& pool;
    ~Unlock() { pool.unlock(); }
  } const unlock{pool};
  Tasks tasks(body, num_tasks);
  ThreadPool& threads = pool.threads(workers);
  threads.run(std::min(workers, threads.num_threads()), [&](int worker) { tasks.work(worker); });
  tasks.rethrow();
}

void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task)> body) {
  parallel_for(num_tasks, [&](int64_t task, int) { body(task); });
}

ScopedNumThreads::ScopedNumThreads(int threads) : before_(scoped_threads) { scoped_threads = std::max(threads, 1); }
ScopedNumThreads::~ScopedNumThreads() { scoped_threads = before_; }

ScopedMaxThreads::ScopedMaxThreads(int threads) : before_(most_threads) {
  most_threads = std::min(before_, std::max(threads, 1));
}
ScopedMaxThreads::~ScopedMaxThreads() { most_threads = before_; }

ScopedLentThreads::ScopedLentThreads(LentThreads& threads) : before_(lent_threads) { lent_threads = &threads; }
ScopedLentThreads::~ScopedLentThreads() { lent_threads = before_; }

}  // namespace ejk::cpu
