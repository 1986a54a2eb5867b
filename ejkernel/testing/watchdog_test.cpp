#include "ejkernel/testing/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace ejk::testing {
namespace {

TEST(Watchdog, leaves_work_alone_that_is_heard_of) {
  Watchdog watchdog(5);
  watchdog.hear("the next step");
}

TEST(WatchdogDeathTest, ends_the_process_and_says_what_hangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Watchdog watchdog(0.05);
        watchdog.hear("kernel 7");
        std::this_thread::sleep_for(std::chrono::seconds(60));
      },
      ::testing::ExitedWithCode(3), "hang: nothing was heard for 0 s of kernel 7");
}

}  // namespace
}  // namespace ejk::testing
