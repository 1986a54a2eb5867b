#include "ejkernel/core/store_claim.h"

#include <cerrno>
#include <set>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/store_folder_internal.h"

namespace ejk {

using store_files::Access;
using store_files::File;

namespace {

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

StoreClaim::StoreClaim(const Store& store, const std::string& what) {
  if (store.root().empty()) return;
  const std::string folder = store_folder::claims_of(store.root());
  std::set<std::string> synced;
  if (!store_folder::make_trusted(store.root(), folder, synced)) return;
  path_ = folder + "/" + to_string(digest_of(what));
  while (file_ == nullptr) {
    auto file = std::make_unique<const File>(path_, Access::claim);
    const auto info = file->is_open() ? file->info() : std::nullopt;
    if (!info || !store_files::distrust(*info).empty()) return;
    if (!file->lock()) {
      is_ours_ = errno != EWOULDBLOCK;  // some file systems know no locks
      return;
    }
    // Its last owner may have removed it before it was locked: then the lock tells nobody.
    const auto there = store_files::info_of(path_);
    if (!there && errno != ENOENT) return;
    if (there && is_same_file(*there, *info)) file_ = std::move(file);
  }
}

StoreClaim::~StoreClaim() {
  // While it is locked: whoever has opened it by now sees that it is gone, and makes another.
  if (file_ != nullptr) store_files::remove(path_);
}

}  // namespace ejk
