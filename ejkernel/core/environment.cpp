#include "ejkernel/core/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"

namespace ejk::environment {
namespace {

constexpr std::string_view kPrefix = "EJKERNEL_";
constexpr int kMaxThreads = 4096;
constexpr int64_t kMaxMilliseconds = int64_t{1} << 40;
constexpr int64_t kMaxQuotaMb = 1048576;
constexpr int64_t kLeastSharedBytes = 49152;  // what every kernel may have without asking for more
constexpr int64_t kMostSharedBytes = 1048576;
constexpr size_t kMaxPrefix = 64;

[[noreturn]] void refuse(const Variable& variable, std::string_view value) {
  throw_invalid("environment", variable.name, "be " + std::string(variable.type), "'" + std::string(value) + "'",
                "correct the variable or unset it");
}

/// The enumerator called `value`, for enumerations that count from 0 and have name().
template <class E>
std::optional<E> parse_enum(std::string_view value, int count) {
  for (int i = 0; i < count; ++i)
    if (name(static_cast<E>(i)) == value) return static_cast<E>(i);
  return std::nullopt;
}

template <class Visit>
void for_each_part(std::string_view list, char separator, Visit visit) {
  while (true) {
    const size_t end = list.find(separator);
    visit(list.substr(0, end));
    if (end == std::string_view::npos) return;
    list.remove_prefix(end + 1);
  }
}

void parse_platform(const Variable& self, std::string_view value, Values& into) {
  if (value == "auto") return;
  into.platform = parse_enum<Platform>(value, kNumPlatforms);
  if (!into.platform) refuse(self, value);
}

void parse_log(const Variable& self, std::string_view value, Values& into) {
  const auto level = parse_enum<LogLevel>(value, kNumLogLevels);
  if (!level) refuse(self, value);
  into.log_level = *level;
}

template <class T>
void parse_integer(const Variable& self, std::string_view value, T least, T most, T& into) {
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, into);
  if (error != std::errc() || stop != end || into < least || into > most) refuse(self, value);
}

void parse_num_threads(const Variable& self, std::string_view value, Values& into) {
  parse_integer(self, value, 1, kMaxThreads, into.num_threads);
}

void parse_debug(const Variable& self, std::string_view value, Values& into) {
  for_each_part(value, ',', [&](std::string_view part) {
    if (part == "sync")
      into.sync = true;
    else if (part == "guard")
      into.debug.guard = true;
    else if (part == "poison")
      into.debug.poison = true;
    else
      refuse(self, value);
  });
}

void parse_autotune_policy(const Variable& self, std::string_view value, Values& into) {
  const auto policy = parse_enum<AutotunePolicy>(value, 2);
  if (!policy) refuse(self, value);
  into.autotune_policy = *policy;
}

/// An integer of milliseconds, as seconds.
double milliseconds(const Variable& self, std::string_view value) {
  int64_t count = 0;
  parse_integer(self, value, int64_t{0}, kMaxMilliseconds, count);
  return static_cast<double>(count) / 1000;
}
void parse_autotune_budget(const Variable& self, std::string_view value, Values& into) {
  into.autotune_budget_seconds = milliseconds(self, value);
}
void parse_autotune_total(const Variable& self, std::string_view value, Values& into) {
  into.autotune_total_seconds = milliseconds(self, value);
}
/// Candidates are logged as information.
void parse_log_autotune(const Variable& self, std::string_view value, Values& into) {
  if (value != "0" && value != "1") refuse(self, value);
  if (value == "1" && into.log_level < LogLevel::info) into.log_level = LogLevel::info;
}

/// A relative path would name whatever lies in the directory that a program happens to run in.
std::string absolute(const Variable& self, std::string_view path, std::string_view value) {
  if (path.empty() || path.front() != '/') refuse(self, value);
  return std::string(path);
}

std::vector<std::string> absolute_paths(const Variable& self, std::string_view value) {
  std::vector<std::string> paths;
  for_each_part(value, ':', [&](std::string_view path) { paths.push_back(absolute(self, path, value)); });
  return paths;
}

void parse_plugins(const Variable& self, std::string_view value, Values& into) {
  into.plugins = absolute_paths(self, value);
}
void parse_config_path(const Variable& self, std::string_view value, Values& into) {
  into.config_path = value == "none" ? std::vector<std::string>() : absolute_paths(self, value);
}
void parse_cache_quota_mb(const Variable& self, std::string_view value, Values& into) {
  parse_integer(self, value, int64_t{0}, kMaxQuotaMb, into.cache_quota_mb);
}
void parse_cache_dir(const Variable& self, std::string_view value, Values& into) {
  into.cache_dir = absolute(self, value, value);
}
void parse_nvrtc(const Variable& self, std::string_view value, Values& into) {
  into.nvrtc = absolute(self, value, value);
}
/// The Python package's: a value that it refuses is refused here too.
void parse_library(const Variable& self, std::string_view value, Values&) { absolute(self, value, value); }

void parse_ops_record(const Variable& self, std::string_view value, Values& into) {
  into.ops_record = value != "0";
  if (value != "0" && value != "1") into.ops_record_file = absolute(self, value, value);
}

void parse_ops_stamp(const Variable& self, std::string_view value, Values& into) {
  const auto stamp = parse_enum<OpsStamp>(value, 3);
  if (!stamp) refuse(self, value);
  into.ops_stamp = *stamp;
}

/// Labels stand in JSON, in a program's text and in profilers, so that nothing that any of them quotes may be in one.
void parse_ops_prefix(const Variable& self, std::string_view value, Values& into) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("_.-/#:", c) != nullptr;
  };
  if (value.size() > kMaxPrefix || !std::all_of(value.begin(), value.end(), is_plain)) refuse(self, value);
  into.ops_prefix = value;
}

void parse_shared_limit(const Variable& self, std::string_view value, Values& into) {
  parse_integer(self, value, kLeastSharedBytes, kMostSharedBytes, into.shared_bytes_limit);
}

void parse_trace(const Variable& self, std::string_view value, Values& into) {
  into.trace_file = absolute(self, value, value);
}

constexpr std::array kVariables = {
    Variable{"EJKERNEL_PLATFORM", "auto, cuda, cpu, reference, xla, triton, pallas or hip", "auto",
             "the platform of every call that does not name one; like a named one, it works or raises", parse_platform},
    Variable{"EJKERNEL_LOG", "off, error, warning, info or debug", "off",
             "what is written to standard error; an installed log sink overrules it", parse_log},
    Variable{"EJKERNEL_NUM_THREADS", "an integer from 1 to 4096", "what affinity and cgroup quota allow",
             "the threads that CPU kernels use, the caller's included", parse_num_threads},
    Variable{"EJKERNEL_DEBUG", "a comma-separated list of sync, guard and poison", "not set",
             "sync: a call waits for its device, so that a fault shows where it was made (calls on host tensors always "
             "do); for host memory that the library allocates, guard finds writes outside of it and aborts, poison "
             "fills fresh and freed blocks with NaN",
             parse_debug},
    Variable{"EJKERNEL_AUTOTUNE_POLICY", "autotune or heuristics", "autotune",
             "heuristics: never tune, take each kernel's heuristic configuration", parse_autotune_policy},
    Variable{"EJKERNEL_AUTOTUNE_BUDGET_MS", "a whole number of milliseconds", "2000",
             "how long the autotuner may look for one problem's config", parse_autotune_budget},
    Variable{"EJKERNEL_AUTOTUNE_TOTAL_MS", "a whole number of milliseconds", "60000",
             "and for all problems of a process; past it heuristics answer", parse_autotune_total},
    Variable{
        "EJKERNEL_LOG_AUTOTUNE", "0 or 1", "0",
        "1: every candidate with its time, or why it was rejected, is written to standard error (and all else that "
        "EJKERNEL_LOG=info writes)",
        parse_log_autotune},
    Variable{"EJKERNEL_PLUGINS", "a colon-separated list of absolute paths", "not set",
             "libraries with more kernels and operations, loaded at the first call", parse_plugins},
    Variable{"EJKERNEL_CACHE_DIR", "an absolute path", "$XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel",
             "the folder of the store, which keeps tuned configs and compiled kernels; it is not used when others than "
             "its owner can write it",
             parse_cache_dir},
    Variable{"EJKERNEL_CACHE_QUOTA_MB", "an integer from 0 to 1048576", "2048",
             "MiB that the store may take, above which the least recently used records go; 0: no limit",
             parse_cache_quota_mb},
    Variable{"EJKERNEL_CONFIG_PATH", "none, or a colon-separated list of absolute paths",
             "the tables that the library ships",
             "folders of the store's form and archives that `ejk cache export` made, read in this order for what the "
             "store does not hold; trusted as the store is",
             parse_config_path},
    Variable{
        "EJKERNEL_NVRTC", "an absolute path", "looked for",
        "the library that compiles CUDA kernels, such as /usr/local/cuda/lib64/libnvrtc.so.13; `ejk doctor` says where "
        "it is looked for otherwise. Kernels that came compiled are then passed over: this one compiles them",
        parse_nvrtc},
    Variable{"EJKERNEL_TRITON_SMEM_LIMIT", "an integer from 49152 to 1048576", "what the device has",
             "bytes of shared memory that a block of any GPU kernel may take; kernels and configs that need more are "
             "passed over, and what is tuned under a limit is kept apart",
             parse_shared_limit},
    Variable{"EJKERNEL_LIBRARY", "an absolute path", "the wheel's, else what a source tree built",
             "the libejkernel.so that the Python package loads; C and C++ programs are linked to theirs",
             parse_library},
    Variable{"EJKERNEL_OPS_RECORD", "0, 1 or an absolute path", "0",
             "1: calls are recorded in memory (shapes, parameters, small index tensors; never other data), for "
             "get_invocations; a path: they are also appended to that file, for `ejk tune --recorded`",
             parse_ops_record},
    Variable{"EJKERNEL_OPS_STAMP", "none, hash or json", "hash",
             "what a call in a lowered JAX program says of its problem: nothing, its label "
             "(ejkernel.<operation>@<revision>:<digest>), or the label and the problem's text; the label is also what "
             "profilers get as an NVTX range, and what a trace says",
             parse_ops_stamp},
    Variable{"EJKERNEL_OPS_PREFIX", "at most 64 letters, digits and _ . - / # :", "ejkernel.",
             "what every label begins with, in front of the operation's name", parse_ops_prefix},
    Variable{"EJKERNEL_TRACE", "an absolute path", "not set",
             "a Chrome trace, which Perfetto shows too: an event for each run of a plan, with its host time, kernel, "
             "config and label",
             parse_trace},
};

struct Published {
  std::mutex mutex;
  std::atomic<const Values*> current{nullptr};
  std::vector<std::unique_ptr<const Values>> all;  ///< keeps references to earlier ones valid
};

Published& published() {
  static auto* state = new Published;  // never destroyed: calls may come while the process exits
  return *state;
}

void warn_of_unknown_variables() {
  for (const std::string& unknown : unknown_names(environ)) {
    std::string text = "environment: " + unknown + " is not a variable that this version reads; it reads";
    for (const auto& variable : kVariables) text += " " + std::string(variable.name);
    log_once("environment:" + unknown, LogLevel::warning, text);
  }
}

const Values& load() {
  auto read = std::make_unique<const Values>(parse([](const char* name) { return getenv(name); }));
  Published& state = published();
  const Values* loaded = read.get();
  {
    const std::lock_guard lock(state.mutex);
    state.all.push_back(std::move(read));
    state.current.store(loaded, std::memory_order_release);
  }
  // After publishing and without the lock: the log asks the environment for its level.
  warn_of_unknown_variables();
  return *loaded;
}

}  // namespace

std::string_view name(AutotunePolicy policy) { return policy == AutotunePolicy::autotune ? "autotune" : "heuristics"; }

std::string_view name(OpsStamp stamp) {
  static constexpr std::string_view kNames[] = {"none", "hash", "json"};
  return kNames[static_cast<size_t>(stamp)];
}

std::span<const Variable> variables() { return kVariables; }

const Values& values() {
  const Values* current = published().current.load(std::memory_order_acquire);
  return current != nullptr ? *current : load();
}

void reload() { load(); }

Values parse(const std::function<const char*(const char* name)>& lookup) {
  Values parsed;
  for (const auto& variable : kVariables) {
    const char* value = lookup(variable.name.data());
    if (value != nullptr && *value != '\0') variable.parse(variable, value, parsed);
  }
  return parsed;
}

std::vector<std::string> unknown_names(const char* const* entries) {
  std::vector<std::string> unknown;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    const std::string_view entry = *entries;
    const std::string_view name = entry.substr(0, entry.find('='));
    const auto is_this = [&](const Variable& variable) { return variable.name == name; };
    if (name.substr(0, kPrefix.size()) == kPrefix && std::none_of(kVariables.begin(), kVariables.end(), is_this))
      unknown.emplace_back(name);
  }
  return unknown;
}

}  // namespace ejk::environment
