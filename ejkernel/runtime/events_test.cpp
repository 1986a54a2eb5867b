// What is told of while calls are planned, tuned, compiled and launched.
#include "ejkernel/core/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ejkernel/core/error.h"
#include "ejkernel/core/store.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/runtime/devices.h"
#include "ejkernel/runtime/explain.h"
#include "ejkernel/runtime/tuner.h"
#include "ejkernel/testing/fake_cuda.h"
#include "ejkernel/testing/temporary_folder.h"
#include "ejkernel/testing/toy_tunable.h"

namespace ejk::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;
using ::testing::StartsWith;

class EventsOfCalls : public ::testing::Test {
 protected:
  EventsOfCalls() {
    set_event_sink(
        [](const Event& event, void* self) {
          auto& told = static_cast<EventsOfCalls*>(self)->told[static_cast<size_t>(event.kind)];
          const std::string_view operation = event.operation.empty() ? "-" : event.operation;
          told.push_back(std::string(operation) + " " + std::string(event.kernel) + ": " + std::string(event.text));
        },
        this);
  }
  ~EventsOfCalls() override { set_event_sink(nullptr, nullptr); }

  /// Those of a kind since it was last asked for them.
  std::vector<std::string> take(EventKind kind) { return std::exchange(told[static_cast<size_t>(kind)], {}); }

  std::array<std::vector<std::string>, kNumEventKinds> told;
};

/// With a kernel that has configs.
class EventsOfTuning : public EventsOfCalls {
 protected:
  EventsOfTuning() {
    use_store(folder_.path().string());
    ToyTunable::by_default = {.delay = 4};
    ToyTunable::offered = {{.delay = 0}, {.delay = 0, .deed = static_cast<int>(Deed::throws)}};
    KernelRegistry::instance().add("toy", make_kernel<Toy, ToyTunable>(), 10000);
  }
  ~EventsOfTuning() override {
    clear_memory_configs();
    use_store("");
  }
  static PlanFor<Toy> planned(Policy policy, std::optional<ConfigValues> config = {}) {
    PlanOptions options;
    options.policy = policy;
    options.config = std::move(config);
    return plan<Toy>({.x = Tensor(nullptr, DType::f32, {8, 4})}, {}, options);
  }

 private:
  const TemporaryFolder folder_;
  KernelRegistry::Batch batch_{(register_toys(), KernelRegistry::instance())};
};

TEST_F(EventsOfTuning, name_the_tier_of_each_choice_once) {
  planned({.autotune = false});
  planned({.autotune = false});
  EXPECT_THAT(take(EventKind::choice), ElementsAre("toy tunable: tier heuristics: delay=4 deed=0"))
      << "the second comes out of the cache";
  planned({.autotune = false}, ConfigValues{{"delay", 1}});
  EXPECT_THAT(take(EventKind::choice), ElementsAre("toy tunable: tier override: delay=1 deed=0"));
  EXPECT_THROW(planned({.autotune = false, .heuristics = false}), Unsupported);
  EXPECT_THAT(take(EventKind::choice), ElementsAre("toy tunable: tier error: no config"));
  const std::array inputs = {Tensor(nullptr, DType::f32, {16, 4}), Tensor()};
  explain("toy", inputs, ParamsBlock::of(Toy::Params{}));
  EXPECT_THAT(take(EventKind::choice), IsEmpty()) << "to explain is not to choose";
}

TEST_F(EventsOfTuning, tell_of_every_candidate_and_of_what_came_out) {
  tune(planned({.autotune = false}), {.budget_seconds = 20});
  const std::vector<std::string> told = take(EventKind::tuning);
  EXPECT_THAT(told, IsSupersetOf({HasSubstr("delay=0 deed=4 is rejected: it failed: the kernel gave up"),
                                  HasSubstr("delay=4 deed=0 takes "), HasSubstr("delay=0 deed=0 takes ")}));
  EXPECT_THAT(told.back(), StartsWith("toy tunable: tuned in "));
  EXPECT_GE(num_events(EventKind::tuning), static_cast<int64_t>(told.size()));
}

TEST_F(EventsOfCalls, tell_of_compilations_and_of_launches_that_fail) {
  FakeCuda fake;
  const Array x = to_device(Array::zeros(DType::f32, {1, 8, 16}), {DeviceKind::cuda, 0});
  mean_pooling({.x = x}, {});
  EXPECT_THAT(take(EventKind::compile), SizeIs(::testing::Gt(0)));
  EXPECT_THAT(take(EventKind::launch_failure), IsEmpty());
  fake.restart();
  mean_pooling({.x = x}, {});
  for (const std::string& text : take(EventKind::compile)) EXPECT_THAT(text, HasSubstr("found in the store"));

  std::string failed;
  for (int64_t k = 1; failed != "cuLaunchKernel" && k < 100; ++k) {
    fake.fail_call(k, 1);
    try {
      mean_pooling({.x = x}, {});
    } catch (const Error&) {
    }
    failed = fake.failed_call();
  }
  const std::vector<std::string> told = take(EventKind::launch_failure);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_THAT(told.front(), StartsWith("- ejk::cuda::mean_pooling"));
  EXPECT_THAT(told.front(), HasSubstr("cuLaunchKernel answered 1"));
}

}  // namespace
}  // namespace ejk::testing
