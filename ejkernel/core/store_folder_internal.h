// A folder of the store's form as its readers see it: which of it may be trusted, what stands in it, one key's record.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "ejkernel/core/record_format_internal.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/store_files_internal.h"

namespace ejk::store_folder {

/// Whether nobody else can write any of the folders from `root` down to `folder`, and none below `root` is a link.
/// Warns once of the one that is not so; says nothing of one that is not there.
bool is_trusted(const std::string& root, const std::string& folder);

/// Makes the folder where it is missing (see store_files::make_folders). False when it cannot be made, or is not to be
/// trusted.
bool make_trusted(const std::string& root, const std::string& folder, std::set<std::string>& synced);

/// Folders that were trusted when they were first read from. They are not looked at again for reading: a record counts
/// only if its own owner and mode say that nobody else can have written it.
class TrustedFolders {
 public:
  /// is_trusted(), for the first time of a folder and as long as it is not.
  bool holds(const std::string& root, const std::string& folder);

 private:
  std::mutex mutex_;
  std::set<std::string> folders_;
};

/// The key's record below `root`. In the `writable` root a damaged one is moved aside, and a hit counts as use.
std::optional<Record> find(const std::string& root, const RecordKey& key, bool writable, TrustedFolders& trusted);

/// Whether a newer version of the library wrote the record: then it is left alone, by writers and collectors too.
bool holds_newer_record(const std::string& path);

/// How the names of damaged records end that were moved aside.
inline constexpr std::string_view kAside = ".bad";

/// Every file that stands where records do, in the order of their paths.
void for_each_file(const std::string& root,
                   const std::function<void(const std::string& path, const struct stat& info)>& visit);
/// The records among them, of one group unless it is empty.
void for_each_record(const std::string& root, const VisitRecord& visit, std::string_view group = {});

/// Removes what `options` say, but not `keep`, and what crashed writers left. `target_bytes` is what is left of a store
/// above the quota.
Collection collect(const std::string& root, const CollectOptions& options, int64_t target_bytes,
                   const std::string& keep);

/// Where claims stand (store_claim.h); records stand in a folder beside it.
inline std::string claims_of(const std::string& root) { return root + "/claims"; }

std::string name_of(const std::string& path);
bool ends_with(std::string_view text, std::string_view end);

}  // namespace ejk::store_folder
