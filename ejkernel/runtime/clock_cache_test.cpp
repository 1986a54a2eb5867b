#include "ejkernel/runtime/clock_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>

namespace ejk {
namespace {

// Hashes that are multiples of the number of shards fall into one shard, where eviction can be watched.
constexpr uint64_t kShards = 16;
uint64_t same_shard(int n) { return static_cast<uint64_t>(n) * kShards; }
std::string key(int n) { return "key " + std::to_string(n); }

TEST(ClockCache, finds_what_was_put) {
  ClockCache<int> cache(64);
  EXPECT_FALSE(cache.find(1, "a").has_value());
  cache.put(1, "a", 10);
  cache.put(2, "b", 20);
  EXPECT_EQ(cache.find(1, "a"), 10);
  EXPECT_EQ(cache.find(2, "b"), 20);
  cache.put(1, "a", 11);
  EXPECT_EQ(cache.find(1, "a"), 11);
  EXPECT_EQ(cache.size(), 2u);
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
  EXPECT_FALSE(cache.find(1, "a").has_value());
}

TEST(ClockCache, of_two_that_compute_the_same_the_first_is_kept) {
  ClockCache<int> cache(64);
  const auto is_even = [](int there) { return there % 2 == 0; };
  EXPECT_EQ(cache.put_unless(1, "a", 2, is_even), 2);
  EXPECT_EQ(cache.put_unless(1, "a", 3, is_even), 2);
  cache.put(1, "a", 5);
  EXPECT_EQ(cache.put_unless(1, "a", 7, is_even), 7);
  EXPECT_EQ(cache.find(1, "a"), 7);
}

TEST(ClockCache, equal_hashes_do_not_mix_keys) {
  ClockCache<int> cache(64);
  cache.put(7, "one", 1);
  cache.put(7, "two", 2);
  EXPECT_EQ(cache.find(7, "one"), 1);
  EXPECT_EQ(cache.find(7, "two"), 2);
  EXPECT_FALSE(cache.find(7, "three").has_value());
}

TEST(ClockCache, a_full_shard_evicts_what_was_not_used) {
  ClockCache<int> cache(4 * kShards);
  for (int n = 0; n < 4; ++n) cache.put(same_shard(n), key(n), n);
  cache.find(same_shard(0), key(0));
  cache.find(same_shard(2), key(2));
  cache.put(same_shard(4), key(4), 4);  // the hand passes 0, which was used, and stops at 1
  EXPECT_FALSE(cache.find(same_shard(1), key(1)).has_value());
  for (int n : {0, 2, 3, 4}) EXPECT_EQ(cache.find(same_shard(n), key(n)), n);
}

TEST(ClockCache, used_entries_get_a_second_chance_only) {
  ClockCache<int> cache(2 * kShards);
  cache.put(same_shard(0), key(0), 0);
  cache.put(same_shard(1), key(1), 1);
  cache.find(same_shard(0), key(0));
  cache.find(same_shard(1), key(1));
  cache.put(same_shard(2), key(2), 2);  // both were used: the hand takes their marks, and then the first
  EXPECT_FALSE(cache.find(same_shard(0), key(0)).has_value());
  EXPECT_EQ(cache.find(same_shard(1), key(1)), 1);
}

TEST(ClockCache, never_grows_beyond_its_capacity) {
  constexpr size_t kCapacity = 160;
  ClockCache<int> cache(kCapacity);
  std::mt19937_64 random(3);
  for (int n = 0; n < 20000; ++n) {
    const int entry = static_cast<int>(random() % 1000);
    const auto hit = cache.find(static_cast<uint64_t>(entry) * 0x9e3779b97f4a7c15u, key(entry));
    ASSERT_EQ(hit.value_or(entry), entry);
    if (!hit.has_value()) cache.put(static_cast<uint64_t>(entry) * 0x9e3779b97f4a7c15u, key(entry), entry);
    ASSERT_LE(cache.size(), kCapacity);
  }
  EXPECT_GT(cache.size(), kCapacity / 2);
}

TEST(ClockCache, evicted_values_are_released) {
  ClockCache<std::shared_ptr<int>> cache(kShards);
  const auto value = std::make_shared<int>(1);
  cache.put(same_shard(0), key(0), value);
  EXPECT_EQ(value.use_count(), 2);
  cache.put(same_shard(1), key(1), nullptr);
  EXPECT_EQ(value.use_count(), 1);
}

TEST(ClockCache, threads_find_whole_values) {
  ClockCache<std::pair<int, int>> cache(64);
  std::atomic<int> hits{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int n = 0; n < 5000; ++n) {
        const int entry = static_cast<int>(random() % 128);
        const uint64_t hash = static_cast<uint64_t>(entry);
        if (const auto found = cache.find(hash, key(entry))) {
          ++hits;
          ASSERT_EQ(found->first, entry);
          ASSERT_EQ(found->second, -entry);
        } else {
          cache.put(hash, key(entry), {entry, -entry});
        }
        if (n % 1000 == 999) cache.clear();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace ejk
