#include "ejkernel/core/environment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "ejkernel/core/error.h"

namespace ejk::environment {
namespace {

using Pairs = std::map<std::string, std::string>;

Values parsed(const Pairs& pairs) {
  return parse([&](const char* name) {
    const auto found = pairs.find(name);
    return found == pairs.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Pairs& pairs) {
  try {
    parsed(pairs);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

TEST(Environment, an_empty_one_gives_the_defaults_and_so_does_a_variable_set_to_nothing) {
  Pairs nothing;
  for (const auto& variable : variables()) nothing[std::string(variable.name)] = "";
  for (const Values& values : {parsed({}), parsed(nothing)}) {
    EXPECT_EQ(values.platform, std::nullopt);
    EXPECT_EQ(values.log_level, LogLevel::off);
    EXPECT_EQ(values.num_threads, 0);
    EXPECT_FALSE(values.debug.guard);
    EXPECT_FALSE(values.debug.poison);
    EXPECT_EQ(values.autotune_policy, AutotunePolicy::autotune);
    EXPECT_TRUE(values.plugins.empty());
    EXPECT_EQ(values.cache_quota_mb, 2048);
    EXPECT_EQ(values.config_path, std::nullopt);
    EXPECT_FALSE(values.ops_record);
    EXPECT_EQ(values.ops_stamp, OpsStamp::hash);
    EXPECT_EQ(values.ops_prefix, "ejkernel.");
    EXPECT_EQ(values.shared_bytes_limit, std::numeric_limits<int64_t>::max());
    EXPECT_EQ(values.trace_file, "");
  }
}

TEST(Environment, every_variable_reaches_its_field) {
  EXPECT_EQ(parsed({{"EJKERNEL_PLATFORM", "auto"}}).platform, std::nullopt);
  for (int i = 0; i < kNumPlatforms; ++i) {
    const auto platform = static_cast<Platform>(i);
    EXPECT_EQ(parsed({{"EJKERNEL_PLATFORM", std::string(name(platform))}}).platform, platform);
  }
  EXPECT_EQ(parsed({{"EJKERNEL_LOG", "debug"}}).log_level, LogLevel::debug);
  EXPECT_EQ(parsed({{"EJKERNEL_NUM_THREADS", "1"}}).num_threads, 1);
  EXPECT_EQ(parsed({{"EJKERNEL_NUM_THREADS", "4096"}}).num_threads, 4096);
  EXPECT_EQ(parsed({{"EJKERNEL_AUTOTUNE_POLICY", "heuristics"}}).autotune_policy, AutotunePolicy::heuristics);
  EXPECT_EQ(parsed({{"EJKERNEL_AUTOTUNE_POLICY", "autotune"}}).autotune_policy, AutotunePolicy::autotune);
  EXPECT_EQ(parsed({{"EJKERNEL_CACHE_DIR", "/var/cache/ejkernel"}}).cache_dir, "/var/cache/ejkernel");
  EXPECT_EQ(parsed({{"EJKERNEL_CACHE_QUOTA_MB", "0"}}).cache_quota_mb, 0);
  EXPECT_EQ(parsed({{"EJKERNEL_CACHE_QUOTA_MB", "1048576"}}).cache_quota_mb, 1048576);
  EXPECT_EQ(parsed({}).config_path, std::nullopt);
  EXPECT_EQ(parsed({{"EJKERNEL_CONFIG_PATH", "none"}}).config_path, std::vector<std::string>());
  EXPECT_EQ(parsed({{"EJKERNEL_CONFIG_PATH", "/a/tables:/b.ejk"}}).config_path,
            (std::vector<std::string>{"/a/tables", "/b.ejk"}));
  EXPECT_EQ(parsed({{"EJKERNEL_NVRTC", "/a/libnvrtc.so.13"}}).nvrtc, "/a/libnvrtc.so.13");
  const auto record = [](const char* value) { return parsed({{"EJKERNEL_OPS_RECORD", value}}); };
  EXPECT_FALSE(record("0").ops_record);
  EXPECT_TRUE(record("1").ops_record && record("1").ops_record_file.empty());
  EXPECT_TRUE(record("/a/calls").ops_record && record("/a/calls").ops_record_file == "/a/calls");
  for (const OpsStamp stamp : {OpsStamp::none, OpsStamp::hash, OpsStamp::json})
    EXPECT_EQ(parsed({{"EJKERNEL_OPS_STAMP", std::string(name(stamp))}}).ops_stamp, stamp);
  EXPECT_EQ(parsed({{"EJKERNEL_OPS_PREFIX", "ejkernel_ops#"}}).ops_prefix, "ejkernel_ops#");
  EXPECT_EQ(parsed({{"EJKERNEL_TRITON_SMEM_LIMIT", "101376"}}).shared_bytes_limit, 101376);
  EXPECT_EQ(parsed({{"EJKERNEL_TRACE", "/a/trace.json"}}).trace_file, "/a/trace.json");
  EXPECT_EQ(parsed({{"EJKERNEL_PLUGINS", "/a/b.so:/c.so"}}).plugins, (std::vector<std::string>{"/a/b.so", "/c.so"}));
  const auto debug = [](const char* value) { return parsed({{"EJKERNEL_DEBUG", value}}).debug; };
  EXPECT_TRUE(debug("guard").guard && !debug("guard").poison);
  EXPECT_TRUE(debug("poison").poison && !debug("poison").guard);
  EXPECT_TRUE(debug("poison,guard").poison && debug("poison,guard").guard);
  EXPECT_TRUE(parsed({{"EJKERNEL_DEBUG", "sync"}}).sync && !parsed({{"EJKERNEL_DEBUG", "poison"}}).sync);
  EXPECT_TRUE(debug("sync,guard,poison").guard && debug("sync,guard,poison").poison);
}

TEST(Environment, malformed_values_are_refused_by_name) {
  EXPECT_EQ(error_of({{"EJKERNEL_LOG", "loud"}}),
            "environment: EJKERNEL_LOG must be off, error, warning, info or debug, got 'loud'; correct the variable or "
            "unset it");
  const char* const kTooLong = "01234567890123456789012345678901234567890123456789012345678901234";
  const std::pair<const char*, const char*> malformed[] = {
      {"EJKERNEL_PLATFORM", "gpu"},
      {"EJKERNEL_PLATFORM", "CPU"},
      {"EJKERNEL_LOG", "warning "},
      {"EJKERNEL_NUM_THREADS", "0"},
      {"EJKERNEL_NUM_THREADS", "-1"},
      {"EJKERNEL_NUM_THREADS", "4097"},
      {"EJKERNEL_NUM_THREADS", "4 "},
      {"EJKERNEL_NUM_THREADS", "99999999999999999999"},
      {"EJKERNEL_NUM_THREADS", "two"},
      {"EJKERNEL_DEBUG", "guard,"},
      {"EJKERNEL_DEBUG", "synk"},
      {"EJKERNEL_AUTOTUNE_POLICY", "never"},
      {"EJKERNEL_CACHE_DIR", "cache"},
      {"EJKERNEL_NVRTC", "libnvrtc.so.13"},
      {"EJKERNEL_PLUGINS", "plugin.so"},
      {"EJKERNEL_PLUGINS", "/a.so:"},
      {"EJKERNEL_PLUGINS", "/a.so:b.so"},
      {"EJKERNEL_CACHE_QUOTA_MB", "-1"},
      {"EJKERNEL_CACHE_QUOTA_MB", "2G"},
      {"EJKERNEL_CACHE_QUOTA_MB", "1048577"},
      {"EJKERNEL_CONFIG_PATH", "/a::/b"},
      {"EJKERNEL_CONFIG_PATH", "tables"},
      {"EJKERNEL_OPS_RECORD", "calls"},
      {"EJKERNEL_OPS_RECORD", "yes"},
      {"EJKERNEL_OPS_STAMP", "HASH"},
      {"EJKERNEL_OPS_STAMP", "1"},
      {"EJKERNEL_OPS_PREFIX", "a b"},
      {"EJKERNEL_OPS_PREFIX", "\"."},
      {"EJKERNEL_OPS_PREFIX", kTooLong},
      {"EJKERNEL_TRITON_SMEM_LIMIT", "49151"},
      {"EJKERNEL_TRITON_SMEM_LIMIT", "64K"},
  };
  for (const auto& [variable, value] : malformed) {
    const std::string error = error_of({{variable, value}});
    EXPECT_EQ(error.rfind("environment: " + std::string(variable) + " must be ", 0), 0u) << error;
    EXPECT_NE(error.find(", got '" + std::string(value) + "'; correct the variable or unset it"), std::string::npos)
        << error;
  }
}

TEST(Environment, the_table_names_each_variable_once_and_completely) {
  std::set<std::string_view> names;
  for (const auto& variable : variables()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_EQ(variable.name.substr(0, 9), "EJKERNEL_");
    EXPECT_FALSE(variable.type.empty() || variable.default_value.empty() || variable.doc.empty()) << variable.name;
    EXPECT_NE(error_of({{std::string(variable.name), "?"}}), "no InvalidArgument") << "every variable checks its value";
  }
}

TEST(Environment, unknown_names_that_look_like_ours_are_found) {
  const char* const entries[] = {"PATH=/bin",         "EJKERNEL_LOG=off",  "EJKERNEL_LGO=debug", "EJKERNEL_",
                                 "EJKERNEL_NO_VALUE", "MY_EJKERNEL_LOG=1", "EJKERNEL_PLATFORM",  nullptr};
  EXPECT_EQ(unknown_names(entries), (std::vector<std::string>{"EJKERNEL_LGO", "EJKERNEL_", "EJKERNEL_NO_VALUE"}));
  EXPECT_TRUE(unknown_names(nullptr).empty());
}

TEST(Environment, the_process_is_read_once_and_warned_about_unknown_names_once) {
  struct Said {
    std::string unknown;
    int times = 0;
    static void count(LogLevel level, const char* text, void* user) {
      auto* said = static_cast<Said*>(user);
      const std::string expected = "environment: " + said->unknown + " is not a variable that this version reads";
      if (level == LogLevel::warning && std::string(text).rfind(expected, 0) == 0) ++said->times;
    }
  };
  static int repetition = 0;  // a name is warned about once per process, also when this test runs again
  Said said{"EJKERNEL_TEST_UNKNOWN" + std::to_string(++repetition)};
  set_log(Said::count, &said);
  const Values& first = values();
  setenv(said.unknown.c_str(), "1", 1);
  EXPECT_EQ(&values(), &first);
  EXPECT_EQ(said.times, 0);
  reload();
  reload();
  EXPECT_EQ(said.times, 1);
  unsetenv(said.unknown.c_str());
  reload();
  set_log(nullptr, nullptr);
  EXPECT_EQ(said.times, 1);
}

TEST(Environment, a_malformed_variable_is_an_error_of_the_calls_that_ask_and_never_of_the_log) {
  const Values& before = values();
  const int threads = before.num_threads;
  const char* saved = std::getenv("EJKERNEL_NUM_THREADS");
  const std::string restored = saved == nullptr ? "" : saved;
  setenv("EJKERNEL_NUM_THREADS", "many", 1);
  EXPECT_THROW(reload(), InvalidArgument);
  EXPECT_EQ(num_threads(), threads);  // the last good one stays
  log(LogLevel::error, "still silent, still alive");
  setenv("EJKERNEL_NUM_THREADS", restored.c_str(), 1);
  reload();
}

// In a process of its own: the allocator asks the environment once, at its first block.
TEST(EnvironmentDeathTest, debug_variable_reaches_the_allocator) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto write_past_the_end = [] {
    setenv("EJKERNEL_DEBUG", "guard,poison", 1);
    reload();  // listing the tests asks the registry for kernels, and with it the environment for plug-ins
    auto* block = static_cast<unsigned char*>(allocate_host(10));
    if (std::count(block, block + 10, 0xff) == 10) block[10] = 0;
    free_host(block);
  };
  EXPECT_DEATH(write_past_the_end(), "a write past the 10 bytes");
}

}  // namespace
}  // namespace ejk::environment
