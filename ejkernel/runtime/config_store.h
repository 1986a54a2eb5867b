// Tier 4: configs that were found by measuring, kept in the store for later processes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ejkernel/core/store.h"
#include "ejkernel/runtime/choose.h"

namespace ejk {

/// Where a kernel's config for a problem is kept. The key is the problem as text, its digest, the kernel and its
/// revision with the digest of its sources (kernel_sources.h): a change of any is a miss. So is a CPU kernel's from a
/// build with assertions or a sanitizer, or without optimisation, in one without: what is fast in one is not in the
/// other.
RecordKey config_record_key(const ChooseRequest& request, const KernelInfo& kernel);
/// The same for a device of that fingerprint.
RecordKey config_record_key(const ChooseRequest& request, const KernelInfo& kernel, const std::string& device);

/// What stands behind a CPU kernel's revision there; empty in a build for users.
std::string_view mark_of_this_build();

/// Whether a record's key is such a one.
EJK_API bool is_config_key(const RecordKey& key);
/// Whether it is of an operation and a kernel as this process has them, whatever problem and device it is for: the
/// others are passed over.
EJK_API bool is_of_this_build(const RecordKey& key);

/// How a search came out that the budget ended before anything beat the heuristic's config.
inline constexpr std::string_view kUnfinished = "unfinished";

/// How a config came about; kept beside it, with the time and the versions of library, compilers and driver, and shown
/// by tools. `ejk cache import` adds when it was imported.
struct ConfigProvenance {
  std::string how = "tuned";     ///< or kUnfinished
  double seconds = 0;            ///< median of one run
  double heuristic_seconds = 0;  ///< of the heuristic's config, interleaved with it
  double ratio_high = 1;         ///< largest that seconds / heuristic_seconds may be; over places, 95 % sure
  int64_t num_samples = 0;
  int64_t num_candidates = 0;
  double search_seconds = 0;
  std::string transferred_from = {};  ///< the near problem whose config the search began with; empty: none
};

/// Whether it is of a search that the budget ended before anything beat the heuristic's config: any other record of the
/// problem says more.
EJK_API bool is_unfinished(const Record& record);

struct StoredConfig {
  ConfigValues values;  ///< empty: it was measured that nothing beats the heuristic's config
  std::string how;  ///< for people: "tuned 2026-11-22T10:00:00Z: 81.2 us, 0.931 of the heuristic's time"; may be empty
  std::optional<double> unfinished_after = {};  ///< seconds that such a search took
};
/// The store's own record or, where that is unfinished, a better one of its read-only places. nullopt: there is none,
/// or what is there cannot be read as one. Legality is the caller's to check.
std::optional<StoredConfig> find_stored_config(const RecordKey& key);

/// What was found for another problem of the same kernel.
struct NearConfig {
  ConfigValues values;
  std::string problem;  ///< as problem_text has it
};
/// That of the nearest problem in the store and its read-only places: equal but for lengths and counts, which may
/// differ by a factor of kNearFactor all in all, on this device or on another one of its architecture (which counts
/// like a factor of 2). nullopt: none is near, or nothing beat the heuristic there.
std::optional<NearConfig> find_near_config(const RecordKey& key);
inline constexpr double kNearFactor = 16;

/// False when it could not be kept: the store never fails a call.
bool put_stored_config(const RecordKey& key, const ConfigValues& values, const ConfigProvenance& provenance);

}  // namespace ejk
