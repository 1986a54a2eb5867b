#include "ejkernel/platform/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace ejk::cpu {
namespace {

constexpr std::chrono::milliseconds kUntilAsleep(20);

TEST(ThreadPool, a_signal_is_taken_once) {
  Signal signal;
  EXPECT_FALSE(signal.take());
  constexpr int kRounds = 200;
  std::atomic<int> taken{0}, begun{0}, answered{0};
  std::thread other([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (begun < round) std::this_thread::yield();
      taken += signal.take();
      answered = round;
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    signal.give();
    begun = round;
    taken += signal.take();
    while (answered < round) std::this_thread::yield();
    EXPECT_EQ(taken, round);
  }
  other.join();
}

TEST(ThreadPool, a_signal_is_awaited_awake_and_asleep) {
  for (const auto awake : {std::chrono::microseconds(0), std::chrono::microseconds(1'000'000)}) {
    Signal there, back;
    std::thread other([&] {
      for (int n = 0; n < 100; ++n) {
        there.await(awake);
        back.give();
      }
    });
    for (int n = 0; n < 100; ++n) {
      if (n == 50) std::this_thread::sleep_for(kUntilAsleep);
      there.give();
      back.await(awake);
    }
    EXPECT_FALSE(back.take());
    other.join();
  }
}

TEST(ThreadPool, workers_run_once_at_most_and_none_runs_afterwards) {
  ThreadPool pool(4);
  EXPECT_EQ(pool.num_threads(), 4);
  for (int n = 0; n < 3000; ++n) {
    const int workers = 1 + n % 4;
    std::array<std::atomic<int>, 4> runs{};
    std::atomic<int> inside{0};
    pool.run(workers, [&](int worker) {
      ++inside;
      ++runs[static_cast<size_t>(worker)];
      --inside;
    });
    ASSERT_EQ(inside, 0);
    ASSERT_EQ(runs[0], 1) << "the caller's";
    for (int worker = 1; worker < 4; ++worker) ASSERT_LE(runs[static_cast<size_t>(worker)], worker < workers ? 1 : 0);
  }
}

TEST(ThreadPool, threads_that_sleep_are_woken) {
  ThreadPool pool(3);
  for (int n = 0; n < 3; ++n) {
    std::this_thread::sleep_for(kUntilAsleep);
    std::atomic<int> here{0};
    pool.run(3, [&](int) {
      ++here;
      while (here != 3) std::this_thread::yield();
    });
    EXPECT_EQ(here, 3);
  }
}

TEST(ThreadPool, the_caller_sleeps_until_a_slow_thread_is_done) {
  ThreadPool pool(2);
  std::atomic<bool> begun{false}, done{false};
  pool.run(2, [&](int worker) {
    if (worker == 0) {
      while (!begun) std::this_thread::yield();
      return;
    }
    begun = true;
    std::this_thread::sleep_for(kUntilAsleep);
    done = true;
  });
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace ejk::cpu
