#include "ejkernel/testing/power_loss.h"

#include <fstream>
#include <set>

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kFolder = -1;

/// One change of what a folder lists: names, each with the file (or kFolder) it stands for, or nothing.
struct Change {
  std::string folder;
  std::vector<std::pair<std::string, std::optional<int>>> entries;
  bool is_synced = false;
};

struct File {
  std::string bytes;
  size_t synced = 0;  ///< bytes that are there for sure
};

/// What a file may hold: what was synced, a part more, zeros where a length came before its bytes, or all.
std::vector<std::string> contents_of(const File& file) {
  if (file.synced == file.bytes.size()) return {file.bytes};
  const std::string sure = file.bytes.substr(0, file.synced);
  const size_t more = file.bytes.size() - file.synced;
  return {sure, file.bytes.substr(0, file.synced + more / 2), sure + std::string(more, '\0'), file.bytes};
}

}  // namespace

/// The calls as a disk sees them.
struct PowerLoss::Disk {
  std::vector<File> files;
  std::vector<Change> changes;
  std::map<std::string, int> listed;  ///< by path, as the running system sees it

  void change(const std::string& folder_of, std::vector<std::pair<std::string, std::optional<int>>> entries) {
    for (const auto& [path, what] : entries) {
      listed.erase(path);
      if (what) listed[path] = *what;
    }
    changes.push_back({store_files::folder_of(folder_of), std::move(entries)});
  }

  void apply(const Call& call) {
    using Kind = Call::Kind;
    switch (call.kind) {
      case Kind::make_folder:
        return change(call.path, {{call.path, kFolder}});
      case Kind::create:
        files.emplace_back();
        return change(call.path, {{call.path, static_cast<int>(files.size()) - 1}});
      case Kind::write:
        files[static_cast<size_t>(listed.at(call.path))].bytes += call.bytes;
        return;
      case Kind::sync:
        return sync(call.path);
      case Kind::rename:
        return change(call.to, {{call.path, std::nullopt}, {call.to, listed.at(call.path)}});
      case Kind::remove:
        return change(call.path, {{call.path, std::nullopt}});
    }
  }

  void sync(const std::string& path) {
    const auto found = listed.find(path);
    if (found != listed.end() && found->second != kFolder) {
      File& file = files[static_cast<size_t>(found->second)];
      file.synced = file.bytes.size();
      return;
    }
    for (Change& change : changes)
      if (change.folder == path) change.is_synced = true;
  }

  /// What is listed when, of the changes that no sync covers, those happened whose bit is set.
  std::map<std::string, int> listed_with(uint64_t bits) const {
    std::map<std::string, int> result;
    size_t unsure = 0;
    for (const Change& change : changes) {
      if (!change.is_synced && (bits >> unsure++ & 1) == 0) continue;
      for (const auto& [path, what] : change.entries) {
        result.erase(path);
        if (what) result[path] = *what;
      }
    }
    return result;
  }

  size_t num_unsure() const {
    size_t unsure = 0;
    for (const Change& change : changes) unsure += !change.is_synced;
    return unsure;
  }
};

PowerLoss::PowerLoss(fs::path base, std::function<bool(const store_files::Call& call)> counts)
    : base_(std::move(base)) {
  store_files::watch([this, counts = std::move(counts)](const store_files::Call& call) -> store_files::Answer {
    if (counts && !counts(call)) return {};
    using Seen = store_files::Call::Kind;
    const std::string path(call.path);
    const auto note = [&](Call::Kind kind) {
      calls_.push_back({kind, path, std::string(call.to), std::string(call.bytes)});
    };
    if (call.kind == Seen::create) note(Call::Kind::create);
    if (call.kind == Seen::write) note(Call::Kind::write);
    if (call.kind == Seen::sync) note(Call::Kind::sync);
    // These three may find nothing to do.
    if (call.kind == Seen::make_folder && !fs::exists(path)) note(Call::Kind::make_folder);
    if (call.kind == Seen::rename && fs::exists(path)) note(Call::Kind::rename);
    if (call.kind == Seen::remove && fs::exists(path)) note(Call::Kind::remove);
    return {};
  });
}

PowerLoss::~PowerLoss() { store_files::watch({}); }

namespace {

/// Writes the disk out; what stands in a folder that is not listed is lost with it.
void make(const std::map<std::string, int>& listed, const std::map<int, std::string>& contents, const fs::path& base,
          const fs::path& elsewhere) {
  fs::remove_all(elsewhere);
  fs::create_directories(elsewhere);
  std::set<fs::path> folders = {base};
  for (const auto& [path, what] : listed) {  // sorted: a folder comes before what stands in it
    if (folders.count(fs::path(path).parent_path()) == 0) continue;
    const fs::path place = elsewhere / fs::path(path).lexically_relative(base);
    if (what == kFolder) {
      folders.insert(path);
      fs::create_directory(place);
      fs::permissions(place, fs::perms::owner_all);
    } else {
      std::ofstream(place, std::ios::binary) << contents.at(what);
      fs::permissions(place, fs::perms::owner_read | fs::perms::owner_write);
    }
  }
}

/// Calls `use` for every choice of one content per listed file.
void for_each_contents(const std::vector<File>& files, const std::map<std::string, int>& listed,
                       const std::function<void(const std::map<int, std::string>&)>& use) {
  std::vector<std::map<int, std::string>> choices = {{}};
  for (const auto& [path, what] : listed) {
    if (what == kFolder) continue;
    std::vector<std::map<int, std::string>> more;
    for (const auto& choice : choices)
      for (const std::string& content : contents_of(files[static_cast<size_t>(what)])) {
        more.push_back(choice);
        more.back()[what] = content;
      }
    choices = std::move(more);
  }
  for (const auto& choice : choices) use(choice);
}

}  // namespace

void PowerLoss::for_each_disk(size_t calls, const fs::path& elsewhere, const std::function<void()>& check) const {
  store_files::watch({});
  Disk disk;
  for (size_t i = 0; i < calls; ++i) disk.apply(calls_[i]);
  std::set<std::map<std::string, int>> seen;
  for (uint64_t bits = 0; bits < uint64_t{1} << disk.num_unsure(); ++bits) {
    const auto listed = disk.listed_with(bits);
    if (!seen.insert(listed).second) continue;
    for_each_contents(disk.files, listed, [&](const std::map<int, std::string>& contents) {
      make(listed, contents, base_, elsewhere);
      check();
    });
  }
}

void WatchedPuts::put(const RecordKey& key, const std::string& value) {
  const size_t begin = disk_->num_calls();
  const bool committed = store_->put(key, {.value = value, .provenance = "watched"});
  puts_.push_back({key, value, begin, disk_->num_calls(), committed});
}

std::string WatchedPuts::judge(const Store& found, size_t calls) const {
  for (const Put& one : puts_) {
    // Of one key: the last put that was committed by then must be found, or one that had begun after it.
    bool must = false;
    std::set<std::string> may;
    for (const Put& other : puts_) {
      if (!(other.key == one.key) || other.begin >= calls) continue;
      if (other.committed && other.end <= calls) {
        must = true;
        may.clear();
      }
      may.insert(other.value);
    }
    const auto record = found.find(one.key);
    if (!record && must) return "after call " + std::to_string(calls) + " a committed record is lost: " + one.value;
    if (record && may.count(record->value) == 0)
      return "after call " + std::to_string(calls) + " a wrong value is found: " + record->value;
  }
  return "";
}

}  // namespace ejk::testing
