#include "ejkernel/core/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "ejkernel/core/enum_name.h"
#include "ejkernel/core/environment.h"

namespace ejk {
namespace {

constexpr std::array<std::string_view, kNumLogLevels> kNames = {"off", "error", "warning", "info", "debug"};

struct Log {
  std::recursive_mutex mutex;  ///< recursive: a sink may call set_log
  LogSink sink = nullptr;
  void* user = nullptr;
  std::set<std::string, std::less<>> said;
};

Log& the_log() {
  static auto* log = new Log;  // never destroyed: other threads may log while the process exits
  return *log;
}

/// The level of the installed sink; kNoSink when there is none and EJKERNEL_LOG decides.
constexpr int kNoSink = -1;
std::atomic<int> sink_level{kNoSink};

thread_local bool inside_sink = false;

LogLevel threshold() noexcept {
  const int level = sink_level.load(std::memory_order_relaxed);
  if (level != kNoSink) return static_cast<LogLevel>(level);
  try {
    return environment::log_level();
  } catch (...) {
    return LogLevel::off;  // a malformed variable is reported to whoever asks for the environment, not from here
  }
}

void deliver(Log& log, LogLevel level, const std::string& text) {
  if (log.sink == nullptr) {
    std::fprintf(stderr, "ejkernel: %s: %s\n", name(level).data(), text.c_str());
    return;
  }
  inside_sink = true;
  try {
    log.sink(level, text.c_str(), log.user);
  } catch (...) {  // NOLINT: a C callback has nobody to throw to
  }
  inside_sink = false;
}

}  // namespace

std::string_view name(LogLevel level) { return name_in(kNames, level); }

void set_log(LogSink sink, void* user, LogLevel most) {
  Log& log = the_log();
  const std::lock_guard lock(log.mutex);
  log.sink = sink;
  log.user = user;
  sink_level = sink == nullptr ? kNoSink : static_cast<int>(most);
}

bool log_enabled(LogLevel level) noexcept { return level != LogLevel::off && level <= threshold(); }

void log(LogLevel level, std::string_view text) noexcept {
  if (!log_enabled(level) || inside_sink) return;
  try {
    Log& log = the_log();
    const std::string terminated(text);
    const std::lock_guard lock(log.mutex);
    deliver(log, level, terminated);
  } catch (...) {  // NOLINT: no memory for a message is no reason to fail a call
  }
}

void log_once(std::string_view key, LogLevel level, std::string_view text) noexcept {
  if (!log_enabled(level) || inside_sink) return;
  try {
    Log& log = the_log();
    const std::string terminated(text);
    const std::lock_guard lock(log.mutex);
    if (log.said.emplace(key).second) deliver(log, level, terminated);
  } catch (...) {  // NOLINT: as above
  }
}

}  // namespace ejk
