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

/// What users of a store do. The store holds "old" under "kept" and under "changed".
struct Deed {
  std::string_view name;
  std::function<void(const Store& store)> act;
  StoreOptions options = {};
  bool is_new_store = false;  ///< one whose folders are yet to be made
  /// What it may take away: a collection does.
  bool may_remove = false;
};

/// None, or what was put.
void find_kept(const Store& store) {
  const auto found = store.find(key_of("kept"));
  if (found && found->value != record_of("old").value) throw std::runtime_error("a find gives what nobody put");
}

std::vector<Deed> deeds(const std::string& root) {
  const auto put = [](const std::string& name, const std::string& group) {
    return [=](const Store& store) { store.put(key_of(name, group), record_of("new")); };
  };
  const auto make_archive = [](const Store& store) {
    ArchiveBuilder builder;
    store.for_each([&](const StoredRecord& stored) { builder.add(stored.key, stored.record); });
    builder.write(store.root() + "/out.ejk");
  };
  return {{"a first put", put("changed", "op"), {}, /*is_new_store=*/true},
          {"a put of another key", put("more", "op")},
          {"a put in another group", put("more", "op2")},
          {"a put again", put("changed", "op")},
          // Two records exceed this quota.
          {"a put above the quota", put("changed", "op"), {.quota_bytes = 200}, false, /*may_remove=*/true},
          {"a find", find_kept},
          {"a find in read-only places",
           find_kept,
           {.read_only = {root, root + ".ejk"}},
           /*is_new_store=*/true},
          {"an archive's making", make_archive},
          {"a collection", [](const Store& store) { store.collect({.unused_seconds = 1000000}); }}};
}

/// The store of the deed.
std::string root_of(const Deed& deed, const std::string& root) { return deed.is_new_store ? root + "/new/root" : root; }

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
std::string judge(const Store& store, const Deed& deed) {
  const std::string changed = found_in(store, key_of("changed")), kept = found_in(store, key_of("kept"));
  const bool may_lack = deed.may_remove || deed.is_new_store;
  if (kept != "old" && !(may_lack && kept == "none")) return "another record is " + kept;
  if (changed != "old" && changed != "new" && !(may_lack && changed == "none")) return "the record is " + changed;
  int64_t bad = 0;
  store.for_each([&](const StoredRecord& stored) { bad += stored.state != RecordState::good; });
  if (bad != 0) return "a damaged record is left";
  if (const std::string made = store.root() + "/out.ejk"; fs::exists(made)) {
    std::string why;
    const auto archive = Archive::open(made, why);
    if (archive == nullptr) return "the archive is damaged: " + why;
    // What could not be read is not in it.
    if (const auto held = archive->find(key_of("kept")); held && held->value != record_of("old").value)
      return "the archive holds what nobody put";
  }
  // Later writes are not poisoned.
  for (const char* group : {"op", "op3"})
    if (const RecordKey key = key_of("changed", group);
        !store.put(key, record_of("later")) || found_in(store, key) != "later")
      return std::string("the next put fails in ") + group;
  return "";
}

// ---- T-31 ----

/// In a child that ends at its k-th call; false when it came to its end before.
bool ends_at_call(int64_t k, const Deed& deed, const std::string& root) {
  const pid_t child = fork();
  if (child == 0) {
    const Store store(root_of(deed, root), deed.options);
    die_at_store_call(k);
    deed.act(store);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 137))
    throw std::runtime_error(fmt::format("{}: the process ended with status {}", deed.name, status));
  return WEXITSTATUS(status) == 137;
}

int64_t end_at_every_call(const TemporaryFolder& scratch, Tally& tally) {
  const std::string root = scratch / "store";
  int64_t points = 0;
  for (const Deed& deed : deeds(root)) {
    bool ended = true;
    for (int64_t k = 1; ended; ++k) {
      set_up(scratch, root);
      ended = ends_at_call(k, deed, root);
      const std::string wrong = judge(Store(root_of(deed, root), deed.options), deed);
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
  const TemporaryFolder scratch(Medium::memory);
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
bool meets_fault(const Fault& fault, int64_t k, const Deed& deed, const Store& store) {
  int64_t calls = 0;
  store_files::watch([&](const store_files::Call&) -> store_files::Answer {
    ++calls;
    const bool is_hit = calls == k || (fault.is_lasting && calls > k);
    if (!is_hit) return {};
    return fault.error == 0 ? store_files::Answer{.most = 1} : store_files::Answer{.error = fault.error};
  });
  deed.act(store);  // an exception ends the trial as a failure
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
  const TemporaryFolder scratch(Medium::memory);
  const std::string root = scratch / "store";
  Tally tally;
  for (const Deed& deed : deeds(root))
    for (const Fault& fault : faults()) {
      bool met = true;
      for (int64_t k = 1; met; ++k) {
        set_up(scratch, root);
        const Store store(root_of(deed, root), deed.options);  // the one that met the fault goes on
        std::string wrong;
        try {
          met = meets_fault(fault, k, deed, store);
        } catch (const std::exception& error) {
          store_files::watch({});
          wrong = fmt::format("an error reached the caller: {}", error.what());
        }
        if (wrong.empty()) wrong = judge(store, deed);
        tally.add(wrong.empty() ? "" : fmt::format("{}, {} at call {}: {}", deed.name, text_of(fault), k, wrong));
      }
    }
  return tally.result();
}

}  // namespace ejk::testing
