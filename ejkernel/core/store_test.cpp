#include "ejkernel/core/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

namespace ejk {
namespace {

namespace fs = std::filesystem;

class StoreFiles : public ::testing::Test {
 protected:
  StoreFiles() {
    std::string pattern = fs::temp_directory_path() / "ejkernel_store_XXXXXX";
    folder = mkdtemp(pattern.data());
  }
  ~StoreFiles() override { fs::remove_all(folder); }

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
  std::string root() const { return folder + "/made/on/demand"; }
  std::string value_of(const RecordKey& of) const {
    const auto found = Store(root()).find(of);
    return found ? found->value : "none";
  }

  std::string folder;
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
    if (at >= 8 && at < 12) continue;  // the schema: see below
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
  std::fstream file(path, std::ios::in | std::ios::out);
  file.seekp(8);
  file.put(2);
  file.close();
  EXPECT_FALSE(store.find(key("k")).has_value());
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

TEST_F(StoreFiles, what_crashed_writers_left_is_swept) {
  const Store store(root());
  ASSERT_TRUE(store.put(key("k"), record("v")));
  const fs::path shelf = fs::path(store.path_of(key("k"))).parent_path();
  // Another folder, which this process has not swept yet.
  const fs::path other = shelf.parent_path() / "other_op";
  fs::create_directory(other);
  for (const char* name : {"old.1.0.tmp", "young.1.0.tmp"}) std::ofstream(other / name) << "x";
  fs::last_write_time(other / "old.1.0.tmp", fs::file_time_type::clock::now() - std::chrono::hours(2));
  RecordKey there = key("k");
  there.group = "other_op";
  ASSERT_TRUE(store.put(there, record("v")));
  EXPECT_FALSE(fs::exists(other / "old.1.0.tmp"));
  EXPECT_TRUE(fs::exists(other / "young.1.0.tmp")) << "its writer may be alive";
}

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
    store.find(key("k"));
    fail_store_call(0);
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
