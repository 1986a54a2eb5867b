#include "ejkernel/runtime/planned_call.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "ejkernel/core/environment.h"
#include "ejkernel/core/error.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/runtime/api.h"

namespace ejk::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Plan some_plan() {
  const Tensor query(nullptr, DType::f32, {2, 8, 4, 16}), key(nullptr, DType::f32, {2, 12, 2, 16});
  return plan<FlashAttention>({.query = query, .key = key, .value = key},
                              {.softmax_scale = 0.5, .causal = true, .sliding_window = Window{4, 0}},
                              {.platform = Platform::cpu, .config = ConfigValues{{"block_q", 32}, {"block_k", 64}}});
}

TEST(PlannedCall, comes_back_as_the_same_plan) {
  const Plan plan = some_plan();
  const PlannedCall planned = planned_call_from_json(planned_call_json(plan));
  EXPECT_EQ(planned.label, label_of(plan));
  const Plan back = plan_of(planned);
  EXPECT_EQ(planned_call_json(back), planned_call_json(plan));
  EXPECT_EQ(back.kernel().name, "cpu");
  EXPECT_EQ(config_values(back.kernel(), back.choice().config), config_values(plan.kernel(), plan.choice().config));
  EXPECT_EQ(back.workspace_bytes(), plan.workspace_bytes());
}

TEST(PlannedCall, a_platform_of_the_environment_is_for_calls_that_name_none) {
  const std::string text = planned_call_json(some_plan());
  ::setenv("EJKERNEL_PLATFORM", "reference", 1);
  environment::reload();
  EXPECT_EQ(plan_of(planned_call_from_json(text)).kernel().name, "cpu");
  ::unsetenv("EJKERNEL_PLATFORM");
  environment::reload();
}

TEST(PlannedCall, label_names_operation_revision_and_problem) {
  EXPECT_THAT(label_of(some_plan()), ::testing::MatchesRegex("ejkernel.flash_attention@[0-9]+:[0-9a-f]{32}"));
}

TEST(PlannedCall, label_begins_as_the_environment_says) {
  const std::string usual = label_of(some_plan());
  ::setenv("EJKERNEL_OPS_PREFIX", "ejkernel_ops#", 1);
  environment::reload();
  const std::string label = label_of(some_plan());
  EXPECT_EQ(label, "ejkernel_ops#" + usual.substr(std::string("ejkernel.").size()));
  EXPECT_EQ(planned_call_from_json(planned_call_json(some_plan())).label, label);
  ::unsetenv("EJKERNEL_OPS_PREFIX");
  environment::reload();
}

/// The text with this EJKERNEL_OPS_STAMP.
nlohmann::json written_with(const char* stamp) {
  ::setenv("EJKERNEL_OPS_STAMP", stamp, 1);
  environment::reload();
  const auto json = nlohmann::json::parse(planned_call_json(some_plan()));
  ::unsetenv("EJKERNEL_OPS_STAMP");
  environment::reload();
  return json;
}

TEST(PlannedCall, says_as_much_of_its_problem_as_the_environment_asks_for) {
  const auto none = written_with("none"), hash = written_with("hash"), json = written_with("json");
  EXPECT_FALSE(none.contains("label") || none.contains("problem") || hash.contains("problem"));
  EXPECT_EQ(hash["label"], label_of(some_plan()));
  EXPECT_EQ(json["label"], hash["label"]);
  EXPECT_THAT(json["problem"].get<std::string>(), HasSubstr("flash_attention@1 batched query:f32"));
  for (const auto& written : {none, hash, json}) {
    const PlannedCall planned = planned_call_from_json(written.dump());
    EXPECT_EQ(planned.label, written.value("label", ""));
    EXPECT_EQ(planned_call_json(plan_of(planned)), planned_call_json(some_plan()));
  }
}

TEST(PlannedCall, says_whether_the_status_word_is_wanted) {
  auto json = nlohmann::json::parse(planned_call_json(some_plan()));
  EXPECT_FALSE(planned_call_from_json(json.dump()).status);
  json["status"] = true;
  EXPECT_TRUE(planned_call_from_json(json.dump()).status);
}

TEST(PlannedCall, refuses_what_it_cannot_run) {
  const auto written = nlohmann::json::parse(planned_call_json(some_plan()));
  const auto read = [](const nlohmann::json& json) { return plan_of(planned_call_from_json(json.dump())); };
  EXPECT_THAT([&] { planned_call_from_json("nonsense"); }, ThrowsMessage<InvalidArgument>(HasSubstr("version")));
  auto changed = written;
  changed["version"] = 2;
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("its version must be 1, got 2")));
  changed = written;
  changed.erase("config");
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("config must be there")));
  changed = written;
  changed["config"]["block_q"] = 17;
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("block_q")));
  changed = written;
  changed["call"]["kernel"] = "gone";
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<Unsupported>(HasSubstr("gone")));
  changed = written;
  changed["call"]["inputs"][1]["shape"] = {2, 12, 2, 8};
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("head_dim")));
  changed = written;
  changed["label"] = 7;
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("label must be a text, got 7")));
  changed = written;
  changed["outputs"] = {"out", "no_such"};
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("no_such")));
  changed = written;
  changed["status"] = 1;
  EXPECT_THAT([&] { read(changed); }, ThrowsMessage<InvalidArgument>(HasSubstr("status must be true or false, got 1")));
  const std::string deep(100000, '[');
  EXPECT_THAT([&] { planned_call_from_json(R"({"version":)" + deep + "1" + std::string(100000, ']') + "}"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("as small and flat as the library writes it")));
  EXPECT_THAT([&] { planned_call_from_json(std::string(2 << 20, ' ')); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got 2097152 bytes")));
}

}  // namespace
}  // namespace ejk::testing
