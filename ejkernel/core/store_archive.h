// Many records in one file, to take from one machine to another: made whole by ArchiveBuilder, read in place.
//
//   header (magic, schema, count, digest of itself and the index) | index, by digest of the key | records, one after
//   another, each as in a file of its own
//
// Opening reads header and index; finding reads one record, which its own digest protects, so that an archive which is
// replaced or cut while it is in use gives misses. It is trusted as a store's folder is: it must belong to this user or
// root, and nobody else may be able to write it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/store.h"

namespace ejk {

namespace store_archive {
struct Content;  // the open file and its index
}

class EJK_API Archive {
 public:
  /// Null when it is not a whole archive that can be trusted; then `why` says what is wrong, as a clause.
  static std::shared_ptr<const Archive> open(const std::string& path, std::string& why);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  std::optional<Record> find(const RecordKey& key) const;
  /// Every record, each read and checked, by digest of the key.
  void for_each(const VisitRecord& visit) const;

 private:
  explicit Archive(std::unique_ptr<const store_archive::Content> content);
  std::unique_ptr<const store_archive::Content> content_;
};

class EJK_API ArchiveBuilder {
 public:
  /// Of records with one key the first stays.
  void add(const RecordKey& key, const Record& record);
  size_t size() const { return records_.size(); }
  /// For its owner only, published as records are. False when it could not be written; errno says why.
  bool write(const std::string& path) const;

 private:
  std::map<Digest, std::string> records_;  // by digest of the key
};

}  // namespace ejk
