// What the commands of `ejk cache` share.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ejkernel/core/store.h"
#include "ejkernel/core/store_archive.h"

namespace ejk::tool {

struct CacheFlags {
  std::string root, command, argument;
  bool json = false, replace = false, dry_run = false, configs = false, programs = false;
  int64_t quota_mb = -1, unused_days = 0;
};

/// A store's folder or an archive, as the command line names it. InvalidArgument when it is not there or not to be
/// trusted.
class RecordSource {
 public:
  explicit RecordSource(const std::string& path);
  const std::string& path() const { return path_; }
  void for_each(const VisitRecord& visit) const;

 private:
  std::string path_;
  std::unique_ptr<const Store> folder_;
  std::shared_ptr<const Archive> archive_;
};

/// The folder or archive of --root, else the process's store. InvalidArgument when there is none.
std::string named_root(const CacheFlags& flags);
/// Its records. A store that nobody has written to yet has none, and that is no mistake.
std::optional<RecordSource> source_of(const CacheFlags& flags);
/// The same to write to, held to its quota; its folder is made when it is not there.
std::unique_ptr<const Store> writable_store(const CacheFlags& flags);
/// The word after the command. InvalidArgument, with what it should be, when there is none.
const std::string& required_argument(const CacheFlags& flags, const std::string& name);

nlohmann::ordered_json json_of(const StoredRecord& stored);
/// A record may hold any bytes: what is not UTF-8 is replaced.
void print_json(const nlohmann::ordered_json& json);

// The commands that take records from one place to another (cache_transfer.cpp); the exit code.
int diff_caches(const CacheFlags& flags);
int merge_caches(const CacheFlags& flags);
int export_cache(const CacheFlags& flags);

}  // namespace ejk::tool
