#include "ejkernel/core/store_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "ejkernel/testing/temporary_folder.h"

namespace ejk {
namespace {

namespace fs = std::filesystem;

class Archives : public ::testing::Test {
 protected:
  static RecordKey key(int i) { return {.environment = "sm_90a", .group = "op", .text = std::to_string(i)}; }
  static Record record(int i) {
    return {.value = std::string(static_cast<size_t>(10 * i), static_cast<char>('a' + i)), .provenance = "a test"};
  }
  std::string make(int count) const {
    ArchiveBuilder builder;
    for (int i = 0; i < count; ++i) builder.add(key(i), record(i));
    EXPECT_TRUE(builder.write(path));
    std::stringstream bytes;
    bytes << std::ifstream(path).rdbuf();
    return bytes.str();
  }
  void write(const std::string& bytes) const {
    fs::remove(path);
    std::ofstream(path) << bytes;
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  }
  std::shared_ptr<const Archive> open() {
    why.clear();
    return Archive::open(path, why);
  }

  testing::TemporaryFolder scratch{testing::Medium::memory};
  const std::string path = scratch / "records.ejk";
  std::string why;
};

TEST_F(Archives, hold_what_was_added) {
  make(20);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto archive = open();
  ASSERT_NE(archive, nullptr) << why;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(archive->find(key(i))->value, record(i).value);
  EXPECT_FALSE(archive->find(key(20)).has_value());
  int seen = 0;
  archive->for_each([&](const StoredRecord& stored) {
    EXPECT_EQ(stored.state, RecordState::good);
    EXPECT_EQ(stored.record.value, record(std::stoi(stored.key.text)).value);
    EXPECT_EQ(stored.path, path + "#" + std::to_string(seen++));
  });
  EXPECT_EQ(seen, 20);
}

TEST_F(Archives, may_be_empty_and_keep_the_first_of_two_with_one_key) {
  make(0);
  ASSERT_NE(open(), nullptr) << why;
  EXPECT_FALSE(open()->find(key(0)).has_value());
  ArchiveBuilder builder;
  builder.add(key(1), record(2));
  builder.add(key(1), record(3));
  ASSERT_TRUE(builder.write(path));
  EXPECT_EQ(open()->find(key(1))->value, record(2).value);
}

TEST_F(Archives, are_the_same_bytes_whatever_the_order) {
  const std::string bytes = make(5);
  ArchiveBuilder builder;
  for (int i = 4; i >= 0; --i) builder.add(key(i), record(i));
  ASSERT_TRUE(builder.write(path));
  std::stringstream again;
  again << std::ifstream(path).rdbuf();
  EXPECT_EQ(again.str(), bytes);
}

/// Whatever byte changes: the archive is refused, or the record that holds the byte is a miss; the others are right.
TEST_F(Archives, serve_nothing_wrong_when_damaged) {
  constexpr int kRecords = 3;
  const std::string good = make(kRecords);
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    write(bad);
    int served = 0;
    if (const auto archive = open())
      for (int i = 0; i < kRecords; ++i)
        if (const auto found = archive->find(key(i))) {
          EXPECT_EQ(found->value, record(i).value) << "byte " << at;
          ++served;
        }
    EXPECT_EQ(served, why.empty() ? kRecords - 1 : 0) << "byte " << at;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    write(good.substr(0, size));
    EXPECT_EQ(open(), nullptr) << size << " bytes";
    EXPECT_NE(why, "");
  }
}

TEST_F(Archives, give_misses_when_cut_while_open) {
  make(20);
  const auto archive = open();
  ASSERT_NE(archive, nullptr);
  fs::resize_file(path, 600);
  int found = 0;
  for (int i = 0; i < 20; ++i) found += archive->find(key(i)).has_value();
  EXPECT_LT(found, 20);
}

TEST_F(Archives, say_why_they_are_not_used) {
  const std::string good = make(2);
  EXPECT_NE(open(), nullptr);
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(why, "can be written by others than its owner");
  EXPECT_EQ(distrust_of(path), why);
  write("something else altogether, and long enough for a header");
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(why, "is no archive");
  std::string newer = good;
  newer[8] = 2;
  write(newer);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(why, "is an archive that a newer version wrote");
  write(good + "x");
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(why, "is a damaged archive");
  fs::remove(path);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(why, "is not there");
}

TEST_F(Archives, that_cannot_be_written_leave_nothing) {
  ArchiveBuilder builder;
  builder.add(key(1), record(1));
  EXPECT_FALSE(builder.write(scratch / "no/such/folder.ejk"));
  EXPECT_EQ(errno, ENOENT);
  bool failed = true;
  for (int64_t k = 1; failed; ++k) {
    fs::remove(path);
    fail_store_call(k);
    const bool written = builder.write(path);
    failed = fail_store_call(0) == 0;
    EXPECT_TRUE(written || failed);
    for (const auto& entry : fs::directory_iterator(scratch.path())) EXPECT_EQ(entry.path(), path) << "call " << k;
    EXPECT_TRUE(!fs::exists(path) || open() != nullptr) << why;
    ASSERT_LT(k, 50);
  }
}

}  // namespace
}  // namespace ejk
