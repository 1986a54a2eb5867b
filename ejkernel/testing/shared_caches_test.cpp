// The caches under 32 threads, and that the model sees what a faulty cache does. Under ThreadSanitizer as well.
#include "ejkernel/testing/shared_caches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SharedCaches, lose_nothing_among_32_threads) {
  const RowResult result = hammer_shared_caches(32, {.n = 20000, .seed = 1});
  EXPECT_EQ(result.n, 20000);
  EXPECT_EQ(result.failures, 0);
  EXPECT_THAT(result.notes, IsEmpty());
  for (const auto& [place, operations] : result.figures) EXPECT_GT(operations, 500) << place;
}

// ---- what the model sees ----

using Right = ClockCache<int64_t>;

/// Loses one put in five.
struct LosesPuts : Right {
  using Right::Right;
  void put(uint64_t hash, std::string_view key, int64_t value) {
    if (value % 5 != 0) Right::put(hash, key, value);
  }
};

/// Gives what was there before the last put.
struct GivesOldValues : Right {
  using Right::Right;
  std::optional<int64_t> find(uint64_t hash, std::string_view key) {
    const auto value = Right::find(hash, key);
    return value ? std::optional(*value - 1) : value;
  }
};

/// Gives a value of another key.
struct MixesKeys : Right {
  using Right::Right;
  std::optional<int64_t> find(uint64_t hash, std::string_view key) {
    return hash % 4 == 3 ? std::optional<int64_t>(100) : Right::find(hash, key);
  }
};

/// The last of those that computed the same wins.
struct LastWins : Right {
  using Right::Right;
  template <class Keeps>
  int64_t put_unless(uint64_t hash, std::string_view key, int64_t value, Keeps) {
    put(hash, key, value);
    return value;
  }
};

/// The first thing that is wrong with a cache of 8 registers after each was written ten times.
template <class Cache>
std::string first_fault(size_t capacity, bool may_forget) {
  CachedRegisters<Cache> written(8, capacity, may_forget);
  for (int turn = 0; turn < 10; ++turn)
    for (size_t index = 0; index < 8; ++index) {
      written.write(index);
      if (const std::string fault = written.read(index); !fault.empty()) return fault;
    }
  return "";
}

TEST(SharedCaches, the_model_allows_what_a_right_cache_does) {
  EXPECT_EQ(first_fault<Right>(16, false), "");
  EXPECT_EQ(first_fault<Right>(16, true), "");
}

TEST(SharedCaches, the_model_sees_lost_old_and_foreign_values) {
  EXPECT_EQ(first_fault<LosesPuts>(16, false), "register 0 lost 5: it still gives 4");
  EXPECT_EQ(first_fault<LosesPuts>(16, true), "register 0 lost 5: it still gives 4");
  EXPECT_EQ(first_fault<GivesOldValues>(16, true), "register 0 lost 1: it still gives 0");
  EXPECT_EQ(first_fault<MixesKeys>(16, true), "register 3 gives 100, which nobody wrote");
}

TEST(SharedCaches, only_a_full_cache_may_forget) {
  constexpr size_t kShards = 16;
  CachedRegisters<Right> may(2 * kShards, kShards, true), must_not(2 * kShards, kShards, false);
  for (const size_t index : {size_t{0}, kShards}) may.write(index), must_not.write(index);
  EXPECT_EQ(may.read(0), "");
  EXPECT_EQ(must_not.read(0), "register 0 lost 1: it still gives 0");
}

TEST(SharedCaches, of_several_first_values_there_is_one) {
  FirstWins<Right> right(3, 9);
  FirstWins<LastWins> wrong(3, 9);
  for (int turn = 0; turn < 9; ++turn) EXPECT_EQ(right.compute(), "");
  EXPECT_EQ(wrong.compute(), "");
  EXPECT_EQ(wrong.compute(), "key 0 is 1 here and 2 there");
}

}  // namespace
}  // namespace ejk::testing
