#include "ejkernel/core/store.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <set>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/installation.h"
#include "ejkernel/core/log.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/core/store_folder_internal.h"

namespace ejk {
namespace {

/// One that is only read: a folder, or an archive.
struct Place {
  std::string folder;
  std::shared_ptr<const Archive> archive;
};

std::string without_last_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool is_folder(const std::string& path) {
  const auto info = store_files::info_of(path, /*of_target=*/true);
  return info && S_ISDIR(info->st_mode);
}

std::vector<Place> places_at(const std::vector<std::string>& paths) {
  std::vector<Place> places;
  for (const std::string& path : paths) {
    if (is_folder(path)) {
      places.push_back({without_last_slash(path), nullptr});
      continue;
    }
    std::string why;
    if (auto archive = Archive::open(path, why))
      places.push_back({"", std::move(archive)});
    else
      log_once("store:" + path, LogLevel::warning, "store: " + path + " " + why + ", so it is not used");
  }
  return places;
}

}  // namespace

struct store_detail::State {
  std::mutex mutex;
  std::set<std::string> synced;  ///< folders that are there, for good
  std::atomic<int64_t> bytes_until_collection{0};
  store_folder::TrustedFolders trusted;
  std::once_flag opened;
  std::vector<Place> places;

  bool prepare(const std::string& root, const std::string& folder) {
    const std::lock_guard lock(mutex);
    return store_folder::make_trusted(root, folder, synced);
  }

  /// Counts a put, and collects when it is time to (see Store::collect).
  void note_put(const std::string& root, int64_t quota, const std::string& path, int64_t bytes) {
    if ((bytes_until_collection -= bytes) >= 0) return;
    const int64_t eighth = quota / 8;
    const Collection left = store_folder::collect(root, {.quota_bytes = quota}, quota - eighth, path);
    if (quota == 0)
      bytes_until_collection = std::numeric_limits<int64_t>::max();
    else
      // What could not be brought down is not measured again at every put.
      bytes_until_collection = left.kept_bytes < quota ? std::min(eighth, quota - left.kept_bytes) : eighth;
  }
};

Store::Store(std::string root, StoreOptions options)
    : root_(without_last_slash(std::move(root))),
      options_(std::move(options)),
      state_(std::make_unique<store_detail::State>()) {}
Store::~Store() = default;

std::string Store::path_of(const RecordKey& key) const { return root_ + "/" + record_format::relative_path(key); }

void Store::open_places() const {
  std::call_once(state_->opened, [&] { state_->places = places_at(options_.read_only); });
}

std::optional<Record> Store::find(const RecordKey& key, const std::function<bool(const Record&)>& is_wanted) const {
  std::optional<Record> first;
  const auto is_it = [&](const std::optional<Record>& record) {
    if (record && !first) first = record;
    return record && (is_wanted == nullptr || is_wanted(*record));
  };
  if (!root_.empty())
    if (auto record = store_folder::find(root_, key, /*writable=*/true, state_->trusted); is_it(record)) return record;
  if (options_.read_only.empty()) return first;
  open_places();
  for (const Place& place : state_->places)
    if (auto record = place.archive ? place.archive->find(key)
                                    : store_folder::find(place.folder, key, /*writable=*/false, state_->trusted);
        is_it(record))
      return record;
  return first;
}

bool Store::put(const RecordKey& key, const Record& record) const {
  if (root_.empty()) return false;
  const std::string bytes = record_format::encode(key, record);
  if (bytes.size() > record_format::kLargestRecord) return false;
  const std::string path = path_of(key), folder = store_files::folder_of(path);
  if (!state_->prepare(root_, folder) || store_folder::holds_newer_record(path)) return false;
  if (store_files::publish(path, {bytes}) != 0) return false;
  state_->note_put(root_, options_.quota_bytes, path, static_cast<int64_t>(bytes.size()));
  return true;
}

void Store::for_each(const VisitRecord& visit, std::string_view group) const {
  if (!root_.empty()) store_folder::for_each_record(root_, visit, group);
}

void Store::for_each_found(const VisitRecord& visit, std::string_view group) const {
  for_each(visit, group);
  open_places();
  for (const Place& place : state_->places) {
    if (!place.archive)
      store_folder::for_each_record(place.folder, visit, group);
    else  // its index holds digests alone
      place.archive->for_each([&](const StoredRecord& stored) {
        if (group.empty() || stored.key.group == group) visit(stored);
      });
  }
}

Collection Store::collect(const CollectOptions& options) const {
  return root_.empty() ? Collection() : store_folder::collect(root_, options, options.quota_bytes, "");
}

std::string distrust_of(const std::string& path) {
  const auto info = store_files::info_of(path, /*of_target=*/true);
  if (!info) return errno == ENOENT ? "" : "cannot be looked at";
  if (S_ISDIR(info->st_mode)) return std::string(store_files::distrust(*info));
  std::string why;
  Archive::open(path, why);
  return why;
}

// ---- the process's store ----

namespace {

std::mutex choosing_store;
std::atomic<const Store*> current_store{nullptr};

std::string default_root() {
  if (const std::string& named = environment::cache_dir(); !named.empty()) return named;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/ejkernel";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return "";
  // Under sudo it may be another user's, who could not use what this one makes in it.
  const auto info = store_files::info_of(home, /*of_target=*/true);
  return info && info->st_uid != geteuid() ? "" : std::string(home) + "/.cache/ejkernel";
}

/// Needs the lock. Stores are never destroyed: references to earlier ones stay valid, and calls may come while the
/// process exits.
void choose_store(std::string root, StoreOptions options) {
  static auto* all = new std::vector<std::unique_ptr<const Store>>;
  all->push_back(std::make_unique<const Store>(std::move(root), std::move(options)));
  current_store.store(all->back().get(), std::memory_order_release);
}

}  // namespace

const Store& store() {
  const Store* now = current_store.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  const std::lock_guard lock(choosing_store);
  if (current_store.load() == nullptr)
    choose_store(default_root(), {.quota_bytes = environment::cache_quota_mb() << 20,
                                  .read_only = environment::config_path().value_or(shipped_tables())});
  return *current_store.load();
}

void use_store(std::string root, StoreOptions options) {
  const std::lock_guard lock(choosing_store);
  choose_store(std::move(root), std::move(options));
}

}  // namespace ejk
