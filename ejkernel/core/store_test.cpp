#include "ejkernel/core/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "ejkernel/core/record_format_internal.h"
#include "ejkernel/core/store_archive.h"
#include "ejkernel/core/store_files_internal.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk {
namespace {

namespace fs = std::filesystem;

class StoreFiles : public ::testing::Test {
 protected:
  static RecordKey key(const std::string& text) {
    return {.environment = "cuda|NVIDIA H200|sm_90", .group = "op", .text = text};
  }
  static Record record(const std::string& value) { return {.value = value, .provenance = "a test"}; }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) found.push_back(entry.path());
    return found;
  }
  /// As a later version would write it: only what the header is stays as it is.
  static void make_newer(const std::string& path) {
    std::stringstream whole;
    whole << std::ifstream(path).rdbuf();
    std::string bytes = whole.str();
    bytes[8] = 2;
    record_format::sign(bytes);
    std::ofstream(path, std::ios::trunc) << bytes;
  }
  std::string root() const { return folder + "/made/on/demand"; }
  std::string value_of(const RecordKey& of) const {
    const auto found = Store(root()).find(of);
    return found ? found->value : "none";
  }

  testing::TemporaryFolder scratch{testing::Medium::memory};
  const std::string folder = scratch.path();
};

TEST_F(StoreFiles, what_is_put_is_found_by_another_store_of_the_same_root) {
  const std::string bytes("a\0b\xff", 4);
  EXPECT_EQ(value_of(key("k")), "none");
  EXPECT_TRUE(Store(root()).put(key("k"), {.value = bytes, .provenance = "when and how"}));
  EXPECT_EQ(value_of(key("k")), bytes);
  EXPECT_EQ(Store(root()).find(key("k"))->provenance, "when and how");
  EXPECT_TRUE(Store(root()).put(key("k"), record("newer")));
  EXPECT_EQ(value_of(key("k")), "newer");
  EXPECT_EQ(value_of(key("K")), "none");
  EXPECT_EQ(files().size(), 1u) << "nothing else is left behind";
}

TEST_F(StoreFiles, every_part_of_a_key_counts) {
  const std::vector<RecordKey> keys = {{"a", "b", "c"}, {"a", "b", "d"},  {"a", "x", "c"},
                                       {"y", "b", "c"}, {"a|", "b", "c"}, {"a_", "b", "c"},
                                       {"ab", "", "c"}, {"", "", ""},     {std::string(500, 'n'), "b", "c"}};
  const Store store(root());
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(store.put(keys[i], record(std::to_string(i))));
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(store.find(keys[i])->value, std::to_string(i));
}

TEST_F(StoreFiles, is_for_its_owner_alone) {
  ASSERT_TRUE(Store(root()).put(key("k"), record("v")));
  EXPECT_EQ(fs::status(root()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(files().at(0)).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::permissions(root(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_EQ(value_of(key("k")), "none") << "others may have written it";
  EXPECT_FALSE(Store(root()).put(key("k"), record("v")));
}

TEST_F(StoreFiles, without_a_root_nothing_is_kept) {
  EXPECT_FALSE(Store("").put(key("k"), record("v")));
  EXPECT_FALSE(Store("").find(key("k")).has_value());
  EXPECT_FALSE(Store("/proc/nowhere").put(key("k"), record("v")));
}

TEST_F(StoreFiles, a_damaged_record_is_a_miss_and_moved_aside) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("a value of some length")));
  const std::string path = store.path_of(key("k"));
  std::stringstream whole;
  whole << std::ifstream(path).rdbuf();
  const std::string good = whole.str();
  const auto write = [&](const std::string& bytes) { std::ofstream(path, std::ios::trunc) << bytes; };
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    write(bad);
    EXPECT_FALSE(store.find(key("k")).has_value()) << "byte " << at;
    EXPECT_FALSE(fs::exists(path)) << "byte " << at;
    EXPECT_TRUE(fs::exists(path + ".bad"));
  }
  for (size_t size = 0; size < good.size(); ++size) {
    write(good.substr(0, size));
    EXPECT_FALSE(store.find(key("k")).has_value()) << size << " bytes";
  }
  write(good + "x");
  EXPECT_FALSE(store.find(key("k")).has_value());
  write(good);
  EXPECT_EQ(value_of(key("k")), "a value of some length");
}

TEST_F(StoreFiles, a_newer_schema_and_another_keys_record_are_left_alone) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("v")));
  ASSERT_TRUE(store.put(key("other"), record("w")));
  const std::string path = store.path_of(key("k"));
  fs::copy_file(store.path_of(key("other")), path, fs::copy_options::overwrite_existing);
  EXPECT_FALSE(store.find(key("k")).has_value()) << "the whole key is compared";
  EXPECT_TRUE(fs::exists(path));
  make_newer(path);
  EXPECT_FALSE(store.find(key("k")).has_value());
  EXPECT_FALSE(store.put(key("k"), record("older")));
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(StoreFiles, a_link_is_not_followed) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("v")));
  const std::string path = store.path_of(key("k"));
  fs::rename(path, folder + "/elsewhere");
  fs::create_symlink(folder + "/elsewhere", path);
  EXPECT_FALSE(store.find(key("k")).has_value());
}

TEST_F(StoreFiles, the_first_put_clears_away_what_crashed_writers_left) {
  ASSERT_TRUE(Store(root()).put(key("k"), record("v")));
  const fs::path shelf = fs::path(Store(root()).path_of(key("k"))).parent_path();
  const auto leave = [&](const char* name, std::chrono::seconds age) {
    std::ofstream(shelf / name) << "x";
    fs::last_write_time(shelf / name, fs::file_time_type::clock::now() - age);
  };
  leave("dead.1.0.tmp", std::chrono::seconds(10));
  leave("young.1.0.tmp", std::chrono::seconds(0));
  leave("alive.1.0.tmp", std::chrono::seconds(10));
  leave("without_locks.1.0.tmp", std::chrono::hours(2));
  const store_files::File alive(shelf / "alive.1.0.tmp", store_files::Access::read);
  ASSERT_TRUE(alive.lock());
  const Store store(root());
  RecordKey there = key("k");
  there.group = "other_op";
  ASSERT_TRUE(store.put(there, record("v")));
  EXPECT_FALSE(fs::exists(shelf / "dead.1.0.tmp"));
  EXPECT_FALSE(fs::exists(shelf / "without_locks.1.0.tmp"));
  EXPECT_TRUE(fs::exists(shelf / "young.1.0.tmp")) << "its writer may not have locked it yet";
  EXPECT_TRUE(fs::exists(shelf / "alive.1.0.tmp"));
  leave("dead.1.0.tmp", std::chrono::seconds(10));
  ASSERT_TRUE(store.put(there, record("v")));
  EXPECT_TRUE(fs::exists(shelf / "dead.1.0.tmp")) << "without a quota once is enough";
}

TEST_F(StoreFiles, a_folder_that_goes_away_is_made_again) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("v")));
  fs::remove_all(folder + "/made");
  EXPECT_TRUE(store.put(key("k"), record("w")));
  EXPECT_EQ(value_of(key("k")), "w");
}

TEST_F(StoreFiles, records_of_any_size_up_to_the_largest_are_kept) {
  const Store store(root());
  EXPECT_TRUE(store.put(key("empty"), record("")));
  EXPECT_EQ(value_of(key("empty")), "");
  EXPECT_TRUE(store.put(key("large"), record(std::string(5 << 20, 'x'))));
  EXPECT_EQ(value_of(key("large")).size(), 5u << 20);
  EXPECT_FALSE(store.put(key("too large"), record(std::string(64 << 20, 'x')))) << "it could not be read back";
  EXPECT_EQ(value_of(key("too large")), "none");
}

TEST_F(StoreFiles, what_is_no_record_is_passed_over) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("v")));
  const std::string path = store.path_of(key("k"));
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(value_of(key("k")), "none") << "and nobody waits for a pipe's other end";
  EXPECT_TRUE(store.put(key("k"), record("v")));
  fs::resize_file(path, uint64_t{1} << 30);
  EXPECT_EQ(value_of(key("k")), "none");
  EXPECT_TRUE(fs::exists(path + ".bad")) << "a gigabyte was not read to see that";
}

TEST_F(StoreFiles, no_folder_below_the_root_may_be_anybody_elses_or_a_link) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("v")));
  const auto expect_refused = [&](const char* what) {
    EXPECT_EQ(value_of(key("k")), "none") << what;
    EXPECT_FALSE(Store(root()).put(key("more"), record("v"))) << what;
    EXPECT_EQ(Store(root()).collect({.unused_seconds = 1}).kept, 0) << what;
  };
  for (fs::path path = fs::path(store.path_of(key("k"))).parent_path(); path != root(); path = path.parent_path()) {
    fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
    expect_refused("writable by others");
    fs::permissions(path, fs::perms::owner_all);
    fs::rename(path, folder + "/moved");
    fs::create_symlink(folder + "/moved", path);
    expect_refused("a link");
    fs::remove(path);
    fs::rename(folder + "/moved", path);
  }
  fs::permissions(store.path_of(key("k")), fs::perms::group_write, fs::perm_options::add);
  EXPECT_EQ(value_of(key("k")), "none") << "a file that the group can write";
  EXPECT_TRUE(fs::exists(store.path_of(key("k")))) << "it is left for its owner to look at";
}

TEST_F(StoreFiles, the_root_itself_may_be_named_by_a_link) {
  ASSERT_TRUE(Store(root()).put(key("k"), record("v")));
  fs::create_directory_symlink(root(), folder + "/link");
  EXPECT_EQ(Store(folder + "/link/").find(key("k"))->value, "v");
}

TEST_F(StoreFiles, records_are_listed_with_what_is_wrong_with_them) {
  const Store store(root());
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(store.put(key(name), record(std::string("value ") + name)));
  fs::resize_file(store.path_of(key("b")), 70);
  fs::rename(store.path_of(key("c")), fs::path(store.path_of(key("c"))).replace_filename(std::string(32, '0')));
  make_newer(store.path_of(key("d")));
  std::ofstream(fs::path(store.path_of(key("a"))).replace_filename("notes.txt")) << "not a record";
  std::map<std::string, std::string> seen;
  store.for_each([&](const StoredRecord& stored) {
    EXPECT_EQ(fs::path(stored.path).filename(), stored.digest);
    EXPECT_EQ(stored.bytes, static_cast<int64_t>(fs::file_size(stored.path)));
    EXPECT_NEAR(static_cast<double>(stored.used), static_cast<double>(time(nullptr)), 60);
    seen[stored.state == RecordState::good ? stored.key.text + "=" + stored.record.value : stored.reason] =
        name(stored.state);
  });
  EXPECT_EQ(seen, (std::map<std::string, std::string>{{"a=value a", "good"},
                                                      {"its length is not what its header says", "damaged"},
                                                      {"it stands where another key's record belongs", "damaged"},
                                                      {"a newer version wrote it", "newer"}}));
}

TEST_F(StoreFiles, of_one_group_no_other_is_read) {
  const Store store(root());
  RecordKey wanted = key("a"), elsewhere = key("b"), other = key("c");
  wanted.group = elsewhere.group = "a group/of its own";
  elsewhere.environment = "another device";
  for (const RecordKey& each : {wanted, elsewhere, other}) ASSERT_TRUE(store.put(each, record("value")));
  fs::resize_file(store.path_of(other), 70);  // would be told of as damaged
  std::set<std::string> seen;
  store.for_each(
      [&](const StoredRecord& stored) {
        EXPECT_EQ(stored.state, RecordState::good);
        seen.insert(stored.key.text);
      },
      wanted.group);
  EXPECT_EQ(seen, (std::set<std::string>{"a", "b"}));
}

// ---- the quota ----

class StoreQuota : public StoreFiles {
 protected:
  void put_with_age(const std::string& name, std::chrono::hours age, size_t size = 1000) {
    ASSERT_TRUE(Store(root()).put(key(name), record(std::string(size, 'v'))));
    fs::last_write_time(Store(root()).path_of(key(name)), fs::file_time_type::clock::now() - age);
  }
  std::string names() const {
    std::set<std::string> found;
    Store(root()).for_each([&](const StoredRecord& stored) { found.insert(stored.key.text); });
    std::string text;
    for (const std::string& name : found) text += name;
    return text;
  }
};

TEST_F(StoreQuota, the_least_recently_used_go_first_and_never_what_was_just_put) {
  for (int i = 0; i < 6; ++i) put_with_age(std::string(1, static_cast<char>('a' + i)), std::chrono::hours(24 - i));
  EXPECT_TRUE(Store(root()).find(key("b")).has_value()) << "a hit is a use";
  const Store store(root(), {.quota_bytes = 4500});
  ASSERT_TRUE(store.put(key("new"), record(std::string(1000, 'v'))));
  EXPECT_EQ(names(), "bfnew") << "seven eighths of the quota are left";
  EXPECT_TRUE(Store(root(), {.quota_bytes = 10}).put(key("large"), record(std::string(1000, 'v'))));
  EXPECT_EQ(names(), "large");
}

TEST_F(StoreQuota, is_kept_by_a_process_that_goes_on_putting) {
  const Store store(root(), {.quota_bytes = 20000});
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(store.put(key(std::to_string(i)), record(std::string(1000, 'v'))));
    int64_t bytes = 0;
    store.for_each([&](const StoredRecord& stored) { bytes += stored.bytes; });
    EXPECT_LE(bytes, 20000 + 20000 / 8) << "after put " << i;
  }
  EXPECT_EQ(value_of(key("59")).size(), 1000u);
}

TEST_F(StoreQuota, a_hit_renews_the_time_once_an_hour_and_only_in_the_root) {
  put_with_age("old", std::chrono::hours(2));
  put_with_age("young", std::chrono::hours(0));
  const auto time_of = [&](const char* name) { return fs::last_write_time(Store(root()).path_of(key(name))); };
  const auto old = time_of("old"), young = time_of("young");
  EXPECT_TRUE(Store(folder + "/other", {.read_only = {root()}}).find(key("old")).has_value());
  EXPECT_EQ(time_of("old"), old);
  EXPECT_TRUE(Store(root()).find(key("old")) && Store(root()).find(key("young")));
  EXPECT_GT(time_of("old"), old + std::chrono::hours(1));
  EXPECT_EQ(time_of("young"), young);
}

TEST_F(StoreQuota, a_collection_takes_what_it_is_asked_to) {
  for (int i = 0; i < 6; ++i)
    put_with_age(std::string(1, static_cast<char>('a' + i)), std::chrono::hours(24 * (6 - i)));
  std::ofstream(Store(root()).path_of(key("x")) + ".bad") << "moved aside";
  const Store store(root());
  Collection counted = store.collect({.quota_bytes = 3000, .dry_run = true});
  EXPECT_EQ(counted.kept, 2);
  EXPECT_EQ(counted.removed, 4);
  EXPECT_EQ(counted.leftovers, 1);
  EXPECT_EQ(names(), "abcdef");
  EXPECT_EQ(store.collect({.unused_seconds = 4 * 86400 + 3600}).removed, 2);
  EXPECT_EQ(names(), "cdef");
  EXPECT_EQ(files().size(), 4u) << "what was moved aside is gone";
  EXPECT_EQ(store.collect({.quota_bytes = 3000}).removed, 2);
  EXPECT_EQ(names(), "ef");
}

TEST_F(StoreQuota, what_a_newer_version_wrote_stays) {
  put_with_age("a", std::chrono::hours(5));
  const std::string path = Store(root()).path_of(key("a"));
  make_newer(path);
  fs::create_directories(root() + "/v2/environment/op");
  std::ofstream(root() + "/v2/environment/op/" + std::string(32, 'a')) << std::string(5000, 'x');
  EXPECT_FALSE(Store(root()).put(key("a"), record("older"))) << "it is left alone";
  EXPECT_EQ(Store(root()).collect({.quota_bytes = 1, .unused_seconds = 1}).removed, 0);
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(StoreQuota, collectors_and_writers_do_not_disturb_each_other) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Store store(root(), {.quota_bytes = 6000});
      for (int i = 0; i < 20; ++i) {
        const RecordKey mine = key(std::to_string(t) + "/" + std::to_string(i));
        EXPECT_TRUE(store.put(mine, record(std::string(1000, 'v'))));
        store.collect({.quota_bytes = 4000});
      }
    });
  for (std::thread& thread : threads) thread.join();
  Store(root()).for_each([](const StoredRecord& stored) { EXPECT_EQ(stored.state, RecordState::good); });
}

// ---- read-only places ----

TEST_F(StoreFiles, read_only_places_answer_in_order_for_what_the_root_does_not_hold) {
  const std::string first = folder + "/first", second = folder + "/second.ejk";
  ASSERT_TRUE(Store(first).put(key("both"), record("first")));
  ArchiveBuilder builder;
  builder.add(key("both"), record("second"));
  builder.add(key("archived"), record("second"));
  ASSERT_TRUE(builder.write(second));
  const Store store(root(), {.read_only = {folder + "/not there", first, second}});
  EXPECT_EQ(store.find(key("both"))->value, "first");
  EXPECT_EQ(store.find(key("archived"))->value, "second");
  EXPECT_FALSE(store.find(key("neither")).has_value());
  ASSERT_TRUE(store.put(key("both"), record("own")));
  EXPECT_EQ(store.find(key("both"))->value, "own");
  EXPECT_EQ(Store(first).find(key("both"))->value, "first") << "nothing is written there";
  EXPECT_EQ(Store("", {.read_only = {second}}).find(key("archived"))->value, "second") << "they need no root";
}

TEST_F(StoreFiles, damage_in_a_read_only_place_stays_where_it_is) {
  ASSERT_TRUE(Store(root()).put(key("k"), record("v")));
  const std::string path = Store(root()).path_of(key("k"));
  fs::resize_file(path, 60);
  EXPECT_FALSE(Store("", {.read_only = {root()}}).find(key("k")).has_value());
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(StoreFiles, read_only_places_are_trusted_as_the_root_is) {
  ASSERT_TRUE(Store(root()).put(key("k"), record("v")));
  EXPECT_EQ(distrust_of(root()), "");
  EXPECT_EQ(distrust_of(folder + "/none yet"), "");
  EXPECT_TRUE(Store("", {.read_only = {root()}}).find(key("k")).has_value());
  fs::permissions(root(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_FALSE(Store("", {.read_only = {root()}}).find(key("k")).has_value());
  EXPECT_EQ(distrust_of(root()), "can be written by others than its owner");
}

TEST_F(StoreFiles, a_folder_is_looked_at_when_it_is_first_read_from_and_a_file_each_time) {
  ASSERT_TRUE(Store(root()).put(key("k"), record("v")));
  const Store store(root());
  const std::string path = store.path_of(key("k")), group = fs::path(path).parent_path();
  const auto may_write = [](const std::string& place, fs::perm_options whether) {
    fs::permissions(place, fs::perms::others_write, whether);
  };
  may_write(group, fs::perm_options::add);
  EXPECT_FALSE(store.find(key("k")).has_value()) << "the first time";
  may_write(group, fs::perm_options::remove);
  EXPECT_TRUE(store.find(key("k")).has_value()) << "one that was not trusted is looked at again";
  may_write(group, fs::perm_options::add);
  EXPECT_TRUE(store.find(key("k")).has_value()) << "nobody else can have written the file";
  EXPECT_FALSE(store.put(key("other"), record("v"))) << "what is written to is looked at each time";
  may_write(path, fs::perm_options::add);
  EXPECT_FALSE(store.find(key("k")).has_value());
}

// ---- when calls fail ----

/// Whatever call fails: the old record or the new one is there, whole, and nothing else.
TEST_F(StoreFiles, any_call_may_fail) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("old")));
  bool failed = true;
  for (int64_t k = 1; failed; ++k) {
    ASSERT_TRUE(store.put(key("k"), record("old")));
    fail_store_call(k);
    const bool kept = store.put(key("k"), record("new"));
    failed = fail_store_call(0) == 0;
    EXPECT_TRUE(failed || kept);
    const std::string now = value_of(key("k"));
    EXPECT_TRUE(now == "new" || (!kept && now == "old")) << now << " after call " << k;
    EXPECT_EQ(files().size(), 1u) << "after call " << k;
    fail_store_call(k);
    const auto read = store.find(key("k"));
    fail_store_call(0);
    EXPECT_TRUE(!read || read->value == now) << "call " << k << " of a reader";
    EXPECT_EQ(value_of(key("k")), now) << "a record that could not be read is not damaged";
    ASSERT_LT(k, 100);
  }
}

/// The process dies at any call: what was committed is whole afterwards, and the next process goes on.
TEST_F(StoreFiles, a_process_may_die_at_any_call) {
  const Store store(root());
  bool died = true;
  for (int64_t k = 1; died; ++k) {
    ASSERT_TRUE(store.put(key("k"), record("old")));
    const pid_t child = fork();
    if (child == 0) {
      die_at_store_call(k);
      store.put(key("k"), record("new"));
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    died = WEXITSTATUS(status) == 137;
    const std::string now = value_of(key("k"));
    EXPECT_TRUE(now == "new" || (died && now == "old")) << now << " after call " << k;
    ASSERT_LT(k, 100);
  }
}

TEST_F(StoreFiles, writers_and_readers_do_not_disturb_each_other) {
  constexpr int kThreads = 4, kKeys = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const Store store(root());
      for (int i = 0; i < kKeys; ++i) {
        store.put(key("shared"), record(std::string(1000, static_cast<char>('a' + t))));
        store.put(key(std::to_string(t) + "/" + std::to_string(i)), record("v"));
        const auto shared = store.find(key("shared"));
        EXPECT_TRUE(shared && shared->value == std::string(1000, shared->value[0]));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t)
    for (int i = 0; i < kKeys; ++i) EXPECT_EQ(value_of(key(std::to_string(t) + "/" + std::to_string(i))), "v");
}

}  // namespace
}  // namespace ejk
