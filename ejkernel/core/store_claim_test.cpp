// Claims among the threads and processes that share a store; runtime/tuner_test.cpp has those of forked processes.
#include "ejkernel/core/store_claim.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "ejkernel/core/store_files_internal.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk {
namespace {

namespace fs = std::filesystem;

class StoreClaims : public ::testing::Test {
 protected:
  ~StoreClaims() override { store_files::watch({}); }
  bool is_ours(const std::string& what) const { return StoreClaim(store, what).is_ours(); }
  bool is_told(const std::string& what) const {
    const StoreClaim first(store, what), second(store, what);
    EXPECT_TRUE(first.is_ours());
    return !second.is_ours();
  }

  const testing::TemporaryFolder scratch{testing::Medium::memory};
  const Store store{scratch / "deep/store"};
};

TEST_F(StoreClaims, one_is_ours_until_it_ends) {
  std::optional<StoreClaim> first(std::in_place, store, "work");
  EXPECT_TRUE(first->is_ours());
  EXPECT_FALSE(is_ours("work"));
  EXPECT_FALSE(is_ours("work")) << "the one that was not ours took nothing away";
  EXPECT_TRUE(is_ours("other work"));
  first.reset();
  EXPECT_TRUE(is_ours("work"));
  EXPECT_TRUE(fs::is_empty(store.root() + "/claims"));
}

/// Between its opening and its locking the last owner may remove the file.
TEST_F(StoreClaims, a_lock_on_a_file_that_is_gone_is_no_claim) {
  std::optional<StoreClaim> first(std::in_place, store, "work");
  store_files::watch([&](const store_files::Call& call) -> store_files::Answer {
    if (call.kind == store_files::Call::Kind::lock) first.reset();
    return {};
  });
  const StoreClaim second(store, "work");
  store_files::watch({});
  EXPECT_FALSE(first);
  EXPECT_TRUE(second.is_ours());
  EXPECT_FALSE(is_ours("work"));
}

TEST_F(StoreClaims, what_a_killed_owner_left_is_collected) {
  const std::string left = store.root() + "/claims/left";
  const StoreClaim held(store, "work");
  std::ofstream(left).close();
  for (const auto& file : fs::directory_iterator(store.root() + "/claims"))
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::minutes(1));
  EXPECT_EQ(store.collect({.dry_run = true}).leftovers, 1);
  EXPECT_TRUE(fs::exists(left));
  EXPECT_EQ(store.collect({}).leftovers, 1);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_FALSE(is_ours("work")) << "a living owner's stays";
}

TEST_F(StoreClaims, without_a_store_everybodys_is_good) {
  const Store none("");
  const StoreClaim first(none, "work"), second(none, "work");
  EXPECT_TRUE(first.is_ours());
  EXPECT_TRUE(second.is_ours());
}

TEST_F(StoreClaims, nothing_is_made_in_a_folder_that_others_can_write) {
  fs::create_directories(store.root());
  fs::permissions(store.root(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_FALSE(is_told("work"));
  EXPECT_TRUE(fs::is_empty(store.root()));
  fs::permissions(store.root(), fs::perms::owner_all);
  EXPECT_TRUE(is_told("work"));
  fs::permissions(store.root() + "/claims", fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(is_told("work"));
}

TEST_F(StoreClaims, nothing_is_made_through_a_link) {
  const fs::path elsewhere = scratch.path() / "elsewhere";
  fs::create_directories(elsewhere);
  fs::create_directories(store.root());
  fs::create_directory_symlink(elsewhere, store.root() + "/claims");
  EXPECT_FALSE(is_told("work"));
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(StoreClaims, whatever_the_disk_refuses_the_work_can_be_done) {
  using store_files::Call;
  for (const auto kind : {Call::Kind::make_folder, Call::Kind::create, Call::Kind::info, Call::Kind::lock}) {
    store_files::watch([&](const Call& call) { return store_files::Answer{.error = call.kind == kind ? EIO : 0}; });
    EXPECT_FALSE(is_told("work")) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace ejk
