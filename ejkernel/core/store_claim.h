// A piece of work that one of the processes that share a store does at a time.
#pragma once

#include <memory>
#include <string>

#include "ejkernel/core/store.h"

namespace ejk {

namespace store_files {
class File;
}

/// Claims the work that `what` names while it lives, unless another claim on it is alive, of this process or of another
/// one. Nobody waits. It is told by a locked file in the store's folder, which the system unlocks when its owner ends,
/// however it ends. Where nobody can be told (no folder, or none that may be trusted), everybody's claim is good.
class StoreClaim {
 public:
  StoreClaim(const Store& store, const std::string& what);
  ~StoreClaim();
  StoreClaim(const StoreClaim&) = delete;
  StoreClaim& operator=(const StoreClaim&) = delete;
  bool is_ours() const { return is_ours_; }

 private:
  std::string path_;
  std::unique_ptr<const store_files::File> file_;  ///< locked; null: nobody is told
  bool is_ours_ = true;
};

}  // namespace ejk
