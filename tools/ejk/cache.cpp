// ejk cache: what the store holds, whether it is whole, and less of it.
#include "tools/ejk/cache.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/validate.h"
#include "ejkernel/runtime/config_store.h"
#include "tools/ejk/print.h"
#include "tools/ejk/verbs.h"

namespace ejk::tool {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// ---- what the commands share ----

RecordSource::RecordSource(const std::string& path) : path_(fs::absolute(path).lexically_normal().string()) {
  std::error_code ignored_error;
  const std::string why = fs::exists(path_, ignored_error) ? distrust_of(path_) : "is not there";
  if (!why.empty())
    throw_invalid("ejk", path_, "be a store's folder or an archive, which this user alone can write", "one that " + why,
                  "correct the path, or make a copy of your own");
  std::string ignored;
  if (fs::is_directory(path_))
    folder_ = std::make_unique<const Store>(path_);
  else
    archive_ = Archive::open(path_, ignored);
}

void RecordSource::for_each(const VisitRecord& visit) const {
  if (folder_) folder_->for_each(visit);
  if (archive_) archive_->for_each(visit);
}

std::string named_root(const CacheFlags& flags) {
  const std::string root = flags.root.empty() ? store().root() : fs::absolute(flags.root).lexically_normal().string();
  if (root.empty())
    throw_invalid("ejk", "the store", "have a folder", "no EJKERNEL_CACHE_DIR, and no HOME of this user's",
                  "give --root DIR");
  return root;
}

std::unique_ptr<const Store> writable_store(const CacheFlags& flags) {
  const std::string root = named_root(flags);
  const std::string why = fs::exists(root) && !fs::is_directory(root) ? "is a file" : distrust_of(root);
  if (!why.empty())
    throw_invalid("ejk", root, "be a folder that this user alone can write", "one that " + why,
                  "run chmod 700 on it, or give --root");
  return std::make_unique<const Store>(root, StoreOptions{.quota_bytes = environment::cache_quota_mb() << 20});
}

const std::string& required_argument(const CacheFlags& flags, const std::string& name) {
  if (flags.argument.empty())
    throw_invalid("ejk", "cache " + flags.command, "be followed by " + name, "nothing",
                  fmt::format("see ejk cache {} --help", flags.command));
  return flags.argument;
}

Json json_of(const StoredRecord& stored) {
  Json json = {{"digest", stored.digest}, {"path", stored.path}, {"state", name(stored.state)}};
  if (stored.state == RecordState::good) {
    json["environment"] = stored.key.environment;
    json["group"] = stored.key.group;
    json["key"] = stored.key.text;
    json["provenance"] = stored.record.provenance;
    json["value_bytes"] = stored.record.value.size();
  } else {
    json["reason"] = stored.reason;
  }
  json["bytes"] = stored.bytes;
  if (stored.used > 0) json["used"] = stored.used;
  return json;
}

void print_json(const Json& json) { fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace)); }

std::optional<RecordSource> source_of(const CacheFlags& flags) {
  const std::string root = named_root(flags);
  if (std::error_code ignored; flags.root.empty() && !fs::exists(root, ignored)) return std::nullopt;
  return RecordSource(root);
}

namespace {

// ---- list, show, verify ----

struct Totals {
  int64_t good = 0, damaged = 0, newer = 0, bytes = 0;
  int64_t configs = 0, of_this_build = 0;  ///< of the good ones; of those, what this library's kernels may be given
  void add(const StoredRecord& stored) {
    good += stored.state == RecordState::good;
    damaged += stored.state == RecordState::damaged;
    newer += stored.state == RecordState::newer;
    bytes += stored.bytes;
    if (stored.state != RecordState::good || !is_config_key(stored.key)) return;
    ++configs;
    of_this_build += is_of_this_build(stored.key);
  }
  Json json() const {
    return {{"good", good},   {"damaged", damaged}, {"newer", newer},
            {"bytes", bytes}, {"configs", configs}, {"configs_of_this_build", of_this_build}};
  }
  std::string text() const {
    std::string text = fmt::format("{} records, {}; {} damaged, {} of a newer version", good + damaged + newer,
                                   bytes_text(static_cast<double>(bytes)), damaged, newer);
    if (configs > 0) text += fmt::format("; {} of {} configs are of this build's kernels", of_this_build, configs);
    return text;
  }
};

std::string time_text(int64_t seconds) {
  return seconds > 0 ? fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(static_cast<std::time_t>(seconds))) : "";
}

std::string first_line(std::string_view text) { return printable(text.substr(0, text.find('\n'))); }

int list(const CacheFlags& flags) {
  const auto source = source_of(flags);
  Totals totals;
  Json records = Json::array();
  Table table("lllrll");
  table.add({"digest", "environment", "group", "size", "used (UTC)", "provenance"});
  if (source)
    source->for_each([&](const StoredRecord& stored) {
      totals.add(stored);
      const bool is_good = stored.state == RecordState::good;
      if (flags.json)
        records.push_back(json_of(stored));
      else
        table.add({stored.digest.substr(0, 12), is_good ? first_line(stored.key.environment) : "",
                   is_good ? first_line(stored.key.group) : "", bytes_text(static_cast<double>(stored.bytes)),
                   time_text(stored.used),
                   is_good ? first_line(stored.record.provenance)
                           : fmt::format("{}: {}", name(stored.state), stored.reason)});
    });
  if (flags.json)
    print_json({{"root", named_root(flags)}, {"records", records}, {"totals", totals.json()}});
  else
    fmt::print("{}{}: {}\n", totals.good + totals.damaged + totals.newer > 0 ? table.text() : "", named_root(flags),
               totals.text());
  return kOk;
}

/// Text as it is, within reason; anything else as its size.
std::string value_text(const std::string& value) {
  constexpr size_t kMost = 4096;
  const bool is_text = value.size() <= kMost && std::all_of(value.begin(), value.end(), [](unsigned char c) {
                         return c >= 0x20 || c == '\n' || c == '\t';
                       });
  return is_text ? value : fmt::format("{} bytes", value.size());
}

int show(const CacheFlags& flags) {
  const std::string& wanted = required_argument(flags, "the beginning of a record's digest");
  const auto source = source_of(flags);
  std::vector<StoredRecord> found;
  if (source)
    source->for_each([&](const StoredRecord& stored) {
      if (stored.digest.rfind(wanted, 0) == 0) found.push_back(stored);
    });
  if (found.size() != 1)
    throw_invalid("ejk", "DIGEST", "begin the digest of one record",
                  fmt::format("'{}', which begins {}", wanted, found.size()), "see ejk cache list");
  const StoredRecord& stored = found.front();
  const std::string value = value_text(stored.record.value);
  if (flags.json) {
    Json json = json_of(stored);
    json["value"] = value;
    print_json(json);
    return kOk;
  }
  Table table("ll");
  table.add({"path", printable(stored.path)});
  table.add({"state", fmt::format("{}{}{}", name(stored.state), stored.reason.empty() ? "" : ": ", stored.reason)});
  table.add({"environment", printable(stored.key.environment)});
  table.add({"group", printable(stored.key.group)});
  table.add({"provenance", printable(stored.record.provenance)});
  table.add({"used (UTC)", time_text(stored.used)});
  fmt::print("{}key\n{}\nvalue\n{}\n", table.text(), printable(stored.key.text), printable(value));
  return kOk;
}

int verify(const CacheFlags& flags) {
  const auto source = source_of(flags);
  Totals totals;
  Json damaged = Json::array();
  if (source)
    source->for_each([&](const StoredRecord& stored) {
      totals.add(stored);
      if (stored.state != RecordState::damaged) return;
      damaged.push_back(json_of(stored));
      if (!flags.json) fmt::print("{}: {}\n", printable(stored.path), stored.reason);
    });
  if (flags.json)
    print_json({{"root", named_root(flags)}, {"damaged", damaged}, {"totals", totals.json()}});
  else
    fmt::print("{}: {}\n", named_root(flags), totals.text());
  return totals.damaged == 0 ? kOk : kFailed;
}

// ---- gc ----

int gc(const CacheFlags& flags) {
  const auto kept = writable_store(flags);
  const int64_t quota_mb = flags.quota_mb >= 0 ? flags.quota_mb : environment::cache_quota_mb();
  const Collection done = kept->collect(
      {.quota_bytes = quota_mb << 20, .unused_seconds = flags.unused_days * 86400, .dry_run = flags.dry_run});
  if (flags.json)
    print_json({{"root", kept->root()},
                {"kept", done.kept},
                {"kept_bytes", done.kept_bytes},
                {"removed", done.removed},
                {"removed_bytes", done.removed_bytes},
                {"leftovers", done.leftovers},
                {"dry_run", flags.dry_run}});
  else
    fmt::print("{}: {} {} records ({}) and {} files that crashes and damage left; {} records ({}) stay\n", kept->root(),
               flags.dry_run ? "would remove" : "removed", done.removed,
               bytes_text(static_cast<double>(done.removed_bytes)), done.leftovers, done.kept,
               bytes_text(static_cast<double>(done.kept_bytes)));
  return kOk;
}

struct Command {
  std::string_view name, doc, argument, argument_doc;
  int (*run)(const CacheFlags& flags);
};
constexpr Command kCommands[] = {
    {"list", "every record: environment, group, size, last use, provenance", "", "", list},
    {"show", "one record", "DIGEST", "the beginning of the record's digest", show},
    {"verify", "read every record; fails when one is damaged", "", "", verify},
    {"diff", "compare with another; fails when they differ", "OTHER", "a store's folder or an archive", diff_caches},
    {"merge", "take what another holds and this one does not", "OTHER", "a store's folder or an archive", merge_caches},
    {"export", "put every record into one file", "ARCHIVE", "a new file", export_cache},
    {"import", "take an archive's records, as merge does", "ARCHIVE", "a file that export made", merge_caches},
    {"gc", "remove what is over the quota, long unused, damaged, or left by crashes", "", "", gc},
};

}  // namespace

Action declare_cache(Options& options) {
  const auto flags = std::make_shared<CacheFlags>();
  const auto run = std::make_shared<int (*)(const CacheFlags&)>(nullptr);
  options.value("root", flags->root, "PATH", "another store's folder; an archive where nothing is written")
      .flag("json", flags->json, "print JSON");
  for (const Command& command : kCommands) {
    Options one = options.command(std::string(command.name), std::string(command.doc));
    if (!command.argument.empty())
      one.positional(std::string(command.argument), flags->argument, std::string(command.argument_doc));
    if (command.run == merge_caches)
      one.flag("replace", flags->replace, "where both have a key, take the other's record");
    if (command.run == export_cache)
      one.flag("configs", flags->configs, "only configs: no compiled kernels and no peaks")
          .flag("programs", flags->programs,
                "only this build's kernels as compiled here, for machines with another compiler or none");
    if (command.run == gc)
      one.value("quota-mb", flags->quota_mb, "N", "MiB that may stay, 0: any (default: EJKERNEL_CACHE_QUOTA_MB)")
          .value("unused-days", flags->unused_days, "N", "also what nobody used for so long")
          .flag("dry-run", flags->dry_run, "only say what would go");
    one.on_given([flags, run, &command] {
      flags->command = command.name;
      *run = command.run;
    });
  }
  return [flags, run]() -> int {
    if (*run == nullptr) throw_invalid("ejk", "cache", "be followed by a command", "nothing", "see ejk cache --help");
    if (flags->unused_days < 0 || flags->unused_days > 100000)
      throw_invalid("ejk", "--unused-days", "be a number of days", std::to_string(flags->unused_days),
                    "give one of at least 0");
    if (flags->quota_mb < -1 || flags->quota_mb > 1048576)
      throw_invalid("ejk", "--quota-mb", "be from 0 to 1048576", std::to_string(flags->quota_mb), "correct it");
    return (*run)(*flags);
  };
}

}  // namespace ejk::tool
