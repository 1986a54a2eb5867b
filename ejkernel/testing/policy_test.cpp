// Unit tests run with heuristics' configs and without a store: nothing here waits for a tuner, and nothing depends on
// what its user keeps. Those that are about tuning and storing say so.
#include <gtest/gtest.h>

#include <cstdlib>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/store.h"

namespace ejk::testing {
namespace {

// Before main, and so before anything reads the environment. What the caller set stays.
[[maybe_unused]] const int kPolicy = ::setenv("EJKERNEL_AUTOTUNE_POLICY", "heuristics", /*overwrite=*/0);
[[maybe_unused]] const int kNoTables = ::setenv("EJKERNEL_CONFIG_PATH", "none", /*overwrite=*/0);

class NoStore : public ::testing::Environment {
  void SetUp() override { use_store(""); }
};
[[maybe_unused]] const ::testing::Environment* const kNoStore = ::testing::AddGlobalTestEnvironment(new NoStore);

TEST(Policy, of_the_tests_is_heuristics_and_no_store) {
  EXPECT_EQ(environment::autotune_policy(), environment::AutotunePolicy::heuristics);
  EXPECT_EQ(store().root(), "");
}

}  // namespace
}  // namespace ejk::testing
