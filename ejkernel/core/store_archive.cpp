#include "ejkernel/core/store_archive.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "ejkernel/core/record_format_internal.h"
#include "ejkernel/core/store_files_internal.h"

namespace ejk {
namespace {

using record_format::kLargestRecord;

constexpr std::array<char, 8> kMagic = {'e', 'j', 'k', 'a', 'r', 'c', 'h', 'v'};
constexpr uint32_t kSchema = 1;
constexpr uint64_t kMostRecords = uint64_t{1} << 20;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t schema = kSchema;
  uint32_t reserved = 0;
  uint64_t count = 0;
  Digest digest = {};  ///< of this header with a digest of zeros, and of the index
};
static_assert(sizeof(Header) == 40);

/// By digest of the key, as the records themselves stand: where one begins follows from the sizes of those before it.
struct IndexEntry {
  Digest key;
  uint64_t bytes = 0;
};
static_assert(sizeof(IndexEntry) == 24);

/// `head` is header and index; the digest in it is replaced by what it should be.
Digest sign(std::string& head) {
  Header header;
  std::memcpy(&header, head.data(), sizeof header);
  header.digest = {};
  std::memcpy(head.data(), &header, sizeof header);
  header.digest = digest_of(head);
  std::memcpy(head.data(), &header, sizeof header);
  return header.digest;
}

}  // namespace

namespace store_archive {

struct Content {
  struct Entry {
    Digest key;
    uint64_t offset = 0, bytes = 0;
  };
  explicit Content(const std::string& named) : path(named), file(named, store_files::Access::read_named) {}

  /// What is wrong, as a clause; empty when the index is there.
  std::string_view read_index();
  /// False when the records of the index do not fill the rest of the file.
  bool place_entries(std::string_view index, uint64_t count, uint64_t file_bytes);
  record_format::Decoded record(const Entry& entry) const;

  std::string path;
  store_files::File file;
  std::vector<Entry> entries;
};

std::string_view Content::read_index() {
  constexpr std::string_view kNoArchive = "is no archive", kDamaged = "is a damaged archive";
  if (!file.is_open()) return errno == ENOENT ? "is not there" : "cannot be opened";
  const auto info = file.info();
  if (!info) return "cannot be read";
  if (!S_ISREG(info->st_mode)) return kNoArchive;
  if (const auto why = store_files::distrust(*info); !why.empty()) return why;
  const auto file_bytes = static_cast<uint64_t>(info->st_size);
  Header header;
  if (file_bytes < sizeof header) return kNoArchive;
  const auto first = file.read(sizeof header);
  if (!first) return "cannot be read";
  std::memcpy(&header, first->data(), sizeof header);
  if (header.magic != kMagic) return kNoArchive;
  if (header.schema > kSchema) return "is an archive that a newer version wrote";
  if (header.schema != kSchema || header.count > kMostRecords) return kDamaged;
  auto head = file.read(sizeof header + header.count * sizeof(IndexEntry));
  if (!head) return kDamaged;
  if (!(sign(*head) == header.digest)) return kDamaged;
  return place_entries(std::string_view(*head).substr(sizeof header), header.count, file_bytes) ? "" : kDamaged;
}

bool Content::place_entries(std::string_view index, uint64_t count, uint64_t file_bytes) {
  uint64_t offset = sizeof(Header) + index.size();
  for (uint64_t i = 0; i < count; ++i) {
    IndexEntry entry;
    std::memcpy(&entry, index.data() + i * sizeof entry, sizeof entry);
    if (entry.bytes > kLargestRecord || entry.bytes > file_bytes - offset) return false;
    if (!entries.empty() && !(entries.back().key < entry.key)) return false;
    entries.push_back({entry.key, offset, entry.bytes});
    offset += entry.bytes;
  }
  return offset == file_bytes;
}

record_format::Decoded Content::record(const Entry& entry) const {
  auto bytes = file.read(entry.bytes, entry.offset);
  if (!bytes) return {.reason = "it cannot be read"};
  record_format::Decoded decoded = record_format::decode(std::move(*bytes));
  if (decoded.state == RecordState::good && !(digest_of(record_format::whole(decoded.key)) == entry.key))
    return {.reason = "it stands where another key's record belongs"};
  return decoded;
}

}  // namespace store_archive

using store_archive::Content;

std::shared_ptr<const Archive> Archive::open(const std::string& path, std::string& why) {
  auto content = std::make_unique<Content>(path);
  why = content->read_index();
  if (!why.empty()) return nullptr;
  return std::shared_ptr<const Archive>(new Archive(std::move(content)));
}

Archive::Archive(std::unique_ptr<const Content> content) : content_(std::move(content)) {}
Archive::~Archive() = default;

std::optional<Record> Archive::find(const RecordKey& key) const {
  const Digest digest = digest_of(record_format::whole(key));
  const auto& entries = content_->entries;
  const auto entry = std::lower_bound(entries.begin(), entries.end(), digest,
                                      [](const Content::Entry& e, const Digest& d) { return e.key < d; });
  if (entry == entries.end() || !(entry->key == digest)) return std::nullopt;
  record_format::Decoded decoded = content_->record(*entry);
  if (decoded.state != RecordState::good || !(decoded.key == key)) return std::nullopt;
  return std::move(decoded.record);
}

void Archive::for_each(const VisitRecord& visit) const {
  for (size_t i = 0; i < content_->entries.size(); ++i) {
    const Content::Entry& entry = content_->entries[i];
    record_format::Decoded decoded = content_->record(entry);
    visit({.path = content_->path + "#" + std::to_string(i),
           .digest = to_string(entry.key),
           .state = decoded.state,
           .reason = std::string(decoded.reason),
           .key = std::move(decoded.key),
           .record = std::move(decoded.record),
           .bytes = static_cast<int64_t>(entry.bytes)});
  }
}

void ArchiveBuilder::add(const RecordKey& key, const Record& record) {
  records_.emplace(digest_of(record_format::whole(key)), record_format::encode(key, record));
}

bool ArchiveBuilder::write(const std::string& path) const {
  if (records_.size() > kMostRecords) {
    errno = EFBIG;
    return false;
  }
  Header header;
  header.count = records_.size();
  std::string head(sizeof header, '\0'), records;
  std::memcpy(head.data(), &header, sizeof header);
  for (const auto& [key, bytes] : records_) {
    const IndexEntry index = {key, bytes.size()};
    head.append(reinterpret_cast<const char*>(&index), sizeof index);
    records += bytes;
  }
  sign(head);
  errno = store_files::publish(path, {head, records});
  return errno == 0;
}

}  // namespace ejk
