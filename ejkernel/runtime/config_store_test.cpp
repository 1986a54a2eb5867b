// Which stored configs are near a problem, whose they are, and how they came about.
#include "ejkernel/runtime/config_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ejkernel/core/store_archive.h"
#include "ejkernel/core/version.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/runtime/plan.h"
#include "ejkernel/testing/temporary_folder.h"

namespace ejk::testing {
namespace {

class NearConfigs : public ::testing::Test {
 protected:
  NearConfigs() { use_store(folder_.path().string()); }
  ~NearConfigs() override { use_store(""); }

  static RecordKey key(const std::string& problem, const std::string& device = "cpu|a processor|x86_64|4") {
    return {.environment = device, .group = "toy", .text = "config of cpu@1 for toy@1 " + problem + " (0123)"};
  }
  static void put(const RecordKey& at, int64_t tile) { ASSERT_TRUE(put_stored_config(at, {{"tile", tile}}, {})); }
  /// The tile of the nearest; -1: none is near.
  static int64_t near(const RecordKey& to) {
    const auto found = find_near_config(to);
    return found ? found->values.at(0).second : -1;
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(NearConfigs, differ_in_lengths_alone_and_the_nearest_answers) {
  const RecordKey wanted = key("x:f32 batch=2 q_len<=1024 head_dim=64 causal=true");
  EXPECT_EQ(near(wanted), -1) << "the store is empty";
  put(key("x:f32 batch=2 q_len<=1024 head_dim=128 causal=true"), 1);
  put(key("x:f32 batch=2 q_len<=1024 head_dim=64"), 2);
  put(key("x:bf16 batch=2 q_len<=1024 head_dim=64 causal=true"), 3);
  EXPECT_EQ(near(wanted), -1) << "what is no length must be equal";
  put(key("x:f32 batch=2 q_len<=16384 head_dim=64 causal=true"), 4);
  EXPECT_EQ(near(wanted), 4) << "a factor of 16";
  put(key("x:f32 batch=1 q_len<=2048 head_dim=64 causal=true"), 5);
  EXPECT_EQ(near(wanted), 5) << "two factors of 2";
  put(key("x:f32 batch=2 q_len<=768 head_dim=64 causal=true"), 6);
  EXPECT_EQ(near(wanted), 6);
  EXPECT_EQ(find_near_config(wanted)->problem, "toy@1 x:f32 batch=2 q_len<=768 head_dim=64 causal=true");
  put(wanted, 7);
  EXPECT_EQ(near(wanted), 6) << "its own is not near, it is the answer";
}

TEST_F(NearConfigs, too_far_is_not_near) {
  put(key("x:f32 batch=2 q_len<=32768"), 1);
  EXPECT_EQ(near(key("x:f32 batch=2 q_len<=1024")), -1);
  EXPECT_EQ(near(key("x:f32 batch=1 q_len<=2048")), -1) << "factors multiply";
  EXPECT_EQ(near(key("x:f32 batch=1 q_len<=4096")), 1);
}

TEST_F(NearConfigs, of_another_device_of_the_architecture_count_like_a_factor_of_two) {
  const std::string problem = "x:f32 batch=2 q_len<=1024";
  put(key(problem, "cuda|a GPU|sm_90|132"), 1);
  put(key(problem, "cpu|a processor|aarch64|4"), 2);
  EXPECT_EQ(near(key(problem)), -1);
  put(key(problem, "cpu|another one|x86_64|64"), 3);
  EXPECT_EQ(near(key(problem)), 3);
  put(key("x:f32 batch=2 q_len<=1536"), 4);
  EXPECT_EQ(near(key(problem)), 4);
}

TEST_F(NearConfigs, of_another_kernel_or_operation_and_those_that_cannot_be_read_are_none) {
  RecordKey other = key("x:f32 batch=2");
  other.group = "other";
  put(other, 1);
  other = key("x:f32 batch=2");
  other.text = "config of cpu@2 for toy@1 x:f32 batch=2 (0123)";
  put(other, 2);
  ASSERT_TRUE(put_stored_config(key("x:f32 batch=1"), {}, {}));  // nothing beats the heuristic's
  ASSERT_TRUE(store().put(key("x:f32 batch=4"), {.value = "no json", .provenance = ""}));
  ASSERT_TRUE(store().put({.environment = other.environment, .group = "toy", .text = ""},
                          {.value = "{\"tile\":1}", .provenance = ""}));
  EXPECT_EQ(near(key("x:f32 batch=2")), -1);
}

TEST_F(NearConfigs, are_looked_for_in_the_read_only_places_too) {
  const TemporaryFolder elsewhere;
  const std::string archive = elsewhere / "table.ejk", folder = elsewhere / "store", own = store().root();
  ArchiveBuilder table;
  table.add(key("x:f32 batch=8"), {.value = R"({"tile":1})", .provenance = ""});
  table.add({.environment = "cpu|a processor|x86_64|4", .group = "other", .text = key("x:f32 batch=4").text},
            {.value = R"({"tile":2})", .provenance = ""});
  ASSERT_TRUE(table.write(archive));
  const RecordKey wanted = key("x:f32 batch=2");
  use_store("", {.read_only = {archive}});
  EXPECT_EQ(near(wanted), 1);
  ASSERT_TRUE(Store(folder).put(key("x:f32 batch=4"), {.value = R"({"tile":3})", .provenance = ""}));
  use_store(own, {.read_only = {archive, folder}});
  EXPECT_EQ(near(wanted), 3);
  put(key("x:f32 batch=1"), 4);
  EXPECT_EQ(near(wanted), 4) << "of two as near as each other the store's own";
}

class StoredConfigs : public NearConfigs {
 protected:
  /// A call of flash_attention that a CPU kernel answers, by heuristics.
  static Plan attention() {
    const Tensor q(nullptr, DType::f32, {1, 8, 2, 16});
    return plan<FlashAttention>({.query = q, .key = q, .value = q}, {},
                                {.kernel = "cpu", .policy = Policy{.autotune = false}});
  }
};

TEST_F(StoredConfigs, of_a_checked_build_and_of_an_optimised_one_are_not_each_others) {
  const Plan made = attention();
  const RecordKey ours = config_record_key(made.request(), made.kernel());
  const std::string mark = ", a checked build,";
  RecordKey theirs = ours;
  if (const size_t at = ours.text.find(mark); at != std::string::npos)
    theirs.text.erase(at, mark.size());
  else
    theirs.text.insert(ours.text.find(" for "), mark);
  EXPECT_TRUE(is_of_this_build(ours));
  EXPECT_FALSE(is_of_this_build(theirs));
  const ConfigValues heuristic = config_values(made.kernel(), made.choice().config);
  ASSERT_TRUE(put_stored_config(theirs, heuristic, {}));
  clear_memory_configs();
  EXPECT_EQ(attention().choice().tier, Tier::heuristics);
  ASSERT_TRUE(put_stored_config(ours, heuristic, {}));
  clear_memory_configs();
  EXPECT_EQ(attention().choice().tier, Tier::store);
  clear_memory_configs();
}

TEST_F(StoredConfigs, say_how_they_came_about) {
  const RecordKey at = key("x:f32 batch=2");
  ASSERT_TRUE(put_stored_config(
      at, {{"tile", 1}}, {.seconds = 2e-6, .heuristic_seconds = 4e-6, .transferred_from = "toy@1 x:f32 batch=4"}));
  auto provenance = nlohmann::json::parse(store().find(at)->provenance);
  EXPECT_EQ(provenance["library"], kVersion);
  EXPECT_EQ(provenance["compiler"], kCompiler);
  EXPECT_EQ(provenance["transferred_from"], "toy@1 x:f32 batch=4");
  EXPECT_FALSE(provenance.contains("driver")) << "of a CPU's";
  const std::string when = provenance["when"], took = ": 2 us, 0.500 of the heuristic's time";
  EXPECT_EQ(find_stored_config(at)->how, "tuned " + when + took);
  provenance["imported"] = "2026-11-24T00:00:00Z";
  ASSERT_TRUE(store().put(at, {.value = R"({"tile":1})", .provenance = provenance.dump()}));
  EXPECT_EQ(find_stored_config(at)->how, "tuned " + when + ", imported 2026-11-24T00:00:00Z" + took);
  ASSERT_TRUE(put_stored_config(key("x:f32 batch=2", "cuda|a GPU|sm_90|132"), {{"tile", 1}}, {}));
  provenance = nlohmann::json::parse(store().find(key("x:f32 batch=2", "cuda|a GPU|sm_90|132"))->provenance);
  EXPECT_TRUE(provenance.contains("driver") && provenance.contains("nvrtc"));
  EXPECT_FALSE(provenance.contains("transferred_from"));
}

}  // namespace
}  // namespace ejk::testing
