// Work shared among the threads of the library's one pool.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "ejkernel/platform/cpu/function_ref.h"

namespace ejk::cpu {

/// Threads that work started by this thread uses, the thread itself included: default_num_threads(), unless a
/// ScopedNumThreads or a ScopedMaxThreads says otherwise.
int num_threads();
/// EJKERNEL_NUM_THREADS, else what affinity and cgroup quota allow.
int default_num_threads();

/// Threads that have enough to do for what it costs to wake them: some 20 us.
int worthwhile_threads(double flops, double bytes);

/// Calls body(task, worker) for every task in [0, num_tasks) and returns when all are done. Tasks are handed out in
/// rising order to at most `max_workers` and at most num_threads() workers, the caller among them; tasks that run at
/// the same time have different workers in [0, max_workers), so `worker` may name a piece of scratch memory.
///
/// Runs all tasks in the caller, in order, as worker 0: when called from a task, while another thread has the pool, and
/// when there is only one task or one thread. So it never waits for anything but tasks that have started. The pool's
/// threads start at the first use that needs them, and again in a forked child; from then on nothing is allocated.
///
/// Where a ScopedLentThreads lives, its threads take the pool's place.
///
/// The first exception that a task throws is thrown here once all started tasks are done; tasks not started are
/// dropped.
void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int worker)> body,
                  int max_workers = std::numeric_limits<int>::max());
void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task)> body);

/// While it lives, work started by this thread uses `threads` threads (at least 1). More than the machine has are fine:
/// tests compare results across numbers of threads.
class ScopedNumThreads {
 public:
  explicit ScopedNumThreads(int threads);
  ~ScopedNumThreads();
  ScopedNumThreads(const ScopedNumThreads&) = delete;
  ScopedNumThreads& operator=(const ScopedNumThreads&) = delete;

 private:
  int before_;
};

/// While it lives, work started by this thread uses at most `threads` threads (at least 1), unless a ScopedNumThreads
/// says how many: what is known of a piece of work gives way to what somebody asked for.
class ScopedMaxThreads {
 public:
  explicit ScopedMaxThreads(int threads);
  ~ScopedMaxThreads();
  ScopedMaxThreads(const ScopedMaxThreads&) = delete;
  ScopedMaxThreads& operator=(const ScopedMaxThreads&) = delete;

 private:
  int before_;
};

/// Threads that belong to somebody else, as XLA's do in a JAX program.
class LentThreads {
 public:
  virtual ~LentThreads() = default;
  virtual int count() const = 0;
  /// Calls the task once, on one of them: soon, or long after the parallel_for that asked for it has returned.
  virtual void schedule(std::function<void()> task) = 0;
};

/// While it lives, work started by this thread is shared with these threads and not with the library's own. Each
/// parallel_for then allocates what late tasks still look at.
class ScopedLentThreads {
 public:
  explicit ScopedLentThreads(LentThreads& threads);
  ~ScopedLentThreads();
  ScopedLentThreads(const ScopedLentThreads&) = delete;
  ScopedLentThreads& operator=(const ScopedLentThreads&) = delete;

 private:
  LentThreads* before_;
};

}  // namespace ejk::cpu
