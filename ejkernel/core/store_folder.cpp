#include <cerrno>
#include <ctime>

#include "ejkernel/core/log.h"
#include "ejkernel/core/store_folder_internal.h"

namespace ejk::store_folder {

using record_format::Decoded;
using store_files::Access;
using store_files::File;

namespace {

void warn(const std::string& path, std::string_view why) {
  log_once("store:" + path, LogLevel::warning,
           "store: " + path + " " + std::string(why) +
               ", so nothing there is used; make it writable for this user alone (chmod 700), or set "
               "EJKERNEL_CACHE_DIR");
}

/// Nothing when the file cannot be read now, which says nothing about what it holds.
std::optional<Decoded> read_record(const File& file, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return Decoded{.reason = "it is no regular file"};
  if (static_cast<uint64_t>(info.st_size) > record_format::kLargestRecord)
    return Decoded{.reason = "it is larger than any record"};
  auto bytes = file.read(static_cast<size_t>(info.st_size));
  if (!bytes) return std::nullopt;
  return record_format::decode(std::move(*bytes));
}

/// Unless another process has put a good record there meanwhile.
void move_aside(const std::string& path, const struct stat& info, std::string_view reason) {
  log_once("store:" + path, LogLevel::warning,
           "store: " + path + " is damaged (" + std::string(reason) + "); it is moved aside and made again");
  const auto now = store_files::info_of(path);
  if (now && now->st_ino == info.st_ino) store_files::rename(path, path + std::string(kAside));
}

/// See Store::collect.
void note_use(const File& file, const struct stat& info) {
  constexpr time_t kOftenEnough = 3600;
  if (time(nullptr) - info.st_mtime > kOftenEnough) file.renew();
}

}  // namespace

bool is_trusted(const std::string& root, const std::string& folder) {
  for (size_t end = root.size();; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    const bool is_root = part.size() == root.size();  // it may be a link: a person named it
    const auto info = store_files::info_of(part, /*of_target=*/is_root);
    if (!info) return false;
    std::string_view why = store_files::distrust(*info);
    if (why.empty() && !S_ISDIR(info->st_mode)) why = "is no folder";
    if (!why.empty()) {
      warn(part, why);
      return false;
    }
    if (end >= folder.size()) return true;
  }
}

bool make_trusted(const std::string& root, const std::string& folder, std::set<std::string>& synced) {
  if (synced.count(folder) > 0 && is_trusted(root, folder)) return true;
  return store_files::make_folders(root, root, synced) && is_trusted(root, root) &&
         store_files::make_folders(folder, root, synced) && is_trusted(root, folder);
}

bool TrustedFolders::holds(const std::string& root, const std::string& folder) {
  const std::lock_guard lock(mutex_);
  if (folders_.count(folder) > 0) return true;
  if (!is_trusted(root, folder)) return false;
  folders_.insert(folder);
  return true;
}

std::optional<Record> find(const std::string& root, const RecordKey& key, bool writable, TrustedFolders& trusted) {
  const std::string path = root + "/" + record_format::relative_path(key);
  const File file(path, Access::read);
  if (!file.is_open()) return std::nullopt;
  const auto info = file.info();
  if (!info || !trusted.holds(root, store_files::folder_of(path))) return std::nullopt;
  if (const std::string_view why = store_files::distrust(*info); !why.empty()) {
    warn(path, why);
    return std::nullopt;
  }
  auto decoded = read_record(file, *info);
  if (!decoded) return std::nullopt;
  if (decoded->state == RecordState::damaged && writable) move_aside(path, *info, decoded->reason);
  if (decoded->state != RecordState::good || !(decoded->key == key)) return std::nullopt;
  if (writable) note_use(file, *info);
  return std::move(decoded->record);
}

bool holds_newer_record(const std::string& path) {
  const File file(path, Access::read);
  const auto info = file.is_open() ? file.info() : std::nullopt;
  const auto decoded = info ? read_record(file, *info) : std::nullopt;
  return decoded && decoded->state == RecordState::newer;
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

namespace {

using VisitFile = std::function<void(const std::string& path, const struct stat& info)>;

/// Files stand `depth` folders below; nothing is looked for deeper, so that no nesting leads anywhere.
void walk(const std::string& root, const std::string& folder, int depth, const VisitFile& visit) {
  if (!is_trusted(root, folder)) return;
  const auto names = store_files::names_in(folder);
  if (!names) return;
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    if (depth > 0)
      walk(root, path, depth - 1, visit);
    else if (const auto info = store_files::info_of(path))
      visit(path, *info);
  }
}

StoredRecord read_stored(const std::string& root, const std::string& path, const struct stat& info) {
  StoredRecord stored = {.path = path, .digest = name_of(path)};
  stored.bytes = info.st_size;
  stored.used = info.st_mtime;
  stored.reason = store_files::distrust(info);
  if (!stored.reason.empty()) return stored;
  const File file(path, Access::read);
  auto decoded = file.is_open() ? read_record(file, info) : std::nullopt;
  if (!decoded) {
    stored.reason = "it cannot be read";
    return stored;
  }
  stored.state = decoded->state;
  stored.reason = decoded->reason;
  if (decoded->state != RecordState::good) return stored;
  if (root + "/" + record_format::relative_path(decoded->key) != path) {
    stored.state = RecordState::damaged;
    stored.reason = "it stands where another key's record belongs";
    return stored;
  }
  stored.key = std::move(decoded->key);
  stored.record = std::move(decoded->record);
  return stored;
}

}  // namespace

void for_each_file(const std::string& root, const VisitFile& visit) {
  walk(root, root + "/" + std::string(record_format::kSchemaFolder), /*depth=*/2, visit);
}

void for_each_record(const std::string& root, const VisitRecord& visit, std::string_view group) {
  const std::string folder = group.empty() ? "" : record_format::folder_name(group);
  for_each_file(root, [&](const std::string& path, const struct stat& info) {
    const bool is_wanted = folder.empty() || name_of(store_files::folder_of(path)) == folder;
    if (is_wanted && record_format::is_record_name(name_of(path))) visit(read_stored(root, path, info));
  });
}

}  // namespace ejk::store_folder
