// Events are counted always, told to one sink at a time, and never fail what they tell of.
#include "ejkernel/core/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <string>
#include <thread>
#include <vector>

#include "ejkernel/core/log.h"

namespace ejk::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Events : public ::testing::Test {
 protected:
  ~Events() override {
    set_event_sink(nullptr, nullptr);
    set_log(nullptr, nullptr);
  }
  void listen() {
    set_event_sink(
        [](const Event& event, void* self) {
          auto& told = static_cast<Events*>(self)->told;
          told.push_back(std::string(name(event.kind)) + " " + std::string(event.operation) + " " +
                         std::string(event.kernel) + " " + std::string(event.text));
        },
        this);
  }
  static void happen(const char* text) {
    emit(EventKind::tuning, "toy", "cpu", [&] { return std::string(text); });
  }
  std::vector<std::string> told;
};

TEST_F(Events, are_counted_and_their_texts_are_asked_for_only_where_somebody_listens) {
  const int64_t before = num_events(EventKind::tuning), others = num_events(EventKind::compile);
  bool was_asked = false;
  emit(EventKind::tuning, "toy", "cpu", [&] { return was_asked = true, std::string(); });
  EXPECT_FALSE(was_asked);
  listen();
  happen("one");
  set_event_sink(nullptr, nullptr);
  happen("two");
  EXPECT_THAT(told, ElementsAre("tuning toy cpu one"));
  EXPECT_EQ(num_events(EventKind::tuning), before + 3);
  EXPECT_EQ(num_events(EventKind::compile), others);
}

TEST_F(Events, are_messages_of_the_log_at_their_levels) {
  std::vector<std::string> logged;
  const auto collect = [](LogLevel level, const char* text, void* to) {
    static_cast<std::vector<std::string>*>(to)->push_back(std::string(name(level)) + " " + text);
  };
  set_log(collect, &logged, LogLevel::info);
  happen("one");
  emit(EventKind::choice, "toy", "cpu", [] { return "tier heuristics"; });
  emit(EventKind::launch_failure, "", "ejk::toy<1>", [] { return "the driver answered 1"; });
  EXPECT_THAT(logged, ElementsAre("info toy: kernel cpu: one", "error ejk::toy<1>: the driver answered 1"));
  logged.clear();
  set_log(collect, &logged, LogLevel::debug);
  emit(EventKind::choice, "toy", "cpu", [] { return "tier heuristics"; });
  EXPECT_THAT(logged, ElementsAre("debug toy: kernel cpu: tier heuristics"));
}

TEST_F(Events, of_a_sink_that_throws_or_has_events_itself_are_dropped) {
  int calls = 0;
  set_event_sink(
      [](const Event&, void* count) {
        ++*static_cast<int*>(count);
        happen("inside");
        throw std::bad_alloc();
      },
      &calls);
  EXPECT_NO_THROW(happen("one"));
  EXPECT_NO_THROW(happen("two"));
  EXPECT_EQ(calls, 2);
  listen();
  emit(EventKind::tuning, "toy", "cpu", []() -> std::string { throw std::bad_alloc(); });
  EXPECT_THAT(told, IsEmpty());
}

TEST_F(Events, of_many_threads_come_one_at_a_time) {
  listen();
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) happen("one");
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told.size(), 400u);
}

}  // namespace
}  // namespace ejk::testing
