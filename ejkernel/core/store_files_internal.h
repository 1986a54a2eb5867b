// The few calls by which the store touches the file system, and the seam where tests watch them, fail them or end the
// process at one of them. Nothing else in the store talks to the system.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ejk::store_files {

// ---- the seam ----

/// A call that is about to be made.
struct Call {
  enum class Kind : uint8_t { open, create, info, read, write, sync, lock, renew, make_folder, list, rename, remove };
  Kind kind;
  std::string_view path;        ///< of the file or folder
  std::string_view to = {};     ///< rename: the new name
  std::string_view bytes = {};  ///< write: what
};

/// What a test makes of a call.
struct Answer {
  int error = 0;           ///< the errno that it fails with instead of being made
  size_t most = SIZE_MAX;  ///< a read or write handles no more bytes than these
};

/// From now on `watcher` is asked about every call; an empty one ends that. For tests, while no other thread uses a
/// store.
using Watcher = std::function<Answer(const Call& call)>;
void watch(Watcher watcher);

// ---- the calls; a failure leaves its reason in errno ----

enum class Access : uint8_t {
  read,        ///< never through a link at the end of the path, and without waiting for a pipe's other end
  read_named,  ///< the same through links: for what a person named
  create,      ///< for its owner only; the file must not exist
  claim,       ///< for its owner only, and made where it is missing: for a lock
  append,      ///< behind what is there, through links, and made for its owner only where it is missing
  folder,
};

/// An open file, closed with the scope.
class File {
 public:
  File(std::string path, Access access);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  std::optional<struct stat> info() const;
  /// `size` bytes from `offset`; nothing when there are fewer.
  std::optional<std::string> read(size_t size, size_t offset = 0) const;
  bool write(std::string_view bytes) const;
  bool sync() const;
  /// False while another process holds the lock, or where the file system knows none. It ends with the scope, or with
  /// the process.
  bool lock() const;
  /// The file was changed now, as far as its time tells.
  bool renew() const;

 private:
  std::string path_;
  int descriptor_;
};

/// Of the path itself; `of_target`: of what a link there leads to.
std::optional<struct stat> info_of(const std::string& path, bool of_target = false);
/// Names in the folder, sorted.
std::optional<std::vector<std::string>> names_in(const std::string& folder);
bool rename(const std::string& from, const std::string& to);
bool remove(const std::string& path);

// ---- what they make up ----

/// The folder that the path's last part stands in.
std::string folder_of(const std::string& path);

/// Makes the folder, for its owner only, and those above it, for good: what names a new folder is synced, and so is
/// everything from `root` down, which another process may have made just now. Folders in `synced` need no more, and
/// those that are there for good afterwards are added.
bool make_folders(const std::string& path, const std::string& root, std::set<std::string>& synced);

/// What others could have done to a file or folder, as a clause of a sentence; empty when nobody but its owner, who is
/// this user or root, can write it.
std::string_view distrust(const struct stat& info);

/// How the names of files end that are being written.
inline constexpr std::string_view kTemporary = ".tmp";

/// Writes the parts under another name first: whenever the process or the machine stops, `path` holds what it held
/// before or all of this. 0, or the errno of what failed; then nothing is left of it, but for one case: when only
/// syncing the folder failed, the file is there.
int publish(const std::string& path, std::initializer_list<std::string_view> parts);

/// Removes a file that a writer or an owner left, unless it may still be at it; true when it is gone, or would be.
bool remove_if_abandoned(const std::string& temporary, bool dry_run);

}  // namespace ejk::store_files
