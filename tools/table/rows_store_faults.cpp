// T-31, T-32: the store when the process ends, the power goes or the disk fails, at every call that it makes.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "ejkernel/core/store.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/core/store_files_internal.h"
#include "ejkernel/testing/power_loss.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

RecordKey key_of(const std::string& name, const std::string& group = "op") {
  return {.environment = "cpu|some processor", .group = group, .text = name};
}

ejk::Record record_of(const std::string& value) { return {.value = value, .provenance = "a test"}; }

std::string found_in(const Store& store, const RecordKey& key) {
  const auto record = store.find(key);
  return record ? record->value : "none";
}

/// What users of a store do, each on a store that holds "old" under "kept" and under "changed".
struct Deed {
  std::string_view name;
  std::function<void(const std::string& root)> act;
};

/// A quota that two records exceed.
constexpr int64_t kSmallQuota = 200;

std::vector<Deed> deeds() {
  return {
      {"a first put",
       [](const std::string& root) { Store(root + "/new/root").put(key_of("changed"), record_of("new")); }},
      {"a put of another key", [](const std::string& root) { Store(root).put(key_of("more"), record_of("new")); }},
      {"a put in another group",
       [](const std::string& root) { Store(root).put(key_of("more", "op2"), record_of("new")); }},
      {"a put again", [](const std::string& root) { Store(root).put(key_of("changed"), record_of("new")); }},
      {"a put above the quota",
       [](const std::string& root) {
         Store(root, {.quota_bytes = kSmallQuota}).put(key_of("changed"), record_of("new"));
       }},
      {"a find", [](const std::string& root) { Store(root).find(key_of("kept")); }},
      {"a find in a read-only place",
       [](const std::string& root) {
         Store(root + "/none", {.read_only = {root, root + ".ejk"}}).find(key_of("kept"));
       }},
      {"an archive's making",
       [](const std::string& root) {
         ArchiveBuilder builder;
         Store(root).for_each([&](const StoredRecord& stored) { builder.add(stored.key, stored.record); });
         builder.write(root + "/out.ejk");
       }},
      {"a collection", [](const std::string& root) { Store(root).collect({.unused_seconds = 1000000}); }},
  };
}

/// What every deed begins with: a store, with the temporary file of a writer that died long ago, and an archive.
void make_template(const std::string& root) {
  const Store store(root);
  store.put(key_of("kept"), record_of("old"));
  store.put(key_of("changed"), record_of("old"));
  const std::string left = store.path_of(key_of("kept")) + ".1.1.tmp";
  fs::copy_file(store.path_of(key_of("kept")), left);
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(2));
  ArchiveBuilder builder;
  builder.add(key_of("kept"), record_of("old"));
  builder.write(root + ".ejk");
}

void set_up(const TemporaryFolder& scratch, const std::string& root) {
  const std::string from = scratch / "template";
  if (!fs::exists(from)) make_template(from);
  fs::remove_all(root);
  fs::remove(root + ".ejk");
  fs::copy(from, root, fs::copy_options::recursive);
  fs::copy(from + ".ejk", root + ".ejk");
}

/// Empty when the store is as the deed may have left it, and goes on working.
std::string judge(const std::string& root, const Deed& deed) {
  const Store store(root);
  const std::string changed = found_in(store, key_of("changed")), kept = found_in(store, key_of("kept"));
  const bool may_go = deed.name == "a put above the quota";
  if (kept != "old" && !(may_go && kept == "none")) return "another record is " + kept;
  if (changed != "old" && changed != "new" && !(may_go && changed == "none")) return "the record is " + changed;
  int64_t bad = 0;
  store.for_each([&](const StoredRecord& stored) { bad += stored.state != RecordState::good; });
  if (bad != 0) return "a damaged record is left";
  // Later writes are not poisoned.
  if (!store.put(key_of("changed"), record_of("later")) || found_in(store, key_of("changed")) != "later")
    return "the next put failed";
  if (!store.put(key_of("changed", "op3"), record_of("later"))) return "the next put of a new group failed";
  return "";
}

// ---- T-31 ----

/// In a child that ends at its k-th call; false when it came to its end before.
bool ends_at_call(int64_t k, const Deed& deed, const std::string& root) {
  const pid_t child = fork();
  if (child == 0) {
    die_at_store_call(k);
    deed.act(root);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status) == 137;
}

int64_t end_at_every_call(const TemporaryFolder& scratch, Tally& tally) {
  const std::string root = scratch / "store";
  int64_t points = 0;
  for (const Deed& deed : deeds()) {
    bool ended = true;
    for (int64_t k = 1; ended; ++k) {
      set_up(scratch, root);
      ended = ends_at_call(k, deed, root);
      const std::string wrong = judge(root, deed);
      tally.add(wrong.empty() ? "" : fmt::format("{}, ended at call {}: {}", deed.name, k, wrong));
      ++points;
    }
  }
  return points;
}

/// Puts of new and of present keys by two processes' stores, the first of which makes the folders.
int64_t lose_power_after_every_call(const TemporaryFolder& scratch, Tally& tally) {
  const fs::path base = scratch.path() / "disk", elsewhere = scratch.path() / "left";
  fs::create_directory(base);
  PowerLoss disk(base);
  const Store first(base / "cache/store");
  WatchedPuts puts(disk, first);
  for (const char* value : {"a1", "a2"}) puts.put(key_of("a"), value + std::string(6000, 'x'));
  puts.put(key_of("b"), "b1");
  puts.put(key_of("c", "op2"), "c1");
  puts.put(key_of("a"), "a3");
  int64_t disks = 0;
  for (size_t calls = 0; calls <= disk.num_calls(); ++calls)
    disk.for_each_disk(calls, elsewhere, [&] {
      ++disks;
      const Store left(elsewhere / "cache/store");
      std::string wrong = puts.judge(left, calls);
      if (wrong.empty() && (!left.put(key_of("a"), record_of("later")) || found_in(left, key_of("a")) != "later"))
        wrong = fmt::format("after call {} nothing can be put any more", calls);
      tally.add(wrong);
    });
  return disks;
}

}  // namespace

RowResult crash_points(const RowRequest&) {
  const TemporaryFolder scratch;
  Tally tally;
  const int64_t ends = end_at_every_call(scratch, tally), disks = lose_power_after_every_call(scratch, tally);
  RowResult result = tally.result();
  result.figures = {{"ends_of_the_process", static_cast<double>(ends)},
                    {"disks_after_power_loss", static_cast<double>(disks)}};
  return result;
}

// ---- T-32 ----

namespace {

struct Fault {
  int error;        ///< 0: a short read or write
  bool is_lasting;  ///< that call and all after it
};

std::string text_of(const Fault& fault) {
  return fmt::format("{}{}", fault.error == 0 ? "a short count" : std::strerror(fault.error),
                     fault.is_lasting ? " from there on" : "");
}

/// Does the deed with a fault at its k-th call; false when it made fewer calls.
bool meets_fault(const Fault& fault, int64_t k, const Deed& deed, const std::string& root) {
  int64_t calls = 0;
  store_files::watch([&](const store_files::Call&) -> store_files::Answer {
    ++calls;
    const bool is_hit = calls == k || (fault.is_lasting && calls > k);
    if (!is_hit) return {};
    return fault.error == 0 ? store_files::Answer{.most = 1} : store_files::Answer{.error = fault.error};
  });
  deed.act(root);  // an exception ends the trial as a failure
  store_files::watch({});
  return calls >= k;
}

std::vector<Fault> faults() {
  std::vector<Fault> all = {{0, false}, {0, true}, {EINTR, false}};  // an endless EINTR would be another kernel's
  for (const int error : {EIO, ENOSPC, EROFS, EMFILE, EACCES})
    for (const bool is_lasting : {false, true}) all.push_back({error, is_lasting});
  return all;
}

}  // namespace

RowResult io_faults(const RowRequest&) {
  const TemporaryFolder scratch;
  const std::string root = scratch / "store";
  Tally tally;
  for (const Deed& deed : deeds())
    for (const Fault& fault : faults()) {
      bool met = true;
      for (int64_t k = 1; met; ++k) {
        set_up(scratch, root);
        std::string wrong;
        try {
          met = meets_fault(fault, k, deed, root);
        } catch (const std::exception& error) {
          store_files::watch({});
          wrong = fmt::format("an error reached the caller: {}", error.what());
        }
        if (wrong.empty()) wrong = judge(root, deed);
        tally.add(wrong.empty() ? "" : fmt::format("{}, {} at call {}: {}", deed.name, text_of(fault), k, wrong));
      }
    }
  return tally.result();
}

}  // namespace ejk::testing
