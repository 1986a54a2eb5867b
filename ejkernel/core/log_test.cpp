#include "ejkernel/core/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ejkernel/core/environment.h"

namespace ejk {
namespace {

using Messages = std::vector<std::pair<LogLevel, std::string>>;

void collect(LogLevel level, const char* text, void* user) { static_cast<Messages*>(user)->emplace_back(level, text); }

class Log : public ::testing::Test {
 protected:
  void TearDown() override { set_log(nullptr, nullptr); }
  Messages messages_;
};

TEST_F(Log, a_sink_gets_its_level_and_those_before_it) {
  set_log(collect, &messages_, LogLevel::warning);
  EXPECT_TRUE(log_enabled(LogLevel::error));
  EXPECT_TRUE(log_enabled(LogLevel::warning));
  EXPECT_FALSE(log_enabled(LogLevel::info));
  EXPECT_FALSE(log_enabled(LogLevel::off));
  log(LogLevel::error, "an error");
  log(LogLevel::warning, std::string_view("a warning and more").substr(0, 9));
  log(LogLevel::info, "news");
  log(LogLevel::off, "nothing");
  EXPECT_EQ(messages_, (Messages{{LogLevel::error, "an error"}, {LogLevel::warning, "a warning"}}));
}

TEST_F(Log, after_its_removal_a_sink_is_not_called) {
  set_log(collect, &messages_, LogLevel::debug);
  set_log(nullptr, nullptr);
  log(LogLevel::error, "late");
  EXPECT_TRUE(messages_.empty());
}

TEST_F(Log, once_means_once_per_key_and_only_counts_when_the_level_is_on) {
  static int repetition = 0;  // what was said stays said, also when a test runs again
  const std::string a = "log_test:a" + std::to_string(++repetition);
  const std::string b = "log_test:b" + std::to_string(repetition);
  const std::string news = "log_test:info" + std::to_string(repetition);
  set_log(collect, &messages_, LogLevel::warning);
  log_once(news, LogLevel::info, "off");
  log_once(a, LogLevel::warning, "first");
  log_once(a, LogLevel::warning, "second");
  log_once(b, LogLevel::warning, "other");
  set_log(collect, &messages_, LogLevel::info);
  log_once(news, LogLevel::info, "on");
  EXPECT_EQ(messages_, (Messages{{LogLevel::warning, "first"}, {LogLevel::warning, "other"}, {LogLevel::info, "on"}}));
}

TEST_F(Log, a_sink_may_log_throw_and_remove_itself) {
  struct Sink {
    static void run(LogLevel, const char*, void* user) {
      ++*static_cast<int*>(user);
      log(LogLevel::error, "from inside");
      set_log(nullptr, nullptr);
      throw std::runtime_error("sinks should not");
    }
  };
  int calls = 0;
  set_log(Sink::run, &calls);
  log(LogLevel::error, "one");
  log(LogLevel::error, "two");
  EXPECT_EQ(calls, 1);
}

TEST_F(Log, calls_of_the_sink_never_overlap) {
  struct Counter {
    int inside = 0, calls = 0;
    bool overlapped = false;
    static void run(LogLevel, const char*, void* user) {
      auto* counter = static_cast<Counter*>(user);
      counter->overlapped |= ++counter->inside != 1;
      ++counter->calls;
      --counter->inside;
    }
  };
  Counter counter;
  set_log(Counter::run, &counter);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) log(LogLevel::info, "message");
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter.calls, 2000);
  EXPECT_FALSE(counter.overlapped);
}

TEST_F(Log, without_a_sink_the_variable_decides_and_the_default_is_silence) {
  const auto printed = [](const char* value) {
    value == nullptr ? unsetenv("EJKERNEL_LOG") : setenv("EJKERNEL_LOG", value, 1);
    environment::reload();
    testing::internal::CaptureStderr();
    log(LogLevel::error, "bad");
    log(LogLevel::warning, "odd");
    log(LogLevel::info, "news");
    return testing::internal::GetCapturedStderr();
  };
  const char* before = std::getenv("EJKERNEL_LOG");
  const std::string saved = before == nullptr ? "" : before;
  EXPECT_EQ(printed(nullptr), "");
  EXPECT_EQ(printed("warning"), "ejkernel: error: bad\nejkernel: warning: odd\n");
  EXPECT_EQ(printed("off"), "");
  setenv("EJKERNEL_LOG", saved.c_str(), 1);  // empty counts as not set
  environment::reload();
}

TEST(LogLevel, every_level_has_its_name) {
  std::string names;
  for (int level = 0; level < kNumLogLevels; ++level) names += std::string(name(static_cast<LogLevel>(level))) + " ";
  EXPECT_EQ(names, "off error warning info debug ");
}

}  // namespace
}  // namespace ejk
