// What the store does to the file system, call by call, and what is left when that stops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "ejkernel/core/store.h"
#include "ejkernel/core/store_files_internal.h"
#include "ejkernel/testing/power_loss.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk {
namespace {

namespace fs = std::filesystem;
using store_files::Answer;
using store_files::Call;
using Kind = store_files::Call::Kind;

RecordKey key(const std::string& text) { return {.environment = "cpu", .group = "op", .text = text}; }
Record record(const std::string& value) { return {.value = value, .provenance = ""}; }

class StoreCalls : public ::testing::Test {
 protected:
  ~StoreCalls() override { store_files::watch({}); }
  testing::TemporaryFolder scratch{testing::Medium::memory};
  const std::string root = scratch / "store";
};

TEST_F(StoreCalls, a_put_survives_the_loss_of_power_after_any_call) {
  const fs::path base = scratch.path() / "disk", elsewhere = scratch.path() / "left";
  fs::create_directory(base);
  testing::PowerLoss disk(base);
  const Store store(base / "store");
  testing::WatchedPuts puts(disk, store);
  puts.put(key("a"), "a1");
  puts.put(key("a"), "a2");
  int disks = 0;
  for (size_t calls = 0; calls <= disk.num_calls(); ++calls)
    disk.for_each_disk(calls, elsewhere, [&] {
      ++disks;
      EXPECT_EQ(puts.judge(Store(elsewhere / "store"), calls), "");
    });
  EXPECT_GT(disks, 30);
}

/// The check itself: a store that forgets a sync is caught.
TEST_F(StoreCalls, a_sync_that_is_left_out_is_noticed) {
  const fs::path base = scratch.path() / "disk", elsewhere = scratch.path() / "left";
  for (const bool of_file : {true, false}) {
    fs::remove_all(base);
    fs::create_directory(base);
    testing::PowerLoss disk(
        base, [&](const Call& call) { return call.kind != Kind::sync || fs::is_regular_file(call.path) != of_file; });
    const Store store(base / "store");
    testing::WatchedPuts puts(disk, store);
    puts.put(key("a"), "a1");
    std::set<std::string> wrong;
    disk.for_each_disk(disk.num_calls(), elsewhere,
                       [&] { wrong.insert(puts.judge(Store(elsewhere / "store"), disk.num_calls())); });
    EXPECT_GT(wrong.size(), 1u) << (of_file ? "the file's" : "the folders'");
  }
}

TEST_F(StoreCalls, folders_that_another_process_made_are_synced_too) {
  ASSERT_TRUE(Store(root).put(key("a"), record("v")));
  std::set<std::string> synced;
  store_files::watch([&](const Call& call) -> Answer {
    if (call.kind == Kind::sync && fs::is_directory(call.path)) synced.emplace(call.path);
    return {};
  });
  const Store store(root);
  ASSERT_TRUE(store.put(key("b"), record("v")));
  EXPECT_EQ(synced, (std::set<std::string>{scratch.path(), root, root + "/v1", root + "/v1/cpu", root + "/v1/cpu/op"}));
  synced.clear();
  ASSERT_TRUE(store.put(key("c"), record("v")));
  EXPECT_EQ(synced, (std::set<std::string>{root + "/v1/cpu/op"})) << "the others once in a process";
}

TEST_F(StoreCalls, interruptions_and_short_counts_are_no_failures) {
  bool interrupt = false;
  store_files::watch([&](const Call&) -> Answer {
    interrupt = !interrupt;
    if (interrupt) return {.error = EINTR};
    return {.most = 1};
  });
  EXPECT_TRUE(Store(root).put(key("a"), record("value")));
  EXPECT_EQ(Store(root).find(key("a"))->value, "value");
}

TEST_F(StoreCalls, a_folder_that_cannot_be_synced_because_its_file_system_knows_no_such_thing_is_good_enough) {
  store_files::watch([&](const Call& call) -> Answer {
    const bool of_folder = call.kind == Kind::sync && fs::is_directory(call.path);
    return {.error = of_folder ? EINVAL : 0};
  });
  EXPECT_TRUE(Store(root).put(key("a"), record("v")));
}

/// Folders above the store may be another user's, who lets this one pass through them and not read them.
TEST_F(StoreCalls, a_folder_above_that_may_not_be_read_is_no_obstacle) {
  const std::string above = fs::path(root).parent_path();
  store_files::watch([&](const Call& call) -> Answer {
    return {.error = call.kind == Kind::open && call.path == above ? EACCES : 0};
  });
  EXPECT_TRUE(Store(root).put(key("a"), record("v")));
}

TEST_F(StoreCalls, a_disk_that_stays_full_or_read_only_costs_the_record_and_nothing_else) {
  ASSERT_TRUE(Store(root).put(key("a"), record("old")));
  for (const int error : {ENOSPC, EROFS, EACCES, EMFILE}) {
    const Store store(root);
    store_files::watch([&](const Call& call) -> Answer {
      const bool writes = call.kind == Kind::create || call.kind == Kind::write || call.kind == Kind::make_folder;
      return {.error = writes ? error : 0};
    });
    EXPECT_FALSE(store.put(key("a"), record("new")));
    EXPECT_EQ(store.find(key("a"))->value, "old");
    store_files::watch({});
    EXPECT_TRUE(store.put(key("b"), record("new"))) << "the same store goes on once there is room";
  }
}

TEST_F(StoreCalls, a_hit_costs_few) {
  const Store store(root);
  ASSERT_TRUE(store.put(key("a"), record("v")));
  int calls = 0;
  store_files::watch([&](const Call&) -> Answer { return ++calls, Answer(); });
  EXPECT_TRUE(store.find(key("a")).has_value());
  EXPECT_EQ(calls, 7) << "open, info, one info a folder, read";
  calls = 0;
  EXPECT_FALSE(store.find(key("b")).has_value());
  EXPECT_EQ(calls, 1) << "a miss is one open";
}

}  // namespace
}  // namespace ejk
