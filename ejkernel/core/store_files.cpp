#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>

#include "ejkernel/core/store.h"
#include "ejkernel/core/store_files_internal.h"

namespace ejk::store_files {
namespace {

std::atomic<const Watcher*> current_watcher{nullptr};

/// `act(most)` follows the system's convention: a negative result is a failure, and errno says which.
template <class Act>
auto touch(const Call& call, Act act) {
  while (true) {
    Answer answer;
    if (const Watcher* watcher = current_watcher.load(std::memory_order_acquire)) answer = (*watcher)(call);
    decltype(act(answer.most)) result = -1;
    if (answer.error != 0)
      errno = answer.error;
    else
      result = act(answer.most);
    if (result >= 0 || errno != EINTR) return result;
  }
}

int open_descriptor(const std::string& path, Access access) {
  int flags = O_CLOEXEC;
  switch (access) {
    case Access::read:
      flags |= O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
      break;
    case Access::read_named:
      flags |= O_RDONLY | O_NONBLOCK;
      break;
    case Access::create:
      flags |= O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
      break;
    case Access::claim:
      flags |= O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK;  // network file systems lock what can be written
      break;
    case Access::append:
      flags |= O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK;
      break;
    case Access::folder:
      flags |= O_RDONLY | O_DIRECTORY;
      break;
  }
  const auto kind = (flags & O_CREAT) != 0 ? Call::Kind::create : Call::Kind::open;
  return touch({kind, path}, [&](size_t) { return open(path.c_str(), flags, 0600); });
}

}  // namespace

void watch(Watcher watcher) {
  static std::unique_ptr<const Watcher> kept;
  current_watcher.store(nullptr);
  kept = watcher ? std::make_unique<const Watcher>(std::move(watcher)) : nullptr;
  current_watcher.store(kept.get(), std::memory_order_release);
}

File::File(std::string path, Access access) : path_(std::move(path)), descriptor_(open_descriptor(path_, access)) {}

File::~File() {
  if (is_open()) close(descriptor_);
}

std::optional<struct stat> File::info() const {
  struct stat info = {};
  if (touch({Call::Kind::info, path_}, [&](size_t) { return fstat(descriptor_, &info); }) != 0) return std::nullopt;
  return info;
}

std::optional<std::string> File::read(size_t size, size_t offset) const {
  std::string bytes(size, '\0');
  for (size_t have = 0; have < size;) {
    const ssize_t got = touch({Call::Kind::read, path_}, [&](size_t most) {
      return pread(descriptor_, bytes.data() + have, std::min(most, size - have), static_cast<off_t>(offset + have));
    });
    if (got <= 0) return std::nullopt;
    have += static_cast<size_t>(got);
  }
  return bytes;
}

bool File::write(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = touch({.kind = Call::Kind::write, .path = path_, .bytes = bytes}, [&](size_t most) {
      return ::write(descriptor_, bytes.data(), std::min(most, bytes.size()));
    });
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool File::sync() const {
  return touch({Call::Kind::sync, path_}, [&](size_t) { return fsync(descriptor_); }) == 0;
}

bool File::lock() const {
  return touch({Call::Kind::lock, path_}, [&](size_t) { return flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0;
}

bool File::renew() const {
  return touch({Call::Kind::renew, path_}, [&](size_t) { return futimens(descriptor_, nullptr); }) == 0;
}

std::optional<struct stat> info_of(const std::string& path, bool of_target) {
  struct stat info = {};
  const int result = touch({Call::Kind::info, path},
                           [&](size_t) { return of_target ? stat(path.c_str(), &info) : lstat(path.c_str(), &info); });
  if (result != 0) return std::nullopt;
  return info;
}

std::optional<std::vector<std::string>> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const int result = touch({Call::Kind::list, folder}, [&](size_t) {
    names.clear();
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
    if (directory == nullptr) return -1;
    errno = 0;
    while (const dirent* entry = readdir(directory.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    return errno == 0 ? 0 : -1;
  });
  if (result != 0) return std::nullopt;
  std::sort(names.begin(), names.end());
  return names;
}

bool rename(const std::string& from, const std::string& to) {
  return touch({.kind = Call::Kind::rename, .path = from, .to = to},
               [&](size_t) { return std::rename(from.c_str(), to.c_str()); }) == 0;
}

bool remove(const std::string& path) {
  return touch({Call::Kind::remove, path}, [&](size_t) { return unlink(path.c_str()); }) == 0;
}

std::string folder_of(const std::string& path) {
  const size_t end = path.rfind('/');
  if (end == std::string::npos) return ".";
  return end == 0 ? "/" : path.substr(0, end);
}

namespace {

bool make_folder(const std::string& path) {
  return touch({Call::Kind::make_folder, path}, [&](size_t) { return mkdir(path.c_str(), 0700); }) == 0;
}

bool sync_folder(const std::string& path) {
  const File folder(path, Access::folder);
  // One above ours may be another's, who lets us pass and not read. Some network file systems cannot sync a folder and
  // say EINVAL. There is no more to be done.
  return folder.is_open() ? folder.sync() || errno == EINVAL : errno == EACCES;
}

}  // namespace

bool make_folders(const std::string& path, const std::string& root, std::set<std::string>& synced) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    const bool is_new = make_folder(folder);
    if (!is_new && errno != EEXIST) return false;
    if (is_new || (folder.size() >= root.size() && synced.count(folder) == 0)) {
      if (!sync_folder(folder_of(folder))) return false;
      synced.insert(folder);
    }
    if (end == std::string::npos) return true;
  }
}

std::string_view distrust(const struct stat& info) {
  if (S_ISLNK(info.st_mode)) return "is a link";
  if (info.st_uid != geteuid() && info.st_uid != 0) return "belongs to another user";
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "can be written by others than its owner";
  return "";
}

namespace {

/// No two writers in the world should choose the same one: of processes that share a folder over a network, or from
/// containers, several may have the same number.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  char unique[64];
  std::snprintf(unique, sizeof unique, ".%d.%llx%08lx.%u", static_cast<int>(getpid()),
                static_cast<unsigned long long>(now.tv_sec), static_cast<unsigned long>(now.tv_nsec),
                counter.fetch_add(1));
  return path + unique + std::string(kTemporary);
}

/// Puts a whole and synced file in its place.
bool write_and_rename(const File& file, const std::string& temporary, const std::string& path,
                      std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    if (!file.write(part)) return false;
  return file.sync() && rename(temporary, path);
}

}  // namespace

int publish(const std::string& path, std::initializer_list<std::string_view> parts) {
  const std::string temporary = temporary_name(path);
  const File file(temporary, Access::create);
  if (!file.is_open()) return errno;
  file.lock();  // says that the writer lives; without locks the file's age has to say it
  if (!write_and_rename(file, temporary, path, parts)) {
    const int error = errno;
    remove(temporary);
    return error;
  }
  return sync_folder(folder_of(path)) ? 0 : errno;
}

bool remove_if_abandoned(const std::string& temporary, bool dry_run) {
  // A writer locks its file just after making it. Where there are no locks, none takes an hour.
  constexpr time_t kSecondsToLock = 1, kSecondsToWrite = 3600;
  const File file(temporary, Access::read);
  if (!file.is_open()) return false;
  const auto info = file.info();
  if (!info || !S_ISREG(info->st_mode)) return false;
  const time_t age = time(nullptr) - info->st_mtime;
  if (age <= kSecondsToLock || (!file.lock() && age <= kSecondsToWrite)) return false;
  return dry_run || remove(temporary);
}

}  // namespace ejk::store_files

namespace ejk {

namespace {

std::atomic<int64_t> calls_until_failure{0};

}  // namespace

int64_t fail_store_call(int64_t k) {
  const int64_t before = calls_until_failure.exchange(k);
  store_files::watch(k == 0 ? store_files::Watcher() : [](const store_files::Call&) -> store_files::Answer {
    const bool fails = calls_until_failure > 0 && --calls_until_failure == 0;
    return {.error = fails ? EIO : 0};
  });
  return before;
}

void die_at_store_call(int64_t k) {
  store_files::watch([k](const store_files::Call&) mutable -> store_files::Answer {
    if (--k == 0) _exit(137);
    return {};
  });
}

}  // namespace ejk
