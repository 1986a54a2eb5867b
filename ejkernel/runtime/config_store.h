// Tier 4: configs that were found by measuring, kept in the store for later processes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ejkernel/core/store.h"
#include "ejkernel/runtime/choose.h"

namespace ejk {

/// Where a kernel's config for a problem is kept. The key is the problem as text, its digest, the kernel and the
/// kernel's revision: a change of any is a miss.
RecordKey config_record_key(const ChooseRequest& request, const KernelInfo& kernel);

/// How a config came about; kept beside it and shown by tools.
struct ConfigProvenance {
  std::string how = "tuned";     ///< "tuned", "imported", "transferred"
  double seconds = 0;            ///< median of one run
  double heuristic_seconds = 0;  ///< of the heuristic's config, interleaved with it
  double ratio_high = 1;         ///< upper end of the 99 % interval of seconds / heuristic_seconds
  int64_t num_samples = 0;
  int64_t num_candidates = 0;
  double search_seconds = 0;
};

/// The values of a stored config; nullopt: there is none, or what is there cannot be read as one. Legality is the
/// caller's to check.
std::optional<ConfigValues> find_stored_config(const RecordKey& key);
/// False when it could not be kept: the store never fails a call.
bool put_stored_config(const RecordKey& key, const ConfigValues& values, const ConfigProvenance& provenance);

}  // namespace ejk
