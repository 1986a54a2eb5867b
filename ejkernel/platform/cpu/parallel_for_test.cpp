#include "ejkernel/platform/cpu/parallel_for.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ejkernel/core/environment.h"

namespace ejk::cpu {
namespace {

/// Runs it where nobody has asked for a number of threads yet.
void in_new_thread(FunctionRef<void()> body) { std::thread(body).join(); }

int64_t sum_of_tasks(int64_t num_tasks) {
  std::atomic<int64_t> sum{0};
  parallel_for(num_tasks, [&](int64_t task) { sum += task; });
  return sum;
}

TEST(ParallelFor, every_task_runs_once_for_any_number_of_threads) {
  for (int threads : {1, 2, 3, 8}) {
    const ScopedNumThreads scoped(threads);
    for (int64_t num_tasks : {0, 1, 2, 3, 7, 100, 1001}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
      parallel_for(num_tasks, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
      for (const auto& count : runs) ASSERT_EQ(count, 1) << num_tasks << " tasks, " << threads << " threads";
    }
  }
}

TEST(ParallelFor, workers_stay_below_the_limit_and_never_share_a_number) {
  const ScopedNumThreads scoped(4);
  for (int limit : {1, 2, 3, 100}) {
    std::array<std::atomic<int>, 4> busy{};
    parallel_for(
        64,
        [&](int64_t, int worker) {
          ASSERT_LT(worker, std::min(limit, 4));
          ASSERT_EQ(++busy[static_cast<size_t>(worker)], 1);
          std::this_thread::sleep_for(std::chrono::microseconds(50));
          --busy[static_cast<size_t>(worker)];
        },
        limit);
  }
}

TEST(ParallelFor, a_most_number_of_threads_gives_way_to_one_that_somebody_asked_for) {
  in_new_thread([] {
    const int all = num_threads();
    {
      const ScopedMaxThreads most(1);
      EXPECT_EQ(num_threads(), 1);
      const ScopedMaxThreads more(5);
      EXPECT_EQ(num_threads(), 1) << "the least counts";
      const ScopedNumThreads asked(5);
      EXPECT_EQ(num_threads(), 5);
    }
    EXPECT_EQ(num_threads(), all);
  });
}

TEST(ParallelFor, threads_are_worth_two_million_operations_or_a_quarter_of_a_MiB) {
  EXPECT_EQ(worthwhile_threads(0, 0), 1);
  EXPECT_EQ(worthwhile_threads(1.9e6, 0), 1);
  EXPECT_EQ(worthwhile_threads(4e6, 0), 3);
  EXPECT_EQ(worthwhile_threads(1e6, 1 << 20), 5);
  EXPECT_EQ(worthwhile_threads(1e300, 0), 1'000'000);
}

TEST(ParallelFor, several_threads_take_part) {
  const ScopedNumThreads scoped(3);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  parallel_for(30, [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id())) << "the caller helps";
}

TEST(ParallelFor, an_exception_reaches_the_caller_and_stops_the_rest) {
  for (int threads : {1, 4}) {
    const ScopedNumThreads scoped(threads);
    std::atomic<int> started{0};
    const auto throw_in_task_5 = [&](int64_t task) {
      ++started;
      if (task == 5) throw std::out_of_range("task 5");
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // so that the others cannot all be done by then
    };
    EXPECT_THROW(parallel_for(100000, throw_in_task_5), std::out_of_range);
    EXPECT_LT(started, 100000);
    EXPECT_EQ(sum_of_tasks(10), 45) << "the pool works on";
  }
}

TEST(ParallelFor, one_of_many_exceptions_is_thrown) {
  const ScopedNumThreads scoped(4);
  for (int round = 0; round < 50; ++round)
    EXPECT_THROW(parallel_for(64, [](int64_t) { throw std::runtime_error("all of them"); }), std::runtime_error);
}

TEST(ParallelFor, a_nested_call_runs_in_its_caller) {
  const ScopedNumThreads scoped(4);
  std::atomic<int64_t> sum{0};
  parallel_for(8, [&](int64_t) {
    const auto outer = std::this_thread::get_id();
    parallel_for(10, [&](int64_t task, int worker) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      EXPECT_EQ(worker, 0);
      sum += task;
    });
  });
  EXPECT_EQ(sum, 8 * 45);
}

TEST(ParallelFor, a_call_while_another_thread_has_the_pool_runs_in_its_caller) {
  const ScopedNumThreads scoped(2);
  // Both tasks must run before the fork: GCC 12's AddressSanitizer hangs in a child that was forked while a thread
  // began.
  std::atomic<int> started{0};
  std::atomic<bool> done{false};
  std::thread other([&] {
    const ScopedNumThreads scoped_there(2);
    parallel_for(2, [&](int64_t) {
      ++started;
      while (!done) std::this_thread::yield();
    });
  });
  while (started < 2) std::this_thread::yield();
  const auto self = std::this_thread::get_id();
  parallel_for(20, [&](int64_t) { EXPECT_EQ(std::this_thread::get_id(), self); });
  done = true;
  other.join();
}

TEST(ParallelFor, many_threads_may_call_it) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 6; ++t)
    callers.emplace_back([&, t] {
      const ScopedNumThreads scoped(1 + t % 3);
      for (int round = 0; round < 200; ++round)
        if (sum_of_tasks(50) != 1225) ++wrong;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

/// Exit status of a child that runs `body`; -1 when it did not exit by itself within ten seconds.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  for (int tenths = 0; tenths < 100; ++tenths) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not follow threads that a forked child starts

TEST(ParallelFor, a_forked_child_gets_a_pool_of_its_own) {
  const ScopedNumThreads scoped(3);
  ASSERT_EQ(sum_of_tasks(100), 4950);
  EXPECT_EQ(in_child([] { return sum_of_tasks(100) == 4950 ? 7 : 8; }), 7);
  EXPECT_EQ(sum_of_tasks(100), 4950) << "the parent's pool is untouched";
}

TEST(ParallelFor, a_child_forked_while_the_pool_is_busy_does_not_wait_for_it) {
  const ScopedNumThreads scoped(2);
  // Both tasks must run before the fork: GCC 12's AddressSanitizer hangs in a child that was forked while a thread
  // began.
  std::atomic<int> started{0};
  std::atomic<bool> done{false};
  std::thread other([&] {
    const ScopedNumThreads scoped_there(2);
    parallel_for(2, [&](int64_t) {
      ++started;
      while (!done) std::this_thread::yield();
    });
  });
  while (started < 2) std::this_thread::yield();
  EXPECT_EQ(in_child([] { return sum_of_tasks(100) == 4950 ? 7 : 8; }), 7);
  done = true;
  other.join();
}

#if !defined(__SANITIZE_ADDRESS__)  // which reserves terabytes

TEST(ParallelFor, fewer_threads_than_asked_for_do_the_work_where_the_system_has_no_more) {
  const auto with_room_for_few_stacks = [] {
    const ScopedNumThreads scoped(64);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (64 << 20);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 9;
    return sum_of_tasks(100) == 4950 && sum_of_tasks(100) == 4950 ? 7 : 8;
  };
  EXPECT_EQ(in_child(with_room_for_few_stacks), 7);
}

#endif
#endif

/// Starts a thread for each task, at once or when it is asked to.
class Lent : public LentThreads {
 public:
  explicit Lent(bool late) : late_(late) {}
  ~Lent() override {
    start_late_ones();
    for (std::thread& thread : threads_) thread.join();
  }
  int count() const override { return 4; }
  void schedule(std::function<void()> task) override {
    if (late_)
      waiting_.push_back(std::move(task));
    else
      threads_.emplace_back(std::move(task));
  }
  size_t num_waiting() const { return waiting_.size(); }
  void start_late_ones() {
    for (auto& task : waiting_) threads_.emplace_back(std::move(task));
    waiting_.clear();
  }

 private:
  const bool late_;
  std::vector<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
};

TEST(ParallelFor, lent_threads_take_part_under_numbers_of_their_own) {
  Lent threads(/*late=*/false);
  const ScopedLentThreads lent(threads);
  const ScopedNumThreads scoped(4);
  for (int n = 0; n < 20; ++n) {
    std::array<std::atomic<int>, 4> busy{};
    std::atomic<int> runs{0};
    parallel_for(64, [&](int64_t, int worker) {
      ASSERT_LT(worker, 4);
      ASSERT_EQ(++busy[static_cast<size_t>(worker)], 1);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      --busy[static_cast<size_t>(worker)];
      ++runs;
    });
    ASSERT_EQ(runs, 64);
  }
}

TEST(ParallelFor, no_lent_thread_is_waited_for_that_has_not_started) {
  Lent threads(/*late=*/true);
  {
    const ScopedLentThreads lent(threads);
    const ScopedNumThreads scoped(4);
    EXPECT_EQ(sum_of_tasks(100), 4950) << "the caller did them all";
    EXPECT_EQ(threads.num_waiting(), 3u);
    EXPECT_THROW(parallel_for(8, [](int64_t) { throw std::runtime_error("a task fails"); }), std::runtime_error);
  }
  threads.start_late_ones();  // they find their jobs closed
}

TEST(ParallelFor, threads_that_cannot_be_asked_are_done_without) {
  class Refusing : public Lent {
   public:
    Refusing() : Lent(/*late=*/true) {}
    int count() const override { return 0; }
    void schedule(std::function<void()> task) override {
      if (num_waiting() == 1) throw std::bad_alloc();
      Lent::schedule(std::move(task));
    }
  } threads;
  in_new_thread([&] {
    const ScopedLentThreads lent(threads);
    EXPECT_EQ(num_threads(), 1) << "the caller";
    const ScopedNumThreads scoped(4);
    EXPECT_EQ(sum_of_tasks(100), 4950);
    EXPECT_EQ(threads.num_waiting(), 1u);
  });
  threads.start_late_ones();
}

TEST(ParallelFor, lent_threads_are_no_more_than_there_are) {
  Lent threads(/*late=*/false);
  in_new_thread([&] {
    const ScopedLentThreads lent(threads);
    EXPECT_EQ(num_threads(), std::min(default_num_threads(), 4));
  });
}

TEST(ParallelFor, the_environment_and_the_scope_say_how_many_threads) {
  in_new_thread([] {
    EXPECT_GE(num_threads(), 1);
    setenv("EJKERNEL_NUM_THREADS", "5", 1);
    environment::reload();
    EXPECT_EQ(num_threads(), 5);
    {
      const ScopedNumThreads two(2);
      EXPECT_EQ(num_threads(), 2);
      EXPECT_EQ(default_num_threads(), 5);
      const ScopedNumThreads at_least_one(0);
      EXPECT_EQ(num_threads(), 1);
    }
    EXPECT_EQ(num_threads(), 5);
    in_new_thread([] { EXPECT_EQ(num_threads(), 5); });
    unsetenv("EJKERNEL_NUM_THREADS");
    environment::reload();
  });
}

}  // namespace
}  // namespace ejk::cpu
