// What the library says. Nothing, unless EJKERNEL_LOG or a sink asks for it.
#pragma once

#include <cstdint>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

/// From quiet to chatty: a level includes those before it.
enum class LogLevel : uint8_t { off, error, warning, info, debug };
inline constexpr int kNumLogLevels = 5;
EJK_API std::string_view name(LogLevel level);

/// `text` ends with a null byte and lives until the sink returns.
using LogSink = void (*)(LogLevel level, const char* text, void* user);

/// Sends every message up to level `most` to `sink`, in place of standard error and of EJKERNEL_LOG; a null sink goes
/// back to these. Calls of the sink never overlap, and after set_log returns the old sink is not called again. What is
/// logged from inside a sink is dropped.
EJK_API void set_log(LogSink sink, void* user, LogLevel most = LogLevel::info);

/// Whether a message of this level goes anywhere: ask before building an expensive text.
EJK_API bool log_enabled(LogLevel level) noexcept;
/// One message, without a final newline. Never throws: a message that finds no memory is lost.
EJK_API void log(LogLevel level, std::string_view text) noexcept;
/// The same, only the first time that `key` comes by while its level is on.
EJK_API void log_once(std::string_view key, LogLevel level, std::string_view text) noexcept;

}  // namespace ejk
