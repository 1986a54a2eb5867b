// Unit tests run with heuristics' configs and without a store: nothing here waits for a tuner, and nothing depends on
// what its user keeps. Those that are about tuning and storing say so. Small calls share their work among several
// threads, which they do not otherwise, so that what goes wrong between threads goes wrong here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/store.h"
#include "ejkernel/platform/cpu/parallel_for.h"

namespace ejk::testing {
namespace {

// Before main, and so before anything reads the environment. What the caller set stays.
[[maybe_unused]] const int kPolicy = ::setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", /*overwrite=*/0);
[[maybe_unused]] const int kNoTables = ::setenv("EJKERNEL_CONFIG_PATH", "none", /*overwrite=*/0);

class NoStore : public ::testing::Environment {
  void SetUp() override { use_store(""); }
};
[[maybe_unused]] const ::testing::Environment* const kNoStore = ::testing::AddGlobalTestEnvironment(new NoStore);

class SeveralThreads : public ::testing::Environment {
  void SetUp() override { scope_.emplace(std::max(2, cpu::default_num_threads())); }
  void TearDown() override { scope_.reset(); }
  std::optional<cpu::ScopedNumThreads> scope_;
};
[[maybe_unused]] const ::testing::Environment* const kSeveralThreads =
    ::testing::AddGlobalTestEnvironment(new SeveralThreads);

TEST(Policy, of_the_tests_is_heuristics_no_store_and_several_threads) {
  EXPECT_EQ(environment::autotune_policy(), environment::AutotunePolicy::heuristics);
  EXPECT_EQ(store().root(), "");
  EXPECT_GE(cpu::num_threads(), 2);
}

}  // namespace
}  // namespace ejk::testing
