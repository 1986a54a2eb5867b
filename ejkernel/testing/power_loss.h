// What may be on a disk after the power went. A file system promises little: what was written is there for sure after a
// sync of the file, what a folder lists after a sync of the folder, and until then any part of it may be there, in any
// order. This watches what stores do, and makes every such disk.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ejkernel/core/store.h"
#include "ejkernel/core/store_files_internal.h"

namespace ejk::testing {

class PowerLoss {
 public:
  /// Watches every store below `base`, an empty folder, while it lives; no other thread may use one. What `counts` is
  /// false for is left out, as if the store had not done it: so that tests can see a fault noticed.
  explicit PowerLoss(std::filesystem::path base, std::function<bool(const store_files::Call& call)> counts = {});
  ~PowerLoss();
  PowerLoss(const PowerLoss&) = delete;
  PowerLoss& operator=(const PowerLoss&) = delete;

  /// Calls so far that change something.
  size_t num_calls() const { return calls_.size(); }

  /// Makes what may be left in place of `base` after the first `calls` calls, one disk after the other, below
  /// `elsewhere`, and calls `check` for each. Nothing is watched from then on.
  void for_each_disk(size_t calls, const std::filesystem::path& elsewhere, const std::function<void()>& check) const;

 private:
  struct Call {
    enum class Kind { make_folder, create, write, sync, rename, remove } kind;
    std::string path, to, bytes;
  };
  struct Disk;
  std::filesystem::path base_;
  std::vector<Call> calls_;
};

/// Puts under such a watch, and what of them must or may be found afterwards.
class WatchedPuts {
 public:
  WatchedPuts(const PowerLoss& disk, const Store& store) : disk_(&disk), store_(&store) {}
  void put(const RecordKey& key, const std::string& value);
  /// What is wrong with what `found` holds if the power went after `calls` calls: a value that was never put, an older
  /// one than was committed, none where one was. Empty: nothing.
  std::string judge(const Store& found, size_t calls) const;

 private:
  struct Put {
    RecordKey key;
    std::string value;
    size_t begin, end;
    bool committed;
  };
  const PowerLoss* disk_;
  const Store* store_;
  std::vector<Put> puts_;
};

}  // namespace ejk::testing
