// T-47: files and folders that others made or could have changed, records that lie about themselves, names that try to
// leave the store. None may be served; a good record in the same place is, so that every case can fail.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <stdexcept>

#include "ejkernel/core/record_format_internal.h"
#include "ejkernel/core/store.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/testing/temporary_folder.h"
#include "tools/table/rows.h"
#include "tools/table/store_trials.h"

namespace ejk::testing {
namespace {

namespace fs = std::filesystem;

const RecordKey kKey = {.environment = "sm_90a", .group = "flash_attention", .text = "cubin"};
const ejk::Record kRecord = {.value = std::string(3000, 'c'), .provenance = "a test"};
constexpr uid_t kSomebodyElse = 4242;

/// A store with one good record, an archive of it, and a place outside of both.
struct Scene {
  TemporaryFolder scratch{Medium::memory};
  std::string root = scratch / "store", archive = scratch / "archive.ejk", outside = scratch / "outside";
  std::string record;

  Scene() {
    const Store store(root);
    store.put(kKey, kRecord);
    record = store.path_of(kKey);
    ArchiveBuilder builder;
    builder.add(kKey, kRecord);
    builder.write(archive);
  }

  /// The record's folders, 0 the nearest: group, environment, schema, root.
  std::string folder(int level) const {
    fs::path path = fs::path(record).parent_path();
    while (level-- > 0) path = path.parent_path();
    return path;
  }

  bool is_served(bool from_read_only_place) const {
    const Store store(
        from_read_only_place ? scratch / "empty" : root,
        {.read_only = from_read_only_place ? std::vector<std::string>{root} : std::vector<std::string>{}});
    return store.find(kKey).has_value();
  }
  bool is_served_from_archive() const {
    return Store(scratch / "empty", {.read_only = {archive}}).find(kKey).has_value();
  }
};

struct Trick {
  std::string name;
  std::function<void(const std::string& path)> play;
};

/// What may be wrong with a folder or a file of any kind.
std::vector<Trick> tricks_on_anything() {
  std::vector<Trick> tricks = {
      {"a link to it elsewhere",
       [](const std::string& path) {
         fs::rename(path, path + "_moved");
         fs::create_symlink(path + "_moved", path);
       }},
      {"a link to nothing",
       [](const std::string& path) {
         fs::remove_all(path);
         fs::create_symlink("/nowhere", path);
       }},
      {"writable by the group", [](const std::string& path) { chmod(path.c_str(), 0770); }},
      {"writable by everybody", [](const std::string& path) { chmod(path.c_str(), 0707); }},
      {"writable by everybody, with the sticky bit", [](const std::string& path) { chmod(path.c_str(), 01777); }},
  };
  if (geteuid() == 0)  // nobody else can give files away
    tricks.push_back({"another user's", [](const std::string& path) {
                        if (lchown(path.c_str(), kSomebodyElse, kSomebodyElse) != 0)
                          throw std::runtime_error("a file cannot be given away: " + path);
                      }});
  return tricks;
}

std::vector<Trick> tricks_on_a_file() {
  std::vector<Trick> tricks = tricks_on_anything();
  const auto rewritten = [](std::function<std::string(std::string)> change) {
    return [change](const std::string& path) { write_bytes(path, change(read_bytes(path))); };
  };
  const std::vector<Trick> more = {
      {"a pipe", [](const std::string& path) { fs::remove(path), mkfifo(path.c_str(), 0600); }},
      {"a folder", [](const std::string& path) { fs::remove(path), fs::create_directory(path); }},
      {"a socket",
       [](const std::string& path) {
         fs::remove(path);
         // By way of its folder's descriptor, because the path may be too long for an address.
         const int folder = open(fs::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
         const std::string name = fmt::format("/proc/self/fd/{}/{}", folder, fs::path(path).filename().string());
         sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
         name.copy(address.sun_path, sizeof address.sun_path - 1);
         const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
         if (bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
           throw std::runtime_error("no socket can be made: " + path);
         close(descriptor);
         close(folder);
       }},
      {"a link to a device", [](const std::string& path) { fs::remove(path), fs::create_symlink("/dev/zero", path); }},
      {"empty", rewritten([](const std::string&) { return std::string(); })},
      {"cut in its header", rewritten([](const std::string& b) { return b.substr(0, 30); })},
      {"cut in its value", rewritten([](const std::string& b) { return b.substr(0, b.size() - 1000); })},
      {"cut by one byte", rewritten([](const std::string& b) { return b.substr(0, b.size() - 1); })},
      {"longer by one byte", rewritten([](const std::string& b) { return b + "x"; })},
      {"a changed value", rewritten([](std::string b) { return b[b.size() - 1000] = 'X', b; })},
      {"a changed digest", rewritten([](std::string b) { return b[50] = static_cast<char>(b[50] ^ 1), b; })},
      {"a changed kind", rewritten([](std::string b) { return b[0] = 'E', b; })},
      {"a newer schema", rewritten([](std::string b) { return b[8] = 2, record_format::sign(b), b; })},
      {"a schema that never was", rewritten([](std::string b) { return b[8] = 0, record_format::sign(b), b; })},
      {"a hostile size", rewritten([](std::string b) { return b[23] = '\x7f', b; })},
      {"twice in one file", rewritten([](const std::string& b) { return b + b; })},
      {"a program", rewritten([](const std::string&) { return "\177ELF" + std::string(3000, '\1'); })},
  };
  tricks.insert(tricks.end(), more.begin(), more.end());
  return tricks;
}

/// Plays the trick on `path` of a fresh scene; what is wrong afterwards.
std::string judge(const std::function<std::string(const Scene&)>& path, const Trick& trick,
                  const std::function<bool(const Scene&)>& is_served) {
  const Scene scene;
  if (!is_served(scene)) return "the good record is not served";
  trick.play(path(scene));
  return is_served(scene) ? "it is served" : "";
}

void trust_folders_and_records(Tally& tally) {
  constexpr const char* kLevels[] = {"group", "environment", "schema", "root"};
  for (const bool read_only : {false, true}) {
    const auto served = [&](const Scene& scene) { return scene.is_served(read_only); };
    const auto add = [&](std::string_view what, const Trick& trick, const std::string& wrong) {
      tally.add(wrong.empty() ? ""
                              : fmt::format("{}{}, {}: {}", read_only ? "read-only " : "", what, trick.name, wrong));
    };
    for (int level = 0; level < 4; ++level)
      for (const Trick& trick : tricks_on_anything()) {
        // A person names the root, and may name it by a link.
        if (level == 3 && trick.name == "a link to it elsewhere") continue;
        add(kLevels[level], trick, judge([&](const Scene& scene) { return scene.folder(level); }, trick, served));
      }
    for (const Trick& trick : tricks_on_a_file())
      add("record", trick, judge([](const Scene& scene) { return scene.record; }, trick, served));
  }
}

void trust_archives(Tally& tally) {
  for (const Trick& trick : tricks_on_a_file()) {
    if (trick.name == "a link to it elsewhere") continue;  // as above
    const std::string wrong = judge([](const Scene& scene) { return scene.archive; }, trick,
                                    [](const Scene& scene) { return scene.is_served_from_archive(); });
    tally.add(wrong.empty() ? "" : fmt::format("archive, {}: {}", trick.name, wrong));
  }
}

/// Records of one key must not answer for another, wherever somebody puts them.
void swap_records(Tally& tally) {
  const Scene scene;
  const Store store(scene.root);
  RecordKey other = kKey;
  other.text = "another cubin";
  store.put(other, {.value = "other", .provenance = ""});
  fs::copy_file(store.path_of(other), scene.record, fs::copy_options::overwrite_existing);
  tally.add(store.find(kKey) ? "another key's record is served" : "");
  tally.add(store.find(other) ? "" : "its own record is not");
}

/// Everything that a put makes is below root/v1/, two folders deep, whatever the names.
void stay_inside(Tally& tally) {
  const std::vector<std::string> names = {"..",          ".",
                                          "../..",       "../../outside",
                                          "/etc/passwd", "a/../../../outside",
                                          "~",           "%2e%2e%2f",
                                          "..\\..",      std::string("a\0/../b", 7),
                                          "line\nbreak", "",
                                          " ",           std::string(5000, '.'),
                                          "v1",          ".tmp",
                                          "caf\xc3\xa9", "\xff\xfe",
                                          "$(touch x)",  "`touch x`",
                                          "-rf",         "CON",
                                          "a:b|c*?",     "..."};
  for (const std::string& name : names) {
    const Scene scene;
    const Store store(scene.root);
    const RecordKey key = {.environment = name, .group = name, .text = name};
    const bool kept = store.put(key, {.value = name, .provenance = name});
    const fs::path relative = fs::path(store.path_of(key)).lexically_normal().lexically_relative(scene.root);
    int64_t around = 0;
    for (const auto& entry : fs::directory_iterator(scene.scratch.path())) around += entry.path() != scene.root;
    std::string wrong;
    if (!kept || !store.find(key) || store.find(key)->value != name) wrong = "it is not kept";
    if (std::distance(relative.begin(), relative.end()) != 4 || *relative.begin() != "v1")
      wrong = "it stands at " + relative.string();
    if (around != 1) wrong = "something was made outside";  // the archive stands there
    tally.add(wrong.empty() ? "" : fmt::format("the name '{}': {}", name, wrong));
  }
}

/// What is not trusted to be read is not written to either.
void refuse_to_write(Tally& tally) {
  for (const Trick& trick : tricks_on_anything())
    for (const int level : {0, 1, 2, 3}) {
      if (trick.name == "a link to nothing" || (level == 3 && trick.name == "a link to it elsewhere")) continue;
      const Scene scene;
      const Store store(scene.root);
      trick.play(scene.folder(level));
      RecordKey key = kKey;
      key.text = "more";
      tally.add(store.put(key, kRecord) ? fmt::format("a put into level {}, {}", level, trick.name) : "");
    }
}

}  // namespace

RowResult cache_trust(const RowRequest&) {
  Tally tally;
  trust_folders_and_records(tally);
  trust_archives(tally);
  swap_records(tally);
  stay_inside(tally);
  refuse_to_write(tally);
  if (geteuid() != 0) tally.note("files of another user were left out: only root can give files away");
  return tally.result();
}

}  // namespace ejk::testing
