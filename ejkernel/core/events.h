// What the library decides and does on the way to a result, told as it happens and counted.
#pragma once

#include <cstdint>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

/// choice: a tier chose a call's config, or none could. tuning: a candidate was rejected or timed, or a search ended.
/// compile: a CUDA kernel was compiled, found compiled in the store, or refused. launch_failure: the driver refused to
/// launch one. What comes out of a cache of this process is no decision, and no event.
enum class EventKind : uint8_t { choice, tuning, compile, launch_failure };
inline constexpr int kNumEventKinds = 4;
EJK_API std::string_view name(EventKind kind);

/// The texts live until the sink returns.
struct Event {
  EventKind kind;
  std::string_view operation;  ///< empty for compile and launch_failure
  std::string_view kernel;     ///< as the registry names it; for those two the instance: "ejk::flash_attention<…>"
  std::string_view text;       ///< "tier store: block_q=64 …", "compiled in 0.43 s", for people
};
using EventSink = void (*)(const Event& event, void* user);

/// Sends every event to `sink`; null: nowhere. Calls of it never overlap, on whatever threads things happen; after
/// set_event_sink returns the old one is not called again. What it throws is dropped, and so are events from inside it.
/// Events are messages of the log, too: choices at level debug, tuning and compilation at info, failures at error.
EJK_API void set_event_sink(EventSink sink, void* user);

/// How many there were since the process began, listened to or not.
EJK_API int64_t num_events(EventKind kind) noexcept;

namespace event_detail {
EJK_API bool count(EventKind kind) noexcept;  ///< whether anybody listens
EJK_API void deliver(const Event& event);
}  // namespace event_detail

/// For the library: counts an event; `text()` is asked for what happened only where anybody listens.
template <class Text>
void emit(EventKind kind, std::string_view operation, std::string_view kernel, Text&& text) noexcept {
  if (!event_detail::count(kind)) return;
  try {
    event_detail::deliver({kind, operation, kernel, text()});
  } catch (...) {  // NOLINT: no memory for a text is no reason to fail a call
  }
}

}  // namespace ejk
