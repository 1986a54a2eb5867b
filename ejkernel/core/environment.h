// Every environment variable the library reads: one table parses them, `ejk doctor --env` prints it and the docs show
// it. The process's environment is read once, at first use, and never changed.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/allocator.h"
#include "ejkernel/core/device.h"
#include "ejkernel/core/export.h"
#include "ejkernel/core/log.h"

namespace ejk::environment {

/// Whether tier 5 may tune. `heuristics` leaves it out.
enum class AutotunePolicy : uint8_t { autotune, heuristics };
EJK_API std::string_view name(AutotunePolicy policy);

/// What a call in somebody else's program says of its problem: nothing, its label (a digest), or label and text.
enum class OpsStamp : uint8_t { none, hash, json };
EJK_API std::string_view name(OpsStamp stamp);

/// The variables, parsed. Defaults are what an empty environment gives.
struct Values {
  std::optional<Platform> platform = {};  ///< absent: the first kernel that supports the call
  LogLevel log_level = LogLevel::off;
  int num_threads = 0;  ///< 0: as many as affinity and cgroup quota allow
  AllocationDebug debug = {};
  bool sync = false;  ///< a call waits for its device before it returns; calls on host tensors always do
  AutotunePolicy autotune_policy = AutotunePolicy::autotune;
  double autotune_budget_seconds = 2;     ///< for one problem
  double autotune_total_seconds = 60;     ///< for the process
  std::vector<std::string> plugins = {};  ///< absolute paths, in order
  std::string cache_dir = {};             ///< the store's folder; empty: the user's cache folder
  int64_t cache_quota_mb = 2048;          ///< of the store, in MiB; 0: no limit
  /// Absolute paths of more stores and archives, in order; absent: the tables that the library ships.
  std::optional<std::vector<std::string>> config_path = {};
  std::string nvrtc = {};  ///< path of the CUDA compiler's library; empty: look for it
  /// Of a block on a GPU, below what the device has.
  int64_t shared_bytes_limit = std::numeric_limits<int64_t>::max();
  bool ops_record = false;           ///< calls are recorded
  std::string ops_record_file = {};  ///< in this file as well; empty: in memory only
  OpsStamp ops_stamp = OpsStamp::hash;
  std::string ops_prefix = "ejkernel.";  ///< of every label
  std::string trace_file = {};           ///< an event for each run; empty: none
};

/// The process's environment as it was at first use. Throws InvalidArgument, naming the variable, while one is
/// malformed.
EJK_API const Values& values();
inline std::optional<Platform> platform() { return values().platform; }
inline LogLevel log_level() { return values().log_level; }
inline int num_threads() { return values().num_threads; }
inline AllocationDebug debug() { return values().debug; }
inline bool sync() { return values().sync; }
inline AutotunePolicy autotune_policy() { return values().autotune_policy; }
inline double autotune_budget_seconds() { return values().autotune_budget_seconds; }
inline double autotune_total_seconds() { return values().autotune_total_seconds; }
inline const std::vector<std::string>& plugins() { return values().plugins; }
inline const std::string& cache_dir() { return values().cache_dir; }
inline int64_t cache_quota_mb() { return values().cache_quota_mb; }
inline const std::optional<std::vector<std::string>>& config_path() { return values().config_path; }
inline const std::string& nvrtc() { return values().nvrtc; }
inline int64_t shared_bytes_limit() { return values().shared_bytes_limit; }
inline bool ops_record() { return values().ops_record; }
inline const std::string& ops_record_file() { return values().ops_record_file; }
inline OpsStamp ops_stamp() { return values().ops_stamp; }
inline const std::string& ops_prefix() { return values().ops_prefix; }
inline const std::string& trace_file() { return values().trace_file; }

/// Reads it again: for tests. References to the old one stay valid.
EJK_API void reload();

/// One row of the table. `parse` gets a value that is not empty.
struct Variable {
  std::string_view name;
  std::string_view type;
  std::string_view default_value;
  std::string_view doc;
  void (*parse)(const Variable& self, std::string_view value, Values& into);
};
EJK_API std::span<const Variable> variables();

/// The parsing alone: `lookup` gives a variable's value or null. A variable set to nothing counts as not set.
EJK_API Values parse(const std::function<const char*(const char* name)>& lookup);
/// Names in `entries` ("NAME=value", null-terminated list) that begin like ours and are not in the table.
EJK_API std::vector<std::string> unknown_names(const char* const* entries);

}  // namespace ejk::environment
