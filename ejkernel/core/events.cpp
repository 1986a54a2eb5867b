#include "ejkernel/core/events.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <mutex>

#include "ejkernel/core/enum_name.h"
#include "ejkernel/core/log.h"

namespace ejk {
namespace {

constexpr std::array<std::string_view, kNumEventKinds> kNames = {"choice", "tuning", "compile", "launch_failure"};
constexpr std::array<LogLevel, kNumEventKinds> kLevels = {LogLevel::debug, LogLevel::info, LogLevel::info,
                                                          LogLevel::error};

struct Events {
  std::recursive_mutex mutex;  ///< recursive: a sink may call set_event_sink
  std::atomic<EventSink> sink{nullptr};
  void* user = nullptr;
  std::array<std::atomic<int64_t>, kNumEventKinds> counts = {};
};
Events& events() {
  static auto* all = new Events;  // never destroyed: other threads may have events while the process exits
  return *all;
}

thread_local bool inside_sink = false;

void tell_sink(const Event& event) {
  Events& all = events();
  const std::lock_guard lock(all.mutex);
  const EventSink sink = all.sink.load(std::memory_order_relaxed);
  if (sink == nullptr || inside_sink) return;
  inside_sink = true;
  try {
    sink(event, all.user);
  } catch (...) {  // NOLINT: what it throws is nobody's here
  }
  inside_sink = false;
}

}  // namespace

std::string_view name(EventKind kind) { return name_in(kNames, kind); }

void set_event_sink(EventSink sink, void* user) {
  Events& all = events();
  const std::lock_guard lock(all.mutex);
  all.sink = sink;
  all.user = user;
}

int64_t num_events(EventKind kind) noexcept { return events().counts[static_cast<size_t>(kind)].load(); }

bool event_detail::count(EventKind kind) noexcept {
  Events& all = events();
  all.counts[static_cast<size_t>(kind)].fetch_add(1, std::memory_order_relaxed);
  return all.sink.load(std::memory_order_relaxed) != nullptr || log_enabled(kLevels[static_cast<size_t>(kind)]);
}

void event_detail::deliver(const Event& event) {
  tell_sink(event);
  const LogLevel level = kLevels[static_cast<size_t>(event.kind)];
  if (!log_enabled(level)) return;
  log(level, event.operation.empty() ? fmt::format("{}: {}", event.kernel, event.text)
                                     : fmt::format("{}: kernel {}: {}", event.operation, event.kernel, event.text));
}

}  // namespace ejk
