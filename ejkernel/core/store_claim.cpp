#include "ejkernel/core/store_claim.h"

#include <cerrno>
#include <set>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/store_folder_internal.h"

namespace ejk {

using store_files::Access;
using store_files::File;

StoreClaim::StoreClaim(const Store& store, const std::string& what) {
  if (store.root().empty()) return;
  const std::string folder = store.root() + "/claims";
  std::set<std::string> synced;
  if (!store_folder::make_trusted(store.root(), folder, synced)) return;
  path_ = folder + "/" + to_string(digest_of(what));
  auto file = std::make_unique<const File>(path_, Access::claim);
  const auto info = file->is_open() ? file->info() : std::nullopt;
  if (!info || !store_files::distrust(*info).empty()) return;
  if (file->lock())
    file_ = std::move(file);
  else
    is_ours_ = errno != EWOULDBLOCK;  // some file systems know no locks
}

StoreClaim::~StoreClaim() {
  // While it is locked: whoever has opened it by now gets a lock that tells nobody, and has to look first whether the
  // work is done.
  if (file_ != nullptr) store_files::remove(path_);
}

}  // namespace ejk
