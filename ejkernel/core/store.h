// Records on disk that outlive the process: one small file each, found by its whole key, never trusted unchecked.
//
//   root/v1/<environment>/<group>/<digest of the key>
//
// A file is published by writing another name, syncing it, renaming it and syncing the folder, so that a reader sees
// the old record, the new one or none, whenever a process or the machine stops. Nobody waits for anybody: of two
// writers the last one wins. A record that is damaged, or that answers for another key, is a miss; a damaged one is
// moved aside. No failure of the store is an error of a call: it only costs the time to make the value again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ejkernel/core/export.h"

namespace ejk {

/// What a record is found by. The first two name folders (what no file name holds is replaced there), and all three are
/// compared when a record is read.
struct RecordKey {
  std::string environment;  ///< what the value is for: a device's fingerprint, an architecture
  std::string group;        ///< the operation
  std::string text;         ///< everything else that the value depends on
};

struct Record {
  std::string value;
  std::string provenance;  ///< how it came about, for people: when, by which versions, at what cost
};

class EJK_API Store {
 public:
  /// An empty root: nothing is found or kept. The folder is made, for its owner only, when the first record is put.
  explicit Store(std::string root) : root_(std::move(root)) {}

  std::optional<Record> find(const RecordKey& key) const;
  /// True when the record is on disk, for good.
  bool put(const RecordKey& key, const Record& record) const;

  const std::string& root() const { return root_; }
  /// The file that holds the key's record.
  std::string path_of(const RecordKey& key) const;

 private:
  bool is_trusted() const;
  std::string root_;
};

/// The process's store: EJKERNEL_CACHE_DIR, else $XDG_CACHE_HOME/ejkernel, else ~/.cache/ejkernel.
EJK_API const Store& store();
/// For tests: another root from now on.
EJK_API void use_store(std::string root);

// For tests of what happens when the disk fails: like fail_host_allocation.

/// The k-th call that touches the file system from now on fails, once (1 = the next one); 0 disarms. Returns what was
/// left of the countdown before: 0 when that call has come.
EJK_API int64_t fail_store_call(int64_t k);
/// The same, but the process ends there and then, as by SIGKILL.
EJK_API void die_at_store_call(int64_t k);

}  // namespace ejk
