#include <algorithm>
#include <cerrno>
#include <ctime>
#include <vector>

#include "ejkernel/core/store_folder_internal.h"

namespace ejk::store_folder {
namespace {

struct Found {
  std::string path;
  struct stat info;
  int64_t bytes() const { return info.st_size; }
};

bool is_same_moment(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

bool used_before(const Found& a, const Found& b) {
  const timespec &x = a.info.st_mtim, &y = b.info.st_mtim;
  return x.tv_sec != y.tv_sec ? x.tv_sec < y.tv_sec : x.tv_nsec < y.tv_nsec;
}

/// False when it stays: it was put or used since it was found, or a newer version of the library wrote it.
bool remove_unused(const Found& found) {
  if (holds_newer_record(found.path)) return false;
  const auto now = store_files::info_of(found.path);
  if (now && (now->st_ino != found.info.st_ino || !is_same_moment(now->st_mtim, found.info.st_mtim))) return false;
  return store_files::remove(found.path) || errno == ENOENT;
}

}  // namespace

Collection collect(const std::string& root, const CollectOptions& options, int64_t target_bytes,
                   const std::string& keep) {
  std::vector<Found> records, aside;
  Collection collection;
  for_each_file(root, [&](const std::string& path, const struct stat& info) {
    const std::string name = name_of(path);
    if (record_format::is_record_name(name))
      records.push_back({path, info});
    else if (ends_with(name, kAside))
      aside.push_back({path, info});
    else if (ends_with(name, store_files::kTemporary))
      collection.leftovers += store_files::remove_if_abandoned(path, options.dry_run);
  });
  const std::string claims = claims_of(root);
  const auto claimed = is_trusted(root, claims) ? store_files::names_in(claims) : std::nullopt;
  for (const std::string& name : claimed.value_or(std::vector<std::string>()))
    collection.leftovers += store_files::remove_if_abandoned(claims + "/" + name, options.dry_run);
  for (const Found& record : records) collection.kept_bytes += record.bytes();
  int64_t total = collection.kept_bytes;
  for (const Found& file : aside) total += file.bytes();
  const bool is_full = options.quota_bytes > 0 && total > options.quota_bytes;
  // A process that only keeps to the quota leaves them for people to look at.
  if (is_full || keep.empty())
    for (const Found& file : aside) collection.leftovers += options.dry_run || store_files::remove(file.path);

  std::sort(records.begin(), records.end(), used_before);
  const time_t now = time(nullptr);
  for (const Found& record : records) {
    const bool is_too_much = is_full && collection.kept_bytes > target_bytes;
    const bool is_old = options.unused_seconds > 0 && now - record.info.st_mtime >= options.unused_seconds;
    if ((is_too_much || is_old) && record.path != keep && (options.dry_run || remove_unused(record))) {
      ++collection.removed;
      collection.removed_bytes += record.bytes();
      collection.kept_bytes -= record.bytes();
    } else {
      ++collection.kept;
    }
  }
  return collection;
}

}  // namespace ejk::store_folder
