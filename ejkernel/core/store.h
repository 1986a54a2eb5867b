// Records on disk that outlive the process: one small file each, found by its whole key, never trusted unchecked.
//
//   root/v1/<environment>/<group>/<digest of the key>
//
// A file is published by writing another name, syncing it, renaming it and syncing the folder, so that a reader sees
// the old record, the new one or none, whenever a process or the machine stops. Nobody waits for anybody: of two
// writers the last one wins. A record that is damaged, or that answers for another key, is a miss; a damaged one is
// moved aside. One that a newer version of the library wrote is a miss and left alone. No failure of the store is an
// error of a call: it only costs the time to make the value again.
//
// Nothing is read through a link, a folder or a file that others than this user or root can write, or own: records
// become code that runs as this user.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejkernel/core/export.h"

namespace ejk {

/// What a record is found by. The first two name folders (what no file name holds is replaced there), and all three are
/// compared when a record is read.
struct RecordKey {
  std::string environment;  ///< what the value is for: a device's fingerprint, an architecture
  std::string group;        ///< the operation
  std::string text;         ///< everything else that the value depends on
  friend bool operator==(const RecordKey&, const RecordKey&) = default;
};

struct Record {
  std::string value;
  std::string provenance;  ///< how it came about, for people: when, by which versions, at what cost
};

enum class RecordState : uint8_t { good, damaged, newer };
EJK_API std::string_view name(RecordState state);

/// A record as it lies in a store or an archive.
struct StoredRecord {
  std::string path;    ///< of the file; in an archive, the archive's and the record's number
  std::string digest;  ///< of its key: the name of the file
  RecordState state = RecordState::damaged;
  std::string reason = {};  ///< when it is not good
  RecordKey key = {};       ///< of a good one, and what follows
  Record record = {};
  int64_t bytes = 0;  ///< of the file
  int64_t used = 0;   ///< when it was last used, in seconds since 1970; 0 in an archive
};
using VisitRecord = std::function<void(const StoredRecord& stored)>;

struct StoreOptions {
  int64_t quota_bytes = 0;  ///< 0: no limit
  /// Folders of this form and archives, asked in order for what is not below the root. They are never written.
  std::vector<std::string> read_only = {};
};

/// What a collection takes.
struct CollectOptions {
  int64_t quota_bytes = 0;     ///< the least recently used records until the rest is no more; 0: none for this
  int64_t unused_seconds = 0;  ///< what nobody used for so long; 0: none for this
  bool dry_run = false;        ///< only counts
};
struct Collection {
  int64_t kept = 0, kept_bytes = 0;
  int64_t removed = 0, removed_bytes = 0;  ///< records
  int64_t leftovers = 0;                   ///< what crashed writers left, and what was moved aside
};

namespace store_detail {
struct State;  // what this process knows of a store
}

class EJK_API Store {
 public:
  /// An empty root: nothing is kept, and found only what the read-only places hold. The folder is made, for its owner
  /// only, when the first record is put.
  explicit Store(std::string root, StoreOptions options = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// The root's record, else that of the first read-only place that has one. With `is_wanted` the first of them that
  /// it takes, and the first of all where it takes none.
  std::optional<Record> find(const RecordKey& key, const std::function<bool(const Record&)>& is_wanted = nullptr) const;
  /// True when the record is on disk, for good.
  bool put(const RecordKey& key, const Record& record) const;

  const std::string& root() const { return root_; }
  /// The file that holds the key's record.
  std::string path_of(const RecordKey& key) const;

  /// Every record below the root, or in one group's folders, in the order of their paths: each is read and checked.
  void for_each(const VisitRecord& visit, std::string_view group = {}) const;
  /// The same, and then those of the read-only places: what `find` may answer with.
  void for_each_found(const VisitRecord& visit, std::string_view group = {}) const;

  /// Removes what is not wanted any more. `put` does so by itself when there is a quota: the first put of a process
  /// measures the store and clears away what crashed writers left; so does a later one, when what this process put
  /// since then comes to an eighth of the quota or to what was left of it. A store above its quota is brought down to
  /// seven eighths of it: first what was moved aside, then the records used least recently, never the one just put.
  ///
  /// A record is used when it is put or found. Its file's modification time says when, to the hour: a hit renews an
  /// older one, which costs about a microsecond per record and hour.
  ///
  /// Several processes may collect at once. One that puts a record in the microsecond in which another removes its
  /// predecessor loses it, as if it had never been made.
  Collection collect(const CollectOptions& options) const;

 private:
  void open_places() const;

  std::string root_;
  StoreOptions options_;
  std::unique_ptr<store_detail::State> state_;
};

/// Why a store's folder or an archive is not used; empty when it is. A folder that is not there yet is one.
EJK_API std::string distrust_of(const std::string& path);

/// The process's store: EJKERNEL_CACHE_DIR, else $XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel; its read-only places
/// are EJKERNEL_CONFIG_PATH's, its quota is EJKERNEL_CACHE_QUOTA_MB.
EJK_API const Store& store();
/// For tests: another root from now on.
EJK_API void use_store(std::string root, StoreOptions options = {});

// For tests of what happens when the disk fails: like fail_host_allocation.

/// The k-th call that touches the file system from now on fails, once (1 = the next one); 0 disarms. Returns what was
/// left of the countdown before: 0 when that call has come.
EJK_API int64_t fail_store_call(int64_t k);
/// The same, but the process ends there and then, as by SIGKILL.
EJK_API void die_at_store_call(int64_t k);

}  // namespace ejk
