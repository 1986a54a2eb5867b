// ejk cache diff, merge, import and export: records from one place to another.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "ejkernel/core/digest.h"
#include "ejkernel/core/error.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/platform/cuda/cubin_store.h"
#include "ejkernel/runtime/config_store.h"
#include "tools/ejk/cache.h"
#include "tools/ejk/options.h"
#include "tools/ejk/print.h"

namespace ejk::tool {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// What a comparison needs of a record.
struct Known {
  RecordKey key;
  Digest value;
};

/// Good records by the digests of their keys.
std::map<std::string, Known> records_of(const RecordSource& source) {
  std::map<std::string, Known> records;
  source.for_each([&](const StoredRecord& stored) {
    if (stored.state == RecordState::good)
      records.emplace(stored.digest, Known{stored.key, digest_of(stored.record.value)});
  });
  return records;
}

/// Good records by what became of them; what is not good is only counted.
struct Transfer {
  int64_t added = 0, replaced = 0, same = 0, kept = 0, not_good = 0, not_written = 0;
};

/// With the moment in its provenance: as a field where that is a JSON object, as a config's is, else as words.
Record imported(Record record) {
  const std::string now = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  constexpr size_t kMostNested = 4096;  // bytes: what another made may be nested as deep as it is long
  Json json = record.provenance.size() > kMostNested ? Json() : Json::parse(record.provenance, nullptr, false);
  if (json.is_object()) {
    json["imported"] = now;
    record.provenance = json.dump();
  } else {
    record.provenance += fmt::format("{}imported {}", record.provenance.empty() ? "" : "; ", now);
  }
  return record;
}

void take(const StoredRecord& stored, const Store& into, bool replaces, Transfer& transfer) {
  if (stored.state != RecordState::good) {
    ++transfer.not_good;
    return;
  }
  const auto present = into.find(stored.key);
  if (present && present->value == stored.record.value) {
    ++transfer.same;
  } else if (present && !replaces && !is_unfinished(*present)) {
    ++transfer.kept;
  } else if (into.put(stored.key, imported(stored.record))) {
    ++(present ? transfer.replaced : transfer.added);
  } else {
    ++transfer.not_written;
  }
}

/// Under which key an archive of the wanted kind has a record; null where it has none.
std::optional<RecordKey> exported_key(const RecordKey& key, const CacheFlags& flags) {
  if (flags.programs) return cuda::ahead_key_of(key);
  return !flags.configs || is_config_key(key) ? std::optional(key) : std::nullopt;
}

}  // namespace

int diff_caches(const CacheFlags& flags) {
  const auto there = records_of(RecordSource(required_argument(flags, "a store's folder or an archive")));
  const auto ours = source_of(flags);
  const auto here = ours ? records_of(*ours) : std::map<std::string, Known>();
  Json only_here = Json::array(), only_there = Json::array(), different = Json::array();
  Table table("llll");
  const auto note = [&](Json& list, std::string_view what, const std::string& digest, const RecordKey& key) {
    list.push_back({{"digest", digest}, {"environment", key.environment}, {"group", key.group}});
    table.add({std::string(what), digest.substr(0, 12), printable(key.environment), printable(key.group)});
  };
  for (const auto& [digest, record] : here) {
    const auto other = there.find(digest);
    if (other == there.end())
      note(only_here, "only here", digest, record.key);
    else if (!(other->second.value == record.value))
      note(different, "different", digest, record.key);
  }
  for (const auto& [digest, record] : there)
    if (here.count(digest) == 0) note(only_there, "only there", digest, record.key);
  if (flags.json)
    print_json({{"only_here", only_here}, {"only_there", only_there}, {"different", different}});
  else
    fmt::print("{}{} only here, {} only there, {} different\n", table.text(), only_here.size(), only_there.size(),
               different.size());
  return only_here.empty() && only_there.empty() && different.empty() ? kOk : kFailed;
}

int merge_caches(const CacheFlags& flags) {
  const RecordSource from(required_argument(flags, "a store's folder or an archive"));
  const auto into = writable_store(flags);
  Transfer transfer;
  from.for_each([&](const StoredRecord& stored) { take(stored, *into, flags.replace, transfer); });
  if (flags.json)
    print_json({{"root", into->root()},
                {"from", from.path()},
                {"added", transfer.added},
                {"replaced", transfer.replaced},
                {"same", transfer.same},
                {"kept", transfer.kept},
                {"not_good", transfer.not_good},
                {"not_written", transfer.not_written}});
  else
    fmt::print("{}: {} added, {} replaced, {} the same, {} kept as they were; {} not good, {} could not be written\n",
               into->root(), transfer.added, transfer.replaced, transfer.same, transfer.kept, transfer.not_good,
               transfer.not_written);
  return transfer.not_good + transfer.not_written == 0 ? kOk : kFailed;
}

int export_cache(const CacheFlags& flags) {
  const std::string path = fs::absolute(required_argument(flags, "the archive's path")).lexically_normal().string();
  if (fs::exists(path)) throw_invalid("ejk", path, "be a new file", "one that exists", "remove it, or name another");
  if (flags.configs && flags.programs)
    throw_invalid("ejk", "--programs", "be given without --configs", "both", "leave both out to export every record");
  ArchiveBuilder builder;
  int64_t not_good = 0;
  const auto add = [&](const StoredRecord& stored) {
    if (stored.state != RecordState::good)
      ++not_good;
    else if (const auto key = exported_key(stored.key, flags))
      builder.add(*key, stored.record);
  };
  if (const auto ours = source_of(flags)) ours->for_each(add);
  if (!builder.write(path)) throw Unsupported(fmt::format("ejk: {} cannot be written: {}", path, std::strerror(errno)));
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  if (flags.json)
    print_json({{"archive", path}, {"records", builder.size()}, {"bytes", bytes}, {"not_good", not_good}});
  else
    fmt::print("{}: {} records, {}; {} not good and left out\n", path, builder.size(),
               bytes_text(static_cast<double>(bytes)), not_good);
  return not_good == 0 ? kOk : kFailed;
}

}  // namespace ejk::tool
