#include "ejkernel/core/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/environment.h"
#include "ejkernel/core/log.h"

namespace ejk {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in records are little-endian");

// ---- the seam: every call that touches the file system ----

std::atomic<int64_t> calls_until_failure{0};
std::atomic<int64_t> calls_until_death{0};

bool is_told(std::atomic<int64_t>& countdown) {
  return countdown.load(std::memory_order_relaxed) > 0 && countdown.fetch_sub(1) == 1;
}

/// `call` follows the system's convention: a negative result is a failure, and errno says which.
template <class Call>
auto touch(Call call) -> decltype(call()) {
  if (is_told(calls_until_death)) _exit(137);
  if (is_told(calls_until_failure)) {
    errno = EIO;
    return -1;
  }
  decltype(call()) result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

/// An open file, closed with the scope.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0)
      : descriptor_(touch([&] { return open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode); })) {}
  ~File() {
    if (is_open()) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  bool sync() const {
    return touch([&] { return fsync(descriptor_); }) == 0;
  }
  bool write_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = touch([&] { return write(descriptor_, bytes.data(), bytes.size()); });
      if (written < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return true;
  }
  std::optional<std::string> read_all(size_t most) const {
    struct stat info = {};
    if (touch([&] { return fstat(descriptor_, &info); }) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
    const auto size = static_cast<size_t>(info.st_size);
    if (size > most) return std::nullopt;
    std::string bytes(size, '\0');
    for (size_t have = 0; have < size;) {
      const ssize_t got = touch([&] { return read(descriptor_, bytes.data() + have, size - have); });
      if (got <= 0) return std::nullopt;
      have += static_cast<size_t>(got);
    }
    return bytes;
  }

 private:
  int descriptor_;
};

/// Makes the folder and those above it; true when it is there.
bool make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (touch([&] { return mkdir(folder.c_str(), 0700); }) != 0 && errno != EEXIST) return false;
    if (end == std::string::npos) return true;
  }
}

bool sync_folder(const std::string& path) {
  const File folder(path, O_RDONLY | O_DIRECTORY);
  return folder.is_open() && folder.sync();
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// ---- the format ----

constexpr uint32_t kSchema = 1;
constexpr std::string_view kSchemaFolder = "v1";
constexpr std::array<char, 8> kMagic = {'e', 'j', 'k', 's', 't', 'o', 'r', 'e'};
constexpr size_t kLargestRecord = size_t{64} << 20;
constexpr std::string_view kTemporary = ".tmp";
constexpr time_t kStaleSeconds = 3600;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t schema = kSchema;
  uint32_t reserved = 0;
  uint64_t key_bytes = 0, value_bytes = 0, provenance_bytes = 0;
  Digest digest = {};  ///< of this header with a digest of zeros, and of all that follows
};
static_assert(sizeof(Header) == 56);

std::string whole(const RecordKey& key) {
  std::string text;
  for (const std::string* part : {&key.environment, &key.group, &key.text})
    text += std::to_string(part->size()) + ":" + *part;
  return text;
}

std::string bytes_of(Header header, std::string_view content) {
  std::string bytes(sizeof(Header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(Header));
  return bytes.append(content);
}

std::string encode(const RecordKey& key, const Record& record) {
  const std::string key_text = whole(key);
  Header header;
  header.key_bytes = key_text.size();
  header.value_bytes = record.value.size();
  header.provenance_bytes = record.provenance.size();
  const std::string content = key_text + record.value + record.provenance;
  header.digest = digest_of(bytes_of(header, content));
  return bytes_of(header, content);
}

enum class Verdict { good, other_key, newer, damaged };

Verdict decode(std::string_view bytes, const RecordKey& key, Record& into) {
  Header header;
  if (bytes.size() < sizeof(Header)) return Verdict::damaged;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != kMagic) return Verdict::damaged;
  if (header.schema > kSchema) return Verdict::newer;
  const std::string_view content = bytes.substr(sizeof(Header));
  // One by one, so that no sum of hostile sizes wraps around.
  if (header.key_bytes > content.size() || header.value_bytes > content.size() - header.key_bytes ||
      header.provenance_bytes != content.size() - header.key_bytes - header.value_bytes)
    return Verdict::damaged;
  Header unsigned_header = header;
  unsigned_header.digest = {};
  if (!(digest_of(bytes_of(unsigned_header, content)) == header.digest)) return Verdict::damaged;
  if (content.substr(0, header.key_bytes) != whole(key)) return Verdict::other_key;
  into.value = content.substr(header.key_bytes, header.value_bytes);
  into.provenance = content.substr(header.key_bytes + header.value_bytes);
  return Verdict::good;
}

/// A part of a key as the name of a folder.
std::string folder_name(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, 100)) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    name += is_plain ? c : '_';
  }
  return name.empty() ? "_" : name;
}

/// What crashed writers left in a folder; looked for once per folder and process.
void sweep(const std::string& folder) {
  static std::mutex mutex;
  static auto* swept = new std::set<std::string>;
  {
    const std::lock_guard lock(mutex);
    if (!swept->insert(folder).second) return;
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), closedir);
  if (directory == nullptr) return;
  const time_t now = time(nullptr);
  while (const dirent* entry = readdir(directory.get())) {
    const std::string path = folder + "/" + entry->d_name;
    struct stat info = {};
    if (ends_with(entry->d_name, kTemporary) && lstat(path.c_str(), &info) == 0 && now - info.st_mtime > kStaleSeconds)
      touch([&] { return unlink(path.c_str()); });
  }
}

/// Writes the file under another name first; on failure nothing is left of it.
bool publish(const std::string& folder, const std::string& path, std::string_view bytes) {
  static std::atomic<unsigned> counter{0};
  const std::string temporary =
      path + "." + std::to_string(getpid()) + "." + std::to_string(counter.fetch_add(1)) + std::string(kTemporary);
  bool written = false;
  {
    const File file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (!file.is_open()) return false;
    written = file.write_all(bytes) && file.sync();
  }
  if (!written || touch([&] { return rename(temporary.c_str(), path.c_str()); }) != 0) {
    unlink(temporary.c_str());
    return false;
  }
  return sync_folder(folder);
}

std::string default_root() {
  if (const std::string& named = environment::cache_dir(); !named.empty()) return named;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/ejkernel";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/ejkernel" : "";
}

std::mutex choosing_store;
std::atomic<const Store*> current_store{nullptr};

}  // namespace

/// Records become code that runs as this user: nobody else may be able to write them.
bool Store::is_trusted() const {
  struct stat info = {};
  if (touch([&] { return stat(root_.c_str(), &info); }) != 0) return false;
  const bool is_own = info.st_uid == geteuid() || info.st_uid == 0;
  if (is_own && S_ISDIR(info.st_mode) && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return true;
  log_once("store:" + root_, LogLevel::warning,
           "store: " + root_ +
               " is not used, because others than its owner can write it, or it is not a folder of "
               "this user; run chmod 700 on it, or set EJKERNEL_CACHE_DIR");
  return false;
}

std::string Store::path_of(const RecordKey& key) const {
  return root_ + "/" + std::string(kSchemaFolder) + "/" + folder_name(key.environment) + "/" + folder_name(key.group) +
         "/" + to_string(digest_of(whole(key)));
}

std::optional<Record> Store::find(const RecordKey& key) const {
  if (root_.empty() || !is_trusted()) return std::nullopt;
  const std::string path = path_of(key);
  std::optional<std::string> bytes;
  {
    const File file(path, O_RDONLY);
    if (!file.is_open()) return std::nullopt;
    bytes = file.read_all(kLargestRecord);
  }
  if (!bytes) return std::nullopt;
  Record record;
  const Verdict verdict = decode(*bytes, key, record);
  if (verdict == Verdict::good) return record;
  if (verdict == Verdict::damaged) {
    log_once("store:" + path, LogLevel::warning, "store: " + path + " is damaged; it is moved aside and made again");
    touch([&] { return rename(path.c_str(), (path + ".bad").c_str()); });
  }
  return std::nullopt;
}

bool Store::put(const RecordKey& key, const Record& record) const {
  if (root_.empty() || !make_folders(root_) || !is_trusted()) return false;
  const std::string path = path_of(key);
  const std::string folder = path.substr(0, path.rfind('/'));
  if (!make_folders(folder)) return false;
  sweep(folder);
  return publish(folder, path, encode(key, record));
}

namespace {

/// Needs the lock. Stores are never destroyed: references to earlier ones stay valid, and calls may come while the
/// process exits.
void choose_store(std::string root) {
  static auto* all = new std::vector<std::unique_ptr<const Store>>;
  all->push_back(std::make_unique<const Store>(std::move(root)));
  current_store.store(all->back().get(), std::memory_order_release);
}

}  // namespace

const Store& store() {
  const Store* now = current_store.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  const std::lock_guard lock(choosing_store);
  if (current_store.load() == nullptr) choose_store(default_root());
  return *current_store.load();
}

void use_store(std::string root) {
  const std::lock_guard lock(choosing_store);
  choose_store(std::move(root));
}

int64_t fail_store_call(int64_t k) { return calls_until_failure.exchange(k); }
void die_at_store_call(int64_t k) { calls_until_death = k; }

}  // namespace ejk
