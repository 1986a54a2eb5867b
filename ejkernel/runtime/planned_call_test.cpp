#include "ejkernel/runtime/planned_call.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

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

TEST(PlannedCall, label_names_operation_revision_and_problem) {
  EXPECT_THAT(label_of(some_plan()), ::testing::MatchesRegex("ejkernel.flash_attention@[0-9]+:[0-9a-f]{32}"));
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
}

}  // namespace
}  // namespace ejk::testing
